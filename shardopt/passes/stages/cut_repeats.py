"""What `jax.checkpoint` computes again, where a stage ends inside of it: every stage computes its
own part from what it was given in the forward pass.

    %h = stablehlo.tanh %x {layer = 0}
    %y = stablehlo.dot_general %h, %w {layer = 1}
    %b:2 = stablehlo.optimization_barrier %x, %g {layer = 1}
    %h2 = stablehlo.tanh %b#0 {layer = 0}
    %y2 = stablehlo.dot_general %h2, %w {layer = 1}
 =>
    %h = stablehlo.tanh %x {layer = 0}
    %y = stablehlo.dot_general %h, %w {layer = 1}
    %h2 = stablehlo.tanh %x {layer = 0}
    %y2 = stablehlo.dot_general %h, %w {layer = 1}

The backward pass goes from the last stage to the first. A value that is computed again in an early
stage would go the other way; the later stage has the original. A barrier stays in its stage: what
other stages read of it they have themselves, and their backward begins when the gradient arrives.
`shardopt.solve.stages.step_graph` (`cut_at`) does the same for stage costs."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.extract.cut_reads import CutReads, StageOfLayer
from shardopt.ir.rewriting import BARRIER, barrier, defining, replace_reads


def cut_repeats(
    program: StepProgram, stage_of_layer: StageOfLayer
) -> list[tuple[int, ir.Operation]]:
    """Rewrite the body of `program`, which is stale afterwards. Its operations in program order,
    each with the number that it, or the barrier in whose place it is, had before."""
    cut = CutReads(program, stage_of_layer)
    ops = program.body_ops
    changed = [(op, values) for op in ops if (values := cut.of(op))]
    if not changed:
        return list(enumerate(ops))
    # An operation that reads something else is another key.
    is_repeated = [op in cut.repeated for op in ops]
    for op, values in changed:
        replace_reads(op, values)
    remaining: list[tuple[int, ir.Operation]] = []
    # From the end, so that what only erased operations read counts as unread.
    for number, op in reversed(list(enumerate(ops))):
        if op.name == BARRIER:
            remaining += ((number, new) for new in _narrowed(op, cut))
        elif is_repeated[number] and not any(map(_is_read, op.results)):
            op.erase()
        else:
            remaining.append((number, op))
    return remaining[::-1]


def _narrowed(op: ir.Operation, cut: CutReads) -> Iterator[ir.Operation]:
    """The barrier without the values that only other stages read; none if nobody reads it."""
    kept = [k for k in range(len(op.results)) if _passes(cut, op, k)]
    if len(kept) == len(op.results):
        yield op
        return
    if any(_is_read(op.results[k]) for k in kept):
        new = barrier([op.operands[k] for k in kept], op.location, ir.InsertionPoint(op))
        new.attributes[LAYER] = op.attributes[LAYER]
        for k, result in zip(kept, new.results, strict=True):
            op.results[k].replace_all_uses_with(result)
        yield new
    op.erase()


def _passes(cut: CutReads, op: ir.Operation, k: int) -> bool:
    """Whether something reads a value behind the barrier `op`, or its own stage makes it: that is
    worth waiting for."""
    maker = defining(op.operands[k])
    made_here = maker is not None and cut.stage(maker) == cut.stage(op)
    return made_here or _is_read(op.results[k])


def _is_read(value: ir.Value) -> bool:
    return any(True for _ in value.uses)
