"""One model on one mesh: what a plan exchanges, and what XLA exchanges when it compiles the module
with the plan in it.

    python -m benchmarks.cost.xla_agreement_case MODEL.mlirbc 2x2 --formats sdy,gspmd --plan
    random:7

prints one line of JSON a format. XLA's warnings go to stderr, behind a line `compiling as FORMAT`.
Plans: "ilp" or another preset of `shardopt.solve.presets.presets`, or "random:SEED", which takes
any strategy of any operation that the rules of the problem allow: what no solver would choose has
to agree, too."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # before jaxlib is imported: with warnings

import numpy as np
from jaxlib.mlir import ir

from shardopt.cost.traffic import Traffic
from shardopt.dialect.cluster import write_cluster
from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.forms.sharded_form import read_cost
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions, symbol_name
from shardopt.mesh.mesh import Mesh, parse_mesh
from shardopt.passes.base import PassContext, option
from shardopt.passes.sharding.choose_shardings import ChooseShardings
from shardopt.passes.sharding.decide.planning import MeshPlanner
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.compiled import compiled_text
from shardopt.solve.assignment.problem import Edge
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.xla_text.hlo import module_traffic

FORMATS = ("sdy", "gspmd")
RANDOM = "random:"


@dataclass(frozen=True)
class Case:
    """A module on a mesh with one plan. `scale` divides the rates of the cluster: small models are
    worth splitting on slow devices only."""

    mesh: str
    plan: str = "ilp"
    batch_args: tuple[str, ...] = ("auto",)
    cluster: str = "cpu-test"
    scale: float = 1e3
    unroll: bool = False
    time_limit: float = 60.0
    gap: float = 0.01


@dataclass(frozen=True)
class Outcome:
    """What was planned and what was compiled in one format; the seconds of the compilation."""

    format: str
    predicted: tuple[Traffic, ...]
    emitted: tuple[Traffic, ...]
    compile_seconds: float


def slowed(spec: str, mesh: Mesh, scale: float) -> Cluster:
    """One host with as many devices as the mesh, `scale` times slower than the cluster, without
    latencies."""
    cluster = load_cluster(f"{spec}:1x{mesh.size}")
    group = cluster.groups[0]
    device, link = group.device, group.intra_host
    link = replace(
        link,
        latency_seconds=0.0,
        bandwidth_bytes_per_second=link.bandwidth_bytes_per_second / scale,
    )
    slow = replace(
        device,
        peak_flops={dtype: rate / scale for dtype, rate in device.peak_flops.items()},
        memory_bandwidth=device.memory_bandwidth / scale,
    )
    group = replace(group, device=slow, intra_host=link, inter_host=link, dispatch_seconds=0.0)
    return replace(cluster, groups=(group,))


class WarmPlanner(MeshPlanner):
    """Prices operations once for all cases of a process on one mesh and cluster."""

    def problem(self, graph: MeshGraph, *rest: Any) -> IntraOpProblem:
        *others, _ = rest
        return super().problem(graph, *others, strategy_tables(graph.mesh, self.cluster))


@cache
def strategy_tables(mesh: Mesh, cluster: Cluster) -> StrategyTables:
    return StrategyTables(mesh, cluster)


@dataclass(frozen=True)
class ChooseWarm(ChooseShardings):
    """The pass with tables that are kept from case to case."""

    planner = WarmPlanner


class RandomPlanner(WarmPlanner):
    """Takes any strategy of any operation that the rules of the problem allow."""

    def problem(self, graph: MeshGraph, *rest: Any) -> IntraOpProblem:
        assert isinstance(self.options, ChooseAtRandom)
        return _random(super().problem(graph, *rest), self.options.seed)


@dataclass(frozen=True)
class ChooseAtRandom(ChooseShardings):
    """The pass with a plan that is drawn."""

    planner = RandomPlanner
    seed: int = option(0, help="of the choices")


def make_pass(case: Case, form: str) -> ChooseShardings:
    """The pass that plans a case for a format. GSPMD cannot leave sums open, Shardy can."""
    options = {
        "mesh": case.mesh,
        "sharding_format": "sdy" if form == "sdy" else "mhlo",
        "memory_fraction": 0.0,
    }
    limits = {"time_limit": case.time_limit, "gap": case.gap, "batch_args": case.batch_args}
    if case.plan.startswith(RANDOM):
        return ChooseAtRandom(**options, **limits, seed=int(case.plan.removeprefix(RANDOM)))  # type: ignore[arg-type]
    return ChooseWarm(**options, **limits, intra_op=case.plan)  # type: ignore[arg-type]


def _random(problem: IntraOpProblem, seed: int) -> IntraOpProblem:
    """The problem with random costs of the nodes and none on the edges: all that is left of it is
    what is forbidden."""
    rng = np.random.default_rng(seed)
    costs = tuple(
        np.where(np.isfinite(cost), rng.random(cost.shape), np.inf)
        for cost in problem.problem.costs
    )
    edges = tuple(
        Edge(edge.u, edge.v, np.where(np.isfinite(edge.cost), 0.0, np.inf))
        for edge in problem.problem.edges
        if not np.isfinite(edge.cost).all()
    )
    free = replace(problem.problem.without_memory(), costs=costs, edges=edges)
    return replace(problem, problem=free, groups=())


def check(source: Path | bytes, case: Case, formats: Sequence[str] = FORMATS) -> Iterator[Outcome]:
    """Plan and compile the module in each format. Raises UserError for a module that cannot be
    planned."""
    mesh = parse_mesh(case.mesh)
    for form in formats:
        predicted, bytecode = annotated(source, case, form)
        print(f"compiling as {form}", file=sys.stderr, flush=True)
        begin = perf_counter()
        text = compiled_text(bytecode, mesh.size, shardy=form == "sdy")
        yield Outcome(form, predicted, module_traffic(text, mesh), perf_counter() - begin)


def annotated(source: Path | bytes, case: Case, form: str) -> tuple[tuple[Traffic, ...], bytes]:
    """What the plan of a module says it exchanges, and the module with the plan in it."""
    with make_context() as context, ir.Location.unknown(context):
        module = load_module(source, context)
        run_pipeline(
            module, f"builtin.module(shardopt-import{{unroll={str(case.unroll).lower()}}})"
        )
        write_cluster(module, slowed(case.cluster, parse_mesh(case.mesh), case.scale))
        before = "shardopt-separate-accumulators,shardopt-mark-carried"
        if case.plan.startswith("ring"):
            batch = ",".join(case.batch_args)
            ring = f"intra-op={case.plan} mesh={case.mesh} batch-args={batch}"
            before = f"shardopt-rotate-keys{{{ring}}},{before}"
        run_pipeline(module, f"builtin.module({before})")
        make_pass(case, form).run(module, PassContext())
        form_option = "{sharding-format=sdy}" if form == "sdy" else ""
        steps = (
            "shardopt-rematerialize,shardopt-insert-reshards,"
            f"shardopt-annotate-shardings{form_option}"
        )
        run_pipeline(module, f"builtin.module({steps})")
        main = next(function for function in functions(module) if symbol_name(function) == "main")
        return read_cost(main).traffic, _bytecode(module)


def _bytecode(module: ir.Module) -> bytes:
    """The module with f16 for bf16, which the CPU backend would compute, and exchange, as f32: a
    matter of that backend and not of the plan. Both have two bytes, and nobody runs the result."""
    text = module.operation.get_asm()
    if "bf16>" in text:
        module = ir.Module.parse(re.sub(r"(?<=[x<])bf16(?=>)", "f16", text), module.context)
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description="Plan one module and compile it with the plan.")
    parser.add_argument("model", type=Path)
    parser.add_argument("mesh")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--plan", default="ilp")
    parser.add_argument("--batch-args", default="auto")
    parser.add_argument("--scale", type=float, default=Case.scale)
    parser.add_argument("--time-limit", type=float, default=Case.time_limit)
    args = parser.parse_args()
    batch = tuple(args.batch_args.split(","))
    case = Case(args.mesh, args.plan, batch, scale=args.scale, time_limit=args.time_limit)
    for outcome in check(args.model, case, args.formats.split(",")):
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
