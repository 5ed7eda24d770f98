"""The radix tree of all trials' settings: what is known, wanted, running and saved along it.

Holds nodes (unbranched runs of epochs) with their reports, the trials that want them and the
attempts that train them. Two trials share exactly the epochs over which all their settings are
equal.

Other code keeps no pointer into the middle of the tree: a trial keeps its leaf, which stays its
leaf when a node is split, because a split makes the *upper* part a new node.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from paceline.core.values import finite_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.values import AttemptId, Metrics
    from paceline.plan.settings import Stretch


class Walker(Protocol):
    """A trial as the tree sees it: its epoch and its goal."""

    epoch: int
    goal: int


class Runner(Protocol):
    """An attempt as the tree sees it: the last epoch it has trained."""

    epoch: int

    @property
    def saves_here(self) -> bool:
        """Whether it is about to save at that epoch, for a branch to start from."""
        ...


W = TypeVar("W", bound=Walker)
R = TypeVar("R", bound=Runner)


class Node(Generic[W, R]):
    """Epochs start+1 … end, with settings that all trials through this node have in common."""

    __slots__ = (
        "attempts",
        "checkpoints",
        "children",
        "end",
        "extra",
        "live",
        "losses",
        "origin",
        "parent",
        "seconds",
        "start",
        "stretches",
        "wanted_by",
    )

    def __init__(self, origin: int, start: int, end: int, stretches: list[Stretch]) -> None:
        # Kept by both halves of a split, so that (origin, epoch) always names the same epoch.
        self.origin = origin
        self.start = start
        self.end = end
        # The settings over (start, end]; empty in a tree that shares nothing.
        self.stretches = stretches
        self.parent: Node[W, R] | None = None
        self.children: dict[bytes, Node[W, R]] | None = None
        # Reports known so far, from epoch start+1 on without a gap.
        self.losses = array("d")
        self.seconds = array("d")
        # Metrics as reported, where there was ever more than the objective; {} for epochs before.
        self.extra: list[Metrics] | None = None
        # Tuples rather than sets: there is almost always one, and order must be kept.
        self.wanted_by: tuple[W, ...] = ()
        self.attempts: tuple[R, ...] = ()
        # The number of trials through it that have not ended.
        self.live = 0
        # Epoch -> the attempt that saved a checkpoint there.
        self.checkpoints: dict[int, AttemptId] | None = None

    @property
    def known(self) -> int:
        """The last epoch of this node that has a report."""
        return self.start + len(self.losses)

    def add_report(self, loss: float, seconds: float, metrics: Metrics) -> None:
        """Take the report of the next epoch."""
        self.losses.append(loss)
        self.seconds.append(seconds)
        if self.extra is not None or len(metrics) > 1:
            if self.extra is None:
                self.extra = []
            # Epochs before the first with more than the objective have nothing to add to it.
            self.extra += [{}] * (len(self.losses) - 1 - len(self.extra))
            self.extra.append({name: finite_or_none(value) for name, value in metrics.items()})


class Tree(Generic[W, R]):
    """All nodes of a study."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        # Roots by their first settings. Trials that share nothing get roots that no lookup finds.
        self.roots: dict[bytes, Node[W, R]] = {}
        self._origins = 0

    @property
    def size(self) -> int:
        """The number of leaves: each insertion of a new path adds one."""
        return self._origins

    def insert_alone(self) -> Node[W, R]:
        """Return the leaf of a trial that shares nothing."""
        return self._make_node(0, [])

    def insert(self, path: list[Stretch]) -> Node[W, R]:
        """Return the leaf of a trial with these settings, splitting the node it branches from."""
        children = self.roots
        parent: Node[W, R] | None = None
        at = 0  # how many stretches of the path lie above
        start = 0
        while True:
            node = children.get(path[at][1])
            if node is None:
                leaf = self._make_node(start, path[at:])
                leaf.parent = parent
                children[path[at][1]] = leaf
                return leaf
            shared, at = _agreement(node, path, at)
            if shared == self.epochs:
                return node
            if shared < node.end:
                node = self._split(node, shared)
            parent, start = node, shared
            if node.children is None:
                node.children = {}
            children = node.children

    def _make_node(self, start: int, path: list[Stretch]) -> Node[W, R]:
        node: Node[W, R] = Node(self._origins, start, self.epochs, path)
        self._origins += 1
        return node

    def _split(self, node: Node[W, R], at: int) -> Node[W, R]:
        """Cut `node` after epoch `at` and return the new upper half; `node` is the lower one."""
        upper: Node[W, R] = Node(node.origin, node.start, at, [])
        first = node.stretches[0][1]
        count = bisect_left(node.stretches, at, key=lambda stretch: stretch[0])
        upper.stretches = [*node.stretches[:count], (at, node.stretches[count][1])]
        if node.stretches[count][0] == at:
            count += 1
        node.stretches = node.stretches[count:]
        upper.parent, node.parent = node.parent, upper
        siblings = self.roots if upper.parent is None else upper.parent.children
        assert siblings is not None
        siblings[first] = upper
        upper.children = {node.stretches[0][1]: node}
        upper.live = node.live
        kept = at - node.start
        upper.losses, node.losses = node.losses[:kept], node.losses[kept:]
        upper.seconds, node.seconds = node.seconds[:kept], node.seconds[kept:]
        if node.extra is not None:
            upper.extra, node.extra = node.extra[:kept], node.extra[kept:]
        upper.wanted_by = tuple(walker for walker in node.wanted_by if walker.epoch < at)
        node.wanted_by = tuple(walker for walker in node.wanted_by if walker.goal > at)
        above = [run.epoch < at or (run.epoch == at and run.saves_here) for run in node.attempts]
        upper.attempts = tuple(run for run, up in zip(node.attempts, above, strict=True) if up)
        node.attempts = tuple(run for run, up in zip(node.attempts, above, strict=True) if not up)
        if node.checkpoints is not None:
            saves = node.checkpoints
            upper.checkpoints = {epoch: by for epoch, by in saves.items() if epoch <= at}
            node.checkpoints = {epoch: by for epoch, by in saves.items() if epoch > at}
        node.start = at
        return upper

    def nodes(self) -> Iterator[Node[W, R]]:
        """Yield every shared node, parents first."""
        queue = list(self.roots.values())
        for node in queue:
            yield node
            queue.extend((node.children or {}).values())


