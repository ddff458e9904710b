"""ALLGATHER and BROADCAST on shards in host memory: rounds of slices between shards, which travel
where these are on different hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardopt.forms.exported_program import Slice
from shardopt.mesh.mesh import Mesh
from shardopt.runtime.devices.tiles import Tiling, python_slices
from shardopt.runtime.program.host_routes import Round, rounds_of, wire_tag
from shardopt.runtime.program.hosts import Host
from shardopt.runtime.program.instructions import Route
from shardopt.runtime.transports.buffers import is_aligned
from shardopt.runtime.transports.landing import Landing, Shards, ShardSlice, ShardType, fills
from shardopt.runtime.transports.mailbox import Mailbox

Give = Callable[[str, int, list[np.ndarray]], None]  # (name of the worker, tag, pieces)


@dataclass(frozen=True)
class _Step:
    """One round with everything in the numbers of this host's shards. What arrives is kept apart,
    slice by slice, until it is copied to its `places`: a peer may be ahead, and the shards not
    there yet."""

    tag: int
    outgoing: tuple[tuple[str, tuple[ShardSlice, ...]], ...]
    moves: tuple[tuple[ShardSlice, ShardSlice], ...]
    landing: Landing
    places: tuple[tuple[int, ShardSlice], ...]  # (number of the slice, where it goes)


class Exchanges:
    """The exchanges of a route for one host of its target mesh, worked out once. `tag` names their
    messages."""

    def __init__(
        self,
        route: Route,
        mesh: Mesh,
        hosts: Sequence[Host],
        here: Host,
        tag: int,
        mailbox: Mailbox,
    ) -> None:
        tiling = Tiling(mesh, route.target)
        type_ = (tiling.local_shape, tiling.dtype)
        self._types, self._mailbox = (type_,) * len(here.shards), mailbox
        rounds = enumerate(rounds_of(route, hosts, here))
        self._steps = [
            _step(each, hosts, here, type_, wire_tag(tag, number)) for number, each in rounds
        ]
        # Announced before any step runs, as a peer may be a round ahead.
        for step in self._steps:
            if step.landing.pieces:
                mailbox.expect(step.tag, step.landing)

    def complete(
        self, step: int, landed: Sequence[np.ndarray | None], give: Give
    ) -> list[np.ndarray]:
        """All shards, from those that have landed. Shards become one memory where they are
        replicas: devices write to none of them. What `give` gets is not written to until it is a
        device's."""
        shards = Shards(self._types, self._mailbox.pool, landed)
        for each in self._steps:
            # Given before anything is awaited: the hosts of a round wait for each other's slices.
            for worker, places in each.outgoing:
                give(worker, each.tag, [shards.view(place) for place in places])
            for source, target in each.moves:
                shards.copy(source, target)
            arrived = self._mailbox.take(step, each.tag) if each.landing.pieces else ()
            for number, target in each.places:
                piece: Any = arrived[number]
                # A whole shard in aligned memory is handed to the device as it is; anything else is
                # copied.
                if fills(target, self._types[target.shard][0]) and is_aligned(piece):
                    shards.share(target, piece)
                else:
                    shards.view(target)[...] = piece
        return shards.all()


def _step(round_: Round, hosts: Sequence[Host], here: Host, type_: ShardType, tag: int) -> _Step:
    local = {shard: place for place, shard in enumerate(here.shards)}

    def place(shard: int, slice_: Slice) -> ShardSlice:
        return ShardSlice(local[shard], python_slices(slice_))

    types: list[ShardType] = []
    pieces: dict[str, list[tuple[ShardSlice, ...]]] = {}
    number_of: dict[tuple[int, int], int] = {}
    for other, slices in round_.incoming:
        for number, (_, slice_) in enumerate(slices):
            shape = tuple(limit - start for start, limit in slice_)
            number_of[other, number] = len(types)
            whole = ShardSlice(len(types), tuple(slice(0, size) for size in shape))
            pieces.setdefault(hosts[other].name, []).append((whole,))
            types.append((shape, type_[1]))
    return _Step(
        tag=tag,
        outgoing=tuple(
            (hosts[other].name, tuple(place(*slice_) for slice_ in slices))
            for other, slices in round_.outgoing
        ),
        moves=tuple(
            (
                place(move.source_shard, move.source_slice),
                place(move.target_shard, move.target_slice),
            )
            for move in round_.local
        ),
        landing=Landing(tuple(types), pieces),
        places=tuple(
            (number_of[other, number], place(shard, slice_))
            for other, number, shard, slice_ in round_.landing
        ),
    )
