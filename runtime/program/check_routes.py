"""Whether routes move what they say: every element of the target arrives once, from where the
source holds it.

A route knows only shards; which devices those are follows from the meshes of the instructions that
use it."""

from __future__ import annotations

from collections.abc import Iterator

from shardopt.forms.exported_program import ReshardStep, Slice
from shardopt.forms.reshard_steps import find_plan_fault, tiles_by_device
from shardopt.mesh.mesh import Mesh
from shardopt.runtime.program.instructions import Program, Reshard, Route, Send


def find_route_faults(program: Program) -> Iterator[str]:
    """Faults of all routes that are used, each named once for each pair of meshes. Relies on
    `find_malformed`."""
    meshes = {part.mesh.name: part.mesh for part in program.meshes}
    seen: set[tuple[int, str, str]] = set()
    for part in program.meshes:
        for each in part.instructions:
            uses: list[tuple[int, str]] = []
            if isinstance(each, Send):
                uses = [(route, each.target) for route in each.routes]
            elif isinstance(each, Reshard):
                uses = [(each.route, part.mesh.name)]
            for number, target in uses:
                if target in meshes and (number, part.mesh.name, target) not in seen:
                    seen.add((number, part.mesh.name, target))
                    fault = route_fault(program.routes[number], part.mesh, meshes[target])
                    if fault is not None:
                        yield f"route {number} from mesh {part.mesh.name} to mesh {target}: {fault}"


def route_fault(route: Route, source: Mesh, target: Mesh) -> str | None:
    """Why the route does not carry the tensor from one mesh to the other, or None."""
    if (route.source.shape, route.source.dtype) != (route.target.shape, route.target.dtype):
        return f"{route.source} is another tensor than {route.target}"
    try:
        source_tiles = tiles_by_device(source, route.source)
        target_tiles = tiles_by_device(target, route.target)
    except ValueError as error:
        return str(error)
    steps: list[ReshardStep] = []
    placed: set[int] = set()
    for place in route.placements:
        if not 0 <= place.piece < len(route.pieces):
            return f"piece {place.piece} does not exist"
        piece = route.pieces[place.piece]
        placed.add(place.piece)
        if not (0 <= piece.shard < source.size and 0 <= place.shard < target.size):
            return (
                f"piece {place.piece} goes from shard {piece.shard} to shard {place.shard}, "
                "which do not both exist"
            )
        giver, taker = source.devices[piece.shard], target.devices[place.shard]
        slice_ = _global(place.slice, target_tiles[taker])
        if slice_ is None or _global(piece.slice, source_tiles[giver]) != slice_:
            return (
                f"piece {place.piece} is another part of the tensor in shard {place.shard} "
                "than "
                f"in shard {piece.shard}"
            )
        steps.append(ReshardStep(0, giver, taker, slice_))
    # Each may pass on what came before it in the list.
    for phase, move in enumerate(route.exchanges, 1):
        if not (0 <= move.source_shard < target.size and 0 <= move.target_shard < target.size):
            return (
                f"shard {move.source_shard} gives to shard {move.target_shard}, which do not "
                "both exist"
            )
        giver, taker = target.devices[move.source_shard], target.devices[move.target_shard]
        slice_ = _global(move.target_slice, target_tiles[taker])
        if slice_ is None or _global(move.source_slice, target_tiles[giver]) != slice_:
            return (
                f"shard {move.source_shard} gives shard {move.target_shard} another part of "
                "the "
                "tensor than it takes"
            )
        steps.append(ReshardStep(phase, giver, taker, slice_))
    if len(placed) < len(route.pieces):
        return f"{len(route.pieces) - len(placed)} pieces travel, but land nowhere"
    return find_plan_fault(tuple(steps), source_tiles, target_tiles)


def _global(slice_: Slice, tile: Slice) -> Slice | None:
    """A slice in the coordinates of a tile, in those of the tensor; None if it is no slice of that
    rank."""
    if len(slice_) != len(tile) or any(not 0 <= start <= limit for start, limit in slice_):
        return None
    return tuple(
        (start + origin, limit + origin)
        for (start, limit), (origin, _) in zip(slice_, tile, strict=True)
    )
