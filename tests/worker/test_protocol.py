"""The channel between a driver and a worker."""

from __future__ import annotations

import socket

from paceline.worker.protocol import AnyMessage, Best, Channel, Done, Report


def test_last_words_are_read_even_where_somebody_spoke_to_the_dead() -> None:
    ours, theirs = (Channel(end) for end in socket.socketpair())
    theirs.send(Report(epoch=9, metrics={"loss": 0.5}, seconds=1.0))
    theirs.send(Done())
    theirs.close()
    for _ in range(3):
        ours.send(Best(loss=0.1))
    heard: list[AnyMessage] = []
    while not ours.closed:
        heard += ours.arrived()
    ours.close()
    assert [type(message) for message in heard] == [Report, Done]


def test_a_message_may_come_in_pieces() -> None:
    near, far = socket.socketpair()
    ours = Channel(far)
    other_near, other_far = socket.socketpair()
    Channel(other_near).send(Report(epoch=3, metrics={"loss": 0.25}, seconds=2.0))
    body = other_far.recv(1 << 16)
    heard: list[AnyMessage] = []
    for byte in body:
        near.sendall(bytes([byte]))
        heard += ours.arrived()
    (message,) = heard
    assert message == Report(epoch=3, metrics={"loss": 0.25}, seconds=2.0)
    for end in (near, far, other_near, other_far):
        end.close()
