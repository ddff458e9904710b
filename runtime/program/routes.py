"""Resharding steps between global devices, turned into what each side of a transfer does with its
local shards."""

from __future__ import annotations

from shardopt.forms.exported_program import ReshardStep, Slice, TensorSpec
from shardopt.forms.reshard_steps import tiles_by_device
from shardopt.mesh.mesh import Mesh
from shardopt.runtime.program.instructions import Exchange, Piece, Placement, Route


def make_route(
    source: tuple[Mesh, TensorSpec], target: tuple[Mesh, TensorSpec], steps: tuple[ReshardStep, ...]
) -> Route:
    """Number the pieces and express every slice relative to the tile it is cut from or put into.

    A mesh lives in one process, so a slice that several target devices take from one source device
    travels once."""
    source_tiles, target_tiles = tiles_by_device(*source), tiles_by_device(*target)
    source_shard = {device: number for number, device in enumerate(source[0].devices)}
    target_shard = {device: number for number, device in enumerate(target[0].devices)}
    pieces: dict[Piece, int] = {}
    placements: list[Placement] = []
    exchanges: list[Exchange] = []
    # A stable sort: within a phase both ends keep the order of the plan.
    for step in sorted(steps, key=lambda step: step.phase):
        shard, slice_ = target_shard[step.target], relative(step.slice, target_tiles[step.target])
        if step.phase == 0:
            piece = Piece(
                source_shard[step.source], relative(step.slice, source_tiles[step.source])
            )
            placements.append(Placement(pieces.setdefault(piece, len(pieces)), shard, slice_))
        else:
            giver = relative(step.slice, target_tiles[step.source])
            exchanges.append(Exchange(target_shard[step.source], giver, shard, slice_))
    return Route(source[1], target[1], tuple(pieces), tuple(placements), tuple(exchanges))


def relative(slice_: Slice, tile: Slice) -> Slice:
    """A global slice in the coordinates of the tile that contains it."""
    return tuple(
        (start - origin, limit - origin)
        for (start, limit), (origin, _) in zip(slice_, tile, strict=True)
    )
