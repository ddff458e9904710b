"""What is the same about a part of a step on every mesh: its classes, the order in which it runs,
what is held when.

Parts that are equal (`StagePart.key`) have equal facts wherever they stand in the model, so that
these are found once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardopt.graph.op_graph import Tensor
from shardopt.solve.sharding.intra_op.lifetimes import Lifetime, Lifetimes
from shardopt.solve.sharding.kernels.execution_order import ExecutionOrder
from shardopt.solve.stages.costs.classes import (
    Classes,
    merged_classes,
    node_kinds,
    places,
    single_classes,
)
from shardopt.solve.stages.costs.stage_part import StagePart

# More results than an operation has: loops carry hundreds of values.
_MOST_RESULTS = 1 << 20


@dataclass(frozen=True, eq=False)
class Held:
    """Lifetimes, and as int64 arrays `[n]` of these: the node that decides about each tensor,
    `place` of the tensor among its results, or its operands behind those, the tensor's type as a
    number, and the positions [start, stop). `handed_on` are those whose positions depend on
    shardings."""

    lives: tuple[Lifetime, ...]
    handed_on: tuple[int, ...]
    node: np.ndarray
    place: np.ndarray
    kind: np.ndarray
    start: np.ndarray
    stop: np.ndarray


@dataclass(frozen=True, eq=False)
class PartFacts:
    """`part` stands for all that are equal to it, apart from what they are copies of."""

    part: StagePart

    @cached_property
    def classes(self) -> Classes:
        return merged_classes(self.singles, self.kinds)

    @cached_property
    def singles(self) -> Classes:
        """Every node as a class of its own."""
        return single_classes(self.part)

    @cached_property
    def kinds(self) -> np.ndarray:
        """Equal numbers for nodes with equal strategies: int64 `[nodes]`."""
        return node_kinds(self.part, self.singles.view, self.singles.inputs)

    @cached_property
    def execution(self) -> ExecutionOrder:
        return self.part.kernels.execution

    @cached_property
    def position(self) -> np.ndarray:
        """Where each operation stands in that order: int64 `[operations]`."""
        position = np.empty(len(self.execution.order), dtype=np.int64)
        position[np.array(self.execution.order, dtype=np.int64)] = np.arange(len(position))
        return position

    @cached_property
    def loop(self) -> tuple[int, int]:
        """The positions [first, behind the last) of the body of a microbatch in that order."""
        inside = self.position[slice(*self.part.loop)]
        return (int(inside.min()), int(inside.max()) + 1) if inside.size else (0, 0)

    @cached_property
    def place(self) -> dict[int, tuple[int, int]]:
        """For each tensor the node that decides about it, and which of its results it is."""
        return places(self.part.graph, self.singles.inputs)

    @cached_property
    def first_readers(self) -> dict[int, tuple[int, int]]:
        """For each tensor that readers get as they want it, the first one and which of its operands
        it is."""
        readers: dict[int, tuple[int, int]] = {}
        for node, op in enumerate(self.part.graph.ops):
            for position, tensor in enumerate(op.operands):
                if tensor in self.part.free:
                    readers.setdefault(tensor, (node, position))
        return readers

    @cached_property
    def lifetimes(self) -> tuple[Lifetime, ...]:
        """With one microbatch in flight."""
        return self._lifetimes.of_one()

    @cached_property
    def held(self) -> Held:
        """`lifetimes` as arrays."""
        return self._held(self.lifetimes)

    @cached_property
    def held_further(self) -> Held:
        """`further` as arrays."""
        return self._held(self.further)

    def _held(self, lives: tuple[Lifetime, ...]) -> Held:
        tensors, number = self.part.graph.tensors, dict[Tensor, int]()
        rows = []
        for live in lives:
            # Operands count behind all results.
            node, place = self.place[live.tensor]
            if live.tensor in self.first_readers:
                node, operand = self.first_readers[live.tensor]
                place = _MOST_RESULTS + operand
            kind = number.setdefault(tensors[live.tensor], len(number))
            rows.append((node, place, kind, live.start, live.stop))
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        handed_on = tuple(k for k, live in enumerate(lives) if live.alone is not None)
        return Held(lives, handed_on, *(np.ascontiguousarray(column) for column in table.T))

    @cached_property
    def further(self) -> tuple[Lifetime, ...]:
        """What is held once more for every further microbatch in flight."""
        return self._lifetimes.of_further()

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        """With two microbatches in flight."""
        part, aliases = self.part, dict[int, int]()
        for a, b in part.tied:
            if a != b and a in self.place and b in self.place:
                # A buffer can be reused by one value only: the first pair wins, as in the shard
                # phase.
                aliases.setdefault(b, a)
        execution, inputs = self.execution, self.singles.inputs
        return Lifetimes(part.graph, execution, execution.order, inputs, aliases, part.residency(2))
