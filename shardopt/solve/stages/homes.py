"""On which mesh each operation of a program runs of which only parts say so.

A step with a mesh is there. Of the others, in program order, a step goes where most bytes of what
it reads are, so that the least is transferred; what reads nothing that lies anywhere goes where the
first reader that has a mesh wants it. Arguments lie where they are first wanted. Free steps
(constants) are everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """Values by number. `mesh` is stated, or None; a free step is copied to each mesh that reads
    it."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    mesh: int | None = None
    free: bool = False


@dataclass(frozen=True)
class Homes:
    """The mesh of each step, and where each value lies; None for what is everywhere."""

    of_steps: tuple[int | None, ...]
    of_values: tuple[int | None, ...]


def find_homes(steps: Sequence[Step], bytes_of_values: Sequence[int]) -> Homes:
    """Steps in program order; values that no step writes are arguments. Mesh 0 is that of what
    nobody wants anywhere."""
    wanted = _wanted(steps, len(bytes_of_values))
    homes: list[int | None] = list(wanted)
    written = {value for step in steps for value in step.writes}
    for value in written:
        homes[value] = None
    of_steps: list[int | None] = []
    free = {value for step in steps if step.free for value in step.writes}
    for step in steps:
        if step.free or not (step.writes or step.reads):
            of_steps.append(None)
            continue
        mesh = step.mesh
        if mesh is None:
            mesh = _nearest(step, homes, bytes_of_values)
        if mesh is None:
            mesh = next((w for value in step.writes if (w := wanted[value]) is not None), 0)
        of_steps.append(mesh)
        for value in (*step.reads, *step.writes):
            if homes[value] is None and value not in free:
                homes[value] = mesh
    return Homes(tuple(of_steps), tuple(homes))


def _wanted(steps: Sequence[Step], count: int) -> list[int | None]:
    """The mesh of the first reader of each value that has one, directly or through others."""
    wanted: list[int | None] = [None] * count
    for step in reversed(steps):
        mesh = step.mesh
        if mesh is None:
            mesh = next((w for value in step.writes if (w := wanted[value]) is not None), None)
        if mesh is not None:
            for value in step.reads:
                wanted[value] = mesh
    return wanted


def _nearest(step: Step, homes: Sequence[int | None], bytes_: Sequence[int]) -> int | None:
    total: dict[int, int] = {}
    for value in dict.fromkeys(step.reads):
        home = homes[value]
        if home is not None:
            total[home] = total.get(home, 0) + bytes_[value]
    return min(total, key=lambda mesh: (-total[mesh], mesh), default=None)
