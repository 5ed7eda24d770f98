"""The radix tree of all trials' settings: what is known, wanted, running and saved along it.

Knows nodes (unbranched runs of epochs), the reports they hold, who wants them and who trains
them. Two trials share exactly the epochs over which all their settings are equal. Does not know
why anybody wants anything.

Nobody outside keeps a pointer into the middle of the tree: a trial keeps its leaf, which stays its
leaf when the node is split, because a split makes the *upper* part a new node.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from paceline.core.values import finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.values import AttemptId, Metrics
    from paceline.plan.settings import Stretch


class Walker(Protocol):
    """Whoever walks down the tree to a goal: a trial."""

    epoch: int
    goal: int


class Runner(Protocol):
    """Whoever trains: an attempt, with the last epoch it has done."""

    epoch: int

    @property
    def parked(self) -> bool:
        """Whether it is about to save at that epoch, so that a branch there can still use it."""
        ...


W = TypeVar("W", bound=Walker)
R = TypeVar("R", bound=Runner)


class Node(Generic[W, R]):
    """Epochs start+1 … end under settings that no trial through here disagrees on."""

    __slots__ = (
        "birth",
        "children",
        "end",
        "extra",
        "losses",
        "parent",
        "runners",
        "saves",
        "seconds",
        "start",
        "stretches",
        "wanted",
    )

    def __init__(self, birth: int, start: int, end: int, stretches: list[Stretch]) -> None:
        # Kept by both halves of a split, so that (birth, epoch) names an epoch for ever.
        self.birth = birth
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
        self.wanted: tuple[W, ...] = ()
        self.runners: tuple[R, ...] = ()
        # Epoch -> the attempt that saved a checkpoint there.
        self.saves: dict[int, AttemptId] | None = None

    @property
    def known(self) -> int:
        """The last epoch of this node that has a report."""
        return self.start + len(self.losses)

    def learn(self, loss: float, seconds: float, metrics: Metrics) -> None:
        """Take the report of the next epoch."""
        self.losses.append(loss)
        self.seconds.append(seconds)
        if self.extra is not None or len(metrics) > 1:
            if self.extra is None:
                self.extra = []
            # Epochs before the first with more than the objective have nothing to add to it.
            self.extra += [{}] * (len(self.losses) - 1 - len(self.extra))
            self.extra.append({name: finite(value) for name, value in metrics.items()})


class Tree(Generic[W, R]):
    """All nodes of a study."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        # Roots by their first setting. Trials that share nothing are roots that nobody finds.
        self.roots: dict[bytes, Node[W, R]] = {}
        self._births = 0

    def alone(self) -> Node[W, R]:
        """Return the leaf of a trial that shares nothing."""
        return self._born(0, [])

    def insert(self, path: list[Stretch]) -> Node[W, R]:
        """Return the leaf of a trial with these settings, splitting the node it branches from."""
        children = self.roots
        parent: Node[W, R] | None = None
        at = 0  # how many stretches of the path lie above
        start = 0
        while True:
            node = children.get(path[at][1])
            if node is None:
                leaf = self._born(start, path[at:])
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

    def _born(self, start: int, path: list[Stretch]) -> Node[W, R]:
        node: Node[W, R] = Node(self._births, start, self.epochs, path)
        self._births += 1
        return node

    def _split(self, node: Node[W, R], at: int) -> Node[W, R]:
        """Cut `node` after epoch `at` and return the new upper half; `node` is the lower one."""
        upper: Node[W, R] = Node(node.birth, node.start, at, [])
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
        kept = at - node.start
        upper.losses, node.losses = node.losses[:kept], node.losses[kept:]
        upper.seconds, node.seconds = node.seconds[:kept], node.seconds[kept:]
        if node.extra is not None:
            upper.extra, node.extra = node.extra[:kept], node.extra[kept:]
        upper.wanted = tuple(walker for walker in node.wanted if walker.epoch < at)
        node.wanted = tuple(walker for walker in node.wanted if walker.goal > at)
        above = [run.epoch < at or (run.epoch == at and run.parked) for run in node.runners]
        upper.runners = tuple(run for run, up in zip(node.runners, above, strict=True) if up)
        node.runners = tuple(run for run, up in zip(node.runners, above, strict=True) if not up)
        if node.saves is not None:
            saves = node.saves
            upper.saves = {epoch: by for epoch, by in saves.items() if epoch <= at}
            node.saves = {epoch: by for epoch, by in saves.items() if epoch > at}
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


def node_of(leaf: Node[W, R], epoch: int) -> Node[W, R]:
    """Return the node on the way to `leaf` that holds this epoch (1 is the first)."""
    node = leaf
    while epoch <= node.start:
        assert node.parent is not None
        node = node.parent
    return node


def way(leaf: Node[W, R]) -> Sequence[Node[W, R]]:
    """Return the nodes from the leaf up to the root."""
    node = leaf.parent
    if node is None:
        return (leaf,)  # a trial that shares nothing: by far the most common
    nodes = [leaf]
    while node is not None:
        nodes.append(node)
        node = node.parent
    return nodes


def known_on(leaf: Node[W, R]) -> int:
    """Return the last epoch on the way to `leaf` that has a report."""
    if leaf.parent is None or leaf.losses:
        return leaf.start + len(leaf.losses)
    for node in way(leaf):
        if node.losses or node.parent is None:
            return node.known
    raise AssertionError  # pragma: no cover - a way always ends at a root


def shared_until(one: Node[W, R], other: Node[W, R]) -> int:
    """Return the last epoch that two leaves have in common; 0 where they share nothing."""
    above = {id(node): node.end for node in way(one)}
    for node in way(other):
        if id(node) in above:
            return node.end
    return 0


def saved_on(leaf: Node[W, R], until: int) -> tuple[int, AttemptId] | None:
    """Return the latest checkpoint on the way to `leaf` not after `until`, and who saved it."""
    for node in way(leaf):
        if node.saves and node.start < until:
            epoch = max((epoch for epoch in node.saves if epoch <= until), default=None)
            if epoch is not None:
                return epoch, node.saves[epoch]
    return None
