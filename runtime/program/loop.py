"""Unrolling the microbatch loop by its schedule.

Each mesh gets its tasks in schedule order; a task is all calls of one (stage, kind) for one
microbatch, in program order. What a call produces for another mesh is sent right after it and
received right before the first call there that needs it. Carried values (accumulators) are chained
in the order in which their own mesh runs the microbatches: every carried value is read and written
by one task, so this order is free. The microbatch index is a constant on every mesh, and transfers
of values that do not change in the loop happen once, before it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from shardopt.forms.exported_program import Call, Loop, TensorSpec, Transfer
from shardopt.runtime.program.emitter import Emitter
from shardopt.runtime.program.labels import KIND_OF_TASK, label_of
from shardopt.support.errors import UserError

Group = tuple[int, str]  # stage and kind
Task = tuple[Group, int]  # and microbatch


def lower_loop(emitter: Emitter, loop: Loop, position: int) -> None:
    """Append the unrolled loop to every mesh's list; `position` of the loop in `@main` makes its
    keys unique."""
    lowering = _LoopLowering(emitter, loop, position)
    for mesh, tasks in mesh_tasks(loop, tuple(emitter.meshes)).items():
        lowering.lower_mesh(mesh, tasks)
    for number, output in enumerate(loop.outputs):
        emitter.bind(output, lowering.carried(number))


def mesh_tasks(loop: Loop, meshes: tuple[str, ...]) -> dict[str, list[Task]]:
    """Per mesh the tasks that have calls, in schedule order; without a schedule, one microbatch
    after the other."""
    homes: dict[Group, str] = {}
    for op in loop.body.ops:
        if isinstance(op, Call):
            homes.setdefault((op.stage, op.kind), op.mesh)
    tasks: dict[str, list[Task]] = {mesh: [] for mesh in meshes}
    if loop.schedule is None:
        for microbatch in range(loop.iterations):
            for group, mesh in homes.items():
                tasks[mesh].append((group, microbatch))
        return tasks
    stages, used = {stage for stage, _ in homes}, set(homes.values())
    # A mesh may run nothing, so their number tells something only where a mesh has several stages.
    num_meshes = len(used) if len(used) < len(stages) else None
    schedule = loop.schedule.build(1 + max(stages, default=0), loop.iterations, num_meshes)
    rows: dict[str, int] = {}
    for row, listed in enumerate(schedule.tasks):
        for task in listed:
            group = (task.stage, KIND_OF_TASK.get(task.kind, ""))
            # Schedules list a backward also for the stage whose forward does it, too.
            if group not in homes:
                continue
            if rows.setdefault(homes[group], row) != row:
                raise UserError(
                    f"schedule '{_name(loop)}' gives stage {task.stage} a mesh of its own, "
                    f"but mesh '{homes[group]}' also runs another of its meshes' stages"
                )
            tasks[homes[group]].append((group, task.microbatch))
    _check_complete(loop, homes, tasks)
    return tasks


def _name(loop: Loop) -> str:
    return "one microbatch after the other" if loop.schedule is None else loop.schedule.name


def _check_complete(loop: Loop, homes: dict[Group, str], tasks: dict[str, list[Task]]) -> None:
    listed = {group for of_mesh in tasks.values() for group, _ in of_mesh}
    for stage, kind in homes:
        if (stage, kind) not in listed:
            raise UserError(f"schedule '{_name(loop)}' has no task for {kind} of stage {stage}")


_Sends = list[tuple[int, Transfer]]  # with the position of the transfer in the body


@dataclass(frozen=True)
class _Step:
    """A call, and the transfers its mesh starts right before and right after it."""

    call: Call
    position: int
    before: _Sends
    after: _Sends


class _LoopLowering:
    """State of one loop's unrolling. The key of body value v in microbatch i is (loop position, v,
    i)."""

    def __init__(self, emitter: Emitter, loop: Loop, position: int) -> None:
        self.emitter = emitter
        self.loop = loop
        self.position = position
        self.last_write: dict[int, Hashable] = {}  # carried value -> key of its newest version
        self.writes: dict[int, list[int]] = {}  # body value -> the carried values it becomes
        for number, result in enumerate(loop.yields):
            if result is not None:
                self.writes.setdefault(loop.body.results[result], []).append(number)
        self.constant: dict[int, str] = {  # body values that no microbatch owns
            value: argument.kind
            for value, argument in enumerate(loop.arguments)
            if argument.kind != "carried"
        }
        # Body value -> the transfer that brings it.
        self.arrivals: dict[int, tuple[int, Transfer]] = {}
        self.steps: dict[Group, list[_Step]] = {}
        self.stray: dict[str, _Sends] = {}  # forwarded by a mesh that runs nothing
        self._place_ops()

    def _place_ops(self) -> None:
        by_mesh: dict[str, list[_Step]] = {}
        producers: dict[int, _Step] = {}
        forwards: _Sends = []
        for number, op in enumerate(self.loop.body.ops):
            if isinstance(op, Call):
                step = _Step(op, number, [], [])
                self.steps.setdefault((op.stage, op.kind), []).append(step)
                by_mesh.setdefault(op.mesh, []).append(step)
                producers.update((output, step) for output in op.outputs)
            elif isinstance(op, Transfer) and op.input in self.constant:
                self._transfer_once(number, op)
            elif isinstance(op, Transfer):
                self.arrivals[op.output] = (number, op)
                if op.input in producers:
                    producers[op.input].after.append((number, op))
                else:
                    forwards.append((number, op))
        # Behind all calls, between which they have to find their places.
        for number, op in forwards:
            self._place_forward(number, op, by_mesh)

    def _transfer_once(self, number: int, op: Transfer) -> None:
        """The index needs no transfer at all, a captured value one before the loop."""
        kind = self.constant[op.output] = self.constant[op.input]
        if kind == "captured":
            source, target = self.loop.body.values[op.input], self.loop.body.values[op.output]
            key, end = (self.position, number), (self._constant_key(op.output), target)
            self.emitter.transfer(op, key, (self._constant_key(op.input), source), end)
            self.emitter.expect(op, key, source, end)

    def _place_forward(self, number: int, op: Transfer, by_mesh: dict[str, list[_Step]]) -> None:
        """A value that a mesh only passes on goes before its next call in program order, else after
        its last one."""
        mesh = self.loop.body.values[op.input].mesh
        steps = by_mesh.get(mesh, [])
        following = next((step for step in steps if step.position > number), None)
        if following is not None:
            following.before.append((number, op))
        elif steps:
            steps[-1].after.append((number, op))
        else:
            self.stray.setdefault(mesh, []).append((number, op))

    def lower_mesh(self, mesh: str, tasks: list[Task]) -> None:
        for group, microbatch in tasks:
            for step in self.steps[group]:
                for number, transfer in step.before:
                    self._send(number, transfer, microbatch)
                self._call(step.call, microbatch)
                for number, transfer in step.after:
                    self._send(number, transfer, microbatch)
        for microbatch in range(self.loop.iterations):
            for number, transfer in self.stray.get(mesh, ()):
                self._send(number, transfer, microbatch)

    def carried(self, number: int) -> int:
        """The buffer of the newest version of a carried value."""
        return self.emitter.use(self.last_write.get(number, self.loop.initial[number]))

    def _call(self, op: Call, microbatch: int) -> None:
        specs = self.loop.body.values
        inputs = tuple(self._at_hand(op.mesh, value, microbatch) for value in op.inputs)
        outputs: list[tuple[Hashable, TensorSpec]] = [
            (self._key(value, microbatch), specs[value].spec) for value in op.outputs
        ]
        self.emitter.call(op, inputs, outputs, label_of(op.kind, op.stage, microbatch))
        for value in op.outputs:
            for number in self.writes.get(value, ()):
                self.last_write[number] = self._key(value, microbatch)
            if value in self.loop.waiting:
                key = self._key(value, microbatch)
                resting = replace(specs[value].spec, memory="host")
                self.emitter.bind(key, self.emitter.move(op.mesh, self.emitter.use(key), resting))

    def _at_hand(self, mesh: str, value: int, microbatch: int) -> int:
        """The buffer of a body value on the devices: what waits on their hosts is fetched."""
        buffer = self._use(value, microbatch)
        if value not in self.loop.waiting:
            return buffer
        return self.emitter.move(mesh, buffer, self.loop.body.values[value].spec)

    def _send(self, number: int, op: Transfer, microbatch: int) -> None:
        source, target = self.loop.body.values[op.input], self.loop.body.values[op.output]
        self._use(op.input, microbatch)
        self.emitter.transfer(
            op,
            (self.position, number, microbatch),
            (self._key(op.input, microbatch), source),
            (self._key(op.output, microbatch), target),
        )

    def _use(self, value: int, microbatch: int) -> int:
        """The buffer of a body value in a microbatch."""
        kind = self.constant.get(value)
        home = self.loop.body.values[value]
        if kind == "index":
            return self.emitter.meshes[home.mesh].index(microbatch, home.spec)
        if kind == "captured":
            return self.emitter.use(self._constant_key(value))
        if value < len(self.loop.arguments):
            return self.carried(self.loop.arguments[value].number)
        key = self._key(value, microbatch)
        if not self.emitter.knows(key) and value in self.arrivals:
            number, op = self.arrivals[value]
            tag = (self.position, number, microbatch)
            self.emitter.expect(op, tag, self.loop.body.values[op.input], (key, home))
        if not self.emitter.knows(key):
            raise UserError(
                f"schedule '{_name(self.loop)}': mesh '{home.mesh}' needs a value of microbatch "
                f"{microbatch} "
                "before the task that makes it"
            )
        return self.emitter.use(key)

    def _key(self, value: int, microbatch: int) -> Hashable:
        return (self.position, value, microbatch)

    def _constant_key(self, value: int) -> Hashable:
        """A captured argument is the value of `@main`; a transfer of it has a key of its own."""
        if value < len(self.loop.arguments):
            return self.loop.arguments[value].number
        return (self.position, value, "once")
