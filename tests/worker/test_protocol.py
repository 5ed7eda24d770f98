"""The channel between a driver and a worker."""

from __future__ import annotations

import socket

from paceline.worker.protocol import AnyMessage, BestLoss, Channel, EpochReport, FunctionReturned


def test_messages_before_the_exit_are_read_after_a_send_to_the_closed_side() -> None:
    ours, theirs = (Channel(end) for end in socket.socketpair())
    theirs.send(EpochReport(epoch=9, metrics={"loss": 0.5}, seconds=1.0))
    theirs.send(FunctionReturned())
    theirs.close()
    for _ in range(3):
        ours.send(BestLoss(loss=0.1))
    messages: list[AnyMessage] = []
    while not ours.closed:
        messages += ours.read_messages()
    ours.close()
    assert [type(message) for message in messages] == [EpochReport, FunctionReturned]


def test_a_message_may_come_in_pieces() -> None:
    near, far = socket.socketpair()
    ours = Channel(far)
    other_near, other_far = socket.socketpair()
    Channel(other_near).send(EpochReport(epoch=3, metrics={"loss": 0.25}, seconds=2.0))
    body = other_far.recv(1 << 16)
    messages: list[AnyMessage] = []
    for byte in body:
        near.sendall(bytes([byte]))
        messages += ours.read_messages()
    (message,) = messages
    assert message == EpochReport(epoch=3, metrics={"loss": 0.25}, seconds=2.0)
    for end in (near, far, other_near, other_far):
        end.close()
