"""One model on one mesh: the plan of every preset under one cost model, and what XLA makes of
it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before jaxlib is imported

from jaxlib.mlir import ir

from shardopt.dialect.dtypes import numpy_name
from shardopt.extract.control_flow import mark_carried
from shardopt.extract.mesh_graphs import MeshGraph, read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.forms.exported_program import StageFunction, TensorSpec
from shardopt.hardware.cluster import Cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions, symbol_name
from shardopt.mesh.mesh import Sharding, parse_mesh
from shardopt.passes.microbatches.find_batch import find_batch, mark_batch
from shardopt.passes.sharding.apply.accumulators import add_sum_points, separate_accumulators
from shardopt.passes.sharding.decide.input_kinds import find_input_kinds
from shardopt.passes.sharding.decide.writing import write_plans
from shardopt.passes.sharding.demands.user_constraints import read_demands
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.xla import XlaMesh
from shardopt.solve.assignment.limits import SearchLimits, work_of
from shardopt.solve.assignment.problem import Solution, evaluate
from shardopt.solve.presets.presets import InputKinds, Restriction, restrict
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables
from shardopt.solve.sharding.strategies.linear import find_linear
from shardopt.support.errors import UserError
from shardopt.xla_text.hlo import module_traffic

SOLVER = "ilp"
# Beyond this many operations or bytes of all values a module takes minutes to compile for host
# devices.
COMPILED_OPERATIONS = 6000
COMPILED_BYTES = 1 << 28


@dataclass(frozen=True)
class Record:
    """A line of the results. `seconds` is the solver's objective; `status` is that of its solution
    or "refused".

    Bytes are those of one device and step. `compiled_bytes` is -1 where nothing was compiled;
    `note` says why."""

    model: str
    mesh: str
    preset: str
    cluster: str
    scale: float
    status: str
    seconds: float = float("inf")
    gap: float = float("inf")
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    planned_bytes: int = 0
    planned_collectives: str = ""
    compiled_bytes: int = -1
    compiled_collectives: str = ""
    peak_bytes: int = 0
    solve_seconds: float = 0.0
    operations: int = 0
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str, str, float]:
        return self.model, self.mesh, self.preset, self.cluster, self.scale

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Task:
    """What is compared: a module with its batch arguments, a mesh as text, the presets, and the
    solver's limits."""

    path: Path
    batch_args: tuple[str, ...]
    mesh: str
    cluster: Cluster
    scale: float
    presets: Sequence[str]
    time_limit: float
    gap: float
    memory_fraction: float
    compiles: bool
    unreduced: bool = False

    def record(self, preset: str, status: str, **values: object) -> Record:
        name, cluster = self.path.stem, self.cluster.name
        return Record(name, self.mesh, preset, cluster, self.scale, status, **values)  # type: ignore[arg-type]


def measure(task: Task, about_to: Callable[[str, str], None]) -> Iterator[Record]:
    """One record for each preset as it is known, the solver's own plan last; before a compilation,
    which may take the process with it, a record without one. `about_to(preset, what)` is told what
    comes."""
    about_to("", "reading")
    annotated = _annotated(task)
    with _imported(task) as (_, graph):
        linear = find_linear(graph.graph, graph.tied, graph.sent) if task.unreduced else ()
        tables = IntraOpTables(graph.graph, graph.mesh, task.cluster, linear=linear)
        input_kinds = {
            preset: _input_kinds(task, preset, graph, tables, annotated) for preset in task.presets
        }
    free = _problem(task, graph, tables, Restriction())
    best: tuple[float, str, Solution] | None = None
    for preset in sorted(task.presets, key=lambda name: name == SOLVER):
        about_to(preset, "solving")
        begin = perf_counter()
        try:
            restriction = restrict(preset, tables, _raised(input_kinds[preset]))
            problem = free if preset == SOLVER else _problem(task, graph, tables, restriction)
            start = best[2].choice if preset == SOLVER and best is not None else None
            solution = problem.solve(SearchLimits(None, task.gap, work_of(task.time_limit)), start)
            plan = problem.decode(solution)
        except UserError as error:
            yield task.record(
                preset, "refused", note=str(error), solve_seconds=perf_counter() - begin
            )
            continue
        seconds, cost = perf_counter() - begin, _on(free, solution)
        note = (
            f"the plan of {best[1]}"
            if start is not None and best is not None and cost == best[0]
            else ""
        )
        if cost < (best[0] if best else float("inf")):
            best = (cost, preset, solution)
        record = _solved(task, preset, solution, cost, plan, seconds, note)
        yield from _compiled(task, record, plan, about_to)


