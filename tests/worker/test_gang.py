"""The links of a gang, over sockets in this process."""

from __future__ import annotations

import socket
from itertools import combinations

from paceline.worker.gang import GangLinks, derive_seed
from paceline.worker.protocol import Channel, MeetingAddress


def test_each_meeting_has_a_port_of_its_own_that_a_server_can_open() -> None:
    near, far = (Channel(end) for end in socket.socketpair())
    gang = GangLinks([near])
    addresses = [gang.send_address(), gang.send_address()]
    sent = [far.receive(wait=True), far.receive(wait=True)]
    assert sent == [MeetingAddress(address=address) for address in addresses]
    host, port = addresses[-1].split(":")
    with socket.create_server((host, int(port))):
        assert host == "127.0.0.1"
    near.close()
    far.close()


def test_the_address_is_the_one_by_which_a_follower_reaches_the_leader() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        follower = socket.create_connection(server.getsockname())
        leader, _ = server.accept()
    assert Channel(leader).host == "127.0.0.1"
    host, _ = GangLinks([Channel(leader)]).send_address().rsplit(":", 1)
    assert host == "127.0.0.1"
    leader.close()
    follower.close()


def test_seeds_differ_by_process_and_by_epoch_and_come_again() -> None:
    seeds = [derive_seed(3, rank, epoch) for rank in range(3) for epoch in range(3)]
    assert all(one != other for one, other in combinations(seeds, 2))
    assert seeds == [derive_seed(3, rank, epoch) for rank in range(3) for epoch in range(3)]


def test_a_trial_of_one_process_waits_for_no_other() -> None:
    alone = GangLinks()
    alone.lead({"lr": 0.1})
    alone.release()
    assert alone.gather(type("Never", (), {})) is None
