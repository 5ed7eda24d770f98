"""The links between the processes of a wide trial, which keep them in the same epoch.

Process 0 leads, the others follow. The driver sends its messages to the leader alone; the leader
passes on what every process must know before an epoch begins, or one would wait for ever in an
exchange of gradients. The leader also gives the address at which the processes meet. A trial of one
process has no links and no overhead.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

from paceline.core.errors import TrialError
from paceline.core.rng import stream
from paceline.worker.protocol import AskAddress, EpochTrained, MeetingAddress, NextEpoch, Release

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Config
    from paceline.worker.protocol import Channel

_LOOPBACK = "127.0.0.1"


class GangLinks:
    """The links of one process: the leader's to all followers, a follower's to the leader."""

    def __init__(self, links: Sequence[Channel] = ()) -> None:
        self._links = links
        # The socket that reserves the meeting port, until the next meeting or the process's end.
        self._reserved: int | None = None

    def gather(self, expected: type[EpochTrained | AskAddress]) -> int | None:
        """Wait for a message from every follower; return the rank of one that is gone."""
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

    def send_address(self) -> str:
        """Reserve a port, send the address to all followers, and return it."""
        host = next((link.host for link in self._links if link.host), _LOOPBACK)
        if self._reserved is not None:
            os.close(self._reserved)
        self._reserved, port = _reserve_port()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for link in self._links:
            link.send(MeetingAddress(address=address))
        return address

    def ask_address(self) -> str | None:
        """Ask the leader for the meeting address; None: the leader is gone."""
        self._links[0].send(AskAddress())
        message = self._links[0].receive(wait=True)
        return message.address if isinstance(message, MeetingAddress) else None

    def lead(self, config: Config) -> None:
        """Let all followers begin the next epoch with this config."""
        for link in self._links:
            link.send(NextEpoch(config=config))

    def release(self) -> None:
        """Let all followers unwind at the end of this epoch."""
        for link in self._links:
            link.send(Release())

    def follow(self) -> Config | None:
        """Report the epoch to the leader; return the next epoch's config, None: it was the last."""
        self._links[0].send(EpochTrained())
        message = self._links[0].receive(wait=True)
        return message.config if isinstance(message, NextEpoch) else None


def _reserve_port() -> tuple[int | None, int]:
    """Return a free port and a bound socket that keeps the kernel from giving it to others.

    The socket does not listen: a server that sets SO_REUSEADDR, as nearly all do, can open the
    port. A free port without such a socket may be taken a moment later.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        port: int = reserved.getsockname()[1]
        # Other systems do not let a server open a port that is bound.
        return reserved.detach() if sys.platform == "linux" else None, port


def derive_seed(seed: int, rank: int, epoch: int) -> int:
    """Return the seed of one process of a wide trial for one epoch.

    Only the leader saves, so the followers' generator states would be lost. Seeds for each epoch
    are the same after a pause, and differ between processes, as dropout should.
    """
    return int(stream(seed, "rank", rank, epoch).random() * 2**53)
