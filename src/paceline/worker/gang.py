"""What ties the processes of a wide trial together, so that all of them train the same epochs.

Knows the links between process 0, which leads, and the others, which follow. The driver speaks to
the leader alone; the leader passes on what every process must know before it begins an epoch, or
one would wait for the others in an exchange of gradients that never comes. It also says where they
meet, so that they need nothing in common but these links. A trial of one process has none, and pays
nothing.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

from paceline.core.errors import TrialError
from paceline.core.rng import stream
from paceline.worker.protocol import Meet, Onward, Reached, Release, Seek

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Config
    from paceline.worker.protocol import Channel

_LOOPBACK = "127.0.0.1"


class Ties:
    """One process's links: the leader's to everybody, a follower's to the leader."""

    def __init__(self, links: Sequence[Channel] = ()) -> None:
        self._links = links
        # What holds the port at which they meet, until they meet anew or this process ends.
        self._held: int | None = None

    def gather(self, expected: type[Reached | Seek]) -> int | None:
        """Wait until everybody has come so far too; return the rank of one who never will."""
        for rank, link in enumerate(self._links, 1):
            message = link.receive(wait=True)
            if message is None:
                return rank
            if not isinstance(message, expected):
                raise TrialError(
                    f"processes 0 and {rank} are not at the same point: one calls trial.meeting() "
                    "and the other reports. Let every process do the same."
                )
        return None

    def invite(self) -> str:
        """Tell everybody where to meet this process, and return it."""
        host = next((link.host for link in self._links if link.host), _LOOPBACK)
        if self._held is not None:
            os.close(self._held)
        self._held, port = _held_port()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for link in self._links:
            link.send(Meet(address=address))
        return address

    def invited(self) -> str | None:
        """Ask the leader where to meet; None: it is gone."""
        self._links[0].send(Seek())
        message = self._links[0].receive(wait=True)
        return message.address if isinstance(message, Meet) else None

    def lead(self, config: Config) -> None:
        """Let everybody begin the next epoch, by this config."""
        for link in self._links:
            link.send(Onward(config=config))

    def release(self) -> None:
        """Let everybody unwind where the leader does: at the end of this epoch."""
        for link in self._links:
            link.send(Release())

    def follow(self) -> Config | None:
        """Tell the leader that this epoch is done; return the next one's config, None: no next."""
        self._links[0].send(Reached())
        message = self._links[0].receive(wait=True)
        return message.config if isinstance(message, Onward) else None


def _held_port() -> tuple[int | None, int]:
    """Return a free port and a socket that holds it: nobody is given it who does not ask for it.

    It does not listen, so that a server which may reuse addresses, as all but very few do, opens it
    all the same. One that was found free and is not held may be somebody's a moment later.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        port: int = held.getsockname()[1]
        # Elsewhere nobody could open what is held.
        return held.detach() if sys.platform == "linux" else None, port


def seed_of(seed: int, rank: int, epoch: int) -> int:
    """Return what a process of a wide trial sets its generators to before an epoch.

    Only the leader saves, so that states of the others would be lost: drawn anew for each epoch
    they are the same after a pause, and differ between processes, as dropout should.
    """
    return int(stream(seed, "rank", rank, epoch).random() * 2**53)
