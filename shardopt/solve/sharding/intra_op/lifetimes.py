"""When each tensor of a part of a graph occupies memory, in positions of the part's operations.

* Inputs stay for the whole part (weights, optimizer state); what another mesh sends stays from its
  arrival on.
* A value lives from its operation to its last reader, or to the end when it is an output. What a
  fragment (a group of operations, one executable) is given stays until the fragment ends.
* What is made before a loop and read inside stays until the loop ends; in the one over
  microbatches, what one fragment hands to another (residuals of a backward pass) is held once for
  each microbatch in flight.
* A value that takes over the memory of another one (the result that a donated argument becomes, an
  accumulator before and after the loop) shares one lifetime with it.
* Elementwise operations, loops and updates of a part write into their operand where that dies.
* Values that the compiler fuses into their readers take no memory
  (`shardopt.solve.sharding.kernels.execution_order`).

Beside these stand, while an operation runs, what it needs beside the values themselves
(`shardopt.solve.sharding.intra_op.copies`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.graph.residency import Residency
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.sharding.intra_op.copies import TensorCopy
from shardopt.solve.sharding.intra_op.sharded_ops import FreshCopies, local_bytes
from shardopt.solve.sharding.kernels.execution_order import ExecutionOrder
from shardopt.solve.sharding.strategies.strategies import Strategy

# These change a part of their first operand.
_UPDATES = frozenset({"dynamic_update_slice", "scatter"})


@dataclass(frozen=True)
class Lifetime:
    """`tensor` is held at the positions [start, stop), `count` times (for so many microbatches)."""

    tensor: int
    start: int
    stop: int
    count: int = 1


@dataclass(frozen=True)
class Rematerialized:
    """A value that is dropped at position `gap[0]` and recomputed at `gap[1]`, before the first
    of `readers`.

    `chain` are the operations that are run a second time, the last of which makes `tensor`, and
    `strategies` say how. `extended` are their operands that would otherwise be gone by then.
    `scratch_bytes` a device holds beside the value while the chain runs; `seconds` of one
    execution."""

    tensor: int
    chain: tuple[int, ...]
    strategies: tuple[Strategy, ...]
    readers: tuple[int, ...]
    gap: tuple[int, int]
    extended: tuple[int, ...]
    scratch_bytes: int
    seconds: float


def is_in_place(graph: OpGraph, index: int, result: int, dies: Set[int]) -> bool:
    """Whether operation `index` can write `result` over an operand of `dies`, the values that
    nobody reads later."""
    op = graph.ops[index]
    if op.name == "while":
        return op.operands[op.results.index(result)] in dies
    if op.name in _UPDATES:
        return op.operands[0] in dies
    size = graph.tensors[result].size_bytes
    return _is_elementwise(op) and any(
        t in dies and graph.tensors[t].size_bytes == size for t in op.operands
    )


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
    """The lifetimes of a part of a graph: its operations `order`, as they run, and its `inputs`.

    `aliases[b]` is the tensor whose memory b takes.
    """

    def __init__(
        self,
        graph: OpGraph,
        execution: ExecutionOrder,
        order: Sequence[int],
        inputs: Sequence[int],
        aliases: Mapping[int, int],
        residency: Residency,
    ) -> None:
        self.graph, self.readers, self.order = graph, execution.readers, order
        self.inputs, self.residency = inputs, residency
        self.position = {op: position for position, op in enumerate(order)}
        self.free = execution.fused - residency.literals
        self.outputs = set(graph.outputs)
        input_set = set(inputs)
        # An input has memory of its own already.
        self.aliases = {b: a for b, a in aliases.items() if b not in input_set}
        self.group_stop = {graph.ops[op].group: position + 1 for position, op in enumerate(order)}
        self.loop_span = (
            (0, 0)
            if residency.loop is None
            else self._span(residency.loop.start, residency.loop.stop)
        )
        self.spans = (self.loop_span, *(self._span(*loop) for loop in graph.loops))

    def _span(self, first: int, last: int) -> tuple[int, int]:
        """The positions of the operations [first, last)."""
        inside = [self.position[op] for op in range(first, last) if op in self.position]
        return (min(inside), max(inside) + 1) if inside else (0, 0)

    def all(self) -> tuple[Lifetime, ...]:
        """Inputs first, then results as they are made, then what is held for further
        microbatches."""
        spans = {tensor: self._of_input(tensor) for tensor in self.inputs}
        for position, op in enumerate(self.order):
            spans.update(
                (tensor, self._of_result(tensor, position)) for tensor in self.graph.ops[op].results
            )
        roots = {tensor: self._root(tensor) for tensor in spans}
        for tensor, root in roots.items():
            if root != tensor and root in spans:
                spans[root] = (
                    min(spans[root][0], spans[tensor][0]),
                    max(spans[root][1], spans[tensor][1]),
                )
        # Zeros that an accumulator begins with are somebody's memory, although a constant alone
        # would be fused.
        free = self.free - {root for tensor, root in roots.items() if root != tensor}
        held = [
            Lifetime(tensor, *span)
            for tensor, span in spans.items()
            if tensor not in free and (roots[tensor] == tensor or roots[tensor] not in spans)
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
            return 0, len(self.order)
        arrival = self.residency.arrivals[tensor]
        later = [position for op, position in self.position.items() if op >= arrival]
        start = min(later, default=max(len(self.order) - 1, 0))
        return start, self._stop(tensor, start, None)

    def _of_result(self, tensor: int, position: int) -> tuple[int, int]:
        if tensor in self.residency.literals:
            return 0, len(self.order)
        return position, self._stop(tensor, position, self.graph.ops[self.order[position]].group)

    def _stop(self, tensor: int, start: int, group: int | None) -> int:
        """The position behind the last at which a value made at `start` in fragment `group` is
        held."""
        readers = self.readers[tensor]
        if tensor in self.outputs or any(op not in self.position for op in readers):
            return len(self.order)
        stop = max((self.position[op] + 1 for op in readers), default=start + 1)
        others = {self.graph.ops[op].group for op in readers} - {group}
        # The arguments of an executable are held until it returns.
        stop = max((stop, *(self.group_stop[other] for other in others)))
        # Every iteration of a loop reads it.
        return max((stop, *(end for begin, end in self.spans if start < begin < stop)))

    def _in_place(self, lives: list[Lifetime]) -> Iterator[Lifetime]:
        """Results that are written over an operand begin behind the operation."""
        held_anyway = {*self.inputs, *self.aliases.values()}
        dying: dict[int, set[int]] = {}
        for live in lives:
            last = max(
                (self.position.get(op, len(self.order)) for op in self.readers[live.tensor]),
                default=-1,
            )
            # What is held for longer (outputs, arguments of a fragment, outside a loop) is nobody's
            # to write over.
            if live.tensor not in held_anyway | self.outputs and live.stop == last + 1:
                dying.setdefault(last, set()).add(live.tensor)
        for live in lives:
            made_here = (
                live.tensor not in held_anyway
                and live.start < live.stop
                and live.tensor in self.graph.ops[self.order[live.start]].results
                and is_in_place(
                    self.graph, self.order[live.start], live.tensor, dying.get(live.start, set())
                )
            )
            yield replace(live, start=live.start + 1) if made_here else live

    def _in_flight(self, lives: list[Lifetime]) -> Iterator[Lifetime]:
        """What fragments of the loop hand on to others is held for the other microbatches in flight
        too."""
        loop = self.residency.loop
        if loop is None or max((loop.in_flight, *loop.of_group.values())) < 2:
            return
        producers = {tensor: op for op in self.order for tensor in self.graph.ops[op].results}
        for live in lives:
            ops = list(self.readers[live.tensor])
            if live.tensor in producers:
                ops.append(producers[live.tensor])
            elif live.tensor not in self.residency.arrivals:
                continue
            inside = ops and all(loop.start <= op < loop.stop for op in ops)
            groups = {self.graph.ops[op].group for op in ops}
            if inside and len(groups) > 1 and loop.in_flight_of(groups) > 1:
                # One of them is in the order of operations already.
                yield Lifetime(live.tensor, *self.loop_span, loop.in_flight_of(groups) - 1)


def live_bytes(
    graph: OpGraph,
    mesh: Mesh,
    lives: Sequence[Lifetime],
    shardings: Mapping[int, Sharding],
    copies: Sequence[TensorCopy],
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
) -> tuple[tuple[Lifetime, ...], tuple[TensorCopy, ...]]:
    """The lifetimes when values are dropped and recomputed, and what is held beside them to do
    so."""
    if not rematerialized:
        return tuple(lives), ()
    gaps = {remat.tensor: remat.gap for remat in rematerialized}
    until: dict[int, int] = {}
    scratch = []
    for remat in rematerialized:
        for tensor in remat.extended:
            until[tensor] = max(until.get(tensor, 0), remat.gap[1] + 1)
        at, op = remat.gap[1], remat.readers[0]
        scratch.append(TensorCopy(remat.tensor, None, op, at, at + 1, remat.scratch_bytes))
    pieces: list[Lifetime] = []
    for live in lives:
        live = replace(live, stop=max(live.stop, until.get(live.tensor, 0)))
        begin, end = gaps.get(live.tensor, (live.stop, live.stop))
        pieces += (
            [Lifetime(live.tensor, live.start, begin, live.count)] if live.start < begin else []
        )
        pieces += [Lifetime(live.tensor, end, live.stop, live.count)] if end < live.stop else []
    return tuple(pieces), tuple(scratch)


def fresh_copies(
    graph: OpGraph, strategies: Mapping[int, Strategy], rematerialized: Sequence[Rematerialized]
) -> FreshCopies:
    """Readers of values that are recomputed share no copies with those before them."""
    first_readers: dict[tuple[int, Sharding], int] = {}
    for remat in rematerialized:
        for reader in remat.readers:
            for tensor, target in zip(
                graph.ops[reader].operands, strategies[reader].operands, strict=True
            ):
                if tensor == remat.tensor:
                    first_readers.setdefault((tensor, target), reader)
    return frozenset((tensor, target, reader) for (tensor, target), reader in first_readers.items())
