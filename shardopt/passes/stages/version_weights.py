"""Let microbatches use older versions of weights, as pipelines that never drain do.

Needs the placed form. Afterwards the loop reads weights that are d updates old, where the schedule
says d for the first stage that reads a weight: 1 under PipeDream-2BW, p - 1 - s for stage s of p
under PipeDream. The update is that of the model, of the newest weights. Versions are state:
arguments behind all others, each replaced by the next younger one, the youngest by the weights of
this step.

    func @main(%w {tf.aliasing_output = 0}) {      func @main(%w {tf.aliasing_output = 0},
      %g = mpmd.for … {                                %v {tf.aliasing_output = 1,
        call @microbatch(%w, …) }             =>           shardopt.version_of = 0}) {
      %n = subtract %w, %g                             %g = mpmd.for … { call @microbatch(%v, …) }
      return %n }                                      %n = subtract %w, %g
                                                       return %n, %w }

Weights are the donated arguments of floats that the loop reads, also through what the prologue
makes of them, and that the step changes; where the epilogue reads what the prologue made, too, it
gets a copy made of the newest weights. A weight has one age wherever the loop reads it, so that a
backward sees what its forward saw.

It stands before fragments are outlined: what is captured changes, and what `@main` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i32, i64
from shardopt.dialect.donation import (
    ALIASING_OUTPUT,
    VERSION_OF,
    argument_attributes,
    read_donation,
    result_attributes,
)
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.stages import read_stages, stage_of_layers
from shardopt.extract.op_graph import reads
from shardopt.graph.op_graph import SHARED
from shardopt.ir.rewriting import replace_reads, return_values, terminator
from shardopt.passes.base import Pass, PassContext, plan_option
from shardopt.passes.stages.outlining import clone_into
from shardopt.passes.stages.read_step import check_clustered
from shardopt.schedule.schedules import find_schedule
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class VersionWeights(Pass):
    """See the head of the file."""

    name = "shardopt-version-weights"
    summary = "let microbatches use older versions of weights, which become state"

    schedule: str = plan_option("schedule", help="the schedule that says how old weights are")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            kind, program = find_schedule(self.schedule), read_program(module)
            check_clustered(program)
            stages = read_stages(program.main)
            if kind.weight_ages is None:
                raise UserError(f"schedule '{kind.name}' uses no older versions of weights")
            ages = _ages(program, kind.weight_ages(len(stages)))
            _add_versions(program, ages)
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        pm.statistic("weights with versions", len(ages))
        pm.statistic("versions", sum(ages.values()))


def _ages(program: StepProgram, age_of_stage: Sequence[int]) -> dict[int, int]:
    """How many updates old each weight, by its argument, is to be in the loop. Raises UserError
    where the step has no weights that it updates."""
    stage_of = stage_of_layers(read_stages(program.main))
    ages: dict[ir.Value, int] = {}

    def read(op: ir.Operation, age: int) -> None:
        ages.update((value, max(age, ages.get(value, 0))) for value in reads(op))

    # Readers first: what every reader copies is as old as these want it.
    for op in reversed(program.body_ops):
        layer = _layer(op)
        wanted = [ages[result] for result in op.results if result in ages]
        if layer != SHARED:
            read(op, age_of_stage[stage_of[layer]])
        elif wanted:
            read(op, max(wanted))
    inner, arguments = program.body_block.arguments, program.main_block.arguments
    for k, value in program.captured.items():
        if inner[k] in ages:
            ages[value] = max(ages[inner[k]], ages.get(value, 0))
    for op in reversed(program.prologue):
        wanted = [ages[result] for result in op.results if result in ages]
        if wanted:
            read(op, max(wanted))
    found = {
        number: ages[arguments[number]]
        for number, result in read_donation(program.main).items()
        # What comes back as it is has one version only.
        if arguments[number] in ages
        and _is_float(arguments[number].type)
        and program.returned[result] != arguments[number]
    }
    if not found:
        raise UserError(
            "older versions of weights: expected a step that is given weights and returns new ones "
            "in their place (donated arguments), found none"
        )
    return {number: age for number, age in found.items() if age}


def _add_versions(program: StepProgram, ages: Mapping[int, int]) -> None:
    """Let the loop read versions as old as `ages` says; handles of `program` are used up."""
    main, block = program.main, program.main_block
    arguments = list(block.arguments)
    rows = [entries(attributes) for attributes in argument_attributes(main)]
    num_returned, successors = len(program.returned), list[ir.Value]()
    late = [*program.epilogue, terminator(block)]
    newest: dict[ir.Value, ir.Value] = {}
    oldest: dict[ir.Value, ir.Value] = {}
    for number, age in ages.items():
        value: ir.Value = arguments[number]
        for _ in range(age):
            replaced_by = i32(num_returned + len(successors))
            successors.append(value)
            value = block.add_argument(value.type, arguments[number].location)
            kept = {LAYER: rows[number][LAYER], ALIASING_OUTPUT: replaced_by}
            rows.append({**kept, VERSION_OF: i64(number)})
        oldest[arguments[number]], newest[value] = value, arguments[number]
    prologue = list(program.prologue)
    for op in (*prologue, program.loop):
        replace_reads(op, oldest)
    # What is returned of it, too, is made of the newest.
    _copy_readers([value for op in late for value in reads(op)], prologue, newest, late[0])
    for op in late:
        replace_reads(op, newest)
    types = [argument.type for argument in block.arguments]
    results = [entries(attributes) for attributes in result_attributes(main)]
    return_values(main, [*program.returned, *successors], types, rows, results)
    _erase_unread(prologue)


def _is_float(type_: ir.Type) -> bool:
    return isinstance(ir.RankedTensorType(type_).element_type, ir.FloatType)


def _layer(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[LAYER]).value


def _ancestors(values: Iterable[ir.Value], ops: Sequence[ir.Operation]) -> set[ir.Value]:
    """`values`, and what `ops` make them of."""
    needed = set(values)
    for op in reversed(ops):
        if not needed.isdisjoint(op.results):
            needed.update(reads(op))
    return needed


def _copy_readers(
    wanted: Iterable[ir.Value],
    ops: Sequence[ir.Operation],
    values: dict[ir.Value, ir.Value],
    before: ir.Operation,
) -> None:
    """Copy those of `ops` that make `wanted` values of what `values` replaces; extends `values`."""
    needed = _ancestors(wanted, ops)
    for op in ops:
        if not needed.isdisjoint(op.results) and any(value in values for value in reads(op)):
            copy = clone_into(op, values, ir.InsertionPoint(before))
            copy.attributes[LAYER] = op.attributes[LAYER]


def _erase_unread(ops: Sequence[ir.Operation]) -> None:
    for op in reversed(ops):
        if not any(True for result in op.results for _ in result.uses):
            op.erase()
