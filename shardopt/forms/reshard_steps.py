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
            box = intersect(tile, source_tile)
            if box is not None:
                holder = device if device in holders else holders[turn % len(holders)]
                steps.append(ReshardStep(0, holder, device, box))
    return tuple(steps)


def tiles_by_device(mesh: Mesh, spec: TensorSpec) -> dict[int, Slice]:
    """The global box that each device of the mesh holds; empty where uneven tiles leave a device
    nothing."""
    boxes = spec.sharding.tiles(mesh, spec.shape).tolist()
    return {
        device: tuple((start, limit) for start, limit in box)
        for device, box in zip(mesh.devices, boxes, strict=True)
    }


def intersect(left: Slice, right: Slice) -> Slice | None:
    """The common box, or None if it has no elements."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return common if all(start < limit for start, limit in common) else None


def find_plan_fault(
    steps: tuple[ReshardStep, ...], source_tiles: dict[int, Slice], target_tiles: dict[int, Slice]
) -> str | None:
    """Why a resharding plan is wrong, or None: every element of each wanted tile must arrive
    exactly once.

    `source_tiles` and `target_tiles` give the tile of each source and target device. What a device
    passes on in a later phase it must have received in a phase before that."""
    received: dict[int, list[tuple[int, Slice]]] = {
        device: [] for device in target_tiles
    }  # with the phase
    for step in sorted(steps, key=lambda step: step.phase):
        text = (
            f"phase {step.phase}, device {step.source} to {step.target}, box {format_box(step.box)}"
        )
        if step.phase < 0:
            return f"{text}: phases count from 0"
        if step.target not in target_tiles:
            return f"{text}: {step.target} is no device of the target mesh"
        if intersect(step.box, target_tiles[step.target]) != step.box:
            return f"{text}: exceeds the target tile {format_box(target_tiles[step.target])}"
        if step.phase == 0:
            if step.source not in source_tiles:
                return f"{text}: {step.source} is no device of the source mesh"
            if intersect(step.box, source_tiles[step.source]) != step.box:
                return f"{text}: exceeds the source tile {format_box(source_tiles[step.source])}"
        else:
            before = [box for phase, box in received.get(step.source, ()) if phase < step.phase]
            if step.box not in before and not _covers(before, step.box):
                return f"{text}: device {step.source} has not received that box"
        if any(_meet(step.box, other) for _, other in received[step.target]):
            return f"{text}: part of it arrives twice"
        received[step.target].append((step.phase, step.box))
    for device, tile in target_tiles.items():
        if not _covers([box for _, box in received[device]], tile):
            return f"tile {format_box(tile)} of device {device} is not filled completely"
    return None


def _meet(left: Slice, right: Slice) -> bool:
    """Whether boxes have an element in common; the boxes of a scalar do."""
    return all(a < d and c < b for (a, b), (c, d) in zip(left, right, strict=True))


def format_box(box: Slice) -> str:
    return "[" + ", ".join(f"{start}:{limit}" for start, limit in box) + "]"


def _covers(parts: list[Slice], box: Slice) -> bool:
    """Whether disjoint parts fill the box."""
    overlaps = (intersect(part, box) for part in parts)
    return sum(_volume(overlap) for overlap in overlaps if overlap is not None) == _volume(box)


def _volume(box: Slice) -> int:
    return prod(limit - start for start, limit in box)
