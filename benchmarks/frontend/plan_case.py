"""Plan one module in a process of its own: a line of JSON on standard output.

    python -m benchmarks.frontend.plan_case MODEL '{"cluster": "p3.16xlarge:2x8", "microbatches":
    8}'

The options are those of `PlanOptions`. `seconds` are of the planning alone, `phases` those of each
phase (none when the plan was found in the cache), `cpu_seconds` and `cpu_phases` the processor's
share of them, which others on the machine do not lengthen; `peak_bytes` is the memory of this
process. A model that is refused has an `error`."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before jaxlib is imported

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.pipeline.manager import PipelineResult
from shardopt.support.errors import UserError


@dataclass
class Watch:
    """What the phases did, and how long they took."""

    phases: dict[str, float] = field(default_factory=dict)
    cpu_phases: dict[str, float] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)
    name: str = ""
    begun: tuple[float, float] = (0.0, 0.0)

    def begin(self, name: str) -> None:
        self.name, self.begun = name, (perf_counter(), process_time())

    def end(self, result: PipelineResult) -> None:
        self.phases[self.name] = round(perf_counter() - self.begun[0], 3)
        self.cpu_phases[self.name] = round(process_time() - self.begun[1], 3)
        self.statistics |= {name: value for (_, name), value in result.statistics.items()}


def planned(model: str, options: PlanOptions) -> dict[str, Any]:
    """The figures of one plan, or the reason why there is none."""
    watch, begin, worked = Watch(), perf_counter(), process_time()
    row: dict[str, Any] = {}
    try:
        plan: Plan | None = make_plan(model, options, on_phase=watch.begin, on_result=watch.end)
    except UserError as error:
        plan, row["error"] = None, str(error)
    except Exception:
        plan, row["crash"] = None, traceback.format_exc()
    row["seconds"] = round(perf_counter() - begin, 3)
    row["cpu_seconds"] = round(process_time() - worked, 3)
    row["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if plan is not None:
        row |= _described(plan)
    row |= {"phases": watch.phases, "cpu_phases": watch.cpu_phases}
    return {**row, "failed_in": watch.name, "statistics": watch.statistics}


def _described(plan: Plan) -> dict[str, Any]:
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.ir.rewriting import functions

    with make_context() as context:
        module = load_module(dict(plan.forms)["import"], context)
        ops = sum(
            len(tuple(block)) for function in functions(module) for block in function.regions[0]
        )
    stages = [
        {"layers": len(row.layers), "shape": row.logical_shape} for row in plan.summary.stages
    ]
    return {"ops": ops, "stages": stages, "step_seconds": plan.summary.step_seconds}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("options", metavar="JSON", type=json.loads)
    args = parser.parse_args(argv)
    print(json.dumps(planned(args.model, PlanOptions(**args.options))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
