"""One model on one mesh: the plan of every preset under one cost model, and what XLA makes of
it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before jaxlib is imported

from jaxlib.mlir import ir

from shardopt.dialect.cluster import write_cluster
from shardopt.extract.control_flow import mark_carried
from shardopt.extract.mesh_graphs import MeshGraph, read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.hardware.cluster import Cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions, symbol_name
from shardopt.mesh.mesh import Sharding, parse_mesh
from shardopt.passes.base import PassContext
from shardopt.passes.microbatches.find_batch import find_batch, mark_batch
from shardopt.passes.sharding.apply.accumulators import separate_accumulators
from shardopt.passes.sharding.decide.input_kinds import find_input_kinds
from shardopt.passes.sharding.decide.writing import write_plans
from shardopt.passes.sharding.demands.user_constraints import read_demands
from shardopt.passes.sharding.rotate_keys import RotateKeys
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.compiled import compiled_text
from shardopt.solve.assignment.limits import SearchLimits, work_of
from shardopt.solve.presets.presets import InputKinds, restrict
from shardopt.solve.sharding.budget.search import Fit, fit
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.constraints import Constraints
from shardopt.solve.sharding.strategies.linear import find_linear
from shardopt.support.errors import UserError
from shardopt.xla_text.hlo import module_traffic

SOLVER = "ilp"
# The status of a preset that does not apply, and of one of which no plan fits into memory.
REFUSED, MEMORY = "refused", "memory"
# Beyond this many operations or bytes of all values a module takes minutes to compile for host
# devices.
COMPILED_OPERATIONS = 6000
COMPILED_BYTES = 1 << 28


@dataclass(frozen=True)
class Record:
    """A line of the results. `seconds` is what the plan costs; `status` is that of its solution,
    "refused" or "memory".

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

    @property
    def has_plan(self) -> bool:
        return self.status not in (REFUSED, MEMORY)

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

    @property
    def memory_limit(self) -> int | None:
        return int(self.memory_fraction * self.cluster.groups[0].device.memory_bytes) or None

    def record(self, preset: str, status: str, **values: object) -> Record:
        name, cluster = self.path.stem, self.cluster.name
        return Record(name, self.mesh, preset, cluster, self.scale, status, **values)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class _Best:
    """The cheapest plan of a preset so far, as an assignment of the problem without one."""

    seconds: float
    preset: str
    choice: Sequence[int]


def measure(task: Task, about_to: Callable[[str, str], None]) -> Iterator[Record]:
    """One record for each preset as it is known, the solver's own plan last; before a compilation,
    which may take the process with it, a record without one. `about_to(preset, what)` is told what
    comes."""
    about_to("", "reading")
    annotated, best = _annotated(task), None
    as_written, rotated = (
        [preset for preset in task.presets if _rotates(preset) == rotates]
        for rotates in (False, True)
    )
    for presets in (rotated, sorted(as_written, key=lambda name: name == SOLVER)):
        try:
            read = _read(task, presets, annotated) if presets else None
        except UserError as error:
            yield from (task.record(preset, REFUSED, note=str(error)) for preset in presets)
            continue
        for preset in presets if read is not None else ():
            about_to(preset, "solving")
            assert read is not None
            begin = perf_counter()
            start = best if preset == SOLVER else None
            try:
                found = _planned(task, preset, read, start)
            except UserError as error:
                taken = perf_counter() - begin
                yield task.record(preset, REFUSED, note=str(error), solve_seconds=taken)
                continue
            seconds = perf_counter() - begin
            if found.plan is None:
                yield task.record(preset, MEMORY, solve_seconds=seconds)
                continue
            record = _solved(task, preset, found, seconds, start)
            if not _rotates(preset) and (best is None or record.seconds < best.seconds):
                best = _Best(record.seconds, preset, found.solution.choice)
            yield from _compiled(task, record, found.plan, about_to)


def _rotates(preset: str) -> bool:
    """Whether a preset plans another program, in which keys go round a ring."""
    return preset.startswith("ring")


@dataclass(frozen=True, eq=False)
class _Read:
    """A module as presets see it, which lives as long as the handles of its graph do."""

    module: ir.Module
    graph: MeshGraph
    tables: IntraOpTables
    input_kinds: Mapping[str, InputKinds | UserError]


