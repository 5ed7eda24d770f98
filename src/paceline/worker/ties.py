"""What ties the processes of a wide trial together, so that all of them train the same epochs.

Knows the links between process 0, which leads, and the others, which follow. The driver speaks to
the leader alone; the leader passes on what every process must know before it begins an epoch, or
one would wait for the others in an exchange of gradients that never comes. A trial of one process
has no links, and pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.rng import stream
from paceline.worker.channel import Onward, Reached, Release

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Config
    from paceline.worker.channel import Channel


class Ties:
    """One process's links: the leader's to everybody, a follower's to the leader."""

    def __init__(self, links: Sequence[Channel] = ()) -> None:
        self._links = links

    def gather(self) -> int | None:
        """Wait until everybody has trained this epoch; return the rank of one who never will."""
        for rank, link in enumerate(self._links, 1):
            if link.receive(wait=True) is None:
                return rank
        return None

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


def seed_of(seed: int, rank: int, epoch: int) -> int:
    """Return what a process of a wide trial sets its generators to before an epoch.

    Only the leader saves, so that states of the others would be lost: drawn anew for each epoch
    they are the same after a pause, and differ between processes, as dropout should.
    """
    return int(stream(seed, "rank", rank, epoch).random() * 2**53)
