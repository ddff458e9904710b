"""Write what stages recompute (`shardopt.solve.stages.body.recomputation`) into the body of a
clustered program."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.extract.layered_body import BodyRows, read_body
from shardopt.extract.repeated_ops import is_pure
from shardopt.graph.recomputed_units import RecomputedUnits
from shardopt.ir.rewriting import barrier, replace_reads
from shardopt.passes.stages.outlining import clone_into
from shardopt.solve.stages.body.recomputation import Recomputation, find_recomputations


def recompute_forward(program: StepProgram, units: RecomputedUnits) -> int:
    """Rewrite the body of `program`; how many operations were repeated. `program` is stale
    afterwards where anything was."""
    rows = read_body(program, priced=bool(units.selective))
    recomputations = find_recomputations(rows.body, units)
    for recomputation in recomputations:
        _write(rows, recomputation)
    originals = {row for recomputation in recomputations for row in recomputation.chain}
    _erase_unread([rows.ops[row] for row in sorted(originals)])
    return sum(len(recomputation.chain) for recomputation in recomputations)


def _erase_unread(ops: Sequence[ir.Operation]) -> None:
    """Erase what only the backward has read; from the end, so that what only erased operations read
    counts as unread."""
    for op in reversed(ops):
        if is_pure(op) and not any(True for result in op.results for _ in result.uses):
            op.erase()


def _write(rows: BodyRows, recomputation: Recomputation) -> None:
    first = rows.ops[recomputation.readers[0]]
    copies = _barrier(rows, recomputation, first)
    point = ir.InsertionPoint(first)
    for row in recomputation.chain:
        layer = rows.ops[row].attributes[LAYER]
        clone_into(rows.ops[row], copies, point).attributes[LAYER] = layer
    recomputed = {rows.values[k]: copies[rows.values[k]] for k in recomputation.made}
    for row in recomputation.readers:
        replace_reads(rows.ops[row], recomputed)


def _barrier(
    rows: BodyRows, recomputation: Recomputation, first: ir.Operation
) -> dict[ir.Value, ir.Value]:
    """value -> what copies read instead, behind a barrier before `first`, which takes the gradient
    from there."""
    entering = [rows.values[k] for k in recomputation.entering]
    gradient = rows.values[recomputation.gradient]
    passed = [*entering, gradient]
    behind = barrier(passed, first.location, ir.InsertionPoint(first))
    behind.attributes[LAYER] = first.attributes[LAYER]
    replace_reads(first, {gradient: behind.results[len(entering)]})
    return dict(zip(entering, behind.results, strict=False))