def _read(task: Task, presets: Sequence[str], annotated: Mapping[int, Sharding]) -> _Read:
    with _imported(task, presets[0]) as (module, graph):
        tables = IntraOpTables(
            graph.graph,
            graph.mesh,
            task.cluster,
            # Arguments and results of a module in Shardy's form have no padding.
            Constraints(even=frozenset((*graph.arguments.values(), *graph.outputs))),
            find_linear(graph.graph, graph.tied, graph.sent),
        )
        kinds = {preset: _input_kinds(task, preset, graph, tables, annotated) for preset in presets}
    return _Read(module, graph, tables, kinds)


def _planned(task: Task, preset: str, read: _Read, start: _Best | None) -> Fit:
    restriction = restrict(preset, read.tables, _raised(read.input_kinds[preset]))
    problem = read.tables.problem(
        fixed=restriction.fixed,
        allowed=restriction.allowed,
        tied=read.graph.tied,
        transient=restriction.transient,
        residency=read.graph.residency,
    )
    limits = SearchLimits(None, task.gap, work_of(task.time_limit))
    relaxed = problem.solve(limits, None if start is None else start.choice)
    return fit(problem, task.memory_limit, limits=limits, relaxed=relaxed)


def _annotated(task: Task) -> dict[int, Sharding]:
    """The user's shardings of arguments, by number, if they split any on this mesh. All plans are
    made without them; only `shardy` starts from them."""
    mesh = parse_mesh(task.mesh)
    with make_context() as context, ir.Location.unknown(context):
        module = load_module(task.path, context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        demands = read_demands(module, _main(module), mesh, obey_annotations=True, padded=True)
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


def _solved(task: Task, preset: str, found: Fit, seconds: float, start: _Best | None) -> Record:
    plan, solution = found.plan, found.solution
    assert plan is not None
    cost = plan.summary()
    is_start = start is not None and tuple(solution.choice) == tuple(start.choice)
    return task.record(
        preset,
        solution.status,
        seconds=solution.objective,
        gap=solution.gap,
        compute_seconds=cost.compute_seconds,
        communication_seconds=cost.communication_seconds,
        planned_bytes=sum(item.bytes for item in cost.traffic),
        planned_collectives=", ".join(map(str, cost.traffic)),
        peak_bytes=cost.peak_bytes,
        solve_seconds=seconds,
        operations=len(plan.graph.ops),
        note=f"the plan of {start.preset}" if start is not None and is_start else "",
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
        traffic = module_traffic(_compile(task, record.preset, plan), plan.mesh)
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


@contextmanager
def _imported(task: Task, preset: str) -> Iterator[tuple[ir.Module, MeshGraph]]:
    """The module of a task after import, as a preset plans it, and its graph, without annotations;
    live inside the `with` block."""
    mesh = parse_mesh(task.mesh)
    with make_context() as context, ir.Location.unknown(context):
        module = load_module(task.path, context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        read_demands(module, _main(module), mesh, obey_annotations=False, padded=True)
        write_cluster(module, task.cluster)
        if _rotates(preset):
            rotate = RotateKeys(intra_op=preset, mesh=task.mesh, batch_args=task.batch_args)  # type: ignore[arg-type]
            rotate.run(module, PassContext())
        mark_carried(module.operation)
        separate_accumulators(module)
        if task.batch_args == ("auto",):
            with suppress(UserError):  # some models have no batch
                mark_batch(_main(module), find_batch(module))
        with sharding_rules(module):
            graph = read_plain(_main(module), mesh)
        graph.graph, graph.state  # noqa: B018 - read while the module lives
        yield module, graph


def _main(module: ir.Module) -> ir.Operation:
    return next(function for function in functions(module) if symbol_name(function) == "main")


def _compile(task: Task, preset: str, plan: IntraOpPlan) -> str:
    """The HLO text of the module with the plan written into it. Reading twice numbers operations
    alike."""
    with _imported(task, preset) as (module, graph), ir.Location.unknown(module.context):
        write_plans(module, _main(module), (graph,), (plan,), task.cluster)
        run_pipeline(
            module,
            "builtin.module(shardopt-rematerialize,shardopt-insert-reshards,"
            "shardopt-annotate-shardings{sharding-format=sdy})",
        )
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
    return compiled_text(buffer.getvalue(), plan.mesh.size, shardy=True)