def _agreement(node: Node[W, R], path: list[Stretch], at: int) -> tuple[int, int]:
    """Return up to which epoch the path runs through `node`, and which of its stretches is next."""
    shared = node.start
    for until, setting in node.stretches:
        while at < len(path) and path[at][1] == setting:
            shared = min(until, path[at][0])
            if path[at][0] > until:
                break
            at += 1
            if shared == until:
                break
        if shared < until:
            break
    return shared, at


def find_node(leaf: Node[W, R], epoch: int) -> Node[W, R]:
    """Return the node on the way to `leaf` that holds this epoch (1 is the first)."""
    node = leaf
    while epoch <= node.start:
        assert node.parent is not None
        node = node.parent
    return node


def path_to_root(leaf: Node[W, R]) -> Sequence[Node[W, R]]:
    """Return the nodes from the leaf up to the root."""
    node = leaf.parent
    if node is None:
        return (leaf,)  # a trial that shares nothing: by far the most common
    nodes = [leaf]
    while node is not None:
        nodes.append(node)
        node = node.parent
    return nodes


def last_known_epoch(leaf: Node[W, R]) -> int:
    """Return the last epoch on the way to `leaf` that has a report."""
    if leaf.parent is None or leaf.losses:
        return leaf.start + len(leaf.losses)
    for node in path_to_root(leaf):
        if node.losses or node.parent is None:
            return node.known
    raise AssertionError  # pragma: no cover - a way always ends at a root


def last_shared_epoch(one: Node[W, R], other: Node[W, R]) -> int:
    """Return the last epoch that two leaves have in common; 0 where they share nothing."""
    above = {id(node): node.end for node in path_to_root(one)}
    for node in path_to_root(other):
        if id(node) in above:
            return node.end
    return 0


def find_checkpoint(leaf: Node[W, R], until: int) -> tuple[int, AttemptId] | None:
    """Return the latest checkpoint on the path to `leaf` up to `until`, and its attempt."""
    for node in path_to_root(leaf):
        if node.checkpoints and node.start < until:
            attempt = node.checkpoints.get(until)
            if attempt is not None:
                return until, attempt
            epoch = max((epoch for epoch in node.checkpoints if epoch <= until), default=None)
            if epoch is not None:
                return epoch, node.checkpoints[epoch]
    return None
