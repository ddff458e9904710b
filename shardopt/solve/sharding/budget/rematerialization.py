"""Values that can be dropped and recomputed from what is in memory anyway, and what that costs.

A candidate is the result of a cheap operation with a long time between two readers (or before the
first). It is recomputed, right before the first reader behind that gap, by a copy of the chain of
cheap operations that leads to it from tensors which are alive there in any case; a source much
smaller than the value may be kept longer for it.

    1: y = tanh(z)       y is read by 2 and 90          y is dropped behind 2
    2: h = y @ w                                   =>   90: y' = tanh(z); … y' …
   90: g = … y …         z is alive at 90               2 … 89 without y

The copies run as they like: in shardings of their own that lead to the sharding of the value
without communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardopt.graph.op_graph import Op
from shardopt.mesh.mesh import Sharding
from shardopt.solve.sharding.intra_op.lifetimes import Lifetime
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.intra_op.rematerialized import Rematerialized
from shardopt.solve.sharding.intra_op.sharded_ops import local_bytes
from shardopt.solve.sharding.kernels.fusion import CHEAP
from shardopt.solve.sharding.strategies.strategies import Strategy

# Operations of one chain, more of which would not be cheap; a GELU takes about 20.
_LONGEST_CHAIN = 32
# A source may be kept longer if it is this much smaller than the value that is dropped for it.
_EXTENDED_SHARE = 16
# Candidates with the most bytes times positions; each adds a node to the solver's problem.
_MOST_CANDIDATES = 256


@dataclass(frozen=True)
class Candidate:
    """`chain` makes `tensor` from `sources` (`extended` ones are kept longer for it); `gap` as in
    `Rematerialized`; `moved` says that no reader stands before it."""

    tensor: int
    chain: tuple[int, ...]
    sources: tuple[int, ...]
    extended: tuple[int, ...]
    readers: tuple[int, ...]
    gap: tuple[int, int]
    moved: bool


@dataclass(frozen=True)
class RematRecipe:
    """How the chain runs when the value is wanted in one sharding: per operation, and what its
    sources must be."""

    strategies: tuple[Strategy, ...]
    sources: Mapping[int, Sharding]
    scratch_bytes: int
    seconds: float


def find_candidates(problem: IntraOpProblem) -> tuple[Candidate, ...]:
    """The candidates that save most, in program order."""
    finder = _Finder(problem)
    candidates = list(finder.candidates())
    tensors = problem.tables.graph.tensors
    candidates.sort(key=lambda c: (-tensors[c.tensor].size_bytes * (c.gap[1] - c.gap[0]), c.tensor))
    return tuple(sorted(candidates[:_MOST_CANDIDATES], key=lambda candidate: candidate.chain[-1]))


class _Gap(NamedTuple):
    """The positions [start, stop) at which nobody needs a value, and the readers behind them."""

    start: int
    stop: int
    readers: tuple[int, ...]


class _Finder:
    def __init__(self, problem: IntraOpProblem) -> None:
        self.problem, self.graph = problem, problem.tables.graph
        self.position = {op: position for position, op in enumerate(problem.order)}
        self.execution = problem.tables.execution
        self.lives: dict[int, list[Lifetime]] = {}
        for live in problem.lifetimes:
            self.lives.setdefault(live.tensor, []).append(live)
        self.consumers = self.graph.consumers()
        self.producers = problem.tables.producers
        self.handed_on = frozenset(self.graph.handed_on.values())
        # Values that are candidates already.
        self.droppable: set[int] = set()

    def candidates(self) -> Iterator[Candidate]:
        for index in self.problem.ops:
            op = self.graph.ops[index]
            gap = self._gap(op) if op.name in CHEAP and len(op.results) == 1 else None
            if gap is None:
                continue
            chain = _Chain(self, index, gap.stop).expand()
            if chain is not None:
                [tensor] = op.results
                self.droppable.add(tensor)
                moved = len(gap.readers) == len(self.consumers[tensor])
                yield Candidate(tensor, *chain, gap.readers, (gap.start, gap.stop), moved)

    def _gap(self, op: Op) -> _Gap | None:
        """The longest gap between two readers of the result, or before the first; None where it
        is one position or less, or the value cannot be dropped."""
        [tensor] = op.results
        lives = self.lives.get(tensor, [])
        consumers = self.consumers[tensor]
        inside = all(c in self.position and self.graph.ops[c].scope == op.scope for c in consumers)
        if len(lives) != 1 or not consumers or not inside or tensor in self.graph.outputs:
            return None
        if tensor in self.handed_on:  # it is there under another name
            return None
        touched = sorted((*self._touches(consumer), consumer) for consumer in consumers)
        free_from, start, stop = lives[0].start + 1, 0, 0
        for first, last, _ in touched:
            if first - free_from > stop - start:
                start, stop = free_from, first
            free_from = max(free_from, last + 1)
        late = sorted(consumer for first, _, consumer in touched if first >= stop)
        return _Gap(start, stop, tuple(late)) if stop - start > 1 else None

    def _touches(self, consumer: int) -> tuple[int, int]:
        """The first and last position at which a consumer needs the value: where its result is
        used, when fused."""
        results = self.graph.ops[consumer].results
        fused = results and results[0] in self.execution.fused
        ops = self.execution.readers[results[0]] if fused else (consumer,)
        positions = [self.position.get(op, len(self.position)) for op in ops or (consumer,)]
        return min(positions), max(positions)

    def is_alive(self, tensor: int, position: int) -> bool:
        """What a marker hands on is there as its operand, too."""
        while not any(live.start <= position < live.stop for live in self.lives.get(tensor, ())):
            maker = self.producers[tensor]
            if tensor not in self.graph.handed_on or self.position.get(maker, 0) > position:
                return False
            tensor = self.graph.handed_on[tensor]
        return True


class _Chain:
    """The search for the sources of one candidate, recomputed by operation `root` at position
    `at`."""

    def __init__(self, finder: _Finder, root: int, at: int) -> None:
        self.finder, self.root, self.at = finder, root, at
        self.graph = finder.graph
        self.scope = self.graph.ops[root].scope
        self.most_kept_bytes = (
            self.graph.tensors[self.graph.ops[root].results[0]].size_bytes // _EXTENDED_SHARE
        )

    def expand(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
        """(chain, sources, extended sources), or None if something in it is dear and gone."""
        chain, sources, extended = {self.root}, dict[int, None](), dict[int, None]()
        pending = [self.root]
        while pending:
            for operand in self.graph.ops[pending.pop()].operands:
                maker = self.finder.producers[operand]
                if self._is_source(operand):
                    sources[operand] = None
                elif (
                    maker >= 0
                    and self.graph.ops[maker].scope == self.scope
                    and self._is_cheap(maker)
                ):
                    if maker not in chain:
                        chain.add(maker)
                        pending.append(maker)
                elif self._can_be_kept(operand, maker):
                    sources[operand] = extended[operand] = None
                else:
                    return None
            if len(chain) > _LONGEST_CHAIN:
                return None
        return tuple(sorted(chain)), tuple(sources), tuple(extended)

    def _is_source(self, tensor: int) -> bool:
        # What may be dropped itself is not there for certain.
        return tensor not in self.finder.droppable and self.finder.is_alive(tensor, self.at)

    def _is_cheap(self, maker: int) -> bool:
        op = self.graph.ops[maker]
        return len(op.results) == 1 and (op.name in CHEAP or op.name in ("constant", "iota"))

    def _can_be_kept(self, tensor: int, maker: int) -> bool:
        """Whether a small value of the same fragment may be held until it is needed again."""
        if (
            maker < 0
            or self.graph.ops[maker].scope != self.scope
            or tensor in self.finder.droppable
        ):
            return False
        lives = self.finder.lives.get(tensor, [])
        return len(lives) == 1 and self.graph.tensors[tensor].size_bytes <= self.most_kept_bytes


def recipe(problem: IntraOpProblem, candidate: Candidate, target: Sharding) -> RematRecipe | None:
    """The cheapest way without communication to make the value in `target`, or None if there is
    none."""
    graph, mesh = problem.tables.graph, problem.tables.mesh
    need: dict[int, Sharding] = {candidate.tensor: target}
    strategies: list[Strategy] = []
    # Backwards: what is wanted of a value decides what is wanted of its operands.
    for index in reversed(candidate.chain):
        op = graph.ops[index]
        choices = [
            s
            for s in problem.tables.ops[index].strategies
            if s.results[0] == need[op.results[0]]
            and not s.reduced
            and all(
                need.get(t, sharding) == sharding
                for t, sharding in zip(op.operands, s.operands, strict=True)
            )
        ]
        if not choices:
            return None
        best = min(choices, key=lambda s: s.compute_seconds)
        strategies.append(best)
        for tensor, sharding in zip(op.operands, best.operands, strict=True):
            if need.setdefault(tensor, sharding) != sharding:
                return None
    # Without earlier readers the value is made later, not twice.
    moved = strategies[0].compute_seconds if candidate.moved else 0.0
    between = (graph.ops[index].results[0] for index in candidate.chain[:-1])
    fused = problem.tables.execution.fused
    scratch = sum(
        local_bytes(graph, mesh, tensor, need[tensor]) for tensor in between if tensor not in fused
    )
    return RematRecipe(
        tuple(reversed(strategies)),
        {tensor: need[tensor] for tensor in candidate.sources},
        scratch,
        sum(strategy.compute_seconds for strategy in strategies) - moved,
    )


def rematerialized(candidate: Candidate, chosen: RematRecipe) -> Rematerialized:
    """The decision for a plan."""
    return Rematerialized(
        tensor=candidate.tensor,
        chain=candidate.chain,
        strategies=chosen.strategies,
        readers=candidate.readers,
        gap=candidate.gap,
        extended=candidate.extended,
        scratch_bytes=chosen.scratch_bytes,
        seconds=chosen.seconds,
    )
