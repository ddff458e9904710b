"""What the operations of a microbatch read and make, and which layer they belong to: all that says
which of them are forward, backward or recomputed.

    row  reads  makes  layer       %h = dot_general %x, %w {layer = 0}
    0    0, 1   2      0           %y = dot_general %h, %v {layer = 1}
    1    2, 3   4      1      ◀─   %d = multiply %y, %h    {layer = 0}     a backward of layer 0
    2    4, 2   5      0

Both the op graph of a step (`shardopt.solve.stages.step_graph`), from which stage costs come, and
the IR (`shardopt.extract.layered_body`), which is rewritten, give such rows. So what a stage is
charged for is what it will run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shardopt.graph.op_graph import SHARED

OUTSIDE = -1  # the maker of a value that the body does not make itself


@dataclass(frozen=True, eq=False)
class LayeredBody:
    """Row i, in program order, is an operation, or a loop or branch as a whole. It reads the values
    `reads[i]`, makes `makes[i]` and belongs to layer `layers[i]`, or is SHARED: every reader makes
    its own copy.

    `returned` are values that the body returns. `waits[i]`, of every row or of none, are values
    that row i waits for although it does not read them. `random` rows differ from run to run.
    `work[i]` are FLOPs of as many seconds (`Work.weighted_flops`), `sizes` the bytes of what rows
    make: both are empty where nobody asks."""

    layers: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    returned: frozenset[int] = frozenset()
    waits: tuple[tuple[int, ...], ...] = ()
    random: frozenset[int] = frozenset()
    work: tuple[float, ...] = ()
    sizes: Mapping[int, int] = field(default_factory=dict)

    def awaited(self, row: int) -> tuple[int, ...]:
        """What must be there before a row runs: what it reads, then what it only waits for."""
        return (*self.reads[row], *(self.waits[row] if self.waits else ()))

    def maker(self, value: int) -> int:
        """The row that makes a value, or OUTSIDE."""
        return self._makers.get(value, OUTSIDE)

    def is_shared(self, value: int) -> bool:
        """Whether every reader of the value makes a copy of it."""
        row = self.maker(value)
        return row != OUTSIDE and self.layers[row] == SHARED

    def rows_of(self, layers: Iterable[int]) -> list[int]:
        """The rows of some layers, in program order."""
        return sorted(row for layer in layers for row in self._rows_of_layer.get(layer, ()))

    @cached_property
    def readers(self) -> Mapping[int, tuple[int, ...]]:
        """The rows that read a value; values that none reads are missing."""
        readers: dict[int, list[int]] = {}
        for row, values in enumerate(self.reads):
            for value in values:
                readers.setdefault(value, []).append(row)
        return {value: tuple(rows) for value, rows in readers.items()}

    @cached_property
    def reached(self) -> tuple[int, ...]:
        """For each row the last layer that it depends on, SHARED for those that depend on none. A
        stage that ends before that layer runs the row in its backward pass."""
        return self._reached_and_latest[0]

    @cached_property
    def latest(self) -> Mapping[int, int]:
        """For each value that the body makes the last layer that it depends on, its maker's among
        them."""
        return self._reached_and_latest[1]

    @cached_property
    def _reached_and_latest(self) -> tuple[tuple[int, ...], dict[int, int]]:
        reached: list[int] = []
        latest: dict[int, int] = {}
        for row, layer in enumerate(self.layers):
            depths = (latest.get(value, SHARED) for value in self.awaited(row))
            reached.append(max(depths, default=SHARED))
            latest.update((value, max(reached[row], layer)) for value in self.makes[row])
        return tuple(reached), latest

    @cached_property
    def _makers(self) -> Mapping[int, int]:
        return {value: row for row, values in enumerate(self.makes) for value in values}

    @cached_property
    def _rows_of_layer(self) -> Mapping[int, list[int]]:
        rows: dict[int, list[int]] = {}
        for row, layer in enumerate(self.layers):
            rows.setdefault(layer, []).append(row)
        return rows
