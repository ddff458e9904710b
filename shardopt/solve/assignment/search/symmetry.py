"""Equal parts of a problem, found by colour refinement and tied to one choice: a small problem
instead of a large one.

Layers of a model repeat: their nodes have equal cost tables and are joined by equal edge tables.
Colour refinement (Weisfeiler and Leman, 1968) starts from the tables of each node and then, round
by round, splits nodes whose neighbours differ, so that after k rounds nodes of one colour look
alike up to distance k. Tying the nodes of a colour to one strategy gives a problem that is exact
for tied assignments: costs and tables of merged nodes add up, an edge inside a colour becomes its
diagonal, and memory is the sum. Its solution is an assignment of the whole problem, from where the
search continues with every node free.

Few rounds tie more than the layers, such as both normalisations of a block; many rounds split the
layers by their distance from the ends of the model, as a residual connection passes a layer in
three steps. `tie_repeated` takes as many rounds as keep the problem small, so that the ends of the
model stay free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from hashlib import blake2b

import numpy as np

from shardopt.solve.assignment.problem import Edge, Problem, Usage

_U64 = np.uint64

# Nodes of a tied problem. A block of a transformer with its backward pass and optimizer has about
# 300, so the interior layers count once, and what stands around the embedding and the head keeps
# choices of its own.
_MAX_TIED_NODES = 1000

# Tying that leaves more than this share of the nodes saves too little to be worth a detour.
_MAX_SHARE_LEFT = 0.5


@dataclass(frozen=True, eq=False)
class TiedProblem:
    """`problem` has one node for each colour after `rounds` rounds: node n of the `whole` is node
    `colours[n]`."""

    whole: Problem
    colours: np.ndarray
    rounds: int

    @cached_property
    def problem(self) -> Problem:
        return tie(self.whole, self.colours)

    def spread(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the original problem that belongs to one of the tied problem."""
        return tuple(np.asarray(choice, dtype=np.int64)[self.colours].tolist())

    def project(self, choice: Sequence[int]) -> tuple[int, ...]:
        """What the first node of each colour does in an assignment of the original problem."""
        first = np.unique(self.colours, return_index=True)[1]
        return tuple(np.asarray(choice, dtype=np.int64)[first].tolist())


class Refinement:
    """The colours of a problem after a growing number of rounds, numbered by first appearance:
    int64 `[nodes]`."""

    def __init__(self, problem: Problem) -> None:
        names = _Names()
        self._u, self._v = problem.ends.T
        tables = np.array([names.of(edge.cost) for edge in problem.edges], dtype=_U64)
        # Whether a node is at the rows or at the columns of a table tells it from others.
        self._out, self._in = mixed(tables), mixed(tables ^ _U64(0x5555555555555555))
        self.colours = numbered(np.array([names.of(cost) for cost in problem.costs], dtype=_U64))

    @property
    def num_colours(self) -> int:
        return int(self.colours.max(initial=-1)) + 1

    def advance(self) -> bool:
        """One round; False when it splits no colour, as every further round then would not
        either."""
        words = mixed(self.colours.astype(_U64))
        # Sums of mixed words stand for multisets of neighbours. If two should ever collide, nodes
        # that differ are tied, which costs quality and not correctness.
        neighbours = np.zeros(len(words), dtype=_U64)
        np.add.at(neighbours, self._u, mixed(self._out ^ words[self._v]))
        np.add.at(neighbours, self._v, mixed(self._in ^ words[self._u]))
        before = self.num_colours
        self.colours = numbered(mixed(words) + neighbours)
        return self.num_colours > before


def tie_repeated(problem: Problem) -> TiedProblem | None:
    """Tie what looks alike, after the most rounds that leave a small problem, at least one; None if
    little repeats."""
    most = _MAX_SHARE_LEFT * problem.num_nodes
    refinement = Refinement(problem)
    colours, rounds = refinement.colours, 0
    while refinement.advance() and refinement.num_colours <= (
        min(most, _MAX_TIED_NODES) if rounds else most
    ):
        colours, rounds = refinement.colours, rounds + 1
    return TiedProblem(problem, colours, rounds) if rounds else None


def tie(problem: Problem, colours: np.ndarray) -> Problem:
    """Merge the nodes of each colour 0 … n-1. Nodes of one colour must have equally many
    strategies."""
    costs: list[np.ndarray | None] = [None] * (int(colours.max(initial=-1)) + 1)
    for node, colour in enumerate(colours.tolist()):
        cost, sofar = problem.costs[node], costs[colour]
        costs[colour] = cost if sofar is None else sofar + cost
    usages = None if problem.usages is None else _merged_usages(problem.usages, colours, len(costs))
    merged = tuple(cost for cost in costs if cost is not None)
    return Problem(
        merged,
        _merged_edges(problem.edges, colours),
        usages,
        problem.memory_limit,
        problem.num_times,
    )


def _merged_edges(edges: Sequence[Edge], colours: np.ndarray) -> tuple[Edge, ...]:
    """One edge for each pair of colours: each table times the number of edges that have it."""
    tables: dict[int, np.ndarray] = {}
    counts: dict[tuple[int, int], dict[tuple[int, bool], int]] = {}
    for edge in edges:
        u, v = int(colours[edge.u]), int(colours[edge.v])
        tables[id(edge.cost)] = edge.cost
        table_counts = counts.setdefault((min(u, v), max(u, v)), {})
        key = id(edge.cost), u > v
        table_counts[key] = table_counts.get(key, 0) + 1
    merged = []
    for (u, v), table_counts in counts.items():
        terms = [
            (tables[table].T if turned else tables[table]) * count
            for (table, turned), count in table_counts.items()
        ]
        merged.append(Edge(u, v, reduce(np.add, terms)))
    return tuple(merged)


def _merged_usages(
    usages: Sequence[Sequence[Usage]], colours: np.ndarray, num_colours: int
) -> tuple[tuple[Usage, ...], ...]:
    merged: list[list[Usage]] = [[] for _ in range(num_colours)]
    for node, segments in enumerate(usages):
        merged[int(colours[node])] += segments
    return tuple(map(tuple, merged))


class _Names:
    """A 64-bit name for each content of an array, the same in every run."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[np.ndarray, int]] = {}

    def of(self, array: np.ndarray) -> int:
        if id(array) not in self._known:
            digest = blake2b(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
            self._known[id(array)] = array, int.from_bytes(digest.digest()[:8], "little")
        return self._known[id(array)][1]


def mixed(words: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit words that spreads every bit over all others (the finaliser of
    SplitMix64)."""
    words = words + _U64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> _U64(27))) * _U64(0x94D049BB133111EB)
    return words ^ (words >> _U64(31))


def numbered(words: np.ndarray) -> np.ndarray:
    """Equal words get equal numbers, counted in order of first appearance."""
    _, first, inverse = np.unique(words, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse]
