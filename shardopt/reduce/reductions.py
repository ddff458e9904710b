"""The reductions in the order in which the search tries them: what takes most away with one trial
comes first."""

from __future__ import annotations

from shardopt.reduce.attribute_reductions import DropAttributeNames, DropAttributes
from shardopt.reduce.op_reductions import (
    DropFunctions,
    DropOps,
    HoistRegions,
    MergeConstants,
    ShrinkConstants,
)
from shardopt.reduce.pipeline_reductions import (
    DropLocations,
    DropPasses,
    DropPassOptions,
    RunPasses,
    Tidy,
)
from shardopt.reduce.search import Reduction
from shardopt.reduce.shape_reductions import DivideShapes
from shardopt.reduce.signature_reductions import DropArguments, DropCarried, DropResults

REDUCTIONS: tuple[Reduction, ...] = (
    DropLocations(),
    DropPasses(),
    RunPasses(),
    DropFunctions(),
    DropResults(),
    DropResults(keeps_unread=True),
    # Constants cut a chain in two, of which the upper half goes; where a fault needs values that
    # nothing folds, arguments do the same; an operand shortens a chain that both would break.
    DropOps(("constant", "argument", "operand")),
    DropOps(("argument", "constant", "operand")),
    DropOps(("operand", "constant", "argument")),
    DropOps(("constant", "argument", "operand"), keeps_unread=True),
    HoistRegions(),
    DropCarried(),
    DropArguments(),
    ShrinkConstants(),
    MergeConstants(),
    DropAttributeNames(),
    DropAttributes(),
    DropPassOptions(),
    DivideShapes("primes"),
    DivideShapes("extents"),
    DivideShapes("steps"),
    Tidy(),
)
