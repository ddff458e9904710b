"""What the meshes of a staged program hold: all step long, and for each microbatch.

It counts what the runtime does. A value is there from the fragment that makes it, or from the first
that reads what was received, until the last fragment of its mesh that reads it has ended. A
fragment writes results into operands that die in it. What a fragment needs for a time is no array
of the runtime and not counted here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.donation import read_donation, read_on_host
from shardopt.dialect.mpmd import parse_mesh_tensor
from shardopt.dialect.program import StepProgram, body_of
from shardopt.extract.buffer_reuse import reused_buffers
from shardopt.extract.op_graph import read_tensor
from shardopt.extract.waiting_values import waiting_values
from shardopt.ir.rewriting import defining
from shardopt.mesh.mesh import Mesh
from shardopt.schedule.memory import LiveBytes
from shardopt.schedule.tasks import StageTask


def local_bytes(type_: ir.Type, meshes: Mapping[str, Mesh]) -> int:
    """Bytes one device holds of a mesh tensor (all of it where there is no sharding yet)."""
    value = parse_mesh_tensor(type_)
    tensor = read_tensor(value.tensor)
    if value.sharding is None:
        return tensor.size_bytes
    return value.sharding.local_elements(meshes[value.mesh], tensor.shape) * tensor.itemsize


@dataclass(frozen=True)
class StepBytes:
    """Of each mesh: what a device holds all through the loop beside what it holds for microbatches
    (arguments, values that live across the loop or are read in it, accumulators), and the most that
    it holds before and behind the loop."""

    in_loop: tuple[int, ...]
    outside_loop: tuple[int, ...]


def step_bytes(program: StepProgram, meshes: Mapping[str, Mesh]) -> StepBytes:
    """A walk over `@main`. Results and arguments that nobody donates stay, other values until their
    last reader; the accumulators that a loop returns take the places of what it began with. What
    one microbatch makes without them counts in the loop from its task on (`live_values`). What lies
    on the host, and what replaces it, is there while a fragment reads or makes it."""
    ops, captured = body_of(program.main_block), tuple(program.captured.values())
    reads = [
        tuple(dict.fromkeys((*op.operands, *(captured if op == program.loop else ()))))
        for op in ops
    ]
    first: dict[ir.Value, int] = {}
    last: dict[ir.Value, int] = {}
    for position, values in enumerate(reads):
        for value in values:
            first.setdefault(value, position)
            last[value] = position
    arguments, donated = list(program.main_block.arguments), read_donation(program.main)
    on_host = read_on_host(program.main)
    visiting: set[ir.Value] = {arguments[k] for k in on_host}
    visiting |= {program.returned[donated[k]] for k in on_host}
    stay = {*program.returned, *(value for k, value in enumerate(arguments) if k not in donated)}
    stay -= visiting
    level = _Level(meshes)
    level.change(value for value in arguments if value not in visiting)
    in_loop = peak = level.bytes
    reused = iter(reused_buffers(program, program.main_block))
    for position, op in enumerate(ops):
        dying = {
            value
            for value in reads[position]
            if value in visiting or (last[value] == position and value not in stay)
        }
        if op.name == "mpmd.transfer":
            # What is sent costs the receiver memory only from its first reader on, which is below.
            made, over = [], set[ir.Value]()
        elif op == program.loop:
            made, over = list(op.results), dying.intersection(op.operands)
        else:
            made, over = list(op.results), {op.operands[k] for k in next(reused)[1]} & dying
        # What was sent arrives before the first that reads it.
        arrived = [
            v
            for v in reads[position]
            if v in visiting or (first[v] == position and defining(v, "mpmd.transfer") is not None)
        ]
        # Results stand beside operands while it runs, but for those whose memory they take.
        level.change([*arrived, *made])
        level.change(over, -1)
        peak = tuple(map(max, peak, level.bytes))
        if op == program.loop:
            fresh = _Level(meshes)
            fresh.change(op.results[k] for k in _made_once(program))
            in_loop = tuple(a - b for a, b in zip(level.bytes, fresh.bytes, strict=True))
        gone = (v for v in made if v in visiting or (v not in last and v not in stay))
        level.change([*(dying - over), *gone], -1)
    # What is received only to be returned has no reader at which it would count: it comes last.
    level.change(
        [
            v
            for v in dict.fromkeys(program.returned)
            if v not in first and defining(v, "mpmd.transfer")
        ]
    )
    return StepBytes(in_loop, tuple(map(max, peak, level.bytes)))


def _made_once(program: StepProgram) -> list[int]:
    """The results of a loop over one microbatch that accumulate nothing."""
    if program.num_microbatches > 1:
        return []
    arguments = program.body_block.arguments
    return [k for k, (before, _) in enumerate(program.carried) if not list(arguments[before].uses)]


class _Level:
    """Bytes that a device of each mesh holds."""

    def __init__(self, meshes: Mapping[str, Mesh]) -> None:
        self._meshes, self._held = meshes, dict.fromkeys(meshes, 0)

    @property
    def bytes(self) -> tuple[int, ...]:
        return tuple(self._held.values())

    def change(self, values: Iterable[ir.Value], sign: int = 1) -> None:
        for value in values:
            self._held[parse_mesh_tensor(value.type).mesh] += sign * local_bytes(
                value.type, self._meshes
            )


def live_values(
    program: StepProgram, meshes: Mapping[str, Mesh], task_of: Callable[[ir.Operation], StageTask]
) -> tuple[LiveBytes, ...]:
    """What is held for a microbatch. `task_of` says which task a fragment belongs to."""
    tasks: dict[ir.Value, dict[StageTask, None]] = {}
    once = set(program.body_block.arguments)
    taken: set[ir.Value] = set()
    for op in program.body_ops:
        if op.name == "mpmd.transfer":
            # Arguments of the body are there for the whole loop, on whatever mesh.
            if op.operands[0] in once:
                once.add(op.results[0])
            else:
                tasks[op.results[0]] = {}
            continue
        task = task_of(op)
        for value in op.operands:
            if value in tasks:
                tasks[value].setdefault(task)
        tasks.update((result, {task: None}) for result in op.results)
    for op, reused in reused_buffers(program, program.body_block):
        taken.update(op.operands[k] for k in reused)
    waiting = waiting_values(program.loop, program.body_ops)
    returned = program.body_returned
    stay = {returned[program.carried[k][1]] for k in _made_once(program)}
    accumulators = set(returned) - stay
    sizes: dict[tuple[tuple[StageTask, ...], bool, bool], int] = {}
    for value, users in tasks.items():
        # Accumulators are there once, and counted with the step.
        if users and value not in accumulators:
            # What waits on the host is there while a task makes it, and while one reads it.
            spans = [(user,) for user in users] if value in waiting else [tuple(users)]
            for number, span in enumerate(spans, 1):
                key = span, value in taken and number == len(spans), value in stay
                sizes[key] = sizes.get(key, 0) + local_bytes(value.type, meshes)
    return tuple(LiveBytes(users, size, *how) for (users, *how), size in sizes.items())
