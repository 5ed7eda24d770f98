"""How the processes of a wide trial meet: at an address that they agree upon by their ties."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest
from test_gangs import driven, wide
from test_local_engine import gone

from paceline.core import events as e
from paceline.testing.engine_driver import FAR, Hand
from paceline.worker.gang import Ties
from paceline.worker.protocol import Channel, Seek

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["driven"]


def place_of(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def greeting(trial: Any) -> float:  # noqa: ANN401
    """Meet; return how many came, and in the others what the first has told them: the port."""
    host, port = place_of(trial.meeting())
    if trial.rank:
        # The server may not be open yet: whoever meets by a library has it wait for that.
        while True:
            try:
                with socket.create_connection((host, port)) as link:
                    return float(link.recv(5))
            except ConnectionRefusedError:
                continue
    with socket.create_server((host, port)) as server:
        for _ in range(1, trial.size):
            link, _ = server.accept()
            with link:
                link.sendall(f"{port:5}".encode())
    return float(port)


def test_the_first_process_opens_what_the_others_reach(driven: Callable[..., Hand]) -> None:
    def meets(trial: Any) -> None:  # noqa: ANN401
        told = greeting(trial)
        for _ in trial.epochs():
            trial.report(loss=1.0, port=told)

    hand = driven(meets, {"a": 1})
    hand.give(wide(hand.launch(0, goal=2)))
    assert hand.until_ended(0).cause is e.Cause.GOAL, hand.of(e.Ended)


def test_they_may_meet_again_in_every_epoch_and_in_every_attempt(
    driven: Callable[..., Hand],
) -> None:
    def meets(trial: Any) -> None:  # noqa: ANN401
        trial.keep(nothing=0)
        for _ in trial.epochs():
            trial.report(loss=1.0, port=greeting(trial), size=trial.size)

    hand = driven(meets, {"a": 1})
    hand.give(wide(hand.launch(0, goal=3)))
    hand.until_ended(0)
    # Alone there is nobody to wait for, and the address is as good.
    hand.give(hand.launch(1, start=3, source=0, goal=4))
    hand.until_ended(1)
    hand.give(wide(hand.launch(2, start=4, source=1, goal=5)))
    hand.until_ended(2)
    assert {event.cause for event in hand.of(e.Ended)} == {e.Cause.GOAL}
    assert [event.metrics["size"] for event in hand.of(e.Reported)] == [2, 2, 2, 1, 2]


@pytest.mark.parametrize("rank", [0, 1])
def test_whoever_dies_before_they_meet_the_others_do_not_wait_for_it(
    driven: Callable[..., Hand], tmp_path: Path, rank: int
) -> None:
    def mortal(trial: Any) -> None:  # noqa: ANN401
        (tmp_path / f"{os.getpid()}").touch()
        if trial.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        trial.meeting()
        raise AssertionError("they met")

    hand = driven(mortal, {"a": 1}, grace_s=30.0)
    hand.give(wide(hand.launch(0, goal=FAR)))
    ended = hand.until_ended(0)
    assert ended.cause is e.Cause.FAILED
    assert ended.note.startswith(f"process {rank} of its 2 was ended by SIGKILL")
    assert gone({int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()})


@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_meets_and_the_other_reports_the_trial_fails_with_a_word(
    driven: Callable[..., Hand], rank: int
) -> None:
    def uneven(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            if trial.rank == rank:
                trial.meeting()
            trial.report(loss=1.0)

    hand = driven(uneven, {"a": 1}, grace_s=30.0)
    hand.give(wide(hand.launch(0, goal=FAR)))
    ended = hand.until_ended(0)
    assert ended.cause is e.Cause.FAILED
    assert "processes 0 and 1 are not at the same point" in ended.note
    assert "Let every process do the same." in ended.note


def linked(host: str, family: int) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a link between two machines."""
    with socket.create_server((host, 0), family=family) as door:
        there = socket.socket(family)
        there.connect(door.getsockname())
        here, _ = door.accept()
    return here, there


def invited(*pairs: tuple[socket.socket, socket.socket]) -> list[str]:
    """Return what the leader with these links says, and what each of the others hears."""
    leader = Ties([Channel(here) for here, _ in pairs])
    others = [Channel(there) for _, there in pairs]
    for other in others:
        other.send(Seek())
    assert leader.gather(Seek) is None
    said = [leader.invite()]
    for other in others:
        message: Any = other.receive(wait=True)
        said.append(message.address)
    for end in (end for pair in pairs for end in pair):
        end.close()
    return said


def test_all_meet_where_the_farthest_of_them_reaches_the_first() -> None:
    far = linked("127.0.0.2", socket.AF_INET)
    said = invited(socket.socketpair(), far, socket.socketpair())
    assert len(set(said)) == 1
    assert said[0].startswith("127.0.0.2:")
    assert invited(socket.socketpair())[0].startswith("127.0.0.1:")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_the_longer_kind_is_written_as_in_a_url() -> None:
    (said, heard) = invited(linked("::1", socket.AF_INET6))
    assert said == heard
    assert said.startswith("[::1]:")


def test_the_port_is_nobody_elses_until_it_is_opened() -> None:
    ties = Ties()
    _, port = place_of(ties.invite())
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port
