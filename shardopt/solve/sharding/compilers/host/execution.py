"""What runs on hosts, said about the operations and tensors of a graph (`ExecutionOrder`)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property

from shardopt.graph.op_graph import OpGraph
from shardopt.solve.sharding.compilers.host.breadth_first import breadth_first
from shardopt.solve.sharding.compilers.host.instructions import instructions_of
from shardopt.solve.sharding.compilers.host.loop_fusion import find_loops
from shardopt.solve.sharding.kernels.execution_order import (
    ExecutionOrder,
    SecondBuffer,
    fragments,
    place_with_makers,
    with_loops_as_ops,
)
from shardopt.solve.sharding.kernels.fusion import touched_at


def host_execution(graph: OpGraph) -> ExecutionOrder:
    """A loop runs as a whole."""
    program = _HostProgram(graph)
    if not graph.loops:
        return program.execution(program.order(fragments(graph)))
    folded, spans = with_loops_as_ops(graph)
    nodes = _HostProgram(folded).order(fragments(folded))
    order = [op for node in nodes for op in program.order_inside(spans[node])]
    return program.execution(order)


class _HostProgram:
    def __init__(self, graph: OpGraph) -> None:
        self.with_markers, self.graph = graph, graph.without_markers
        self.program = instructions_of(self.graph)
        self.found = find_loops(self.program)
        self.kernels = self.found.kernels
        self.makers = graph.producers()
        # Of a loop's body by itself: what goes around it is known only when loops are operations.
        parts: dict[object, list[int]] = {}
        for number in range(len(self.kernels)):
            scope = self._scope(number)
            parts.setdefault(scope if graph.loops else scope[0], []).append(number)
        self.sequence = [
            number
            for part in parts.values()
            for number in breadth_first(self.program, self.found, part)
        ]

    def _scope(self, number: int) -> tuple[int, int]:
        return self.program.instructions[self.kernels[number].members[-1]].scope

    @cached_property
    def tensors(self) -> dict[int, int]:
        """The tensor that stands for a buffer; none for those that hold one a second time."""
        outputs, stands_for = set(self.graph.outputs), dict[int, int]()
        for buffer in range(len(self.graph.tensors)):
            root = self.found.buffer(self.program.equal[buffer])
            if root in self.written and (root == buffer or buffer in outputs):
                stands_for[root] = buffer
        taken = {*stands_for.values(), *self.graph.inputs}
        for number in self.sequence:
            for buffer in self.kernels[number].results:
                tensor = self.program.tensors[buffer]
                if buffer not in stands_for and tensor not in taken:
                    stands_for[buffer] = tensor
                    taken.add(tensor)
        return stands_for

    @cached_property
    def written(self) -> set[int]:
        return {buffer for kernel in self.kernels for buffer in kernel.results}

    @cached_property
    def homes(self) -> dict[int, int]:
        """The kernel that an operation is placed with: the one that writes its result, else the
        first that computes it on the way."""
        homes = {
            self.makers[tensor]: number
            for number, kernel in enumerate(self.kernels)
            for buffer in kernel.results
            if (tensor := self.tensors.get(buffer, -1)) >= 0 and self.makers[tensor] >= 0
        }
        for number in self.sequence:
            for index in self.kernels[number].members:
                op = self.program.instructions[index].op
                if op is not None:
                    homes.setdefault(op, number)
        return homes

    def order(self, parts: Sequence[Sequence[int]]) -> list[int]:
        """All operations, part by part; those that no kernel runs stand before the first that reads
        them."""
        ops_of: dict[int, list[int]] = {}
        for op, number in sorted(self.homes.items()):
            ops_of.setdefault(number, []).append(op)
        order: dict[int, None] = {}
        for ops in parts:
            inside = set(ops)
            for number in self.sequence:
                for op in ops_of.get(number, ()):
                    if op in inside:
                        self._place(op, inside, order)
            for op in ops:
                self._place(op, inside, order)
        return list(order)

    def order_inside(self, span: range) -> Sequence[int]:
        """The operations of a loop, breadth first unless there are loops in it."""
        loops = [loop for loop in self.graph.loops if loop[0] in span]
        return span if len(span) == 1 or len(loops) > 1 else self.order([span])

    def _place(self, op: int, inside: Set[int], order: dict[int, None]) -> None:
        def made_by(op: int) -> list[int]:
            operands = self.with_markers.ops[op].operands
            return [m for m in (self.makers[operand] for operand in operands) if m in inside]

        place_with_makers(op, made_by, order)

    def execution(self, order: Sequence[int]) -> ExecutionOrder:
        places = self._places(order)
        readers_of: dict[int, list[int]] = {}
        for number, kernel in enumerate(self.kernels):
            for buffer in kernel.reads:
                readers_of.setdefault(buffer, []).append(places[number])
        written = {self.tensors[buffer] for buffer in self.written if buffer in self.tensors}
        fused = frozenset(range(len(self.graph.tensors))) - written - set(self.graph.inputs)
        readers = self._readers_of_fused(fused, places)
        for buffer, using in readers_of.items():
            tensor = self.tensors.get(buffer, buffer if buffer not in self.written else -1)
            if tensor >= 0:
                readers[tensor] = set(using)
        fused = self._hand_on(fused, readers)
        return ExecutionOrder(
            tuple(order),
            fused,
            tuple(tuple(sorted(using)) for using in readers),
            tuple(self._second_buffers(places, readers_of)),
            self._overwritten(),
        )

    def _hand_on(self, fused: frozenset[int], readers: list[set[int]]) -> frozenset[int]:
        """Under what markers hand on, a value is read by those that read that name."""
        graph = self.with_markers
        written = {t for t, operand in graph.handed_on.items() if operand not in fused}
        fused = fused - written
        for result in reversed(graph.handed_on):
            using = (
                touched_at(graph, fused, readers, reader) for reader in graph.consumers()[result]
            )
            readers[result] = {op for each in using for op in each}
        return fused

    def _places(self, order: Sequence[int]) -> dict[int, int]:
        """The operation where each kernel runs. One that none is placed with, such as a copy, runs
        with the kernel before it."""
        position = {op: place for place, op in enumerate(order)}
        first: dict[tuple[int, int], int] = {}
        for op in order:
            first.setdefault(self.graph.ops[op].scope, op)
        homes: dict[int, list[int]] = {}
        for op, number in self.homes.items():
            homes.setdefault(number, []).append(op)
        writers = {b: n for n, kernel in enumerate(self.kernels) for b in kernel.results}
        places: dict[int, int] = {}
        latest: dict[tuple[int, int], int] = {}
        for number in self.sequence:
            kernel = self.kernels[number]
            scope = self._scope(number)
            own = homes.get(number, [])
            tensors = (self.tensors[b] for b in kernel.results if b in self.tensors)
            made = [op for tensor in tensors if (op := self.makers[tensor]) in own]
            behind = [places[writers[b]] for b in kernel.reads if writers.get(b) in places]
            before = [op for op in behind if self.graph.ops[op].scope == scope]
            before.append(latest.get(scope, first.get(scope, order[0])))
            places[number] = max(made or own or before, key=position.__getitem__)
            latest[scope] = places[number]
        return places

    def _readers_of_fused(self, fused: Set[int], places: dict[int, int]) -> list[set[int]]:
        """Where what reads a value that is not written runs."""
        readers: list[set[int]] = [set() for _ in self.graph.tensors]
        for index in range(len(self.graph.ops) - 1, -1, -1):
            op = self.graph.ops[index]
            using = {places[self.homes[index]]} if index in self.homes else {index}
            if op.results and all(result in fused for result in op.results):
                using = set().union(*(readers[result] for result in op.results)) or using
            for operand in op.operands:
                readers[operand] |= using
        return readers

    def _second_buffers(
        self, places: dict[int, int], readers_of: dict[int, list[int]]
    ) -> list[SecondBuffer]:
        return [
            SecondBuffer(self.program.tensors[buffer], places[number], tuple(readers_of[buffer]))
            for number in self.sequence
            for buffer in self.kernels[number].results
            if buffer not in self.tensors and buffer in readers_of
        ]

    def _overwritten(self) -> dict[int, frozenset[int]]:
        return {
            self.tensors[buffer]: frozenset(self.tensors.get(b, b) for b in kernel.overwritten)
            for kernel in self.kernels
            for buffer in kernel.results
            if buffer in self.tensors
        }
