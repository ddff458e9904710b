"""Random exported programs, an interpreter of instruction lists that knows no device, and mutations
of instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from shardopt.forms.exported_program import (
    Argument,
    Body,
    Call,
    ExportedProgram,
    MeshValue,
    ProgramResult,
    ReshardStep,
    StageFunction,
    TensorSpec,
    Transfer,
)
from shardopt.forms.reshard_steps import default_steps
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    Copy,
    Free,
    Instruction,
    MeshProgram,
    Move,
    Program,
    Recv,
    Reshard,
    Run,
    Send,
)
from shardopt.solve.resharding.transfers import plan_resharding

SHAPE = (4, 4)
SHARDINGS = tuple(Sharding(dims) for dims in (((), ()), (("x",), ()), ((), ("x",))))
MESHES = (
    Mesh("m0", (("x", 2),), (0, 1)),
    Mesh("m1", (("x", 2),), (2, 3)),
    Mesh("m2", (("x", 2), ("y", 2)), (4, 5, 6, 7)),
)
CLUSTER = load_cluster("cpu-test:2x4")


@cache
def planned_steps(source: MeshValue, target: MeshValue, strategy: str) -> tuple[ReshardStep, ...]:
    """A plan with steps inside the target where it has replicas."""
    by_name = {mesh.name: mesh for mesh in MESHES}
    ends = [(by_name[value.mesh], value.spec.sharding) for value in (source, target)]
    plan = plan_resharding(SHAPE, 4, ends[0], ends[1], CLUSTER, strategy)
    rows = plan.to_array().tolist()
    return tuple(ReshardStep(p, s, t, ((a, c), (b, d))) for p, s, t, a, b, c, d in rows)


@st.composite
def exported_programs(draw: st.DrawFn) -> ExportedProgram:
    """Arguments, calls and transfers on three meshes; each call has a function of its own, some
    donate, some results are state."""
    specs = st.sampled_from([TensorSpec(SHAPE, "float32", sharding) for sharding in SHARDINGS])
    meshes = st.sampled_from([mesh.name for mesh in MESHES])
    by_name = {mesh.name: mesh for mesh in MESHES}
    values = [MeshValue(draw(meshes), draw(specs)) for _ in range(draw(st.integers(1, 3)))]
    num_arguments = len(values)
    ops: list[Call | Transfer] = []
    functions: list[StageFunction] = []
    for _ in range(draw(st.integers(1, 7))):
        chosen = draw(st.integers(0, len(values) - 1))
        source = values[chosen]
        if draw(st.booleans()):
            target = MeshValue(draw(meshes), draw(specs))
            ends = [(by_name[value.mesh], value.spec) for value in (source, target)]
            steps = default_steps(ends[0], ends[1])
            if steps and draw(st.booleans()):
                steps = planned_steps(
                    source, target, draw(st.sampled_from(["local_allgather", "broadcast"]))
                )
            ops.append(Transfer(chosen, len(values), steps))
            values.append(target)
            continue
        others = [number for number, value in enumerate(values) if value.mesh == source.mesh]
        inputs = (chosen, *draw(st.lists(st.sampled_from(others), max_size=2)))
        results = tuple(draw(specs) for _ in range(draw(st.integers(1, 2))))
        donates = tuple(k for k in range(len(inputs)) if draw(st.booleans()))
        name = f"f{len(functions)}"
        functions.append(
            StageFunction(name, b"", tuple(values[v].spec for v in inputs), results, donates)
        )
        outputs = tuple(range(len(values), len(values) + len(results)))
        ops.append(Call(source.mesh, name, "fwd", 0, inputs, outputs))
        values.extend(MeshValue(source.mesh, spec) for spec in results)
    results_ = draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=4))
    arguments, free = [], list(range(len(results_)))
    for number, value in enumerate(values[:num_arguments]):
        fitting = [k for k in free if values[results_[k]] == value]
        alias = fitting[0] if fitting and draw(st.booleans()) else None
        if alias is not None:
            free.remove(alias)
        arguments.append(Argument(f"a{number}", value, alias))
    return ExportedProgram(
        MESHES,
        tuple(arguments),
        tuple(ProgramResult(f"r{k}", values[v]) for k, v in enumerate(results_)),
        Body(tuple(values), tuple(ops), tuple(results_)),
        tuple(functions),
    )


def program_of_all_kinds() -> ExportedProgram:
    """One small program with every kind of instruction."""
    split, whole = (TensorSpec(SHAPE, "float32", SHARDINGS[k]) for k in (1, 0))
    resting = MeshValue("m0", replace(split, memory="host"))
    values = [
        MeshValue("m0", split),
        MeshValue("m0", split),
        MeshValue("m2", whole),
        MeshValue("m0", whole),
        MeshValue("m1", whole),
    ]
    values += [MeshValue("m0", split)] * 3
    ops: tuple[Call | Transfer, ...] = (
        Transfer(0, 2, planned_steps(values[0], values[2], "local_allgather")),
        Transfer(0, 3, default_steps((MESHES[0], split), (MESHES[0], whole))),
        Transfer(3, 4, planned_steps(values[3], values[4], "broadcast")),
        Call("m0", "f", "fwd", 0, (0,), (5,)),
        Call("m0", "f", "fwd", 0, (0,), (6,)),
        Call("m0", "f", "update", 0, (1,), (7,)),
    )
    return ExportedProgram(
        MESHES,
        (Argument("a", values[0], None), Argument("s", resting, 3)),
        (*(ProgramResult(f"r{v}", values[v]) for v in (2, 4, 6)), ProgramResult("s", resting)),
        Body(tuple(values), ops, (2, 4, 6, 7)),
        (StageFunction("f", b"", (split,), (split,), (0,)),),
    )


class Impossible(Exception):
    """What no worker could do."""


def need(holds: bool, what: str) -> None:
    if not holds:
        raise Impossible(what)


class Interpreter:
    """Runs all lists, a mesh as far as it gets at a time, with terms in place of arrays. Raises
    Impossible."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.messages: dict[int, tuple[str, str, list[tuple[int, Any]]]] = {}
        self.held: list[dict[int, Any]] = []  # buffer -> term
        self.landed: list[dict[int, int]] = [{} for _ in program.meshes]
        for part in program.meshes:
            held = {buffer: ("argument", number) for number, buffer in part.arguments}
            self.held.append(
                {**held, **{buffer: ("index", number) for number, buffer in part.indices}}
            )

    def run(self) -> dict[int, Any]:
        """The terms of the results."""
        positions = [0] * len(self.program.meshes)
        moved = True
        while moved:
            moved = False
            for mesh, part in enumerate(self.program.meshes):
                while positions[mesh] < len(part.instructions) and self._do(
                    mesh, part.instructions[positions[mesh]]
                ):
                    positions[mesh], moved = positions[mesh] + 1, True
        for mesh, part in enumerate(self.program.meshes):
            need(positions[mesh] == len(part.instructions), "stuck")
            self._end(mesh, part)
        need(not self.messages, "a message nobody takes")
        return {
            k: self.held[mesh][b]
            for mesh, part in enumerate(self.program.meshes)
            for k, b in part.results
        }

    def _do(self, mesh: int, each: Instruction) -> bool:
        part, held = self.program.meshes[mesh], self.held[mesh]
        match each:
            case Run():
                function = next((f for f in part.functions if f.name == each.function), None)
                assert function is not None or need(False, "no function") is None
                terms = [
                    self._take(mesh, b, s) for b, s in zip_all(each.inputs, function.arguments)
                ]
                need(each.donated == tuple(each.inputs[k] for k in function.donates), "donation")
                need(
                    all(each.inputs.count(buffer) == 1 for buffer in each.donated),
                    "donated and passed twice",
                )
                for buffer in each.donated:
                    self._drop(mesh, buffer)
                for k, (buffer, spec) in enumerate(zip_all(each.outputs, function.results)):
                    self._put(mesh, buffer, spec, (function.name, k, tuple(terms)))
            case Send():
                need(each.tag not in self.messages, "tag twice")
                sent = [
                    (r, self._take(mesh, b, self.program.routes[r].source))
                    for b, r in zip_all(each.buffers, each.routes)
                ]
                self.messages[each.tag] = (part.mesh.name, each.target, sent)
            case Recv():
                if each.tag not in self.messages:
                    return False
                source, target, sent = self.messages.pop(each.tag)
                need((source, target) == (each.source, part.mesh.name), "wrong mesh")
                for (route, term), (buffer, term_number) in zip_all(
                    sent, list(zip_all(each.buffers, each.routes))
                ):
                    need(route == term_number, "wrong route")
                    self._land(mesh, buffer, route, term)
            case Reshard():
                term = self._take(mesh, each.input, self.program.routes[each.route].source)
                self._land(mesh, each.output, each.route, term)
            case Allgather() | Broadcast():
                need(self.landed[mesh].pop(each.buffer, None) == each.route, "nothing to complete")
            case Copy():
                self._put(
                    mesh, each.output, part.buffers[each.input], self._take(mesh, each.input, None)
                )
            case Move():
                spec = part.buffers[each.input]
                other = replace(spec, memory="device" if spec.memory == "host" else "host")
                self._put(mesh, each.output, other, self._take(mesh, each.input, None))
            case Free():
                for buffer in each.buffers:
                    self._take(mesh, buffer, None)
                    self._drop(mesh, buffer)
        return bool(held) or True

    def _land(self, mesh: int, buffer: int, route: int, term: Any) -> None:
        self._put(mesh, buffer, self.program.routes[route].target, term)
        if self.program.routes[route].exchanges:
            self.landed[mesh][buffer] = route

    def _take(self, mesh: int, buffer: int, spec: TensorSpec | None) -> Any:
        need(
            buffer in self.held[mesh] and buffer not in self.landed[mesh], f"%{buffer} is not there"
        )
        need(
            spec in (None, self.program.meshes[mesh].buffers[buffer]),
            f"%{buffer} is of another type",
        )
        return self.held[mesh][buffer]

    def _put(self, mesh: int, buffer: int, spec: TensorSpec, term: Any) -> None:
        need(buffer not in self.held[mesh], f"%{buffer} is there")
        need(spec == self.program.meshes[mesh].buffers[buffer], f"%{buffer} is of another type")
        self.held[mesh][buffer] = term

    def _drop(self, mesh: int, buffer: int) -> None:
        need(
            buffer not in self.program.meshes[mesh].kept_buffers,
            f"%{buffer} is needed in the next step",
        )
        del self.held[mesh][buffer]

    def _end(self, mesh: int, part: MeshProgram) -> None:
        needed = {b for _, b in part.results} | {b for b, _ in part.feedback} | part.kept_buffers
        need(self.held[mesh].keys() == needed, "too much or too little is left")
        need(not self.landed[mesh], "something is not complete")


