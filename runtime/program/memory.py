"""What a device of each mesh holds after every instruction, worked out from shapes and shardings
before anything runs.

Counted are buffers, as in `Run.live_bytes`; what is under way between meshes belongs to neither,
and what a step leaves to be fetched is gone when the next one starts. While a RUN executes its
results are there beside its inputs, but for those that take over donated memory, and so are the
temporaries of its function where they are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.runtime.program.instructions import Free, MeshProgram, Program, Run, reads, writes
from shardopt.runtime.program.text import brief_instruction
from shardopt.support.sizes import format_bytes

_MOST_NAMED = 3  # of the largest buffers


@dataclass(frozen=True)
class MeshMemory:
    """Bytes of one device: `after[i]` when instruction i is done, `during[i]` the most while it
    runs, `start` before.

    `peak_at` is the instruction at the peak, -1 for the start.
    """

    mesh: str
    start: int
    after: tuple[int, ...]
    during: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max((self.start, *self.during))

    @property
    def peak_at(self) -> int:
        return (self.start, *self.during).index(self.peak) - 1


def buffer_bytes(part: MeshProgram) -> tuple[int, ...]:
    """Bytes of each buffer in the memory of one device: none of what lies on the host."""
    size = {
        spec: (spec.memory == "device")
        * prod(spec.sharding.local_shape(part.mesh, spec.shape))
        * numpy_dtype(spec.dtype).itemsize
        for spec in dict.fromkeys(part.buffers)
    }
    return tuple(size[spec] for spec in part.buffers)


def mesh_memory(part: MeshProgram, temporaries: Mapping[str, int] | None = None) -> MeshMemory:
    """Of a program that passes the other checks. `temporaries` are the bytes of functions by name,
    0 where unknown."""
    size, known = buffer_bytes(part), temporaries or {}
    live = set(part.initial_buffers)
    total = start = sum(size[buffer] for buffer in live)
    after: list[int] = []
    during: list[int] = []
    for each in part.instructions:
        gone = (
            each.donated
            if isinstance(each, Run)
            else each.buffers
            if isinstance(each, Free)
            else ()
        )
        made = sum(size[buffer] for buffer in writes(each))
        lost = sum(size[buffer] for buffer in gone)
        extra = 0
        if isinstance(each, Run):
            # Results take what is donated before they need memory of their own.
            extra = max(made - lost, 0) + known.get(each.function, 0)
        during.append(total + (extra if isinstance(each, Run) else made))
        total += made - lost
        after.append(total)
        during[-1] = max(during[-1], total)
    return MeshMemory(part.mesh.name, start, tuple(after), tuple(during))


def over_limit(
    program: Program, limit_bytes: int, temporaries: Mapping[str, Mapping[str, int]] | None = None
) -> tuple[str, ...]:
    """One text for every mesh whose devices would hold more than the limit: where, how much, and
    what is largest.

    `temporaries` are those of `mesh_memory` by mesh.
    """
    messages = []
    for part in program.meshes:
        memory = mesh_memory(part, (temporaries or {}).get(part.mesh.name))
        if memory.peak > limit_bytes:
            messages.append(
                f"mesh {part.mesh.name}, {_place(part, memory.peak_at)}: a device would hold "
                f"{format_bytes(memory.peak)}, the limit is {format_bytes(limit_bytes)}; the "
                "largest buffers there are "
                f"{_largest(part, memory.peak_at)}"
            )
    return tuple(messages)


def _place(part: MeshProgram, at: int) -> str:
    return (
        "start of the step"
        if at < 0
        else f"instruction {at} ({brief_instruction(part.instructions[at])})"
    )


def _largest(part: MeshProgram, at: int) -> str:
    """Of the buffers that are live before or after the instruction."""
    live = set(part.initial_buffers)
    for each in part.instructions[: at + 1]:
        gone = (
            each.donated
            if isinstance(each, Run)
            else each.buffers
            if isinstance(each, Free)
            else ()
        )
        live.difference_update(gone)
        live.update(writes(each))
    if at >= 0:
        live.update(reads(part.instructions[at]))
    size = buffer_bytes(part)
    largest = sorted(live, key=lambda buffer: (-size[buffer], buffer))[:_MOST_NAMED]
    return ", ".join(
        f"%{buffer} {part.buffers[buffer]} ({size[buffer]} bytes)" for buffer in largest
    )
