"""The program that a plan leads to, where it computes values again or makes copies anew: the graph
with the copies, which wait at barriers.

    1: %y = tanh %z                      1: %y = tanh %z
    2: %h = dot_general %y, %w           2: %h = dot_general %y, %w
       …                             =>     …
    9: %g = multiply %y, %d              9: %y2 = tanh %z        waits for %z, %d
                                        10: %g = multiply %y2, %d   waits for %z, %d

A compiler orders this program by its own rules and keeps what waits, so that more may be in memory
than the order of the first program tells. `shardopt.passes.sharding.apply.rematerializer` writes
the same program, step by step; tests compare the two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from shardopt.graph.op_graph import MARKER, FactorRule, Op, OpGraph, Tensor
from shardopt.graph.residency import Residency
from shardopt.mesh.mesh import Sharding
from shardopt.solve.sharding.intra_op.rematerialized import Rematerialized
from shardopt.solve.sharding.intra_op.sharded_ops import FreshCopies, ShardedOps
from shardopt.solve.sharding.strategies.strategies import Strategy, marker_strategy

# There from the start: a wait for them delays nothing.
_UNMADE = frozenset({"constant", "iota"})


@dataclass(frozen=True)
class MadeAnew:
    """`readers`, in program order, share a copy of `tensor` with no reader before them."""

    tensor: int
    readers: tuple[int, ...]


def made_anew(sharded: ShardedOps, rematerialized: Sequence[Rematerialized]) -> Iterator[MadeAnew]:
    """The copies that readers make anew, in the order in which they are written; what is recomputed
    brings a copy of its own."""
    ops, separate = sharded.graph.ops, {remat.tensor for remat in rematerialized}
    for tensor, sharding, first in sorted(
        sharded.fresh, key=lambda copy: (copy[2], copy[0], str(copy[1]))
    ):
        if tensor not in separate:
            readers = (
                op
                for op in sharded.graph.consumers()[tensor]
                if op >= first
                and ops[op].scope == ops[first].scope
                and op in sharded.strategies
                and (tensor, sharding)
                in zip(ops[op].operands, sharded.strategies[op].operands, strict=True)
            )
            yield MadeAnew(tensor, tuple(readers))


@dataclass(frozen=True, eq=False)
class Rewritten:
    """`graph` behind the rewriting; `shardings` and `strategies` are of its tensors and operations.
    Tensors of the graph before keep their numbers, and new ones stand behind them.

    `home[k]` is the operation of the graph before that k is, or that it was made for; `number` says
    where each of those is now, and `start` where what was made for it begins, with one entry more
    than there are operations."""

    graph: OpGraph
    shardings: Mapping[int, Sharding]
    strategies: Mapping[int, Strategy]
    fresh: FreshCopies
    home: tuple[int, ...]
    number: tuple[int, ...]
    start: tuple[int, ...]

    def residency(self, before: Residency) -> Residency:
        """What `before` says of operations, of their numbers now."""
        loop = before.loop
        if loop is not None:
            loop = replace(loop, start=self.start[loop.start], stop=self.start[loop.stop])
        arrivals = {tensor: self.start[op] for tensor, op in before.arrivals.items()}
        return replace(before, loop=loop, arrivals=arrivals)


def rewritten(sharded: ShardedOps, rematerialized: Sequence[Rematerialized]) -> Rewritten | None:
    """None where nothing is recomputed or made anew: then the program is as it was."""
    anew = list(made_anew(sharded, rematerialized))
    if not anew and not rematerialized:
        return None
    rewriter = _Rewriter(sharded)
    for remat in rematerialized:
        rewriter.recompute(remat)
    for each in anew:
        rewriter.copy_separately(each)
    return rewriter.result()


class _Value(NamedTuple):
    """A tensor, as it comes through a barrier (its number, or -1 for none)."""

    tensor: int
    barrier: int = -1


class _Added(NamedTuple):
    op: Op
    strategy: Strategy
    reads: tuple[_Value, ...]


class _Rewriter:
    def __init__(self, sharded: ShardedOps) -> None:
        self.sharded, self.before = sharded, sharded.graph
        self.tensors: list[Tensor] = list(self.before.tensors)
        self.shardings = dict(sharded.shardings)
        self.reads: dict[int, list[_Value]] = {}
        self.added: dict[int, list[_Added]] = {}
        # What goes through each barrier, and through those before it.
        self.behind: list[tuple[int, ...]] = []

    def recompute(self, remat: Rematerialized) -> None:
        ops, first = self.before.ops, min(remat.readers)
        made = {ops[op].results[0] for op in remat.chain}
        sources = dict.fromkeys(
            v for op in remat.chain for t, v in self._pairs(op) if t not in made
        )
        dropped = self._values_of(first, remat.tensor)
        through = self._barrier(list(sources), first, dropped)
        copies: dict[int, _Value] = {}
        for index, strategy in zip(remat.chain, remat.strategies, strict=True):
            [result] = ops[index].results
            reads = tuple(
                copies[t] if t in made else through.get(value, value)
                for t, value in self._pairs(index)
            )
            copies[result] = self._add(first, ops[index], reads, strategy)
        self._hand(remat.tensor, remat.readers, copies[remat.tensor])

    def copy_separately(self, anew: MadeAnew) -> None:
        first = anew.readers[0]
        dropped = self._values_of(first, anew.tensor)
        if dropped:  # another row has given its reader the tensor already, under another name
            through = self._barrier(dropped[:1], first, dropped)
            self._hand(anew.tensor, anew.readers, through[dropped[0]])

    def result(self) -> Rewritten:
        ops: list[Op] = []
        strategies: dict[int, Strategy] = {}
        home: list[int] = []
        number: list[int] = []
        for index, op in enumerate(self.before.ops):
            for new in self.added.get(index, ()):
                strategies[len(ops)] = new.strategy
                ops.append(self._op(new.op, new.reads))
                home.append(index)
            if index in self.sharded.strategies:
                strategies[len(ops)] = self.sharded.strategies[index]
            number.append(len(ops))
            ops.append(self._op(op, self.reads[index]) if index in self.reads else op)
            home.append(index)
        counts = (len(self.added.get(op, ())) + 1 for op in range(len(number)))
        start = tuple(accumulate(counts, initial=0))
        loops = tuple((start[first], start[stop]) for first, stop in self.before.loops)
        graph = replace(self.before, tensors=tuple(self.tensors), ops=tuple(ops), loops=loops)
        return Rewritten(
            graph,
            self.shardings,
            strategies,
            self._fresh(number),
            tuple(home),
            tuple(number),
            start,
        )

    def _op(self, op: Op, reads: Sequence[_Value]) -> Op:
        behind = (t for value in reads if value.barrier >= 0 for t in self.behind[value.barrier])
        waits = tuple(dict.fromkeys((*op.waits, *behind)))
        return replace(op, operands=tuple(value.tensor for value in reads), waits=waits)

    def _fresh(self, number: Sequence[int]) -> FreshCopies:
        return frozenset(
            (value.tensor, sharding, number[op])
            for tensor, sharding, op in self.sharded.fresh
            for (t, value), wanted in zip(
                self._pairs(op), self.sharded.strategies[op].operands, strict=True
            )
            if (t, wanted) == (tensor, sharding)
        )

    def _pairs(self, op: int) -> list[tuple[int, _Value]]:
        """What an operation reads: (tensor in the graph before, value now)."""
        operands = self.before.ops[op].operands
        return list(zip(operands, self.reads.get(op) or map(_Value, operands), strict=True))

    def _values_of(self, op: int, tensor: int) -> list[_Value]:
        return list(dict.fromkeys(value for t, value in self._pairs(op) if t == tensor))

    def _read(self, op: int, old: _Value, new: _Value, wanted: Sharding | None = None) -> None:
        """Let an operation read `new` for `old`; with `wanted` only where it wants that."""
        required = self.sharded.strategies[op].operands
        self.reads[op] = [
            new if value == old and wanted in (None, required[position]) else value
            for position, (_, value) in enumerate(self._pairs(op))
        ]

    def _hand(self, tensor: int, readers: Iterable[int], value: _Value) -> None:
        read_as: dict[_Value, list[int]] = {}
        for reader in sorted(readers):
            for old in self._values_of(reader, tensor):
                read_as.setdefault(old, []).append(reader)
        for number, (old, those) in enumerate(read_as.items()):
            new = value if not number else self._barrier([value], those[0], [old])[value]
            for reader in those:
                self._read(reader, old, new)

    def _barrier(
        self, values: Sequence[_Value], before: int, dropped: Sequence[_Value]
    ) -> dict[_Value, _Value]:
        """value -> what it is behind a barrier that also waits for the latest other operand of
        `before`, which reads that behind it, too."""
        position = self._anchor(before, {*values, *dropped})
        passed, number = list(values), len(self.behind)
        if position is not None:
            anchor, wanted = self._pairs(before)[position][1], self._wanted(before, position)
            passed.append(self._as_wanted(anchor, wanted, before))
            self._read(before, anchor, _Value(passed[-1].tensor, number), wanted)
        earlier = (t for each in passed if each.barrier >= 0 for t in self.behind[each.barrier])
        self.behind.append(tuple(dict.fromkeys((*(each.tensor for each in passed), *earlier))))
        return {value: _Value(value.tensor, number) for value in values}

    def _wanted(self, op: int, position: int) -> Sharding:
        return self.sharded.strategies[op].operands[position]

    def _as_wanted(self, value: _Value, wanted: Sharding, reader: int) -> _Value:
        """Behind a barrier it is another value, and would be moved once more for others."""
        if self.shardings[value.tensor] == wanted:
            return value
        op, shape = self.before.ops[reader], self.tensors[value.tensor].shape
        dims = tuple((dim,) for dim in range(len(shape)))
        marker = replace(
            op,
            name=MARKER,
            operands=(value.tensor,),
            results=(value.tensor,),
            rule=FactorRule(shape, (dims,), (dims,)),
            reducer=None,
            flops=0.0,
            transcendentals=0.0,
            zero=False,
            windows=(),
            waits=(),
            regions=(),
            island=None,
        )
        return self._add(reader, marker, (value,), marker_strategy(wanted))

    def _add(self, reader: int, op: Op, reads: tuple[_Value, ...], strategy: Strategy) -> _Value:
        """A copy of an operation in front of `reader`; what it makes."""
        [result] = op.results
        tensor = len(self.tensors)
        self.tensors.append(self.tensors[result])
        self.shardings[tensor] = strategy.results[0]
        new = _Added(replace(op, results=(tensor,)), strategy, reads)
        self.added.setdefault(reader, []).append(new)
        return _Value(tensor)

    def _anchor(self, reader: int, excluded: set[_Value]) -> int | None:
        """The position of the operand that is computed last."""
        latest: tuple[int, int] | None = None
        for position, (_, value) in enumerate(self._pairs(reader)):
            number = self._made_at(value, self.before.ops[reader].group)
            if value in excluded or number is None:
                continue
            if latest is None or number > latest[0]:
                latest = number, position
        return None if latest is None else latest[1]

    def _made_at(self, value: _Value, group: int) -> int | None:
        """The operation that makes a value, -1 for what the rewriting makes; None for what is there
        from the start of the group."""
        if value.barrier >= 0 or value.tensor >= len(self.before.tensors):
            return -1
        maker = self.before.producers()[value.tensor]
        if maker < 0 or self.before.ops[maker].group != group:
            return None
        if self.before.ops[maker].name in _UNMADE:
            return None
        strategy = self.sharded.strategies[maker]
        # The part that a device keeps of a sum is written behind the operation.
        return maker if strategy.unscattered == strategy.results else -1
