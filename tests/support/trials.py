"""Trials of this very process: tests hold the driver's end of their channel."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

from paceline.worker.gang import GangLinks
from paceline.worker.protocol import Channel, StartAttempt
from paceline.worker.stop_request import StopRequest
from paceline.worker.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.worker.protocol import AnyMessage


def make_start(files: Path, /, **changes: Any) -> StartAttempt:  # noqa: ANN401
    """Return the first message of an attempt of one process."""
    values: dict[str, Any] = {
        "attempt": 7,
        "trial": 3,
        "config": {"lr": 0.1},
        "epochs": 9,
        "start": 0,
        "goal": 9,
        "save_at": (),
        "seed": 5,
        "folder": str(files),
        "checkpoint": None,
        "digest": "",
        "awaits": False,
        "metric": "loss",
        "sign": 1.0,
        "best": None,
        "save_share": None,
        "width": 1.0,
        "rank": 0,
        "slot_bytes": 0,
        "device": "cpu",
        "threads": 1,
        "environ": {},
        "log": str(files / "attempt.log"),
    }
    return StartAttempt(**(values | changes))


class TrialUnderTest:
    """A trial and the driver's end of its channel."""

    def __init__(
        self, start: StartAttempt, links: Sequence[Channel] = (), *sent: AnyMessage
    ) -> None:
        self.began = time.monotonic()
        near, far = socket.socketpair()
        self.driver = Channel(near)
        self.channel = Channel(far)
        self.stop = StopRequest()
        for message in sent:
            self.driver.send(message)
        try:
            self.trial = Trial(start, self.channel, GangLinks(links), self.stop)
        except BaseException:
            self.close()
            raise

    def read(self) -> list[AnyMessage]:
        """Return the messages that the trial has sent since the last call."""
        messages = []
        while (message := self.driver.receive(wait=False)) is not None:
            messages.append(message)
        return messages

    def close(self) -> None:
        self.driver.close()
        self.channel.close()
