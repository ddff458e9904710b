"""Memory that a marker's result shares with its operand.

    %x = …                     one memory, held from %x to the last reader of either,
    %m = marker %x             if the two have one sharding
    … %x …, … %m …             two otherwise: %x to its last reader, %m from the marker to its own

Which of the two it is depends on the plan. A problem with a memory limit has to count no more than
any plan holds, and what a plan holds of a value depends on its sharding alone. So %x counts until
its own last reader, and %m from there on; `Alone` says what to count in a plan in which the value
is moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardopt.graph.op_graph import OpGraph
from shardopt.solve.sharding.kernels.execution_order import ExecutionOrder
from shardopt.solve.sharding.kernels.fusion import touched_at


@dataclass(frozen=True, eq=False)
class HandedOn:
    """What the markers of a part hand on. `operands[m]` is the value that the marker of m reads."""

    graph: OpGraph
    execution: ExecutionOrder
    operands: Mapping[int, int]

    @staticmethod
    def within(graph: OpGraph, execution: ExecutionOrder, ops: Iterable[int]) -> HandedOn:
        """Of the operations of a part: the result of a marker outside of it is an input."""
        made = {tensor for op in ops for tensor in graph.ops[op].results}
        return HandedOn(graph, execution, {m: x for m, x in graph.handed_on.items() if m in made})

    def origin(self, tensor: int) -> int:
        """The value that markers hand on as `tensor`."""
        while tensor in self.operands:
            tensor = self.operands[tensor]
        return tensor

    def names(self) -> dict[int, list[int]]:
        """For each value that is handed on all that it becomes, in program order."""
        names: dict[int, list[int]] = {}
        for tensor in self.operands:
            names.setdefault(self.origin(tensor), []).append(tensor)
        return names

    def direct_readers(self, tensor: int) -> list[int]:
        """The operations that touch the memory of a value under this name, markers among them."""
        graph, readers = self.graph, self.execution.readers
        direct: set[int] = set()
        for reader in graph.consumers()[tensor]:
            results = graph.ops[reader].results
            is_marker = bool(results) and results[0] in self.operands
            direct.update(
                (reader,) if is_marker else touched_at(graph, self.execution.fused, readers, reader)
            )
        return sorted(direct)
