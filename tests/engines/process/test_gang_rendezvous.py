"""How the processes of a wide trial meet: at an address that they agree upon by their ties."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest
from process_engines import wait_for_exit, widen

from paceline.core import events as e
from paceline.testing.engine_driver import FAR, EngineDriver
from paceline.worker.gang import GangLinks
from paceline.worker.protocol import AskAddress, Channel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def place_of(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def greeting(trial: Any) -> float:  # noqa: ANN401
    """Meet; return how many came, and in the others what the first has told them: the port."""
    host, port = place_of(trial.meeting())
    if trial.rank:
        # The server may not be open yet: a library would wait for it.
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


def test_the_first_process_opens_what_the_others_reach(driven: Callable[..., EngineDriver]) -> None:
    def meets(trial: Any) -> None:  # noqa: ANN401
        told = greeting(trial)
        for _ in trial.epochs():
            trial.report(loss=1.0, port=told)

    driver = driven(meets, {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=2)))
    assert driver.wait_for_end(0).cause is e.Cause.GOAL, driver.list_events(e.Ended)


def test_they_may_meet_again_in_every_epoch_and_in_every_attempt(
    driven: Callable[..., EngineDriver],
) -> None:
    def meets(trial: Any) -> None:  # noqa: ANN401
        trial.keep(nothing=0)
        for _ in trial.epochs():
            trial.report(loss=1.0, port=greeting(trial), size=trial.size)

    driver = driven(meets, {"a": 1})
    driver.apply(widen(driver.make_launch(0, goal=3)))
    driver.wait_for_end(0)
    # A trial of one process waits for no other, and gets an address, too.
    driver.apply(driver.make_launch(1, start=3, source=0, goal=4))
    driver.wait_for_end(1)
    driver.apply(widen(driver.make_launch(2, start=4, source=1, goal=5)))
    driver.wait_for_end(2)
    assert {event.cause for event in driver.list_events(e.Ended)} == {e.Cause.GOAL}
    assert [event.metrics["size"] for event in driver.list_events(e.Reported)] == [2, 2, 2, 1, 2]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_exits_before_the_meeting_does_not_block_the_others(
    driven: Callable[..., EngineDriver], tmp_path: Path, rank: int
) -> None:
    def mortal(trial: Any) -> None:  # noqa: ANN401
        (tmp_path / f"{os.getpid()}").touch()
        if trial.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        trial.meeting()
        raise AssertionError("they met")

    driver = driven(mortal, {"a": 1}, grace_s=30.0)
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    ended = driver.wait_for_end(0)
    assert ended.cause is e.Cause.FAILED
    assert ended.note.startswith(f"process {rank} of its 2 was ended by SIGKILL")
    wait_for_exit({int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()})


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trial_fails_if_one_process_meets_and_the_other_reports(
    driven: Callable[..., EngineDriver], rank: int
) -> None:
    def uneven(trial: Any) -> None:  # noqa: ANN401
        for _ in trial.epochs():
            if trial.rank == rank:
                trial.meeting()
            trial.report(loss=1.0)

    driver = driven(uneven, {"a": 1}, grace_s=30.0)
    driver.apply(widen(driver.make_launch(0, goal=FAR)))
    ended = driver.wait_for_end(0)
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


def share_address(*pairs: tuple[socket.socket, socket.socket]) -> list[str]:
    """Return the addresses that the leader and each follower get over these links."""
    leader = GangLinks([Channel(here) for here, _ in pairs])
    others = [Channel(there) for _, there in pairs]
    for other in others:
        other.send(AskAddress())
    assert leader.gather(AskAddress) is None
    addresses = [leader.send_address()]
    for other in others:
        message: Any = other.receive(wait=True)
        addresses.append(message.address)
    for end in (end for pair in pairs for end in pair):
        end.close()
    return addresses


def test_all_meet_where_the_farthest_of_them_reaches_the_first() -> None:
    far = linked("127.0.0.2", socket.AF_INET)
    addresses = share_address(socket.socketpair(), far, socket.socketpair())
    assert len(set(addresses)) == 1
    assert addresses[0].startswith("127.0.0.2:")
    assert share_address(socket.socketpair())[0].startswith("127.0.0.1:")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_the_longer_kind_is_written_as_in_a_url() -> None:
    (sent, received) = share_address(linked("::1", socket.AF_INET6))
    assert sent == received
    assert sent.startswith("[::1]:")


def test_the_port_is_reserved_until_a_server_opens_it() -> None:
    ties = GangLinks()
    _, port = place_of(ties.send_address())
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    with socket.create_server(("127.0.0.1", port)) as server:
        assert server.getsockname()[1] == port
