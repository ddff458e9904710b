"""What the time axis says of tensors and operations: the words of `time_axis`, `region_axis` and
`time_plan`.

A tensor is of one of four kinds:

* CONST: does not depend on the batch; it may still have the batch's extent (a mask, random bits)
  and is then sliced;
* BATCHED: one dimension carries the batch (its `Split`); if the op has no cut, it runs on the full
  batch before the loop, and its result is sliced;
* PARTIAL: a contraction over the batch; every microbatch contributes one term, combined by
  `reducer`;
* WHOLE: depends on the complete batch, so it exists only after the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from shardopt.graph.microbatching import Cut, Splat, Split
from shardopt.graph.op_graph import Dims, Op, OpGraph
from shardopt.support.errors import UserError

# What the sum and its like begin with: other start values would be counted once per microbatch.
NEUTRAL = {"add": 0, "multiply": 1, "xor": 0}
IDEMPOTENT = frozenset({"maximum", "minimum", "and", "or"})
# Of these, what one microbatch has tells nothing of the whole batch.
WITHOUT_ESTIMATE = frozenset({"multiply", "xor"})
# What nothing but an island can do.
READS_TILES = "reads rows of the batch as single devices have them"


class AxisKind(Enum):
    CONST = "const"
    BATCHED = "batched"
    PARTIAL = "partial"
    WHOLE = "whole"


@dataclass(frozen=True)
class Tiles:
    """Rows as an island on the mesh `axes` (name, size) hands them to another one: the tiles of all
    devices side by side, as `dims` split them. Axes `rows` tell rows apart, others copies of
    them."""

    axes: tuple[tuple[str, int], ...]
    dims: Dims
    rows: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """`tiles`: where the blocks of microbatches are not in the order of the batch, and only islands
    can read them."""

    kind: AxisKind
    split: Split | None = None
    reducer: str = ""
    light: bool = True
    tiles: Tiles | None = None


class Mixing(Enum):
    """How rows of the batch meet where a way around it is known."""

    PAIRS = "pairs"
    MOVES = "moves"
    DECIDES = "decides"
    OTHER = "other"


@dataclass(frozen=True)
class BranchSums:
    """Of the conditional `op` (index), the sums over the batch that each of its regions yields, or
    that others of its operations read than sums: tensors of the region. Whatever reads them can
    stand in a second conditional, behind the microbatches."""

    op: int
    tensors: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Factor:
    """What is to be done without `scalar`, a tensor of one element that is known behind the loop
    alone. `copies` (indices of operations) make of it what rows read, and make the same of 1; `ops`
    have rows, and read those copies; `scaled`, tensors that they accumulate, are multiplied by
    it. Zeros in `masked`, some of these, may stand where nothing has been multiplied by it: they
    are zeros also of a factor that is not finite."""

    scalar: int
    copies: tuple[int, ...]
    ops: tuple[int, ...]
    scaled: tuple[int, ...]
    masked: frozenset[int]


class CouplingError(UserError):
    """`op` (index) mixes microbatches; `origin` is the op that made the accumulated value it needs,
    or None; `reader` an op of the model that needs what it makes, where one is known.

    In a loop or branch `regions` lead to the graph of `op`: (op, number of its region), the
    outermost first; those up to `origin_depth` lead to that of `origin`. `needs` is the accumulated
    value, where that comes from outside of the graph of `op`. `sums` are there if a branch does
    more with its sums over the batch than yield them."""

    def __init__(
        self,
        message: str,
        op: int,
        origin: int | None = None,
        needs: int | None = None,
        mixing: Mixing = Mixing.OTHER,
    ) -> None:
        super().__init__(message)
        self.op = op
        self.mixing = mixing
        self.origin = origin
        self.needs = needs
        self.reader: int | None = None
        self.regions: tuple[tuple[int, int], ...] = ()
        self.origin_depth = 0
        self.sums: BranchSums | None = None
        self.factor: Factor | None = None

    def enter(self, op: int, region: int) -> None:
        """Say that all of it stands in a region of `op`."""
        self.regions = ((op, region), *self.regions)
        self.origin_depth += 1
        self.sums = None  # branches are taken apart where the whole step stands


class RowsWanted(CouplingError):
    """Islands need rows of tensors that do not depend on the batch: `error` says of the first what
    is wrong if it has none."""

    def __init__(self, error: CouplingError, rows: Mapping[int, Split]) -> None:
        super().__init__(str(error), error.op)
        self.regions, self.rows = error.regions, rows


@dataclass(frozen=True)
class Batch:
    """What is split and how.

    `splits` gives the batch dimension of each batch input; `rows` that of values without the batch
    of which islands read rows; `weights` are the inputs no full-batch
    computation may read; `splats` the constants whose elements are all equal; `cheap` the loops and
    branches (by index) without products of matrices."""

    num_microbatches: int
    splits: Mapping[int, Split]
    weights: frozenset[int] = frozenset()
    splats: Mapping[int, Splat] | None = None
    per_microbatch: bool = False
    cheap: frozenset[int] = frozenset()
    rows: Mapping[int, Split] = field(default_factory=dict)


@dataclass(frozen=True)
class TimeAxis:
    """The kind of every tensor, the factor that carries the batch of every op, and the accepted
    couplings.

    `terms` gives, for an op that computes on the terms of an accumulation, the operands it reads
    so; `regions`, for loops and branches that carry the batch, what is inside of them."""

    graph: OpGraph
    batch: Batch
    states: tuple[State, ...]
    cuts: tuple[Cut | None, ...]
    couplings: tuple[int, ...]
    terms: Mapping[int, frozenset[int]]
    regions: Mapping[int, RegionAxis]

    def op_state(self, op: Op) -> State:
        """Results of one op are of one kind, but for those in `regions`."""
        return self.states[op.results[0]]


@dataclass(frozen=True)
class RegionAxis:
    """A loop or branch that carries the batch: the states of its operands as its regions see them,
    those of its results, and the axis of each region."""

    operands: tuple[State, ...]
    results: tuple[State, ...]
    axes: tuple[TimeAxis, ...]
