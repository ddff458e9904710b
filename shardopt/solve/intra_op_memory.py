"""When each tensor of a part of a graph occupies memory, in positions of the part's operations.

* Inputs stay for the whole part (weights, optimizer state); what another mesh sends stays from its arrival on.
* A value lives from its operation to its last reader, or to the end when it is an output. What a fragment (a group of
  operations, one executable) is given stays until the fragment ends.
* In a loop over microbatches, what is made before the loop and read inside stays until the loop ends; what one
  fragment of it hands to another (residuals of a backward pass) is held once for each microbatch in flight.
* A value that takes over the memory of another one (the result that a donated argument becomes, an accumulator before
  and after the loop) shares one lifetime with it.
* An elementwise operation writes into its operand where that dies.
* Constants, iotas and broadcast scalars are made inside of their readers and take no memory, except large literals.

Beside these stand, while an operation runs, the copies of its operands in the shardings that it wants (an all-gathered
weight, say), and the whole result before a reduce-scatter. Copies in one sharding are shared by the readers of one
fragment, and kept from the first to the last of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from shardopt.cost.collectives import resharding_stops
from shardopt.cost.graph import Op, OpGraph
from shardopt.cost.mesh import Mesh, Sharding
from shardopt.solve.strategies import Strategy

# A reader that makes a copy of an operand anew, although an earlier reader had one: (tensor, wanted, operation).
FreshCopies = Set[tuple[int, Sharding, int]]


@dataclass(frozen=True)
class Lifetime:
    """`tensor` is held at the positions [start, stop), `count` times (for so many microbatches)."""

    tensor: int
    start: int
    stop: int
    count: int = 1


@dataclass(frozen=True)
class Loop:
    """Operations [start, stop) run once a microbatch; `in_flight` of these are between forward and backward at once."""

    start: int
    stop: int
    in_flight: int = 1


@dataclass(frozen=True)
class Residency:
    """What the operations do not say about memory.

    `arrivals[t]` is the operation before which input t comes from another mesh, `literals` are constants whose elements
    differ and which therefore lie in memory all the time.
    """

    loop: Loop | None = None
    arrivals: Mapping[int, int] = field(default_factory=dict)
    literals: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Copy:
    """`tensor` in the sharding its readers want, at the positions [start, stop); operation `op` makes it.

    `bytes` a device holds of it. `sharding` is None for the whole result that a reduce-scatter starts from.
    """

    tensor: int
    sharding: Sharding | None
    op: int
    start: int
    stop: int
    bytes: int


@dataclass(frozen=True)
class Rematerialized:
    """A value that is dropped at position `gap[0]` and computed again at `gap[1]`, before the first of `readers`.

    `chain` are the operations that are run again, the last of which makes `tensor`, and `strategies` say how. `extended`
    are their operands that would otherwise be gone by then. `scratch_bytes` a device holds beside the value while the
    chain runs; `seconds` of one execution.
    """

    tensor: int
    chain: tuple[int, ...]
    strategies: tuple[Strategy, ...]
    readers: tuple[int, ...]
    gap: tuple[int, int]
    extended: tuple[int, ...]
    scratch_bytes: int
    seconds: float


def last_readers(graph: OpGraph) -> tuple[int, ...]:
    """For each tensor the last operation that reads it: len(ops) for outputs, -1 for values nobody reads."""
    last = [-1] * len(graph.tensors)
    for index, op in enumerate(graph.ops):
        for operand in op.operands:
            last[operand] = index
    for output in graph.outputs:
        last[output] = len(graph.ops)
    return tuple(last)


def first_readers(graph: OpGraph) -> tuple[int, ...]:
    """For each tensor the first operation that reads it, len(ops) for values nobody reads."""
    first = [len(graph.ops)] * len(graph.tensors)
    for index in range(len(graph.ops) - 1, -1, -1):
        for operand in graph.ops[index].operands:
            first[operand] = index
    return tuple(first)


def is_in_place(graph: OpGraph, index: int, dies: Set[int]) -> bool:
    """Whether operation `index` can write its result over an operand of `dies`, the values that nobody reads later."""
    op = graph.ops[index]
    if not _is_elementwise(op):
        return False
    size = graph.tensors[op.results[0]].size_bytes
    return any(t in dies and graph.tensors[t].size_bytes == size for t in op.operands)


def _is_elementwise(op: Op) -> bool:
    """One result, whose elements come from the elements in the same places of all operands."""
    rule = op.rule
    return (
        rule is not None
        and len(op.results) == 1
        and not rule.need_replication | rule.reduction | rule.permutation
        and all(mapping == rule.results[0] for mapping in rule.operands)
        and len(rule.operands) == len(op.operands) > 0
    )


class Lifetimes:
    """The lifetimes of the part `ops` (ascending) with its `inputs`; `aliases[b]` is the tensor whose memory b takes.

    `last` and `first` are `last_readers(graph)` and `first_readers(graph)`; `free` are tensors without memory.
    """

    def __init__(
        self,
        graph: OpGraph,
        ops: Sequence[int],
        inputs: Sequence[int],
        aliases: Mapping[int, int],
        residency: Residency,
        readers: tuple[Sequence[int], Sequence[int]],
        free: Set[int],
    ) -> None:
        self.graph, self.ops, self.inputs, self.residency = graph, ops, inputs, residency
        self.first, self.last = readers
        self.free = free - residency.literals
        given = set(inputs)
        self.aliases = {b: a for b, a in aliases.items() if b not in given}
        self.group_stop = {graph.ops[op].group: position + 1 for position, op in enumerate(ops)}
        self.loop = residency.loop
        self.loop_span = (0, 0)
        if self.loop is not None:
            self.loop_span = (bisect_left(ops, self.loop.start), bisect_left(ops, self.loop.stop))

    def all(self) -> tuple[Lifetime, ...]:
        """Inputs first, then results in program order, then what is held for further microbatches."""
        spans: dict[int, tuple[int, int]] = {tensor: self._of_input(tensor) for tensor in self.inputs}
        for position, op in enumerate(self.ops):
            spans.update((tensor, self._of_result(tensor, position)) for tensor in self.graph.ops[op].results)
        for tensor in spans:
            root = self._root(tensor)
            if root != tensor and root in spans:
                spans[root] = min(spans[root][0], spans[tensor][0]), max(spans[root][1], spans[tensor][1])
        held = [
            Lifetime(tensor, start, stop)
            for tensor, (start, stop) in spans.items()
            if tensor not in self.free and self._root(tensor) not in spans.keys() - {tensor}
        ]
        return (*self._in_place(held), *self._in_flight(held))

    def _root(self, tensor: int) -> int:
        seen = {tensor}
        while tensor in self.aliases and self.aliases[tensor] not in seen:
            tensor = self.aliases[tensor]
            seen.add(tensor)
        return tensor

    def _of_input(self, tensor: int) -> tuple[int, int]:
        if tensor not in self.residency.arrivals:
            return 0, len(self.ops)
        start = bisect_left(self.ops, min(self.residency.arrivals[tensor], self.first[tensor]))
        return start, self._stop(tensor, start, None)

    def _of_result(self, tensor: int, position: int) -> tuple[int, int]:
        if tensor in self.residency.literals:
            return 0, len(self.ops)
        return position, self._stop(tensor, position, self.graph.ops[self.ops[position]].group)

    def _stop(self, tensor: int, start: int, group: int | None) -> int:
        """The position behind the last at which a value made at `start` in fragment `group` is held."""
        last = self.last[tensor]
        stop = max(bisect_right(self.ops, last), start + 1)
        if 0 <= last < len(self.graph.ops) and self.graph.ops[last].group != group:
            stop = max(stop, self.group_stop.get(self.graph.ops[last].group, 0))
        begin, end = self.loop_span
        return max(stop, end) if start < begin < stop else min(stop, len(self.ops))

    def _in_place(self, held: list[Lifetime]) -> Iterator[Lifetime]:
        """Results that are written over an operand begin behind the operation."""
        given = {*self.inputs, *self.aliases.values()}
        dying: dict[int, set[int]] = {}
        for live in held:
            if live.tensor not in given:
                dying.setdefault(live.stop - 1, set()).add(live.tensor)
        for live in held:
            lives_on = live.tensor not in given and live.start < live.stop - 1
            index, dies = self.ops[live.start] if lives_on else -1, dying.get(live.start, frozenset())
            made_here = lives_on and live.tensor in self.graph.ops[index].results
            in_place = made_here and is_in_place(self.graph, index, dies)
            yield replace(live, start=live.start + 1) if in_place else live

    def _in_flight(self, held: list[Lifetime]) -> Iterator[Lifetime]:
        loop = self.loop
        if loop is None or loop.in_flight < 2:
            return
        producers = {tensor: op for op in self.ops for tensor in self.graph.ops[op].results}
        for live in held:
            maker = producers.get(live.tensor, self.first[live.tensor])
            made_inside = live.tensor in producers or live.tensor in self.residency.arrivals
            last = self.last[live.tensor]
            inside = made_inside and loop.start <= min(maker, last) and max(maker, last) < loop.stop
            if inside and self.graph.ops[maker].group != self.graph.ops[last].group:
                yield Lifetime(live.tensor, *self.loop_span, loop.in_flight - 1)


def find_copies(
    graph: OpGraph,
    mesh: Mesh,
    strategies: Mapping[int, Strategy],
    shardings: Mapping[int, Sharding],
    made_anywhere: Set[int],
    fresh: FreshCopies = frozenset(),
) -> tuple[Copy, ...]:
    """What operations need beside the values themselves; `strategies` in program order."""
    found: dict[tuple[int, Sharding, int, int], Copy] = {}
    number: dict[tuple[int, Sharding, int], int] = {}
    whole: list[Copy] = []
    for position, (index, strategy) in enumerate(strategies.items()):
        op = graph.ops[index]
        for tensor, wanted in zip(op.operands, strategy.operands, strict=True):
            if tensor in made_anywhere or shardings[tensor] == wanted:
                continue
            key = (tensor, wanted, op.group)
            number[key] = number.get(key, 0) + ((tensor, wanted, index) in fresh)
            known = found.get((*key, number[key]))
            size = local_bytes(graph, mesh, tensor, wanted)
            if known is None:
                whole += _way(graph, mesh, tensor, (shardings[tensor], wanted), index, position)
                known = Copy(tensor, wanted, index, position, position, size)
            found[*key, number[key]] = replace(known, stop=position + 1)
        for tensor, before, after in zip(op.results, strategy.unscattered, strategy.results, strict=True):
            if before != after:
                whole.append(
                    Copy(tensor, None, index, position, position + 1, local_bytes(graph, mesh, tensor, before))
                )
    return (*found.values(), *whole)


def _way(
    graph: OpGraph, mesh: Mesh, tensor: int, ends: tuple[Sharding, Sharding], index: int, position: int
) -> Iterator[Copy]:
    """The largest intermediate of a resharding that takes several steps."""
    sizes = [local_bytes(graph, mesh, tensor, stop) for stop in resharding_stops(*ends, mesh)]
    if sizes:
        yield Copy(tensor, None, index, position, position + 1, max(sizes))


def local_bytes(graph: OpGraph, mesh: Mesh, tensor: int, sharding: Sharding) -> int:
    """Bytes a device holds of a tensor."""
    return graph.tensors[tensor].size_bytes // prod(sharding.tile_counts(mesh))


def live_bytes(
    graph: OpGraph,
    mesh: Mesh,
    lives: Sequence[Lifetime],
    shardings: Mapping[int, Sharding],
    copies: Sequence[Copy],
    positions: int,
) -> np.ndarray:
    """Bytes a device holds while each operation runs: int64 `[positions]`."""
    change = np.zeros(positions + 1, dtype=np.int64)
    for live in lives:
        size = live.count * local_bytes(graph, mesh, live.tensor, shardings[live.tensor])
        change[live.start] += size
        change[live.stop] -= size
    for copy in copies:
        change[copy.start] += copy.bytes
        change[copy.stop] -= copy.bytes
    return np.cumsum(change[:-1])


def with_gaps(
    graph: OpGraph,
    mesh: Mesh,
    lives: Sequence[Lifetime],
    shardings: Mapping[int, Sharding],
    rematerialized: Sequence[Rematerialized],
) -> tuple[tuple[Lifetime, ...], tuple[Copy, ...]]:
    """The lifetimes when values are dropped and computed again, and what is held beside them to do so."""
    if not rematerialized:
        return tuple(lives), ()
    gaps = {again.tensor: again.gap for again in rematerialized}
    until: dict[int, int] = {}
    scratch = []
    for again in rematerialized:
        for tensor in again.extended:
            until[tensor] = max(until.get(tensor, 0), again.gap[1] + 1)
        at, op = again.gap[1], again.readers[0]
        scratch.append(Copy(again.tensor, None, op, at, at + 1, again.scratch_bytes))
    found: list[Lifetime] = []
    for live in lives:
        live = replace(live, stop=max(live.stop, until.get(live.tensor, 0)))
        begin, end = gaps.get(live.tensor, (live.stop, live.stop))
        found += [Lifetime(live.tensor, live.start, begin, live.count)] if live.start < begin else []
        found += [Lifetime(live.tensor, end, live.stop, live.count)] if end < live.stop else []
    return tuple(found), tuple(scratch)
