"""The vocabulary of microbatching: where tensors and ops carry the batch, and which op runs where.

`shardopt.solve.microbatches.time_plan` decides, `shardopt.passes.microbatches.microbatch_loop`
writes what was decided into the IR."""

from __future__ import annotations

from dataclasses import dataclass, field

Splat = complex | float | int | bool


@dataclass(frozen=True)
class Split:
    """The batch inside dimension `dim`, seen as (outer, extent, rest): the middle part is cut into
    B blocks.

    Any divisor of the extent that B divides gives the same blocks, so splits are equal whatever
    their extent."""

    dim: int
    outer: int
    extent: int = field(compare=False)


@dataclass(frozen=True)
class Cut:
    """The batch inside factor `factor` of an op's rule, seen as (outer, extent, rest)."""

    factor: int
    outer: int
    extent: int = field(compare=False)


@dataclass(frozen=True)
class View:
    """A tensor as the body sees it: whole (`split` is None) or the block of the current microbatch.

    With `estimate` (the name of its reducer) it is a partial result of this microbatch standing for
    the whole batch."""

    tensor: int
    split: Split | None = None
    estimate: str = ""


@dataclass(frozen=True)
class BodyOp:
    """An op of the body: cut along the batch, or (None) at its original size. Of a loop or branch
    that carries the batch, `regions` say what runs inside of it."""

    op: int
    cut: Cut | None
    operands: tuple[View, ...]
    results: tuple[View, ...]
    regions: tuple[RegionPlan, ...] = ()


@dataclass(frozen=True)
class RegionPlan:
    """A region at the size of one microbatch, in tensors of the region.

    `captures` pairs what it reads of its surroundings with the same in their tensors. A view of a
    value that is there as a whole is a slice of it."""

    arguments: tuple[View, ...]
    captures: tuple[tuple[View, View], ...]
    body: tuple[BodyOp, ...]
    results: tuple[View, ...]


@dataclass(frozen=True)
class Accumulator:
    """A value that leaves the loop: combined by `reducer`, or (when "") collected block by block
    along `view.split`.

    With neither it is the value of the last iteration, which is that of every one.
    """

    view: View
    reducer: str = ""


@dataclass(frozen=True)
class TimePlan:
    """Ops and tensors by index, in program order. `slices` are cut out of full-size values by the
    microbatch index."""

    num_microbatches: int
    prologue: tuple[int, ...]
    body: tuple[BodyOp, ...]
    epilogue: tuple[int, ...]
    captures: tuple[int, ...]
    slices: tuple[View, ...]
    accumulators: tuple[Accumulator, ...]
