"""The lists under construction: buffers, tags and routes get their numbers here, in the order of
emission."""

from __future__ import annotations

from collections.abc import Hashable

from shardopt.forms.exported_program import Call, ExportedProgram, MeshValue, TensorSpec, Transfer
from shardopt.mesh.mesh import Mesh
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    Instruction,
    Move,
    Recv,
    Reshard,
    Route,
    Run,
    Send,
)
from shardopt.runtime.program.routes import make_route


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
        # By the identity of the transfer, which lives as long as `exported`.
        self._route_of: dict[int, int] = {}
        self._completions: list[type[Allgather | Broadcast] | None] = []  # by route
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
            self._complete(emitter, recv.buffers[0], recv.routes[0])
        return self._buffers[key]

    def knows(self, key: Hashable) -> bool:
        return key in self._buffers

    def call(
        self,
        op: Call,
        inputs: tuple[int, ...],
        outputs: list[tuple[Hashable, TensorSpec]],
        label: str,
    ) -> None:
        emitter = self.meshes[op.mesh]
        emitter.functions.setdefault(op.function)
        buffers = tuple(emitter.define(spec) for _, spec in outputs)
        for (key, _), buffer in zip(outputs, buffers, strict=True):
            self.bind(key, buffer)
        donated = tuple(inputs[number] for number in self.functions[op.function].donates)
        emitter.instructions.append(Run(op.function, inputs, buffers, donated, label))

    def move(self, mesh: str, buffer: int, spec: TensorSpec) -> int:
        """A copy of a buffer in the memory that `spec` names."""
        emitter = self.meshes[mesh]
        moved = emitter.define(spec)
        emitter.instructions.append(Move(buffer, moved))
        return moved

    def transfer(
        self,
        op: Transfer,
        key: Hashable,
        source: tuple[Hashable, MeshValue],
        target: tuple[Hashable, MeshValue],
    ) -> None:
        """Emit the source's half of a transfer; `key` names this instance of it on both ends."""
        sender, receiver = self.meshes[source[1].mesh], self.meshes[target[1].mesh]
        buffer = self.use(source[0])
        # Without steps both ends have the same tiles on the same devices: they share the buffer.
        if sender is receiver and not op.steps:
            return self.bind(target[0], buffer)
        route = self._route(op, source[1], target[1])
        if sender is receiver:
            self.bind(target[0], sender.define(target[1].spec))
            sender.instructions.append(
                Reshard(self._tag(key), buffer, self._buffers[target[0]], route)
            )
            return self._complete(sender, self._buffers[target[0]], route)
        sender.instructions.append(Send(self._tag(key), (buffer,), receiver.mesh.name, (route,)))

    def expect(
        self, op: Transfer, key: Hashable, source: MeshValue, target: tuple[Hashable, MeshValue]
    ) -> None:
        """The target's half: RECV stands before the first use. Nothing to do for a transfer inside
        a mesh."""
        if source.mesh == target[1].mesh:
            return
        receiver = self.meshes[target[1].mesh]
        self.bind(target[0], receiver.define(target[1].spec))
        route = self._route(op, source, target[1])
        recv = Recv(self._tag(key), (self._buffers[target[0]],), source.mesh, (route,))
        self._pending[target[0]] = (receiver, recv)

    def _complete(self, emitter: MeshEmitter, buffer: int, route: int) -> None:
        completion = self._completions[route]
        if completion is not None:
            tag = self._tag((emitter.mesh.name, buffer, completion.__name__))
            emitter.instructions.append(completion(tag, buffer, route))

    def _tag(self, key: Hashable) -> int:
        # Both ends ask with the same key: the first makes the tag, the other gets it.
        return self._tags.setdefault(key, len(self._tags))

    def _route(self, op: Transfer, source: MeshValue, target: MeshValue) -> int:
        if id(op) not in self._route_of:
            ends = [(self.meshes[value.mesh].mesh, value.spec) for value in (source, target)]
            route = make_route(ends[0], ends[1], op.steps)
            if route not in self._routes:
                self._routes[route] = len(self._routes)
                self._completions.append(route.completion)
            self._route_of[id(op)] = self._routes[route]
        return self._route_of[id(op)]
