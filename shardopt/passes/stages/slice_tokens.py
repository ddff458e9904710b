"""Cut the tokens of a causal model into slices, each of which goes through the stages by itself, as
TeraPipe does (arXiv 2102.07988).

Needs the placed form, with each stage on a mesh of its own. Afterwards stage s · T + k, of T
slices, is slice k on stage s, and what was layer l has a layer for each slice.
`shardopt.token_slices` on the loop has the lengths of the slices.

    %q, %k, %v = …             tokens 0, 1, 2, 3         %q0, %k0, %v0 = …      tokens 0, 1
    %p = softmax of mask(%q %k)                          %p0 = softmax of mask(%q0 %k0)
    %o = dot_general %p, %v                        =>    %o0 = dot_general %p0, %v0
    %g = dot_general %x, %o                              %q1, %k1, %v1 = …      tokens 2, 3
    return add %a, %g                                    %p1 = softmax of mask(%q1 (%k0 ++ %k1))
                                                         %o1 = dot_general %p1, (%v0 ++ %v1)
                                                         return add (add %a, …), …

1. Find the attention of the body, and from it where tokens start
   (`shardopt.solve.presets.sequence_flow`).
2. Follow the tokens through the rules of all operations; prove of attention that later keys change
   nothing (`shardopt.solve.tokens`).
3. Write every operation once a slice (`shardopt.passes.stages.token_slicing`). A slice reads keys
   and values of earlier ones, and the gradients of these are summed from the last slice on.

Whatever reads other tokens in another way is refused, at the operation that does. It stands before
fragments are outlined: there every slice of a stage gets its forward and its backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from jaxlib.mlir import ir

from shardopt.cost.compute import dispatch_seconds
from shardopt.dialect.attributes import entries, i64
from shardopt.dialect.cluster import read_cluster
from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.mpmd import (
    IN_FLIGHT,
    LAYER,
    read_methods,
    read_topology,
    write_methods,
)
from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.stages import PlacedStage, read_stages, write_stages
from shardopt.dialect.token_slices import TokenSlices, write_token_slices
from shardopt.forms.placed_form import order_violations
from shardopt.graph.op_graph import SHARED
from shardopt.ir.diagnostics import shown_name
from shardopt.passes.base import Pass, PassContext, plan_option
from shardopt.passes.stages.read_step import check_clustered
from shardopt.passes.stages.token_body import CANNOT_CUT, TokenRows, read_token_body
from shardopt.passes.stages.token_slicing import TokenSlicer
from shardopt.schedule.schedules import in_flight
from shardopt.schedule.token_slices import token_slices
from shardopt.solve.tokens.slice_costs import StageDevices, slice_seconds, unit_borders
from shardopt.solve.tokens.token_axis import Kind, TokenAxis, UncutError, find_token_axis
from shardopt.support.errors import UserError

_SCHEDULE = "terapipe"


@dataclass(frozen=True)
class SliceTokens(Pass):
    """See the head of the file."""

    name = "shardopt-slice-tokens"
    summary = "cut the tokens of a causal model into slices that go through the stages one by one"

    token_slices: tuple[str, ...] = plan_option("token_slices", default=("auto",))

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            check_clustered(program)
            stages = read_stages(program.main)
            _check_stages(stages)
            found = read_token_body(program, stages)
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        self._slice(program, stages, found, pm)

    def _slice(
        self,
        program: StepProgram,
        stages: Sequence[PlacedStage],
        found: TokenRows,
        pm: PassContext,
    ) -> None:
        module, handles = program.module, found.reader.handles
        try:
            axis = find_token_axis(found.body)
            _check_layers(found, axis)
            lengths = self._lengths(program, stages, found, axis)
        except UncutError as error:
            op, notes = handles[error.op], list[tuple[ir.Operation, str]]()
            if error.reader is not None:
                notes = [(handles[error.reader], "a slice of the tokens needs that here")]
            raise pm.error(op, f"{CANNOT_CUT}: {shown_name(op)} {error}", notes) from None
        except UserError as error:
            raise pm.error(module.operation, str(error)) from error
        borders = (*(stage.first for stage in stages), 1 + stages[-1].last)
        slices = TokenSlices(tuple(lengths), borders)
        ops = len(program.body_ops)
        TokenSlicer(program, found.reader, found.body.graph, axis, slices).write()
        _relabel(program, stages, slices)
        self._check_order(module, pm)
        pm.statistic("operations cut", ops)
        pm.statistic("slices", slices.count)
        text = ", ".join(map(str, lengths))
        pm.remark("token-slices", module.operation, f"slices of {text} tokens", category="passed")

    def _lengths(
        self,
        program: StepProgram,
        stages: Sequence[PlacedStage],
        found: TokenRows,
        axis: TokenAxis,
    ) -> list[int]:
        """Of the slices in tokens. Raises UserError for what are no lengths of the sequence."""
        extent = found.body.extent
        if self.token_slices != ("auto",):
            return _given(self.token_slices, extent)
        table = slice_seconds(
            found.body, axis, _devices(program, stages), read_cluster(program.module).fusing
        )
        best = token_slices(table, len(stages), program.num_microbatches)
        borders, units = unit_borders(extent), [0, *accumulate(best.lengths)]
        return [borders[stop] - borders[start] for start, stop in pairwise(units)]

    def _check_order(self, module: ir.Module, pm: PassContext) -> None:
        """Backwards run from the last slice on."""
        program = read_program(module)
        for violation in order_violations(program, read_stages(program.main)):
            raise pm.error(
                violation.op,
                f"{CANNOT_CUT}: {shown_name(violation.op)} needs what the backward pass of an "
                "earlier slice makes, which runs behind it",
            )


def _check_stages(stages: Sequence[PlacedStage]) -> None:
    homes = [stage.mesh for stage in stages]
    if len(set(homes)) < len(homes):
        raise UserError(
            f"slices of tokens: expected each stage on a mesh of its own, found {', '.join(homes)}"
        )


def _check_layers(found: TokenRows, axis: TokenAxis) -> None:
    """Each slice goes through every layer. Raises UncutError."""
    layers = [ir.IntegerAttr(handle.attributes[LAYER]).value for handle in found.reader.handles]
    of_slices = {
        layer
        for layer, how in zip(layers, axis.ops, strict=True)
        if how.kind not in (Kind.CONST, Kind.WHOLE)
    }
    for index, layer in enumerate(layers):
        if layer not in (SHARED, *of_slices):
            raise UncutError("runs on all tokens at once, as does all of its layer", index)


def _devices(program: StepProgram, stages: Sequence[PlacedStage]) -> list[StageDevices]:
    cluster = read_cluster(program.module)
    meshes = {mesh.name: mesh for mesh in read_topology(program.main)}
    found = []
    for stage in stages:
        mesh = meshes[stage.mesh]
        group = cluster.group_of(mesh)
        call = dispatch_seconds(group, mesh.size, buffers=0)
        found.append(StageDevices(group.device, mesh.size, call))
    return found


def _given(texts: Sequence[str], extent: int) -> list[int]:
    """Raises UserError for what are no lengths, or do not sum up to the tokens there are."""
    numbers = [int(text) if text.isascii() and text.isdecimal() else 0 for text in texts]
    if min(numbers) < 1:
        raise UserError(
            f"token-slices: expected auto, a number of slices, or lengths, found {','.join(texts)}"
        )
    if len(numbers) == 1:
        [count] = numbers
        if count > extent:
            raise UserError(f"token-slices: expected at most {extent} slices, found {count}")
        return [extent * (k + 1) // count - extent * k // count for k in range(count)]
    if sum(numbers) != extent:
        raise UserError(
            f"token-slices: expected lengths that sum up to {extent} tokens, found "
            f"{', '.join(texts)}"
        )
    return numbers


def _relabel(program: StepProgram, stages: Sequence[PlacedStage], slices: TokenSlices) -> None:
    """Stages, layers outside of the loop, and what stands on the loop. What is outside of the loop
    belongs to the first slice of a stage: all of them are on its mesh."""
    main, loop = program.main, program.loop
    methods = read_methods(loop, len(stages))
    every = [(stage, k) for stage in stages for k in range(slices.count)]
    write_stages(
        main,
        [
            replace(stage, first=slices.layer(stage.first, k), last=slices.layer(stage.last, k))
            for stage, k in every
        ],
    )
    for op in (*program.prologue, *program.epilogue):
        op.attributes[LAYER] = _moved(op.attributes[LAYER], slices)
    arguments = [
        ir.DictAttr.get({**entries(each), LAYER: _moved(each[LAYER], slices)})
        for each in argument_attributes(main)
    ]
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)
    counts = in_flight(_SCHEDULE, len(every), program.num_microbatches, len(stages))
    loop.attributes[IN_FLIGHT] = ir.DenseI64ArrayAttr.get(list(counts))
    write_methods(loop, [method for method in methods for _ in range(slices.count)])
    write_token_slices(loop, slices)


def _moved(layer: ir.Attribute, slices: TokenSlices) -> ir.Attribute:
    number = ir.IntegerAttr(layer).value
    return layer if number == SHARED else i64(slices.layer(number, 0))
