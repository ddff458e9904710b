"""What a step exchanges inside its meshes, by kind of collective and mesh axes, with the seconds
that each takes of the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardopt.cost.collectives import ALL_TO_ALL, collective_seconds
from shardopt.cost.summary import CostSummary
from shardopt.cost.traffic import Traffic
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh


@dataclass(frozen=True)
class FragmentRun:
    """A fragment on its mesh, and how often a step runs it."""

    mesh: Mesh
    cost: CostSummary
    times: int


@dataclass(frozen=True)
class CollectiveShare:
    """One kind of collective along some axes of one mesh. `axes` have their sizes, as in "x=4".
    `seconds` are those of a device in a step."""

    mesh: str
    kind: str
    axes: str
    tensors: int
    bytes: int
    seconds: float


def collective_shares(runs: Iterable[FragmentRun], cluster: Cluster) -> tuple[CollectiveShare, ...]:
    """By mesh, the longest first.

    The IR records the seconds of all collectives of a fragment together. They are divided among its
    kinds and axes as the cost model weighs tensors of average size."""
    sums: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    for run in runs:
        weights = [_weight(item, run.mesh, cluster) for item in run.cost.traffic]
        scale = run.cost.communication_seconds / sum(weights) if sum(weights) else 0.0
        for item, weight in zip(run.cost.traffic, weights, strict=True):
            axes = "·".join(f"{axis}={run.mesh.axis_size(axis)}" for axis in item.axes)
            key = (run.mesh.name, item.kind.replace("_", "-"), axes)
            tensors, size, seconds = sums.get(key, (0, 0, 0.0))
            sums[key] = (
                tensors + item.tensors * run.times,
                size + item.bytes * run.times,
                seconds + weight * scale * run.times,
            )
    rows = [CollectiveShare(*key, *amounts) for key, amounts in sums.items()]
    return tuple(sorted(rows, key=lambda row: (row.mesh, -row.seconds, row.kind, row.axes)))


def _weight(item: Traffic, mesh: Mesh, cluster: Cluster) -> float:
    """Seconds of all tensors, if they are of equal size."""
    if not item.tensors:
        return 0.0
    size = item.bytes / item.tensors
    if item.kind == ALL_TO_ALL:  # of which traffic counts one device's share
        for axis in item.axes:
            size *= mesh.axis_size(axis)
    return item.tensors * collective_seconds(cluster, mesh, item.kind, item.axes, size)
