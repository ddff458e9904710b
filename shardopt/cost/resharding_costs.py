"""Seconds of resharding between many shardings at once.

What a chain costs is affine in the bytes of the tensor, and the chain itself depends on the two shardings alone. So
each pair of shardings is looked at once for a placed mesh, whatever tensors need it, and a table over two lists of
shardings is gathered from arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from shardopt.cost.cluster import Cluster
from shardopt.cost.collectives import affine_seconds
from shardopt.cost.mesh import Mesh, Sharding
from shardopt.cost.resharding_chain import can_reshard, resharding_steps


class ChainTable(NamedTuple):
    """Chains between two lists of shardings, each array `[sources, targets]`: seconds without bytes (inf where there
    is no chain), seconds per byte of the whole tensor, and the number of collectives."""

    latency: np.ndarray
    per_byte: np.ndarray
    steps: np.ndarray


class ReshardingCosts:
    """The chains of one placed mesh that were asked for so far."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self._cluster = cluster
        self._mesh = mesh
        self._number: dict[Sharding, int] = {}
        self._chains = np.full((3, 0, 0), np.nan)  # of all numbered shardings; NaN until asked for
        self._affine = cache(lambda kind, axes: affine_seconds(cluster, mesh, kind, axes))

    def table(self, sources: Sequence[Sharding], targets: Sequence[Sharding]) -> ChainTable:
        """All shardings must be of one rank."""
        number = self._number
        rows, columns = (
            np.array([number.setdefault(sharding, len(number)) for sharding in some], dtype=np.int64)
            for some in (sources, targets)
        )
        if len(number) > self._chains.shape[1]:
            room = 2 * len(number) - self._chains.shape[1]
            self._chains = np.pad(self._chains, ((0, 0), (0, room), (0, room)), constant_values=np.nan)
        at = np.ix_(rows, columns)
        for row, column in np.argwhere(np.isnan(self._chains[0][at])).tolist():
            self._chains[:, rows[row], columns[column]] = self._chain(sources[row], targets[column])
        latency, per_byte, steps = (array[at] for array in self._chains)
        return ChainTable(latency, per_byte, steps)

    def _chain(self, source: Sharding, target: Sharding) -> tuple[float, float, int]:
        if not can_reshard(source, target):
            return np.inf, 0.0, 0
        steps = resharding_steps(source, target, self._mesh, (), 1)  # bytes are then shares of the whole
        latency = per_byte = 0.0
        for step in steps:
            step_latency, step_per_byte = self._affine(step.kind, step.axes)
            latency += step_latency
            per_byte += step_per_byte * step.bytes
        return latency, per_byte, len(steps)
