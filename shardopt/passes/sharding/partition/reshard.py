"""A value in another sharding: the collectives of the planned chain
(`shardopt.cost.resharding_chain`), on the tiles of one device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from jaxlib.mlir import ir

from shardopt.cost.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, PERMUTE, REDUCE_SCATTER
from shardopt.cost.resharding_chain import resharding_path
from shardopt.mesh.device_groups import slice_starts
from shardopt.mesh.mesh import Sharding
from shardopt.passes.sharding.partition.builder import DeviceBuilder


@dataclass(frozen=True)
class Change:
    """From `before` to `after`, of a tensor of a whole shape; `reducer` combines what devices hold
    along unreduced axes."""

    shape: tuple[int, ...]
    before: Sharding
    after: Sharding
    reducer: str = "add"


def reshard(builder: DeviceBuilder, value: ir.Value, change: Change) -> ir.Value:
    """`value` is the tile of a tensor that lies as `change.before`. Raises ValueError where a sum
    would have to become open."""
    shape, before, after = change.shape, change.before, change.after
    path = resharding_path(before, after, builder.mesh, shape, 1)
    stops = [before, *(stop for _, stop in path)]
    for (step, _), (old, new) in zip(path, pairwise(stops), strict=True):
        kind, axes = ("", ()) if step is None else (step.kind, step.axes)
        if kind == "":
            starts = slice_starts(builder.mesh, shape, old, new)
            value = builder.part(value, starts, new.local_shape(builder.mesh, shape))
        elif kind == ALL_GATHER:
            value = builder.all_gather(value, _shrunk(old, new), axes)
        elif kind == ALL_REDUCE:
            value = builder.all_reduce(value, axes, change.reducer)
        elif kind == REDUCE_SCATTER:
            value = builder.reduce_scatter(value, _shrunk(new, old), axes, change.reducer)
        elif kind == ALL_TO_ALL:
            value = builder.all_to_all(value, _shrunk(old, new), _shrunk(new, old), axes)
        else:
            assert kind == PERMUTE
            value = builder.permute(value, old, new)
    return value


def _shrunk(old: Sharding, new: Sharding) -> int:
    """The one dimension that more axes split in `old` than in `new`."""
    [dim] = [
        number
        for number, (one, other) in enumerate(zip(old.dims, new.dims, strict=True))
        if len(one) > len(other)
    ]
    return dim
