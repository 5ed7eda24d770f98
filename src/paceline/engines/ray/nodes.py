"""The driver's end of one node of a Ray cluster: what is said to its host, and to a worker there.

Knows a host's calls. What comes from there, and who is where, the nests know.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.engines.ray.words import packed
from paceline.worker.channel import Frames, framed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from paceline.engines.ray.words import AnyWord
    from paceline.worker.channel import AnyMessage


class Node:
    """A node of the cluster with our host on it."""

    def __init__(self, name: str, host: Any, folder: str = "") -> None:  # noqa: ANN401 - a handle
        self.name = name
        # The folder that it has of its own; empty: it sees the study's.
        self.folder = folder
        self._host = host
        self._words: list[AnyWord] = []
        self._calls = 0
        self.workers: set[int] = set()
        # Its host does not answer any more.
        self.lost = False

    @property
    def short(self) -> str:
        """What it is called in the log."""
        return self.name[:8]

    def say(self, *words: AnyWord) -> None:
        """Say this with the next call."""
        self._words += words

    def flush(self) -> None:
        """Send what was said."""
        if self._words and not self.lost:
            self._host.take.remote(self._calls, packed(self._words))
            self._calls += 1
        self._words = []

    def listen(self, told: Callable[[Future[bytes]], None]) -> None:
        """Let somebody know what it says next."""
        self._host.listen.remote().future().add_done_callback(told)

    def serve(self, gpu: str) -> Any:  # noqa: ANN401 - what to wait for
        """Have trials that share a GPU run at the same time; return what to wait for."""
        return self._host.serve.remote(gpu)

    def close(self, patience: float) -> Any:  # noqa: ANN401 - what to wait for
        """Let the host end its workers; return what to wait for."""
        self.flush()
        return self._host.close.remote(patience)

    def end(self, kill: Callable[[Any], None]) -> None:
        """End the host itself."""
        kill(self._host)


class Place(NamedTuple):
    """Where a slot is: its node, the GPU there, and its share of the node's cores and memory."""

    node: Node
    gpu: str
    cores: float
    bytes: int
    # Where trials that share its GPU find the service that lets them run at the same time.
    mps: str = ""


class FarLine:
    """The line to one worker, through its node."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._frames = Frames()
        self._whole: deque[AnyMessage] = deque()
        self.closed = False

    def fileno(self) -> int:
        """Return no number: its maker says when something has arrived."""
        return -1

    def send(self, message: AnyMessage) -> None:
        """Say something."""
        self._write(framed(message))

    def feed(self, body: bytes) -> None:
        """Take what has arrived."""
        self._whole.extend(self._frames.cut(body))

    def arrived(self) -> Iterator[AnyMessage]:
        """Yield what was said."""
        while self._whole:
            yield self._whole.popleft()

    def close(self) -> None:
        """Hang up."""
        self.closed = True
