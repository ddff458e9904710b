"""From an exported program to instructions.

1. `@main` is walked in program order: calls become RUN on their mesh; a transfer becomes SEND where it stands and RECV
   before the first use of its result. Program order is one order in which everything can run, so nothing deadlocks.
2. The microbatch loop is unrolled by its schedule, mesh by mesh (`runtime/loop.py`).
3. `runtime/liveness.py` adds FREE, and COPY where a donated buffer is still needed.

Tags and buffer ids are numbered in the order of emission, so both ends of a transfer agree and the program is the same
in every run.
"""

from __future__ import annotations

from collections.abc import Hashable

from shardopt.runtime.liveness import insert_frees
from shardopt.runtime.loop import lower_loop
from shardopt.runtime.program import Copy, Instruction, MeshProgram, Program, Recv, Reshard, Route, Run, Send
from shardopt.runtime.routes import make_route

from shardopt.cost.mesh import Mesh
from shardopt.dialect.exported_program import Call, ExportedProgram, Loop, MeshValue, TensorSpec, Transfer


class MeshEmitter:
    """The growing list of one mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.buffers: list[TensorSpec] = []
        self.instructions: list[Instruction] = []
        self.indices: dict[int, int] = {}  # microbatch -> buffer
        self.functions: dict[str, None] = {}  # in order of first use

    def define(self, spec: TensorSpec) -> int:
        self.buffers.append(spec)
        return len(self.buffers) - 1

    def index(self, microbatch: int, spec: TensorSpec) -> int:
        if microbatch not in self.indices:
            self.indices[microbatch] = self.define(spec)
        return self.indices[microbatch]


class Emitter:
    """All meshes at once. Values are known by any hashable key; each has one home mesh."""

    def __init__(self, exported: ExportedProgram) -> None:
        self.meshes = {mesh.name: MeshEmitter(mesh) for mesh in exported.meshes}
        self.functions = {function.name: function for function in exported.functions}
        self._routes: dict[Route, int] = {}
        self._tags: dict[Hashable, int] = {}
        self._buffers: dict[Hashable, int] = {}
        self._pending: dict[Hashable, tuple[MeshEmitter, Recv]] = {}

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(self._routes)

    def bind(self, key: Hashable, buffer: int) -> None:
        self._buffers[key] = buffer

    def use(self, key: Hashable) -> int:
        """The buffer of a value on its home mesh; a value still under way is received here."""
        if key in self._pending:
            emitter, recv = self._pending.pop(key)
            emitter.instructions.append(recv)
        return self._buffers[key]

    def knows(self, key: Hashable) -> bool:
        return key in self._buffers

    def call(self, op: Call, inputs: tuple[int, ...], outputs: list[tuple[Hashable, TensorSpec]], label: str) -> None:
        emitter = self.meshes[op.mesh]
        emitter.functions.setdefault(op.function)
        buffers = tuple(emitter.define(spec) for _, spec in outputs)
        for (key, _), buffer in zip(outputs, buffers, strict=True):
            self.bind(key, buffer)
        donated = tuple(inputs[number] for number in self.functions[op.function].donates)
        emitter.instructions.append(Run(op.function, inputs, buffers, donated, label))

    def transfer(
        self, op: Transfer, key: Hashable, source: tuple[Hashable, MeshValue], target: tuple[Hashable, MeshValue]
    ) -> None:
        """Emit the source's half of a transfer; `key` names this instance of it on both ends."""
        sender, receiver = self.meshes[source[1].mesh], self.meshes[target[1].mesh]
        buffer = self.use(source[0])
        if sender is receiver and not op.steps:
            return self.bind(target[0], buffer)
        route = self._route(op, source[1], target[1])
        if sender is receiver:
            self.bind(target[0], sender.define(target[1].spec))
            return sender.instructions.append(Reshard(buffer, self._buffers[target[0]], route))
        sender.instructions.append(Send(self._tag(key), buffer, receiver.mesh.name, route))

    def expect(self, op: Transfer, key: Hashable, source: MeshValue, target: tuple[Hashable, MeshValue]) -> None:
        """The target's half: RECV stands before the first use. Nothing to do for a transfer inside a mesh."""
        if source.mesh == target[1].mesh:
            return
        receiver = self.meshes[target[1].mesh]
        self.bind(target[0], receiver.define(target[1].spec))
        recv = Recv(self._tag(key), self._buffers[target[0]], source.mesh, self._route(op, source, target[1]))
        self._pending[target[0]] = (receiver, recv)

    def _tag(self, key: Hashable) -> int:
        return self._tags.setdefault(key, len(self._tags))

    def _route(self, op: Transfer, source: MeshValue, target: MeshValue) -> int:
        ends = [(self.meshes[value.mesh].mesh, value.spec) for value in (source, target)]
        return self._routes.setdefault(make_route(ends[0], ends[1], op.steps), len(self._routes))


