"""A plan for another function of the same weights, such as an evaluation step, that leaves the
weights where they are.

    plan = shardopt.optimize(train, cluster="cpu-test:1x4", microbatches=4, stages=2)
    # Arguments 0 and 1 of `evaluate` are those of `train`.
    evaluation = follow(plan, evaluate, {0: 0, 1: 1}, batch_args="2,3")

What follows is written as a plan file: the same meshes, a layer for each stage that begins where
weights of that stage are first read, and the shardings of the weights as demands. The planner
decides the rest."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir

from shardopt.dialect.parts import read_parts
from shardopt.dialect.program import StepProgram, read_program
from shardopt.extract.rows import source_of
from shardopt.frontend.calls.phase_options import phase_text
from shardopt.frontend.calls.python_words import errors_for_python
from shardopt.frontend.calls.sources import resolve_source, source_name
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.from_plan_file import options_after
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import phase_range
from shardopt.planfile.parts import VERSION
from shardopt.runtime.program.signature import signature_of
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.forms.exported_program import Argument, MeshValue
    from shardopt.frontend.plans.plan import Plan
    from shardopt.options.plan_options import PlanOptions
    from shardopt.runtime.program.signature import Whole


@errors_for_python()
def follow(
    plan: Plan,
    source: Any,
    shares: Mapping[int, int],
    *,
    batch_args: str = "auto",
    microbatches: int | None = None,
) -> Plan:
    """Plan `source` for the meshes of `plan`, with its argument k placed as argument `shares[k]` of
    `plan` is.

    `microbatches` are by default as many as those of `plan`. Raises UserError where the function
    reads the weights in another order than the stages of `plan` have them, and where a sharding
    cannot be demanded."""
    document: dict[str, Any] = plan.to_json()
    with plan.loaded as modules:
        arguments = _arguments(modules[plan.module])
    known = signature_of(arguments, ()).arguments
    for number, other in shares.items():
        if not 0 <= other < len(known):
            raise UserError(
                f"argument {number} cannot follow argument {other}: the plan has {len(known)}"
            )
    meshes = [row.mesh for row in plan.summary.stages]
    if len(set(meshes)) != len(meshes):
        raise UserError(
            "stages that share a mesh cannot be followed: expected a mesh for each stage"
        )
    count = microbatches or plan.summary.num_microbatches
    options = replace(
        plan.options, batch_args=batch_args, microbatches=count, plan="", schedule="auto"
    )
    split = any(len(known[other].homes) > 1 for other in shares.values())
    shared = {number: known[other] for number, other in shares.items()}
    with make_context() as context:
        program = _cut(source, options, split, context)
        values = _placed(program, shared)
        homes = {number: meshes.index(value.mesh) for number, value in values.items()}
        starts = _starts(_first_readers(program, homes), homes, len(meshes))
    demands = {
        number: str(value.spec.sharding).replace('"', "") for number, value in values.items()
    }
    planned = {
        "version": VERSION,
        "cluster": document["cluster"],
        "options": {"microbatches": count, "batch_args": batch_args, "split_stacks": split},
        "layers": {"count": len(meshes), "starts": starts},
        "stages": [
            {
                **{name: stage[name] for name in ("group", "submesh", "logical_shape", "devices")},
                "layers": [number, number],
                "shardings": {
                    "inputs": {f"arg{k}": demands[k] for k, home in homes.items() if home == number}
                },
            }
            for number, stage in enumerate(document["stages"])
        ],
    }
    return _planned(source, planned)


def _planned(source: Any, document: Mapping[str, Any]) -> Plan:
    """A plan after a plan file, which is only needed as long as it takes."""
    handle, path = tempfile.mkstemp(suffix=".json", prefix="shardopt-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(document, file)
        plan = make_plan(source, options_after(path, {}))
    finally:
        os.unlink(path)
    return replace(plan, options=replace(plan.options, plan=""))


def _arguments(module: ir.Module) -> Sequence[Argument]:
    from shardopt.forms.exported_form import read_exported

    return read_exported(module).arguments


def _cut(source: Any, options: PlanOptions, split: bool, context: ir.Context) -> StepProgram:
    """The step that follows, with its stacks in parts as those of the plan are."""
    module = load_module(resolve_source(source), context, name=source_name(source))
    for phase in ("import", "microbatch"):
        run_pipeline(module, phase_range(phase, phase, phase_text(options, phase)))
    if split:
        run_pipeline(module, "builtin.module(shardopt-split-stacks)")
    return read_program(module)


def _placed(program: StepProgram, shared: Mapping[int, Whole]) -> dict[int, MeshValue]:
    """Where each argument of the step has to lie, by its number there: that of which it is (a part
    of) one. Raises UserError where the two are in other parts."""
    parts = read_parts(program.main, "arg_attrs")
    found: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for number in range(len(program.main_block.arguments)):
        part = parts.get(number)
        whole = number if part is None else part.whole
        found.setdefault(whole, []).append((number, () if part is None else part.bounds))
    placed: dict[int, MeshValue] = {}
    for number, argument in shared.items():
        there = [() if home.part is None else home.part.bounds for home in argument.homes]
        if [rows for _, rows in found.get(number, ())] != there:
            raise UserError(
                f"argument {number} cannot follow '{argument.name}', of which the plan has layers "
                "on several stages: it is not read row by row, layer after layer (plan with "
                "split_stacks=False)"
            )
        numbers = [each for each, _ in found[number]]
        placed.update(
            (each, home.value) for each, home in zip(numbers, argument.homes, strict=True)
        )
    return placed


def _starts(readers: Mapping[int, int], homes: Mapping[int, int], stages: int) -> list[str]:
    """For every stage but the first, the number of the operation of the microbatch's body that
    first reads one of its weights, of the first `readers` of arguments. Raises UserError where
    these are not in the order of the stages."""
    starts: list[str] = []
    for stage in range(stages):
        of_stage = [
            readers[number] for number, home in homes.items() if home == stage and number in readers
        ]
        if not of_stage:
            raise UserError(
                f"no argument of stage {stage} of the plan is read in the microbatch: it "
                "cannot be followed"
            )
        starts.append(str(min(of_stage)))
    if sorted(starts, key=int) != starts or len(set(starts)) != len(starts):
        raise UserError(
            "weights are read in another order than the plan has them: stages begin at "
            f"operations {starts}"
        )
    return starts[1:]


def _first_readers(program: StepProgram, homes: Mapping[int, int]) -> dict[int, int]:
    """The first operation of the microbatch's body that reads each argument of `@main`, or a cast
    of it, by its number there."""
    outside: dict[ir.Value, int] = {
        operand: number
        for number, operand in enumerate(program.main_block.arguments)
        if number in homes
    }
    inside: dict[ir.Value, int] = {}
    for position, operand in program.captured.items():
        source, rows = source_of(operand)
        if rows is None and source in outside:
            inside[program.body_block.arguments[position]] = outside[source]
    first: dict[int, int] = {}
    for number, op in enumerate(program.body_ops):
        for operand in op.operands:
            if operand in inside:
                first.setdefault(inside[operand], number)
    return first
