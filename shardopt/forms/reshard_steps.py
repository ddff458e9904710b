"""Resharding plans as lists of steps: tile algebra, the plan of a transfer that carries none, the
check of a plan."""

from __future__ import annotations

from math import prod

from shardopt.forms.exported_program import ReshardStep, Slice, TensorSpec
from shardopt.mesh.mesh import Mesh


def default_steps(
    source: tuple[Mesh, TensorSpec], target: tuple[Mesh, TensorSpec]
) -> tuple[ReshardStep, ...]:
    """The plan of a transfer that carries none: every target device gets each part from one holder,
    replicas in turn.

    Empty when both sides are the same devices with the same tiles.
    """
    holders_of: dict[Slice, list[int]] = {}
    for device, tile in tiles_by_device(*source).items():
        holders_of.setdefault(tile, []).append(device)
    target_tiles = tiles_by_device(*target)
    if all(device in holders_of.get(tile, ()) for device, tile in target_tiles.items()):
        return ()
    steps = []
    for turn, (device, tile) in enumerate(target_tiles.items()):
        for source_tile, holders in holders_of.items():
            slice_ = intersect(tile, source_tile)
            if slice_ is not None:
                # What a device holds itself it takes from nobody else.
                holder = device if device in holders else holders[turn % len(holders)]
                steps.append(ReshardStep(0, holder, device, slice_))
    return tuple(steps)


def tiles_by_device(mesh: Mesh, spec: TensorSpec) -> dict[int, Slice]:
    """The global slice that each device of the mesh holds; empty where uneven tiles leave a device
    nothing."""
    slices = spec.sharding.tiles(mesh, spec.shape).tolist()
    return {
        device: tuple((start, limit) for start, limit in slice_)
        for device, slice_ in zip(mesh.devices, slices, strict=True)
    }


def intersect(left: Slice, right: Slice) -> Slice | None:
    """The common slice, or None if it has no elements."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return common if all(start < limit for start, limit in common) else None


def find_plan_fault(
    steps: tuple[ReshardStep, ...], source_tiles: dict[int, Slice], target_tiles: dict[int, Slice]
) -> str | None:
    """Why a resharding plan is wrong, or None: every element of each wanted tile must arrive
    exactly once.

    `source_tiles` and `target_tiles` give the tile of each source and target device. What a device
    passes on in a later phase it must have received in a phase before that."""
    # With the phase.
    received: dict[int, list[tuple[int, Slice]]] = {device: [] for device in target_tiles}
    for step in sorted(steps, key=lambda step: step.phase):
        text = (
            f"phase {step.phase}, device {step.source} to {step.target}, "
            f"slice {format_slice(step.slice)}"
        )
        if step.phase < 0:
            return f"{text}: phases count from 0"
        if step.target not in target_tiles:
            return f"{text}: {step.target} is no device of the target mesh"
        if intersect(step.slice, target_tiles[step.target]) != step.slice:
            return f"{text}: exceeds the target tile {format_slice(target_tiles[step.target])}"
        if step.phase == 0:
            if step.source not in source_tiles:
                return f"{text}: {step.source} is no device of the source mesh"
            if intersect(step.slice, source_tiles[step.source]) != step.slice:
                return f"{text}: exceeds the source tile {format_slice(source_tiles[step.source])}"
        else:
            before = [
                slice_ for phase, slice_ in received.get(step.source, ()) if phase < step.phase
            ]
            # Most slices are passed on as they came; only others are put together.
            if step.slice not in before and not _covers(before, step.slice):
                return f"{text}: device {step.source} has not received that slice"
        if any(_meet(step.slice, other) for _, other in received[step.target]):
            return f"{text}: part of it arrives twice"
        received[step.target].append((step.phase, step.slice))
    for device, tile in target_tiles.items():
        if not _covers([slice_ for _, slice_ in received[device]], tile):
            return f"tile {format_slice(tile)} of device {device} is not filled completely"
    return None


def _meet(left: Slice, right: Slice) -> bool:
    """Whether slices have an element in common; those of a scalar do."""
    return all(a < d and c < b for (a, b), (c, d) in zip(left, right, strict=True))


def format_slice(slice_: Slice) -> str:
    return "[" + ", ".join(f"{start}:{limit}" for start, limit in slice_) + "]"


def _covers(parts: list[Slice], slice_: Slice) -> bool:
    """Whether disjoint parts fill the slice."""
    overlaps = (intersect(part, slice_) for part in parts)
    return sum(_volume(overlap) for overlap in overlaps if overlap is not None) == _volume(slice_)


def _volume(slice_: Slice) -> int:
    return prod(limit - start for start, limit in slice_)
