"""Write out loops of static length that compute, so that a scan over layers becomes one run of
operations per layer.

Needs: no calls (shardopt-inline-calls). Holds afterwards: no `while` of known length that does the
model's arithmetic, except those longer than `max-iterations`, which are reported. Stacked weights
are read by `slice`, stacked results are made by `concatenate`, and what a backward loop read back
from a forward loop's stack is used directly.

    %y:2 = stablehlo.while(%i = %c0, %x = %arg0)         %w0 = stablehlo.slice %w [0:1, 0:8, 0:8]
      cond { %i < 2 }                                    %x1 = stablehlo.dot_general %arg0, …
      do { %wi = stablehlo.dynamic_slice %w, %i, …  =>   %w1 = stablehlo.slice %w [1:2, 0:8, 0:8]
           %x1 = stablehlo.dot_general %x, … }           %x2 = stablehlo.dot_general %x1, …

What a backward loop computes again, because `jax.checkpoint(…, prevent_cse=False)` asks for it,
is kept apart from the forward loop by a barrier
(`shardopt.passes.importing.repeated_iterations`).

Later phases cut straight-line code into layers and stages; a loop would be one indivisible
operation to them. Loops over integers, such as the rounds of a random number generator, stay
rolled: they cost little and would bloat the module. So does a loop in which the step accumulates
gradients over parts of its batch: it becomes the microbatch loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from shardopt.extract.accumulation import NoAccumulation, find_accumulation
from shardopt.extract.step_loop import mark_step_loop
from shardopt.ir.loops import Unroller, trip_count
from shardopt.ir.rewriting import functions, operations, terminator
from shardopt.passes.base import Pass, PassContext, option
from shardopt.passes.importing.repeated_iterations import separate_repeats

_CONTRACTIONS = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")


def _computes(loop: ir.Operation) -> bool:
    """Whether the loop multiplies matrices or carries a floating-point tensor that it changes."""
    body = loop.regions[1].blocks[0]
    yielded = terminator(body).operands
    changed = (
        value for value, argument in zip(yielded, body.arguments, strict=True) if value != argument
    )
    return any(_is_activation(value.type) for value in changed) or bool(
        operations(loop, _CONTRACTIONS)
    )


def _is_activation(type_: ir.Type) -> bool:
    return (
        isinstance(type_, ir.RankedTensorType)
        and type_.rank > 0
        and isinstance(type_.element_type, ir.FloatType)
    )


def _blocks(module: ir.Module) -> Iterator[ir.Block]:
    """Bodies of functions, and blocks of regions in them."""
    pending = list(functions(module))
    while pending:
        for region in pending.pop().regions:
            for block in region.blocks:
                pending += [op.operation for op in block.operations if len(op.regions)]
                yield block


def _accumulation(function: ir.Operation, pm: PassContext) -> ir.Operation | None:
    """The loop that is to be the microbatch loop."""
    try:
        found = find_accumulation(function)
    except NoAccumulation as error:
        pm.remark("accumulation", error.at, str(error))
        return None
    return None if found is None else found.loop


@dataclass(frozen=True)
class UnrollLoops(Pass):
    name = "shardopt-unroll-loops"
    summary = "write out loops of static length that compute, such as a scan over layers"

    only: Literal["compute", "all"] = option(
        "compute", help="loops to unroll: those that do floating-point work, or all"
    )
    max_iterations: int = option(128, help="loops that run more often are kept, with a warning")

    def __post_init__(self) -> None:
        if self.max_iterations < 0:
            raise ValueError(f"max-iterations: expected at least 0, found {self.max_iterations}")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        kept = [loop for function in functions(module) if (loop := _accumulation(function, pm))]
        for function in functions(module):
            if not kept:
                mark_step_loop(function)
        unroller = Unroller(lambda loop: None if loop in kept else self._iterations(loop, pm))
        unroller.visit(list(functions(module)))
        unroller.erase_unused_constants()
        pm.statistic("loops", unroller.unrolled)
        blocks = _blocks(module) if unroller.unrolled else ()
        pm.statistic("recomputing iterations", sum(map(separate_repeats, blocks)))

    def _iterations(self, loop: ir.Operation, pm: PassContext) -> int | None:
        """How often to write out the body, or None to keep the loop; says why a loop that computes
        is kept."""
        count = trip_count(loop, self.max_iterations)
        # What runs once or never costs nothing to write out, whatever it computes.
        if count is not None and count <= min(1, self.max_iterations):
            return count
        if self.only == "compute" and not _computes(loop):
            return None
        if count is None:
            pm.remark(
                "dynamic-loop", loop, "kept a loop whose number of iterations depends on data"
            )
            return None
        if count > self.max_iterations:
            limit = f"max-iterations={self.max_iterations}"
            pm.warning(
                loop,
                f"kept a loop of more than {self.max_iterations} iterations as one "
                f"operation ({limit})",
            )
            return None
        return count
