"""Stage account against finished plan: what the stage phase counts for the stages of a plan, and
what the finished plan says of them.

    python -m benchmarks.solve.stage_account                     # tiny models, one and two stages
    python -m benchmarks.solve.stage_account gpt-1.3b --cluster p3.16xlarge:1x4 --stages 4
        --recompute layer --microbatches 128 --layers 8
    python -m benchmarks.solve.stage_account --figure8 [gpt-2 moe]   # cells of Alpa's figure 8

Models are those of `benchmarks.alpa.models`, cells those of `benchmarks.alpa.figure8` whose names
begin so, all by default: each in the plan that it states, whether that fits or not. Both accounts
by part: seconds of a step forwards, backwards and outside the loop, and MiB of a device: its
arguments, what one microbatch in flight keeps, and the peak while each part runs, under the
microbatches in flight of the plan. The last line is the largest difference in seconds of a stage
and in its peak, relatively; the exit code is 1 if that is more than `--tolerance`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxlib.mlir import ir
from rich.console import Console
from rich.table import Table

from benchmarks.alpa.specs import TINY, find_spec
from shardopt.dialect.mpmd import IN_FLIGHT, KIND, STAGE_ID, read_topology
from shardopt.dialect.program import StepProgram, body_of, read_program
from shardopt.extract.pipeline_graph import read_pipeline
from shardopt.extract.pipeline_memory import local_bytes
from shardopt.forms.sharded_form import read_cost
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.hardware.cluster import Cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.models.build import bytecode
from shardopt.passes.stages.read_step import read_step
from shardopt.planfile.plan_file import read_plan_file
from shardopt.schedule.tasks import StageTask, TaskKind
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs.cost_arrays import MEMORY, CostArrays
from shardopt.solve.stages.costs.cost_cache import CostCache
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharded_part import ShardedPart
from shardopt.solve.stages.search.plan_file_stages import fixed_stages
from shardopt.support.errors import UserError

_PART_OF = {
    "fwd": "forward",
    "bwd": "backward",
    "bwd_input": "backward",
    "bwd_weight": "backward",
}
_PARTS = ("forward", "backward", "outside")


@dataclass(frozen=True)
class Account:
    """Of one stage: seconds of a step by part; bytes of a device: arguments, of one microbatch in
    flight, and the peak by part."""

    seconds: dict[str, float]
    argument_bytes: int
    activation_bytes: int
    peak_bytes: dict[str, int]

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def peak(self) -> int:
        return max(self.peak_bytes.values())


def accounts(plan: Plan) -> Iterator[tuple[Account, Account]]:
    """Of every stage what the stage phase counts and what the finished plan says."""
    forms, stages = dict(plan.forms), read_plan_file(plan.to_json())[0].stages
    with make_context() as context:
        sharded = read_program(load_module(forms["transfer"], context))
        cluster = plan_cluster(plan)
        step, kinds = read_step(read_program(load_module(forms["cluster"], context)))
        step = replace(step, fusing=cluster.fusing)
        cuts = fixed_stages(stages, step.num_layers, cluster)
        assert cuts is not None, "a finished plan leaves nothing open"
        configs = tuple(dict.fromkeys(config for _, _, config in cuts))
        problem = CandidateProblem(
            step, step.num_layers, cluster, configs, sharded.num_microbatches, input_kinds=kinds
        )
        arrays = CostArrays(problem, CostCache(cluster))
        held = in_flight(sharded, len(cuts))
        for stage, (start, end, config) in enumerate(cuts):
            candidate = (start, end, configs.index(config))
            yield of_stage_phase(arrays, candidate, held[stage]), of_plan(sharded, stage)


def plan_cluster(plan: Plan) -> Cluster:
    from shardopt.dialect.cluster import read_cluster

    with make_context() as context:
        return read_cluster(load_module(plan.module, context))


def in_flight(program: StepProgram, num_stages: int) -> list[int]:
    attributes = program.loop.attributes
    if IN_FLIGHT not in attributes:
        return [1] * num_stages
    return list(ir.DenseI64ArrayAttr(attributes[IN_FLIGHT]))


def of_stage_phase(arrays: CostArrays, candidate: tuple[int, int, int], held: int) -> Account:
    while arrays.level[candidate] < MEMORY:
        arrays.refine([candidate])
    part, config = arrays.part(candidate), candidate[2]
    mesh = arrays.meshes[config]
    sharding = arrays.cost_cache.sharding(part, mesh, arrays.sharders[config])
    tables = StrategyTables(mesh, arrays.problem.cluster)
    facts = PartFacts(part)
    sharded = ShardedPart(facts, tables, sharding.choice, sharding.transient)
    live = sharded.live_bytes(copies=True, in_flight=held)
    group = np.array([part.graph.ops[op].group for op in facts.execution.order])
    seconds, peaks = dict.fromkeys(_PARTS, 0.0), dict.fromkeys(_PARTS, 0)
    for k, kind in enumerate(part.kinds):
        name = kind if kind in _PARTS else "outside"
        seconds[name] += sharding.fragment_seconds[k]
        peaks[name] = max(peaks[name], int(live[group == k].max(initial=0)))
    inputs = sum(sharded.bytes_of(t) for t in facts.singles.inputs if t not in part.arrivals)
    return Account(seconds, inputs, int(arrays.activation_bytes[candidate]), peaks)


def of_plan(program: StepProgram, stage: int) -> Account:
    meshes = {mesh.name: mesh for mesh in read_topology(program.main)}
    seconds, peaks = dict.fromkeys(_PARTS, 0.0), dict.fromkeys(_PARTS, 0)
    home = ""
    for ops, times in (
        (program.body_ops, program.num_microbatches),
        (body_of(program.main_block), 1),
    ):
        for op in ops:
            if op.name != "mpmd.fragment" or ir.IntegerAttr(op.attributes[STAGE_ID]).value != stage:
                continue
            part = _PART_OF.get(ir.StringAttr(op.attributes[KIND]).value, "outside")
            cost, home = read_cost(op), ir.StringAttr(op.attributes["mesh_name"]).value
            seconds[part] += times * cost.seconds
            peaks[part] = max(peaks[part], cost.peak_bytes)
    types = [argument.type for argument in program.main_block.arguments]
    inputs = sum(local_bytes(type_, meshes) for type_ in types if f'"{home}"' in str(type_))
    kept = read_pipeline(program, tuple(meshes.values())).activation_bytes
    return Account(seconds, inputs, kept.get(StageTask(TaskKind.FORWARD, stage), 0), peaks)


def add_rows(table: Table, name: str, stage: int, both: tuple[Account, Account]) -> None:
    for who, account in zip(("stage phase", "finished"), both, strict=True):
        seconds = [f"{1e3 * account.seconds[part]:.4g}" for part in _PARTS]
        sizes = (account.argument_bytes, account.activation_bytes, *account.peak_bytes.values())
        table.add_row(f"{name} {stage}", who, *seconds, *(f"{size / 2**20:.4g}" for size in sizes))


def difference(first: float, second: float) -> float:
    return abs(first - second) / max(first, second, 1e-30)


def plans(args: argparse.Namespace) -> Iterator[tuple[str, Plan]]:
    """The plans that are compared; those that do not exist are left out."""
    names = args.models or sorted(TINY)
    counts = [args.stages] if args.stages else [1, 2]
    for name in names:
        source = bytecode(find_spec(name, args.batch))
        for stages in counts:
            for method in args.methods.split(","):
                options = PlanOptions(
                    args.cluster,
                    stages=stages,
                    intra_op=method,
                    microbatches=args.microbatches,
                    layers=args.layers,
                    recompute=args.recompute,
                    schedule="1f1b",
                    memory_fraction=args.memory_fraction,
                    batch_coupling="per-microbatch",
                )
                try:
                    yield f"{name} {method}", make_plan(source, options)
                except UserError as error:
                    print(f"{name}, {stages} stages by {method}: {error}", file=sys.stderr)


def plans_of_figure8(args: argparse.Namespace) -> Iterator[tuple[str, Plan]]:
    """Cells on one device have equal plans, which are made once."""
    from benchmarks.alpa.figure8 import published
    from shardopt.measured.case import case_of
    from shardopt.measured.predict import whole_case
    from shardopt.measured.short_plan import ShortCase, finished_plan

    cells: dict[ShortCase, list[str]] = {}
    for cell, row in published().items():
        if cell.startswith(tuple(args.models or [""])):
            cells.setdefault(whole_case(case_of(row)), []).append(cell)
    for case, names in cells.items():
        further = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield names[0] + further, finished_plan(case)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="or the beginnings of cells")
    parser.add_argument("--figure8", action="store_true", help="cells of figure 8, not models")
    parser.add_argument("--cluster", default="cpu-test:1x4")
    parser.add_argument("--batch", type=int, help="another batch than the published one")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--stages", type=int, help="by default plans of one and of two stages")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--methods", default="ilp,data,zero3", help="values of intra-op")
    parser.add_argument("--recompute", default="auto")
    parser.add_argument("--memory-fraction", type=float, default=0.9)
    parser.add_argument("--tolerance", type=float, default=0.01)
    args = parser.parse_args(argv)
    table = Table(title="milliseconds of a step, MiB of a device")
    for column in ("stage", "account", *_PARTS, "arguments", "a microbatch"):
        table.add_column(column, justify="right")
    for part in _PARTS:
        table.add_column(f"peak {part}", justify="right")
    worst = [0.0, 0.0]
    for name, plan in plans_of_figure8(args) if args.figure8 else plans(args):
        for stage, (phase, finished) in enumerate(accounts(plan)):
            add_rows(table, name, stage, (phase, finished))
            now = (
                difference(phase.total_seconds, finished.total_seconds),
                difference(phase.peak, finished.peak),
            )
            worst = [max(pair) for pair in zip(worst, now, strict=True)]
    Console(width=170).print(table)
    print(f"largest difference: {worst[0]:.2%} in seconds, {worst[1]:.2%} in the peak")
    return int(max(worst) > args.tolerance)


if __name__ == "__main__":
    sys.exit(main())
