"""Give the microbatch loop its schedule, checked and simulated.

Needs the form with planned transfers. Afterwards the loop carries the schedule and what the
simulator predicts for it. A schedule that is known by its name is written as that, so that the IR
does not grow with the number of microbatches; one that was built from the durations, or read from a
CSV file, is written with the tasks of every mesh:

    mpmd.for (…) {iterations = 8 : ui32, shardopt.schedule = {name = "1f1b", makespan_seconds = 0.1
                  : f64, bubble = 0.27 : f64, peak_bytes = array<i64: 4096, 2048>}} …

1. extract the task graph; 2. choose, build or read the task lists, and refuse an order that the
dataflow forbids, or in which meshes would wait for each other for ever, whether sends wait for
their receivers or not; 3. simulate; 4. write the attribute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from shardopt.dialect.cluster import CLUSTER, read_cluster
from shardopt.dialect.mpmd import read_topology
from shardopt.dialect.prediction import read_prediction
from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.schedule import write_schedule
from shardopt.dialect.token_slices import read_token_slices
from shardopt.extract.pipeline_graph import (
    PipelineGraph,
    peak_bytes,
    read_pipeline,
    simulate_pipeline,
    workload,
)
from shardopt.hardware.memory_limit import check_memory_options, memory_limit
from shardopt.passes.base import Pass, PassContext, plan_option
from shardopt.passes.pipelining.promised_seconds import report_promise
from shardopt.schedule.auto import Chosen, auto_schedule
from shardopt.schedule.bounds import one_machine_bound_seconds
from shardopt.schedule.csv_format import read_csv_file
from shardopt.schedule.exchange import check_exchange
from shardopt.schedule.schedules import AUTO, ScheduleText, find_schedule, usual_schedule
from shardopt.schedule.simulator import SimulationResult
from shardopt.support.errors import UserError
from shardopt.support.sizes import format_bytes

# A schedule is worth the task lists in the IR when it saves more than this share of the step.
_WORTH_WHILE = 1e-3

# The search simulates some twenty schedules, which takes a second for so many tasks. With more
# microbatches than that allows, the fill and the drain, in which schedules differ, are a small
# share of the step.
_MOST_TASKS = 10_000


def _chosen(program: StepProgram, pipeline: PipelineGraph) -> tuple[ScheduleText, SimulationResult]:
    """The schedule that the stages were planned for, or a shorter one that holds no more than that
    on any mesh."""
    if read_token_slices(program.loop) is not None:
        # An order of its own could begin one sum over slices before the other is through.
        text = ScheduleText("terapipe")
        return text, simulate_pipeline(text, pipeline, program.num_microbatches)
    planned = read_prediction(program.loop)
    name = planned.schedule if planned is not None else usual_schedule(pipeline.stage_to_mesh)
    work = workload(pipeline, program.num_microbatches)
    if name is None:  # stages lie on meshes as no schedule knows it
        return _listed(auto_schedule(work), pipeline, program)
    text = ScheduleText(name)
    result = simulate_pipeline(text, pipeline, program.num_microbatches)
    enough = (1 - _WORTH_WHILE) * result.makespan_seconds
    tasks = len(pipeline.graph.tasks) * program.num_microbatches
    # The bound is cheap: where no order can be enough shorter, none is simulated.
    if tasks > _MOST_TASKS or one_machine_bound_seconds(work) >= enough:
        return text, result
    held = (
        profile.peak_bytes - fixed
        for profile, fixed in zip(result.memory, pipeline.fixed_bytes, strict=True)
    )
    shorter = auto_schedule(replace(work, memory_bytes=tuple(held)))
    if shorter.result.makespan_seconds >= enough:
        return text, result
    return _listed(shorter, pipeline, program)


def _listed(
    chosen: Chosen, pipeline: PipelineGraph, program: StepProgram
) -> tuple[ScheduleText, SimulationResult]:
    text = ScheduleText(chosen.origin) if chosen.is_named else ScheduleText.of(chosen.schedule)
    return text, simulate_pipeline(text, pipeline, program.num_microbatches)


@dataclass(frozen=True)
class SchedulePipeline(Pass):
    """See the head of the file."""

    name = "shardopt-schedule-pipeline"
    summary = "order the tasks of every mesh, check the order and simulate the step"

    schedule: str = plan_option(
        "schedule",
        help="a schedule's name, or a CSV file of tasks; auto: the one that the stages were "
        "planned for, or a shorter "
        "one within its memory",
    )

    memory_fraction: float = plan_option("memory_fraction")
    memory_budget: str = plan_option("memory_budget")

    def __post_init__(self) -> None:
        check_memory_options(self.memory_fraction, self.memory_budget)

    def check_options(self) -> None:
        if self.schedule.endswith(".csv"):
            read_csv_file(self.schedule)
        elif self.schedule != AUTO:
            find_schedule(self.schedule)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            pipeline = read_pipeline(program, read_topology(program.main))
            if self.schedule == AUTO:
                text, result = _chosen(program, pipeline)
            else:
                text = self._from_option(module, pm)
                result = simulate_pipeline(text, pipeline, program.num_microbatches)
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        held = peak_bytes(pipeline, result)
        write_schedule(program.loop, text, result, held)
        self._report_memory(program, text.name, held, pm)
        reason = check_exchange(result.linked)
        if reason:
            message = (
                "sends go out in the order in which they are received, since as tasks end they "
                f"could block: {reason}"
            )
            pm.remark("schedule", module.operation, message, category="passed")
        promised = read_prediction(program.loop)
        if promised is not None and text.name == promised.schedule:
            report_promise(program, promised, result.makespan_seconds, pm)
        pm.statistic("makespan seconds", result.makespan_seconds)
        pm.statistic("bubble", result.bubble_fraction)

    def _report_memory(
        self, program: StepProgram, schedule: str, held: Sequence[int], pm: PassContext
    ) -> None:
        """A warning for each mesh that holds more than it may: only the simulated step tells what
        its stages hold at once."""
        if CLUSTER not in program.module.operation.attributes:
            return
        cluster = read_cluster(program.module)
        for mesh, most in zip(read_topology(program.main), held, strict=True):
            device = cluster.group_of(mesh).device
            limit = memory_limit(device, self.memory_fraction, self.memory_budget)
            if limit is not None and most > limit:
                pm.warning(
                    program.loop,
                    f"mesh '{mesh.name}' holds up to {format_bytes(most)} a device under schedule "
                    f"'{schedule}', where {format_bytes(limit)} are allowed; a smaller "
                    "memory-budget leaves room",
                )

    def _from_option(self, module: ir.Module, pm: PassContext) -> ScheduleText:
        if not self.schedule.endswith(".csv"):
            return ScheduleText(self.schedule)
        imported = read_csv_file(self.schedule)
        if imported.left_out:
            message = (
                f"{imported} of '{self.schedule}' are left out: sends, receives and reductions "
                "follow from the plan"
            )
            pm.remark("schedule", module.operation, message, category="passed")
        return ScheduleText.of(imported.schedule)