def _annotated(task: Task) -> dict[int, Sharding]:
    """The user's shardings of arguments, by number, if they split any on this mesh. All plans are
    made without them; only `shardy` starts from them."""
    mesh = parse_mesh(task.mesh)
    with make_context() as context, ir.Location.unknown(context):
        module = load_module(task.path, context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        demands = read_demands(module, _main(module), mesh, obey_annotations=True)
        with sharding_rules(module):
            graph = read_plain(_main(module), mesh)
        allowed = demands.allowed(graph.reader)
    shardings = {
        k: allowed[t][0] for k, t in graph.arguments.items() if len(allowed.get(t, ())) == 1
    }
    return shardings if any(sharding.axes for sharding in shardings.values()) else {}


def _input_kinds(
    task: Task,
    preset: str,
    graph: MeshGraph,
    tables: IntraOpTables,
    annotated: Mapping[int, Sharding],
) -> InputKinds | UserError:
    """A preset may refuse the module already here; the others go on."""
    shardings = {graph.arguments[k]: sharding for k, sharding in annotated.items()}
    try:
        return find_input_kinds(preset, graph, tables, task.batch_args, shardings)
    except UserError as error:
        return error


def _raised(input_kinds: InputKinds | UserError) -> InputKinds:
    if isinstance(input_kinds, UserError):
        raise input_kinds
    return input_kinds


def _problem(
    task: Task, graph: MeshGraph, tables: IntraOpTables, restriction: Restriction
) -> IntraOpProblem:
    return tables.problem(
        fixed=restriction.fixed,
        allowed=restriction.allowed,
        tied=graph.tied,
        memory_limit_bytes=int(task.memory_fraction * task.cluster.groups[0].device.memory_bytes)
        or None,
        residency=graph.residency,
    )


def _on(free: IntraOpProblem, solution: Solution) -> float:
    """The objective on the problem without a preset, whose nodes and strategies are the same: a
    preset's plan is one of its assignments."""
    return evaluate(free.problem, solution.choice).objective


def _solved(
    task: Task,
    preset: str,
    solution: Solution,
    objective: float,
    plan: IntraOpPlan,
    seconds: float,
    note: str,
) -> Record:
    cost = plan.summary()
    return task.record(
        preset,
        solution.status,
        seconds=objective,
        gap=solution.gap,
        compute_seconds=cost.compute_seconds,
        communication_seconds=cost.communication_seconds,
        planned_bytes=sum(item.bytes for item in cost.traffic),
        planned_collectives=", ".join(map(str, cost.traffic)),
        peak_bytes=cost.peak_bytes,
        solve_seconds=seconds,
        operations=len(plan.graph.ops),
        note=note,
    )


def _compiled(
    task: Task, record: Record, plan: IntraOpPlan, about_to: Callable[[str, str], None]
) -> Iterator[Record]:
    why_not = _why_not_compiled(task, plan)
    if why_not:
        yield Record(**{**record.as_dict(), "note": record.note or why_not})  # type: ignore[arg-type]
        return
    yield Record(**{**record.as_dict(), "note": "compiling ended the process"})  # type: ignore[arg-type]
    about_to(record.preset, "compiling")
    try:
        traffic = module_traffic(_compile(task, plan), plan.mesh)
    except Exception as error:  # the table must go on: what XLA refuses is one row
        yield Record(**{**record.as_dict(), "note": f"{type(error).__name__}: {error}"})  # type: ignore[arg-type]
        return
    figures = {
        "compiled_bytes": sum(t.bytes for t in traffic),
        "compiled_collectives": ", ".join(map(str, traffic)),
    }
    yield Record(**{**record.as_dict(), **figures})  # type: ignore[arg-type]


def _why_not_compiled(task: Task, plan: IntraOpPlan) -> str:
    if not task.compiles:
        return "not compiled: --no-compile"
    size = sum(tensor.size_bytes for tensor in plan.graph.tensors)
    if len(plan.graph.ops) > COMPILED_OPERATIONS:
        return f"not compiled: {len(plan.graph.ops)} operations, at most {COMPILED_OPERATIONS}"
    if size > COMPILED_BYTES:
        return f"not compiled: {size / 2**20:.0f} MiB of values, at most {COMPILED_BYTES >> 20}"
    return ""


class _imported:
    """The module of a task after import, and its graph, without annotations; live inside the `with`
    block."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.context = make_context()

    def __enter__(self) -> tuple[ir.Module, MeshGraph]:
        context = self.context.__enter__()
        module, mesh = load_module(self.task.path, context), parse_mesh(self.task.mesh)
        run_pipeline(module, "builtin.module(shardopt-import)")
        with ir.Location.unknown(context):
            read_demands(module, _main(module), mesh, obey_annotations=False)
            mark_carried(module.operation)
            separate_accumulators(module)
            if self.task.unreduced:
                add_sum_points(module)
            if self.task.batch_args == ("auto",):
                with suppress(UserError):  # some models have no batch
                    mark_batch(_main(module), find_batch(module))
            with sharding_rules(module):
                graph = read_plain(_main(module), mesh)
        graph.graph, graph.state  # noqa: B018 - read while the module lives
        return module, graph

    def __exit__(self, *error: object) -> None:
        self.context.__exit__(*error)


def _main(module: ir.Module) -> ir.Operation:
    return next(function for function in functions(module) if symbol_name(function) == "main")


def _compile(task: Task, plan: IntraOpPlan) -> str:
    """The HLO text of the module with the plan written into it. Reading twice numbers operations
    alike."""
    with _imported(task) as (module, graph), ir.Location.unknown(module.context):
        write_plans(module, _main(module), (graph,), (plan,))
        run_pipeline(
            module,
            "builtin.module(shardopt-rematerialize,shardopt-insert-reshards,shardopt-annotate-shardings)",
        )
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)

    def specs(tensors: Sequence[int]) -> tuple[TensorSpec, ...]:
        described = [plan.graph.tensors[k] for k in tensors]
        return tuple(
            TensorSpec(tensor.shape, numpy_name(tensor.dtype), plan.shardings[k])
            for k, tensor in zip(tensors, described, strict=True)
        )

    arguments, results = specs(tuple(graph.arguments.values())), specs(plan.graph.outputs)
    function = StageFunction("main", buffer.getvalue(), arguments, results, donates=())
    return str(
        XlaMesh(plan.mesh).compile(function, quick=True)._loaded.hlo_modules()[0].to_string()
    )
