"""Seconds of resharding between many shardings at once.

The chain of collectives between two shardings depends on these alone, and its steps on the bytes of
the tensor. So each pair of shardings is looked at once for a placed mesh, whatever tensors need it,
and a table over two lists of shardings is gathered from arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardopt.cost.collectives import collective_curve
from shardopt.cost.resharding_chain import can_reshard, resharding_steps
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.curves import CurveTable
from shardopt.mesh.mesh import Mesh, Sharding

_Step = tuple[str, tuple[str, ...], float]  # kind, axes, bytes as a share of those of the tensor
_UNKNOWN, _NONE = -1, -2


class ChainTable(NamedTuple):
    """Chains between two lists of shardings, `[sources, targets]`: seconds (inf where there is no
    chain), and the number of collectives."""

    seconds: np.ndarray
    steps: np.ndarray


class ReshardingCosts:
    """The chains of one placed mesh that were asked for so far."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self._cluster = cluster
        self._mesh = mesh
        self._number: dict[Sharding, int] = {}
        self._chain_of = np.full((0, 0), _UNKNOWN, dtype=np.int64)  # of all numbered shardings
        self._chains: dict[tuple[int, ...], int] = {}
        self._steps: dict[_Step, int] = {}
        self._curves: tuple[CurveTable, np.ndarray, np.ndarray] | None = None

    def table(
        self, sources: Sequence[Sharding], targets: Sequence[Sharding], size_bytes: int
    ) -> ChainTable:
        """For a tensor of so many bytes. All shardings must be of one rank."""
        number = self._number
        rows, columns = (
            np.array(
                [number.setdefault(sharding, len(number)) for sharding in some], dtype=np.int64
            )
            for some in (sources, targets)
        )
        if len(number) > len(self._chain_of):
            room = 2 * len(number) - len(self._chain_of)
            self._chain_of = np.pad(
                self._chain_of, ((0, room), (0, room)), constant_values=_UNKNOWN
            )
        at = np.ix_(rows, columns)
        for row, column in np.argwhere(self._chain_of[at] == _UNKNOWN).tolist():
            self._chain_of[rows[row], columns[column]] = self._chain(sources[row], targets[column])
        chains = self._chain_of[at]
        seconds, steps = self._costs(size_bytes)
        chains = np.where(chains == _NONE, len(seconds), chains)
        return ChainTable(np.append(seconds, np.inf)[chains], np.append(steps, 0)[chains])

    def _chain(self, source: Sharding, target: Sharding) -> int:
        """The number of the chain; equal chains have one."""
        if not can_reshard(source, target):
            return _NONE
        # Bytes are then shares of the whole.
        steps = resharding_steps(source, target, self._mesh, (), 1)
        chain = tuple(
            self._steps.setdefault((s.kind, s.axes, s.bytes), len(self._steps)) for s in steps
        )
        if chain not in self._chains:
            self._chains[chain] = len(self._chains)
            self._curves = None
        return self._chains[chain]

    def _costs(self, size_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and number of steps of every chain."""
        if self._curves is None:
            curves = CurveTable(
                [
                    collective_curve(self._cluster, self._mesh, kind, axes)
                    for kind, axes, _ in self._steps
                ]
            )
            shares = np.array([share for _, _, share in self._steps])
            longest = max((len(chain) for chain in self._chains), default=0)
            # Short chains are filled up with a step behind all others, which takes no time.
            padded = [
                [*chain, *[len(self._steps)] * (longest - len(chain))] for chain in self._chains
            ]
            self._curves = (
                curves,
                shares,
                np.array(padded, dtype=np.int64).reshape(len(self._chains), longest),
            )
        table, shares, chains = self._curves
        seconds = np.append(table.at(shares * size_bytes), 0.0) if len(shares) else np.zeros(1)
        return seconds[chains].sum(axis=1), (chains < len(shares)).sum(axis=1)
