"""Lay the optimizer state of stages into the memory of their hosts, as was decided.

Needs the placed form. Afterwards no row of `shardopt.stages` has `offload`: it stands as
`shardopt.offload` on the loop. Of stages that offload their optimizer state the arguments that only
the update uses have `shardopt.memory`. Which activations wait on hosts follows from the fragments,
once they are outlined, for whoever asks (`shardopt.extract.waiting_values`).

    @main(%w {shardopt.layer = 0, …}, %m {shardopt.layer = 0, tf.aliasing_output = 1 : i32})
        attributes {shardopt.stages = [{layers = …, mesh = "m0", offload = "optimizer"}]}
 =>
    @main(%w {…}, %m {…, shardopt.memory = "host"})

Whatever runs outside of the loop fetches such an argument and stores what replaces it. So
`shardopt-outline-fragments`, which is next, makes several fragments of the update, each of which
reads little of them; broadcasts of something small are made in each, and so become shared here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from shardopt.dialect.attributes import i64
from shardopt.dialect.donation import argument_attributes, read_donation, write_on_host
from shardopt.dialect.mpmd import LAYER, write_offload
from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.stages import read_stages, write_stages
from shardopt.extract.op_graph import read_tensor, reads
from shardopt.graph.offloading import has_state
from shardopt.graph.op_graph import SHARED
from shardopt.graph.streamed_state import StateUse, spreads
from shardopt.ir.rewriting import defining
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.stages.read_step import check_clustered
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class OffloadState(Pass):
    """See the head of the file."""

    name = "shardopt-offload-state"
    summary = "lay the optimizer state of stages into the memory of their hosts, as was decided"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            check_clustered(program)
            stages = read_stages(program.main)
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        layers = {
            layer
            for stage in stages
            if has_state(stage.offload)
            for layer in range(stage.first, stage.last + 1)
        }
        arguments = [k for k, use in _uses(program) if use.can_rest and use.owner in layers]
        write_on_host(program.main, arguments)
        for op in (*program.prologue, *program.epilogue):
            sizes = (read_tensor(value.type).size_bytes for value in op.operands)
            if _layer(op) in layers and spreads(op.name.removeprefix("stablehlo."), sizes):
                op.attributes[LAYER] = i64(SHARED)
        pm.statistic("arguments on hosts", len(arguments))
        write_offload(program.loop, [stage.offload for stage in stages])
        write_stages(program.main, [replace(stage, offload="none") for stage in stages])


def _uses(program: StepProgram) -> Iterator[tuple[int, StateUse]]:
    """Of every argument that a result replaces."""
    readers: dict[ir.Value, set[int]] = {}
    for op in (*program.prologue, *program.epilogue):
        for value in reads(op):
            readers.setdefault(value, set()).add(_layer(op))
    in_loop = {*program.captured.values(), *program.loop.operands}
    returned, times = program.returned, Counter(program.returned)
    attributes = argument_attributes(program.main)
    for number, result in read_donation(program.main).items():
        argument, value = program.main_block.arguments[number], returned[result]
        maker = defining(value)
        yield (
            number,
            StateUse(
                rank=ir.RankedTensorType(argument.type).rank,
                owner=ir.IntegerAttr(attributes[number][LAYER]).value,
                readers=readers.get(argument, set()),
                elsewhere=not in_loop.isdisjoint((argument, value)) or argument in times,
                maker=None if maker is None or maker == program.loop else _layer(maker),
                returned=times[value],
            ),
        )


def _layer(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[LAYER]).value
