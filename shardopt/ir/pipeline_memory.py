"""What the meshes of a staged program hold: all step long, and for each microbatch.

It counts what the runtime does. A value is there from the fragment that makes it, or from the first that reads what was
received, until the last fragment of its mesh that reads it has ended. A fragment writes results into operands that die
in it. What a fragment needs for a time is no array of the runtime and not counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxlib.mlir import ir

from shardopt.cost.mesh import Mesh
from shardopt.dialect.mpmd import parse_mesh_tensor
from shardopt.ir.buffer_reuse import reused_buffers
from shardopt.ir.graph import read_tensor
from shardopt.ir.program import Program
from shardopt.schedule.memory import Held
from shardopt.schedule.tasks import StageTask


def local_bytes(type_: ir.Type, meshes: Mapping[str, Mesh]) -> int:
    """Bytes one device holds of a mesh tensor (all of it where there is no sharding yet)."""
    value = parse_mesh_tensor(type_)
    size = read_tensor(value.tensor).size_bytes
    if value.sharding is None:
        return size
    for count in value.sharding.tile_counts(meshes[value.mesh]):
        size //= count
    return size


def fixed_bytes(program: Program, meshes: Mapping[str, Mesh]) -> tuple[int, ...]:
    """Of each mesh: arguments of the step, what is made before the loop and read in or behind it, and accumulators."""
    later = {value for op in program.epilogue for value in op.operands} | set(program.returned)
    across = (result for op in program.prologue for result in op.results if result in later)
    fixed = dict.fromkeys(meshes, 0)
    arguments = program.main_block.arguments
    for value in dict.fromkeys((*arguments, *program.captured.values(), *across, *program.loop.results)):
        fixed[parse_mesh_tensor(value.type).mesh] += local_bytes(value.type, meshes)
    return tuple(fixed.values())


def held_values(
    program: Program, meshes: Mapping[str, Mesh], task_of: Callable[[ir.Operation], StageTask]
) -> tuple[Held, ...]:
    """What is held for a microbatch. `task_of` says which task a fragment belongs to."""
    tasks: dict[ir.Value, dict[StageTask, None]] = {}
    once = set(program.body_block.arguments)
    taken: set[ir.Value] = set()
    for op in program.body_ops:
        if op.name == "mpmd.transfer":
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
    accumulators = set(program.body_returned)
    sizes: dict[tuple[tuple[StageTask, ...], bool], int] = {}
    for value, own in tasks.items():
        if own and value not in accumulators:
            key = tuple(own), value in taken
            sizes[key] = sizes.get(key, 0) + local_bytes(value.type, meshes)
    return tuple(Held(own, size, again) for (own, again), size in sizes.items())