def build_program(exported: ExportedProgram) -> Program:
    """Raises UserError when the schedule does not fit the module's stages."""
    emitter = Emitter(exported)
    values = exported.main.values
    arguments: dict[str, list[tuple[int, int]]] = {mesh.name: [] for mesh in exported.meshes}
    for number, argument in enumerate(exported.arguments):
        buffer = emitter.meshes[argument.value.mesh].define(argument.value.spec)
        emitter.bind(number, buffer)
        arguments[argument.value.mesh].append((number, buffer))
    for position, op in enumerate(exported.main.ops):
        if isinstance(op, Call):
            inputs = tuple(emitter.use(value) for value in op.inputs)
            outputs: list[tuple[Hashable, TensorSpec]] = [(value, values[value].spec) for value in op.outputs]
            emitter.call(op, inputs, outputs, f"{op.kind} stage {op.stage}")
        elif isinstance(op, Transfer):
            source, target = values[op.input], (op.output, values[op.output])
            emitter.transfer(op, position, (op.input, source), target)
            emitter.expect(op, position, source, target)
        elif isinstance(op, Loop):
            lower_loop(emitter, op, position)
    return _finish(exported, emitter, arguments)


def _finish(exported: ExportedProgram, emitter: Emitter, arguments: dict[str, list[tuple[int, int]]]) -> Program:
    results: dict[str, list[tuple[int, int]]] = {mesh.name: [] for mesh in exported.meshes}
    for number, (value, result) in enumerate(zip(exported.main.results, exported.results, strict=True)):
        results[result.value.mesh].append((number, emitter.use(value)))
    parts = []
    for name, part in emitter.meshes.items():
        own = dict(arguments[name])
        feedback = _feedback(part, own, dict(results[name]), exported)
        program = MeshProgram(
            mesh=part.mesh,
            buffers=(),
            arguments=tuple(own.items()),
            indices=tuple(sorted(part.indices.items())),
            instructions=(),
            results=tuple(results[name]),
            feedback=feedback,
            functions=tuple(emitter.functions[function] for function in part.functions),
        )
        parts.append(insert_frees(program, part.instructions, part.buffers))
    return Program(exported.arguments, exported.results, emitter.routes, tuple(parts))


def _feedback(
    part: MeshEmitter, arguments: dict[int, int], results: dict[int, int], exported: ExportedProgram
) -> tuple[tuple[int, int], ...]:
    """Where each state argument's next value comes from: a buffer of its own, copied if anything else keeps it."""
    state = {number: exported.arguments[number].alias for number in arguments}
    kept = {arguments[number] for number, alias in state.items() if alias is None} | set(part.indices.values())
    pairs: list[tuple[int, int]] = []
    for number, alias in state.items():
        if alias is None:
            continue
        buffer = results[alias]
        if buffer in kept:
            copied = part.define(part.buffers[buffer])
            part.instructions.append(Copy(buffer, copied))
            buffer = copied
        kept.add(buffer)
        pairs.append((buffer, arguments[number]))
    return tuple(pairs)
