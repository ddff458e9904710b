"""The staged form as one op graph a mesh: all fragments of a mesh, outside and inside of the loop,
planned together.

Values at fragment boundaries are followed through `mpmd.for`, `mpmd.call` and the function they
call, so that what the runtime keeps in one buffer is one tensor of the graph. Pairs that must have
equal shardings are listed as `tied`: an accumulator before and after the loop, a donated argument
and the result that replaces it.

A plain module (no topology) is the same thing with one mesh whose only fragment is `@main`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jaxlib.mlir import ir

from shardopt.dialect.batch import read_batch, read_no_batch
from shardopt.dialect.donation import read_donation, read_on_host, read_replacements
from shardopt.dialect.mpmd import (
    IN_FLIGHT,
    STAGE_ID,
    is_mesh_tensor,
    parse_mesh_tensor,
    read_methods,
    read_topology,
)
from shardopt.dialect.prediction import read_prediction
from shardopt.dialect.program import body_of
from shardopt.dialect.token_slices import read_token_slices
from shardopt.extract.control_flow import RegionReader
from shardopt.extract.op_graph import read_tensor
from shardopt.extract.pipeline_graph import is_task, task_of
from shardopt.extract.waiting_values import waiting_values
from shardopt.graph.op_graph import OpGraph
from shardopt.graph.residency import MicrobatchLoop, Residency
from shardopt.ir.rewriting import functions, symbol_name
from shardopt.ir.splats import is_splat
from shardopt.mesh.mesh import Mesh
from shardopt.schedule.memory import in_flight_beside
from shardopt.schedule.schedules import build_schedule, stage_homes
from shardopt.schedule.tasks import Task
from shardopt.support.errors import UserError


@dataclass(eq=False)
class MeshGraph:
    """What is planned together on one mesh. Operations of `fragments[k]` have group k in the graph.

    `reader.index` maps IR values, also those of mesh tensor type, to tensors of `graph`;
    `arguments` those arguments of `@main` (by number) that live on this mesh; `sent` are tensors
    that go to other meshes, `sources` says for those that arrive from which mesh (by number) and
    tensor they come; `method` how the stage was planned to be sharded; `batch` which arguments of
    `@main` hold the batch, and along which dimension, or `no_batch` why none is known to; `on_host`
    are tensors that lie in the memory of the hosts, of arguments or between two fragments;
    `slices` is the number of stages, one for each slice of tokens, that are one stage of the
    model."""

    mesh: Mesh
    reader: RegionReader = field(default_factory=RegionReader)
    fragments: list[ir.Operation] = field(default_factory=list)
    tied: list[tuple[int, int]] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    arguments: dict[int, int] = field(default_factory=dict)
    loop: MicrobatchLoop | None = None
    arrivals: dict[int, int] = field(default_factory=dict)
    sources: dict[int, tuple[int, int]] = field(default_factory=dict)
    method: str = "ilp"
    batch: dict[int, int] = field(default_factory=dict)
    no_batch: str = ""
    on_host: frozenset[int] = frozenset()
    slices: int = 1

    @cached_property
    def graph(self) -> OpGraph:
        """The finished graph: to be asked for only after everything is read."""
        return self.reader.graph(self.outputs)

    @property
    def is_staged(self) -> bool:
        """Whether it is of fragments, and not the `@main` of a plain module."""
        return any(fragment.name == "mpmd.fragment" for fragment in self.fragments)

    @property
    def stages(self) -> dict[int, int]:
        """The stage of each fragment that has one, by the number of the fragment."""
        staged = ((k, op) for k, op in enumerate(self.fragments) if STAGE_ID in op.attributes)
        return {k: ir.IntegerAttr(op.attributes[STAGE_ID]).value for k, op in staged}

    def in_flight_beside(self, tasks: Sequence[Task]) -> dict[tuple[int, int], int]:
        """By fragment of the loop and other stage, how many microbatches of that stage are in
        flight while the fragment runs, where the mesh has these tasks."""
        fragments = {
            task_of(op): k
            for k, op in enumerate(self.fragments)
            if STAGE_ID in op.attributes and is_task(op)
        }
        return {
            (fragments[task], stage): count
            for (task, stage), count in in_flight_beside(tasks).items()
            if task in fragments
        }

    @property
    def state(self) -> frozenset[int]:
        """Arguments of `@main` that a result replaces: weights, optimizer state, counters."""
        return frozenset(before for before, _ in self.tied) & frozenset(self.arguments.values())

    @property
    def residency(self) -> Residency:
        """What lives longer than the order of operations tells."""
        literals = (
            tensor
            for op, handle in zip(self.reader.ops, self.reader.handles, strict=True)
            if op.name == "constant" and not is_splat(handle)
            for tensor in op.results
        )
        return Residency(self.loop, self.arrivals, frozenset(literals), self.on_host)

    def read_fragment(self, op: ir.Operation, block: ir.Block, repeat: int) -> list[int]:
        """Append the operations of a fragment; the tensors that its terminator returns."""
        *body, terminator = (view.operation for view in block.operations)
        self.reader.add_ops(body, group=len(self.fragments), repeat=repeat)
        self.fragments.append(op)
        self.tied += self.reader.take_ties()
        return [self.reader.tensor(value) for value in terminator.operands]


def read_plain(main: ir.Operation, mesh: Mesh) -> MeshGraph:
    """The graph of a module without a topology. Must run inside `sharding_rules`."""
    graph = MeshGraph(mesh)
    block = main.regions[0].blocks[0]
    graph.arguments = {
        number: graph.reader.tensor(argument) for number, argument in enumerate(block.arguments)
    }
    graph.batch, graph.no_batch = read_batch(main), read_no_batch(main)
    graph.outputs = graph.read_fragment(main, block, repeat=1)
    graph.tied += [
        (graph.arguments[argument], graph.outputs[result])
        for argument, result in read_replacements(main).items()
    ]
    return graph


def read_staged(module: ir.Module, main: ir.Operation) -> tuple[MeshGraph, ...]:
    """One graph for each mesh of the topology, in its order. Must run inside `sharding_rules`.

    Raises ValueError on a module that is not in the staged form.
    """
    extractor = _Extractor(
        {symbol_name(function): function for function in functions(module)}, main
    )
    extractor.read_main(main)
    for mesh in extractor.meshes.values():
        mesh.batch, mesh.no_batch = read_batch(main), read_no_batch(main)
    return tuple(extractor.meshes.values())


class _Extractor:
    def __init__(self, callees: dict[str, ir.Operation], main: ir.Operation) -> None:
        self.callees = callees
        self.called: set[str] = set()
        self.meshes = {mesh.name: MeshGraph(mesh) for mesh in read_topology(main)}
        self.place: dict[ir.Value, tuple[MeshGraph, int]] = {}

    def read_main(self, main: ir.Operation) -> None:
        block = main.regions[0].blocks[0]
        for argument in block.arguments:
            self.define(argument)
        returned = self.read_block(block, repeat=1)
        for value in returned:
            mesh, tensor = self.place[value]
            mesh.outputs.append(tensor)
        for number, argument in enumerate(block.arguments):
            mesh, tensor = self.place[argument]
            mesh.arguments[number] = tensor
        on_host = read_on_host(main)
        for mesh in self.meshes.values():
            mesh.on_host |= {t for k, t in mesh.arguments.items() if k in on_host}
        for number, result in read_donation(main).items():
            self.tie(block.arguments[number], returned[result])

    def define(self, value: ir.Value) -> None:
        """A boundary value that no operation of its mesh makes."""
        parsed = parse_mesh_tensor(value.type)
        if parsed.mesh not in self.meshes:
            raise ValueError(
                f"expected a mesh of the topology ({', '.join(self.meshes)}), found '{parsed.mesh}'"
            )
        mesh = self.meshes[parsed.mesh]
        self.bind(value, (mesh, mesh.reader.fresh(read_tensor(parsed.tensor))))

    def bind(self, value: ir.Value, place: tuple[MeshGraph, int]) -> None:
        self.place[value] = place
        mesh, tensor = place
        mesh.reader.bind(value, tensor)

    def bind_all(self, values: Sequence[ir.Value], sources: Sequence[ir.Value]) -> None:
        for value, source in zip(values, sources, strict=True):
            self.bind(value, self.place[source])

    def tie(self, first: ir.Value, second: ir.Value) -> None:
        (mesh, a), (other, b) = self.place[first], self.place[second]
        if mesh is not other:
            raise ValueError(
                f"expected a value and what replaces it on one mesh, found {first.type} "
                f"and {second.type}"
            )
        if a != b:
            mesh.tied.append((a, b))

    def read_block(self, block: ir.Block, repeat: int) -> list[ir.Value]:
        """Read the operations of a function or loop body; the operands of its terminator."""
        *body, terminator = (view.operation for view in block.operations)
        for op in body:
            if op.name == "mpmd.fragment":
                self.read_fragment(op, repeat)
            elif op.name == "mpmd.transfer":
                source, sent = self.place[op.operands[0]]
                source.sent.append(sent)
                self.define(op.results[0])
                mesh, tensor = self.place[op.results[0]]
                mesh.arrivals[tensor] = len(mesh.reader.ops)
                mesh.sources[tensor] = (list(self.meshes.values()).index(source), sent)
            elif op.name == "mpmd.for":
                self.read_loop(op, repeat)
            elif op.name == "mpmd.call":
                self.read_call(op, repeat)
            else:
                raise ValueError(f"expected a fragment, transfer, loop or call, found '{op.name}'")
        return list(terminator.operands)

    def read_fragment(self, op: ir.Operation, repeat: int) -> None:
        mesh = self.meshes[ir.StringAttr(op.attributes["mesh_name"]).value]
        block = op.regions[0].blocks[0]
        for argument, operand in zip(block.arguments, op.operands, strict=True):
            mesh.reader.bind(argument, self.place[operand][1])
        for result, tensor in zip(op.results, mesh.read_fragment(op, block, repeat), strict=True):
            self.bind(result, (mesh, tensor))

    def read_loop(self, op: ir.Operation, repeat: int) -> None:
        block = op.regions[0].blocks[0]
        carried = list(op.operands)
        self.bind_all(list(block.arguments)[: len(carried)], carried)
        for index in list(block.arguments)[len(carried) :]:
            self.define(index)
        starts = [len(mesh.reader.ops) for mesh in self.meshes.values()]
        yielded = self.read_block(block, repeat * ir.IntegerAttr(op.attributes["iterations"]).value)
        count = max(
            len(self.meshes),
            *(1 + max(mesh.stages.values(), default=0) for mesh in self.meshes.values()),
        )
        in_flight, methods = self.in_flight(op, count), read_methods(op, count)
        slices = read_token_slices(op)
        tasks = _tasks_of_meshes(op, list(self.meshes.values()), count)
        for number, (mesh, start) in enumerate(zip(self.meshes.values(), starts, strict=True)):
            stages = mesh.stages
            mesh.loop = MicrobatchLoop(
                start,
                len(mesh.reader.ops),
                *_shared(in_flight, stages, number),
                mesh.in_flight_beside(tasks[number]) if tasks else {},
            )
            mesh.slices = 1 if slices is None else slices.count
            mesh.method = methods[min(stages.values(), default=number)]
        for call in (view.operation for view in block.operations if view.name == "mpmd.call"):
            body = self.callees[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
            for value in waiting_values(op, body_of(body.regions[0].blocks[0])):
                mesh, tensor = self.place[value]
                mesh.on_host |= {tensor}
        self.bind_all(list(op.results), yielded)
        for before, after in zip(carried, yielded, strict=True):
            self.tie(before, after)

    def in_flight(self, loop: ir.Operation, num_stages: int) -> list[int]:
        """For each stage how many microbatches are between forward and backward at once; 1 where no
        schedule says."""
        if IN_FLIGHT not in loop.attributes:
            return [1] * num_stages
        in_flight = list(ir.DenseI64ArrayAttr(loop.attributes[IN_FLIGHT]))
        if len(in_flight) != num_stages:
            raise ValueError(
                f"expected {num_stages} numbers in '{IN_FLIGHT}', found {len(in_flight)}"
            )
        return in_flight

    def read_call(self, op: ir.Operation, repeat: int) -> None:
        name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        # A second call would bind the arguments of one block to other tensors.
        if name in self.called:
            raise ValueError(f"expected one call of '@{name}', found another one")
        self.called.add(name)
        block = self.callees[name].regions[0].blocks[0]
        self.bind_all(list(block.arguments), list(op.operands))
        self.bind_all(list(op.results), self.read_block(block, repeat))


def _tasks_of_meshes(
    loop: ir.Operation, meshes: Sequence[MeshGraph], num_stages: int
) -> tuple[tuple[Task, ...], ...]:
    """The tasks of each mesh under the schedule that the stages were planned for; none where that
    lays them on meshes in another way, or each mesh has one stage."""
    planned = read_prediction(loop)
    if planned is None or num_stages <= len(meshes):
        return ()
    try:
        homes = stage_homes(planned.schedule, num_stages, len(meshes))
        count = ir.IntegerAttr(loop.attributes["iterations"]).value
        tasks = build_schedule(planned.schedule, num_stages, count, len(meshes)).tasks
    except UserError:
        return ()
    known = [set(mesh.stages.values()) for mesh in meshes]
    laid = [
        {stage for stage, home in enumerate(homes) if home == mesh} for mesh in range(len(meshes))
    ]
    return tasks if known == laid else ()


def _shared(
    in_flight: Sequence[int], stages: Mapping[int, int], number: int
) -> tuple[int, dict[int, int], dict[int, int]]:
    """Microbatches in flight of a mesh, and of each of its fragments (number -> stage) where it has
    several stages, with these. A mesh without fragments counts as the stage of its own `number`."""
    counts = {group: in_flight[stage] for group, stage in stages.items()}
    if len(set(stages.values())) < 2:
        return next(iter(counts.values()), in_flight[number]), {}, {}
    return max(counts.values()), counts, dict(stages)


def is_staged(main: ir.Operation) -> bool:
    """Whether the arguments and results of `@main` are mesh tensors."""
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    return any(is_mesh_tensor(t) for t in (*type_.inputs, *type_.results))