def zip_all(left: Sequence[Any], right: Sequence[Any]) -> list[tuple[Any, Any]]:
    need(len(left) == len(right), "numbers differ")
    return list(zip(left, right, strict=True))


# Kinds that leave every instruction that stays as it was: what still runs must compute the same.
KEEPING = ("delete", "duplicate", "swap", "move")
KINDS = (*KEEPING, "buffer", "fewer", "tag", "route", "mesh", "function", "completion")


@st.composite
def mutations(draw: st.DrawFn, program: Program, kind: str) -> Program:
    """The program with one instruction changed; the program itself where it has none of that
    kind."""
    choices = [
        (mesh, position)
        for mesh, part in enumerate(program.meshes)
        for position, each in enumerate(part.instructions)
        if _applies(kind, each)
    ]
    if not choices:
        return program
    mesh, position = draw(st.sampled_from(choices))
    part = program.meshes[mesh]
    listed, each = list(part.instructions), part.instructions[position]
    if kind == "delete":
        del listed[position]
    elif kind == "duplicate":
        listed.insert(position, each)
    elif kind in ("swap", "move"):
        del listed[position]
        listed.insert(position + 1 if kind == "swap" else draw(st.integers(0, len(listed))), each)
    else:
        listed[position] = _changed(draw, kind, each, program, part)
    parts = list(program.meshes)
    parts[mesh] = replace(part, instructions=tuple(listed))
    return replace(program, meshes=tuple(parts))


