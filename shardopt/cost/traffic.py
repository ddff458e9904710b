"""One unit for what a plan exchanges and what a compiled module exchanges, and the comparison of
the two.

`Traffic` counts tensors and bytes of one kind of collective along one set of mesh axes. Its bytes
are the most that one device holds of the tensors, before or after: the whole value of an all-gather
(after), of an all-reduce and of a reduce-scatter (before), one device's share for an all-to-all and
a permute.

Two notations of one exchange are made equal before plan and module are compared (`comparable`):
XLA's CPU backend writes a reduce-scatter as all-reduce and slice, so the two count as `reduced`;
and which of several replicas a device gets its data from is open, so the axes of a permute say
nothing and are left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from shardopt.cost.collectives import ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER, Step
from shardopt.mesh.mesh import Mesh

REDUCED = "reduced"
# Bytes that may be missing or in excess without a verdict: a few scalars, such as a loss that is
# summed twice.
SLACK_BYTES = 64


@dataclass(frozen=True, order=True)
class Traffic:
    """Tensors and bytes of one device that one kind of collective exchanges along `axes` (mesh
    order)."""

    kind: str
    axes: tuple[str, ...]
    tensors: int
    bytes: int

    def repeated(self, times: int) -> Traffic:
        return Traffic(self.kind, self.axes, self.tensors * times, self.bytes * times)

    def __str__(self) -> str:
        return f"{self.tensors} {self.kind}({', '.join(self.axes)}) of {self.bytes} bytes"


def of_step(step: Step, mesh: Mesh, times: int = 1) -> Traffic:
    """A planned step as traffic of `times` executions."""
    n = prod(mesh.axis_size(axis) for axis in step.axes)
    axes = tuple(axis for axis in mesh.axis_names if axis in step.axes)
    held = step.bytes / n if step.kind == ALL_TO_ALL else step.bytes
    return Traffic(step.kind, axes, times, round(held * times))


def total(items: Iterable[Traffic]) -> tuple[Traffic, ...]:
    """Equal kinds and axes added up; sorted."""
    sums: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for item in items:
        entry = sums.setdefault((item.kind, item.axes), [0, 0])
        entry[0] += item.tensors
        entry[1] += item.bytes
    return tuple(sorted(Traffic(kind, axes, *entry) for (kind, axes), entry in sums.items()))


def comparable(items: Iterable[Traffic]) -> tuple[Traffic, ...]:
    """The same exchanges with what is only notation removed; see the head of the file."""
    names = {ALL_REDUCE: REDUCED, REDUCE_SCATTER: REDUCED}
    return total(
        replace(
            item,
            kind=names.get(item.kind, item.kind),
            axes=() if item.kind == PERMUTE else item.axes,
        )
        for item in items
    )


@dataclass(frozen=True)
class TrafficDifference:
    """What a plan and a compiled module exchange by one kind of collective along one set of
    axes."""

    kind: str
    axes: tuple[str, ...]
    predicted_tensors: int
    found_tensors: int
    predicted_bytes: int
    found_bytes: int

    @property
    def excess_bytes(self) -> int:
        return self.found_bytes - self.predicted_bytes

    def __str__(self) -> str:
        return (
            f"{self.kind}({', '.join(self.axes)}): {self.predicted_tensors} tensors and "
            f"{self.predicted_bytes} bytes "
            f"planned, {self.found_tensors} and {self.found_bytes} compiled"
        )


def compare(
    predicted: Iterable[Traffic], compiled: Iterable[Traffic]
) -> tuple[TrafficDifference, ...]:
    """One row for each kind and set of axes that either side has, equal rows included; sorted."""
    rows: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for side, items in enumerate((predicted, compiled)):
        for item in comparable(items):
            row = rows.setdefault((item.kind, item.axes), [0, 0, 0, 0])
            row[side], row[2 + side] = item.tensors, item.bytes
    return tuple(TrafficDifference(kind, axes, *row) for (kind, axes), row in sorted(rows.items()))


def agree(rows: Iterable[TrafficDifference], tolerance: float) -> bool:
    """Whether the bytes of every kind differ by no more than `tolerance`, as a share of all planned
    bytes.

    Kinds are held apart: an all-gather in the place of an all-reduce is a difference, whatever the
    sum says."""
    rows = tuple(rows)
    planned = sum(row.predicted_bytes for row in rows)
    return sum(abs(row.excess_bytes) for row in rows) <= max(tolerance * planned, SLACK_BYTES)
