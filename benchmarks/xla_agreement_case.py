"""One model on one mesh: what a plan exchanges, and what XLA exchanges when it compiles the module with the plan in it.

    python -m benchmarks.xla_agreement_case MODEL.mlirbc 2x2 --formats sdy,gspmd --plan random:7

prints one line of JSON a format. XLA's warnings go to stderr, behind a line `compiling as FORMAT`. Plans: "ilp" or
another preset of `shardopt.solve.intra_op_presets`, or "random:SEED", which takes any strategy of any operation that
the rules of the problem allow: what no solver would choose has to agree, too.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # before jaxlib is imported: with warnings

import numpy as np
from jaxlib.mlir import ir

from shardopt.cost.cluster import Cluster, load_cluster
from shardopt.cost.hlo import module_traffic
from shardopt.cost.mesh import Mesh
from shardopt.cost.traffic import Traffic
from shardopt.dialect.sharded_form import read_cost
from shardopt.frontend.spmd import parse_mesh
from shardopt.ir.batch_arguments import batch_of
from shardopt.ir.context import make_context
from shardopt.ir.graph import sharding_rules
from shardopt.ir.io import load_module
from shardopt.ir.mesh_graphs import MeshGraph, read_plain
from shardopt.ir.rewriting import functions, symbol_name
from shardopt.ir.shardy import to_shardy
from shardopt.passes.shard_stages import write_plans
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.xla import compiled_text
from shardopt.solve.intra_op import IntraOpProblem, IntraOpTables
from shardopt.solve.intra_op_plan import IntraOpPlan
from shardopt.solve.intra_op_presets import Roles, restrict
from shardopt.solve.linear import find_linear
from shardopt.solve.problem import Edge

FORMATS = ("sdy", "gspmd")
RANDOM = "random:"


@dataclass(frozen=True)
class Case:
    """A module on a mesh with one plan. `scale` divides the rates of the cluster: small models are worth splitting on
    slow devices only."""

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
    found: tuple[Traffic, ...]
    compile_seconds: float


def slowed(spec: str, mesh: Mesh, scale: float) -> Cluster:
    """One host with as many devices as the mesh, `scale` times slower than the cluster, without latencies."""
    cluster = load_cluster(f"{spec}:1x{mesh.size}")
    device, link = cluster.device, cluster.intra_host
    link = replace(link, latency_seconds=0.0, bandwidth_bytes_per_second=link.bandwidth_bytes_per_second / scale)
    slow = replace(
        device,
        peak_flops={dtype: rate / scale for dtype, rate in device.peak_flops.items()},
        memory_bandwidth=device.memory_bandwidth / scale,
    )
    return replace(cluster, device=slow, intra_host=link, inter_host=link, dispatch_seconds=0.0)


def make_plan(graph: MeshGraph, case: Case, *, open_sums: bool) -> IntraOpPlan:
    """The plan of a case; with sums that stay open where the format can say so. Raises UserError when there is none."""
    tied = tuple(graph.tied)
    linear = find_linear(graph.graph, tied, graph.sent) if open_sums else ()
    tables = IntraOpTables(graph.graph, graph.mesh, slowed(case.cluster, graph.mesh, case.scale), linear=linear)
    if case.plan.startswith(RANDOM):
        problem = _random(tables.problem(tied=tied), int(case.plan.removeprefix(RANDOM)))
    else:
        roles = Roles(graph.state, batch_of(graph, case.batch_args), tied)
        limits = restrict(case.plan, tables, roles)
        problem = tables.problem(fixed=limits.fixed, allowed=limits.allowed, tied=tied)
    return problem.decode(problem.solve(case.time_limit, case.gap))


def _random(problem: IntraOpProblem, seed: int) -> IntraOpProblem:
    """The problem with random costs of the nodes and none on the edges: all that is left of it is what is forbidden."""
    rng = np.random.default_rng(seed)
    costs = tuple(np.where(np.isfinite(cost), rng.random(cost.shape), np.inf) for cost in problem.problem.costs)
    edges = tuple(
        Edge(edge.u, edge.v, np.where(np.isfinite(edge.cost), 0.0, np.inf))
        for edge in problem.problem.edges
        if not np.isfinite(edge.cost).all()
    )
    return replace(problem, problem=replace(problem.problem.without_memory(), costs=costs, edges=edges))


def check(source: Path | bytes, case: Case, formats: Sequence[str] = FORMATS) -> Iterator[Outcome]:
    """Plan and compile the module in each format. Raises UserError for a module that cannot be planned."""
    mesh = parse_mesh(case.mesh)
    for name in formats:
        predicted, bytecode = annotated(source, case, mesh, shardy=name == "sdy")
        print(f"compiling as {name}", file=sys.stderr, flush=True)
        begin = perf_counter()
        text = compiled_text(bytecode, mesh.size, shardy=name == "sdy")
        yield Outcome(name, predicted, module_traffic(text, mesh), perf_counter() - begin)


def annotated(source: Path | bytes, case: Case, mesh: Mesh, *, shardy: bool) -> tuple[tuple[Traffic, ...], bytes]:
    """What the plan of a module says it exchanges, and the module with the plan in it."""
    with make_context() as context, ir.Location.unknown(context):
        module = load_module(source, context)
        run_pipeline(module, f"builtin.module(shardopt-import{{unroll={str(case.unroll).lower()}}})")
        main = next(function for function in functions(module) if symbol_name(function) == "main")
        with sharding_rules(module):
            graph = read_plain(main, mesh)
        write_plans(module, main, (graph,), (make_plan(graph, case, open_sums=shardy),))
        run_pipeline(module, "builtin.module(shardopt-verify-sharded)")
        predicted = read_cost(main).traffic
        if shardy:
            to_shardy(module, mesh)
        return predicted, _bytecode(module)


def _bytecode(module: ir.Module) -> bytes:
    """The module with f16 for bf16, which the CPU backend would compute, and exchange, as f32: a matter of that backend
    and not of the plan. Both have two bytes, and nobody runs the result."""
    text = module.operation.get_asm()
    if "bf16" in text:
        module = ir.Module.parse(re.sub(r"\bbf16\b|(?<=x)bf16\b", "f16", text), module.context)
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