def _applies(kind: str, each: Instruction) -> bool:
    """Most instructions have no route; those that have one are drawn all the same."""
    special: dict[str, tuple[type, ...]] = {
        "tag": (Send, Recv, Allgather, Broadcast, Reshard),
        "route": (Send, Recv, Allgather, Broadcast, Reshard),
        "mesh": (Send, Recv),
        "function": (Run,),
        "completion": (Allgather, Broadcast),
    }
    return isinstance(each, special.get(kind, (object,)))


def _changed(
    draw: st.DrawFn, kind: str, each: Instruction, program: Program, part: MeshProgram
) -> Instruction:
    numbers = st.integers(-1, len(part.buffers))
    fields: dict[str, Any] = vars(each)
    if kind == "completion" and isinstance(each, Allgather | Broadcast):
        return (Broadcast if isinstance(each, Allgather) else Allgather)(
            each.tag, each.buffer, each.route
        )
    if kind == "buffer":
        name = draw(st.sampled_from([n for n in fields if n in BUFFER_FIELDS]))
        if not isinstance(fields[name], tuple):
            return replace(each, **{name: draw(numbers)})
        if fields[name]:
            k = draw(st.integers(0, len(fields[name]) - 1))
            return replace(
                each, **{name: (*fields[name][:k], draw(numbers), *fields[name][k + 1 :])}
            )
    if kind == "fewer":
        some = [n for n, value in fields.items() if isinstance(value, tuple) and value]
        if some:
            name = draw(st.sampled_from(some))
            return replace(each, **{name: fields[name][:-1]})
    choices: dict[str, tuple[str, Any]] = {
        "tag": ("tag", st.integers(0, 9)),
        "route": ("route", st.integers(-1, len(program.routes))),
        "mesh": (
            "target" if "target" in fields else "source",
            st.sampled_from(["m0", "m1", "m2", "m9"]),
        ),
        "function": ("function", st.sampled_from([*(f.name for f in part.functions), "other"])),
    }
    if kind in choices:
        name, values = choices[kind]
        if name in fields:
            return replace(each, **{name: draw(values)})
        if kind == "route" and "routes" in fields:
            return replace(each, routes=(draw(values), *fields["routes"][1:]))  # type: ignore[call-arg]
    return each


BUFFER_FIELDS = ("inputs", "outputs", "donated", "buffers", "buffer", "input", "output")
