"""When each tensor of a part of a graph occupies memory, in positions of the part's operations.

* Inputs stay for the whole part (weights, optimizer state); what another mesh sends stays from its
  arrival on; what lies on the host, and what replaces it, is there while fragments that read or
  make it run, for one microbatch at a time.
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
* What a marker hands on is its operand, unless the two have different shardings
  (`shardopt.solve.sharding.intra_op.handed_on`).

Beside these stand, while an operation runs, what it needs beside the values themselves
(`shardopt.solve.sharding.intra_op.copies`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.graph.residency import MicrobatchLoop, Residency
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.sharding.intra_op.copies import TensorCopy
from shardopt.solve.sharding.intra_op.further_microbatches import FurtherMicrobatches
from shardopt.solve.sharding.intra_op.handed_on import HandedOn
from shardopt.solve.sharding.intra_op.sharded_ops import local_bytes
from shardopt.solve.sharding.kernels.execution_order import ExecutionOrder
from shardopt.solve.sharding.strategies.strategies import is_cheap_to_clone

# These change a part of their first operand.
_UPDATES = frozenset({"dynamic_update_slice", "scatter"})


@dataclass(frozen=True)
class Alone:
    """A value that is held at the positions [start, stop) where it has not the sharding of `other`,
    with which it shares its memory else."""

    other: int
    start: int
    stop: int


@dataclass(frozen=True)
class Lifetime:
    """`tensor` is held at the positions [start, stop), `count` times (for so many microbatches);
    where it does not share its memory, as `alone` says instead, which is no shorter."""

    tensor: int
    start: int
    stop: int
    count: int = 1
    alone: Alone | None = None

    def span(self, sharding_of: Callable[[int], object]) -> tuple[int, int]:
        """The positions [start, stop) in a plan; shardings are only compared."""
        alone = self.alone
        if alone is None or sharding_of(self.tensor) == sharding_of(alone.other):
            return self.start, self.stop
        return alone.start, alone.stop


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
        self.second, self.overwritten = execution.second_buffers, execution.overwritten
        self.inputs, self.residency = inputs, residency
        self.position = {op: position for position, op in enumerate(order)}
        self.position_of = {
            tensor: position
            for position, op in enumerate(order)
            for tensor in graph.ops[op].results
        }
        self.handed = HandedOn.within(graph, execution, order)
        self.names = {
            tensor: names
            for tensor, names in self.handed.names().items()
            if not self._is_made_anew(tensor)
        }
        self.free = execution.fused - residency.literals
        self.outputs = {self.handed.origin(tensor) for tensor in graph.outputs}
        input_set = set(inputs)
        # An input has memory of its own already.
        self.aliased = aliases.keys()
        origins = ((self.handed.origin(b), a) for b, a in aliases.items())
        # Nor does one need the memory of what is made and never read, as an accumulator of a single
        # microbatch begins with.
        self.aliases = {
            b: a
            for b, a in origins
            if b not in input_set and (self.readers[a] or a not in self.position_of)
        }
        self.group_stop = {graph.ops[op].group: position + 1 for position, op in enumerate(order)}
        self.on_host = {self.handed.origin(tensor) for tensor in residency.on_host} | {
            self.handed.origin(b) for b, a in aliases.items() if a in residency.on_host
        }
        self.group_start = {
            graph.ops[op].group: position for position, op in reversed([*enumerate(order)])
        }
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
        """Those of one microbatch in flight, then what is held for further ones."""
        return (*self.of_one(), *self.of_further())

    def of_one(self) -> tuple[Lifetime, ...]:
        """With one microbatch in flight: inputs first, then results as they are made."""
        held = self._by_name(list(self._in_place(self._held)))
        return (*held, *self._second_buffers(), *self._fetched_again())

    def of_further(self) -> tuple[Lifetime, ...]:
        """What is held for further microbatches."""
        return tuple(self._in_flight(self._held))

    @cached_property
    def _held(self) -> list[Lifetime]:
        spans = {tensor: self._of_input(tensor) for tensor in self.inputs}
        for position, op in enumerate(self.order):
            spans.update(
                (tensor, self._of_result(tensor, position))
                for tensor in self.graph.ops[op].results
                if tensor not in self.handed.operands
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
        return [
            Lifetime(tensor, *span)
            for tensor, span in spans.items()
            if tensor not in free and (roots[tensor] == tensor or roots[tensor] not in spans)
        ]

    def _root(self, tensor: int) -> int:
        seen = {tensor}
        while tensor in self.aliases and self.aliases[tensor] not in seen:
            tensor = self.aliases[tensor]
            seen.add(tensor)
        return tensor

    def _of_input(self, tensor: int) -> tuple[int, int]:
        if tensor in self.on_host:
            return next(self._fetched(tensor), (0, 0))
        if tensor not in self.residency.arrivals:
            return 0, len(self.order)
        arrival = self.residency.arrivals[tensor]
        later = [position for op, position in self.position.items() if op >= arrival]
        start = min(later, default=max(len(self.order) - 1, 0))
        return start, self._stop(tensor, start, None)

    def _of_result(self, tensor: int, position: int) -> tuple[int, int]:
        if tensor in self.residency.literals:
            return 0, len(self.order)
        if tensor in self.on_host:
            return position, self.group_stop[self.graph.ops[self.order[position]].group]
        return position, self._stop(tensor, position, self.graph.ops[self.order[position]].group)

    def _fetched(self, tensor: int) -> Iterator[tuple[int, int]]:
        """While each group that reads the value, and does not make it, runs, the last one first."""
        groups = {self.graph.ops[op].group for op in self.readers[tensor] if op in self.position}
        if tensor in self.position_of:
            groups.discard(self.graph.ops[self.order[self.position_of[tensor]]].group)
        spans = sorted((self.group_start[group], self.group_stop[group]) for group in groups)
        yield from reversed(spans)

    def _fetched_again(self) -> Iterator[Lifetime]:
        """What is on the host is fetched anew for each group that reads it: of an input those
        before the last."""
        for tensor in sorted(self.on_host):
            first = 0 if tensor in self.position_of else 1
            for start, stop in islice(self._fetched(tensor), first, None):
                yield Lifetime(tensor, start, stop)

    def _stop(self, tensor: int, start: int, group: int | None) -> int:
        """The position behind the last at which a value made at `start` in fragment `group` is
        held, under any name."""
        return self._last(self.readers[tensor], tensor in self.outputs, start, group)

    def _last(self, readers: Sequence[int], leaves: bool, start: int, group: int | None) -> int:
        if leaves or any(op not in self.position for op in readers):
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
        kept = held_anyway | self.outputs
        dying: dict[int, set[int]] = {}
        for live in lives:
            last = max(
                (self.position.get(op, len(self.order)) for op in self.readers[live.tensor]),
                default=-1,
            )
            # What is held for longer (outputs, arguments of a fragment, outside a loop) is nobody's
            # to write over.
            if live.tensor not in kept and live.stop == last + 1:
                dying.setdefault(last, set()).add(live.tensor)
        for live in lives:
            made_here = (
                live.tensor not in held_anyway
                and live.start < live.stop
                and live.tensor in self.graph.ops[self.order[live.start]].results
                and self._is_in_place(live, dying.get(live.start, set()))
            )
            yield replace(live, start=live.start + 1) if made_here else live

    def _is_in_place(self, live: Lifetime, dies: Set[int]) -> bool:
        graph, index = self.graph.without_markers, self.order[live.start]
        if self.overwritten is None or graph.ops[index].name == "while":
            return is_in_place(graph, index, live.tensor, dies)
        size = graph.tensors[live.tensor].size_bytes
        return any(
            graph.tensors[t].size_bytes == size
            for t in self.overwritten.get(live.tensor, frozenset()) & dies
        )

    def _second_buffers(self) -> Iterator[Lifetime]:
        for each in self.second:
            readers = [self.position[op] for op in each.readers if op in self.position]
            if each.op in self.position and readers:
                start = self.position[each.op]
                yield Lifetime(each.tensor, start, max(start, *readers) + 1)

    def _by_name(self, lives: list[Lifetime]) -> Iterator[Lifetime]:
        """What markers hand on, under the name by which it is read."""
        life_of = {live.tensor: live for live in lives}
        yield from (live for live in lives if live.tensor not in self.names)
        for tensor, others in self.names.items():
            yield from self._named(tensor, others, life_of.get(tensor))

    def _is_made_anew(self, tensor: int) -> bool:
        """Whether a reader that wants another sharding makes the value itself."""
        if tensor not in self.position_of:
            return False
        op = self.graph.ops[self.order[self.position_of[tensor]]]
        return is_cheap_to_clone(op, tuple(self.graph.tensors[t] for t in op.operands))

    def _named(
        self, tensor: int, others: Sequence[int], live: Lifetime | None
    ) -> Iterator[Lifetime]:
        """The lifetimes of a value and of what it is handed on as; it has no memory of its own
        where it is fused, or lies in that of another value."""
        start, stop = self._direct(tensor)
        if live is not None:
            kept = tensor in self.aliases.values()
            stop = live.stop if kept else max(min(live.stop, stop), live.start)
            yield replace(live, stop=stop)
        elif tensor in self.aliases and tensor not in self.aliased:
            other = next(name for name in others if name in self.aliased)
            yield Lifetime(tensor, start, start, 1, Alone(other, start, stop))
        for other, (begin, end) in sorted(
            ((other, self._direct(other)) for other in others), key=lambda row: row[1][1]
        ):
            if other in self.aliased:  # it has the memory of what it replaces
                continue
            alone = Alone(self.handed.operands[other], begin, end)
            last = end if live is None else min(live.stop, end)
            if live is None or last <= stop:
                yield Lifetime(other, begin, begin, 1, alone)
            else:
                yield Lifetime(other, max(begin, stop), last, 1, alone)
                stop = last

    def _direct(self, tensor: int) -> tuple[int, int]:
        """When a value is held that moves where it is handed on, as far as its own readers need
        it."""
        leaves, readers = tensor in self.graph.outputs, self.handed.direct_readers(tensor)
        if tensor not in self.position_of:
            start, stop = self._of_input(tensor)
            is_sent = tensor in self.residency.arrivals
            return start, self._last(readers, leaves, start, None) if is_sent else stop
        start = self.position_of[tensor]
        return start, self._last(readers, leaves, start, self.graph.ops[self.order[start]].group)

    def _in_flight(self, lives: list[Lifetime]) -> Iterator[Lifetime]:
        """What fragments of the loop hand on to others is held for the other microbatches in flight
        too."""
        loop = self.residency.loop
        if loop is None or max((loop.in_flight, *loop.of_group.values())) < 2:
            return
        further = FurtherMicrobatches(loop, self.group_start, self.group_stop, self.loop_span)
        in_memory = dict.fromkeys(live.tensor for live in lives)
        for tensor in dict.fromkeys((*in_memory, *self.names)):
            first, others = tensor in in_memory, self.names.get(tensor, [])
            for name in (tensor, *others) if first else others:
                readers = self.handed.direct_readers(name) if others else self.readers[name]
                spans = further.spans(self._joined_groups(name, readers, loop))
                for start, stop, count in spans:
                    if first:
                        yield Lifetime(name, start, stop, count)
                    else:
                        alone = Alone(self.handed.operands[name], start, stop)
                        yield Lifetime(name, start, start, count, alone)
                first = first and not spans

    def _joined_groups(
        self, tensor: int, readers: Sequence[int], loop: MicrobatchLoop
    ) -> frozenset[int]:
        """The fragments of the loop that make and read a value, if they are several."""
        if self.handed.origin(tensor) in self.on_host:
            return frozenset()
        ops = list(readers)
        if tensor in self.position_of:
            ops.append(self.order[self.position_of[tensor]])
        elif tensor not in self.residency.arrivals:
            return frozenset()
        groups = frozenset(self.graph.ops[op].group for op in ops)
        inside = ops and all(loop.start <= op < loop.stop for op in ops)
        return groups if inside and len(groups) > 1 else frozenset()


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
        start, stop = live.span(shardings.__getitem__)
        change[start] += size
        change[stop] -= size
    for copy in copies:
        change[copy.start] += copy.bytes
        change[copy.stop] -= copy.bytes
    return np.cumsum(change[:-1])
