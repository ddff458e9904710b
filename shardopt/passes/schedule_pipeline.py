"""Give the microbatch loop its schedule, checked and simulated.

Needs the form with planned transfers. Afterwards the loop carries the schedule by name (the task lists follow from it,
so the IR does not grow with the number of microbatches) and what the simulator predicts for it:

    mpmd.for (…) {iterations = 8 : ui32, shardopt.schedule = {name = "1f1b", makespan_seconds = 0.1 : f64,
                  bubble = 0.27 : f64, peak_bytes = array<i64: 4096, 2048>}} …

1. extract the task graph; 2. build the task lists and refuse a schedule whose order the dataflow forbids;
3. simulate; 4. write the attribute.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.cost.errors import UserError
from shardopt.dialect.attributes import f64
from shardopt.dialect.mpmd import SCHEDULE, read_topology
from shardopt.dialect.prediction import Prediction, read_prediction
from shardopt.ir.pipeline_graph import read_pipeline, simulate_pipeline
from shardopt.ir.program import read_program
from shardopt.passes.base import Pass, PassContext, option
from shardopt.schedule.schedules import AUTO


@dataclass(frozen=True)
class SchedulePipeline(Pass):
    """See the head of the file."""

    name = "shardopt-schedule-pipeline"
    summary = "order the tasks of every mesh, check the order and simulate the step"

    schedule: str = option(
        "auto", help="gpipe, 1f1b, eager-1f1b or inference; auto: the one that the stages were planned for, else 1f1b"
    )

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
            pipeline = read_pipeline(program, read_topology(program.main))
            name = self._name(read_prediction(program.loop))
            result = simulate_pipeline(name, pipeline, program.num_microbatches)
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        program.loop.attributes[SCHEDULE] = ir.DictAttr.get(
            {
                "name": ir.StringAttr.get(name),
                "makespan_seconds": f64(result.makespan_seconds),
                "bubble": f64(result.bubble_fraction),
                "peak_bytes": ir.DenseI64ArrayAttr.get([profile.peak_bytes for profile in result.memory]),
            }
        )
        pm.statistic("makespan seconds", result.makespan_seconds)
        pm.statistic("bubble", result.bubble_fraction)

    def _name(self, planned: Prediction | None) -> str:
        if self.schedule != AUTO:
            return self.schedule
        return planned.schedule if planned is not None else "1f1b"
