"""Seconds of resharding between many shardings at once.

The chain of collectives between two shardings depends on these and the extents that they do not
divide, and its steps on the bytes of the tensor. So each pair of shardings is looked at once for a
placed mesh, whatever tensors need it, and a table over two lists of shardings is gathered from
arrays.

Chains from one sharding that begin alike share steps. An *arc* is a collective behind one way of
getting there: two chains share the collective if they share the arc."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from shardopt.cost.collectives import collective_curve
from shardopt.cost.resharding_chain import (
    can_reshard,
    path_of_shares,
    shares_of_steps,
    uneven_extents,
)
from shardopt.cost.resharding_moves import Uneven
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


class ArcTable(NamedTuple):
    """Chains between two lists of shardings as arcs: `paths` int64 `[sources, targets, L]`, filled
    up with A; `seconds` float64 `[A]`, and `is_first` bool `[A]` of those that no other precedes.
    A chain that does not exist has none."""

    paths: np.ndarray
    seconds: np.ndarray
    is_first: np.ndarray


class _Numbered:
    """The chain between any two of the shardings that were asked for so far: those of tensors with
    the same uneven dimensions."""

    def __init__(self) -> None:
        self._number: dict[Sharding, int] = {}
        self.chain_of = np.full((0, 0), _UNKNOWN, dtype=np.int64)

    def places(
        self, sources: Sequence[Sharding], targets: Sequence[Sharding]
    ) -> tuple[np.ndarray, ...]:
        """Where `chain_of` has the pairs."""
        number = self._number
        rows, columns = (
            np.array(
                [number.setdefault(sharding, len(number)) for sharding in some], dtype=np.int64
            )
            for some in (sources, targets)
        )
        if len(number) > len(self.chain_of):
            room = 2 * len(number) - len(self.chain_of)
            self.chain_of = np.pad(self.chain_of, ((0, room), (0, room)), constant_values=_UNKNOWN)
        return np.ix_(rows, columns)


class ReshardingCosts:
    """The chains of one placed mesh that were asked for so far."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self._cluster = cluster
        self._mesh = mesh
        self._numbered: dict[Uneven, _Numbered] = {}
        self._chains: dict[tuple[int, ...], int] = {}
        self._steps: dict[_Step, int] = {}
        self._curves: tuple[CurveTable, np.ndarray, np.ndarray] | None = None
        self._paths: dict[tuple[Uneven, Sharding, Sharding], tuple[int, ...]] = {}
        self._arcs: dict[tuple[Uneven, tuple[Sharding, ...]], int] = {}
        self._step_of_arc: list[_Step] = []
        self._is_first: list[bool] = []

    def table(
        self,
        sources: Sequence[Sharding],
        targets: Sequence[Sharding],
        shape: tuple[int, ...],
        itemsize: int,
    ) -> ChainTable:
        """For a tensor of that shape, which all shardings must fit."""
        uneven = uneven_extents(dict.fromkeys((*sources, *targets)), self._mesh, shape)
        numbered = self._numbered.setdefault(uneven, _Numbered())
        at = numbered.places(sources, targets)
        for row, column in np.argwhere(numbered.chain_of[at] == _UNKNOWN).tolist():
            chain = self._chain(sources[row], targets[column], uneven)
            numbered.chain_of[at[0][row, 0], at[1][0, column]] = chain
        chains = numbered.chain_of[at]
        seconds, steps = self._costs(prod(shape) * itemsize)
        chains = np.where(chains == _NONE, len(seconds), chains)
        return ChainTable(np.append(seconds, np.inf)[chains], np.append(steps, 0)[chains])

    def arcs(
        self,
        sources: Sequence[Sharding],
        targets: Sequence[Sharding],
        shape: tuple[int, ...],
        itemsize: int,
    ) -> ArcTable:
        """For a tensor of that shape, which all shardings must fit."""
        uneven = uneven_extents(dict.fromkeys((*sources, *targets)), self._mesh, shape)
        ways = [[self._path(source, target, uneven) for target in targets] for source in sources]
        longest = max((len(way) for row in ways for way in row), default=0)
        paths = np.full((len(sources), len(targets), longest), -1, dtype=np.int64)
        for number, row in enumerate(ways):
            for other, way in enumerate(row):
                paths[number, other, : len(way)] = way
        used = np.unique(paths[paths >= 0])
        paths = np.where(paths < 0, len(used), np.searchsorted(used, paths))
        step_of = [self._step_of_arc[arc] for arc in used.tolist()]
        size_bytes = prod(shape) * itemsize
        seconds_of = {
            (kind, axes, share): collective_curve(self._cluster, self._mesh, kind, axes).at(
                share * size_bytes
            )
            for kind, axes, share in dict.fromkeys(step_of)
        }
        seconds = np.array([seconds_of[step] for step in step_of])
        return ArcTable(paths, seconds, np.array(self._is_first, dtype=bool)[used])

    def _path(self, source: Sharding, target: Sharding, uneven: Uneven) -> tuple[int, ...]:
        """The numbers of the arcs of a chain; none where there is no chain."""
        key = uneven, source, target
        if key not in self._paths:
            arcs: list[int] = []
            chain: tuple[Sharding, ...] = (source,)
            of_pair = uneven_extents((source, target), self._mesh, uneven)
            steps = (
                path_of_shares(source, target, self._mesh, of_pair)
                if can_reshard(source, target)
                else ()
            )
            for step, after in steps:
                chain = (*chain, after)
                if step is None:
                    continue
                if (uneven, chain) not in self._arcs:
                    self._arcs[uneven, chain] = len(self._step_of_arc)
                    self._step_of_arc.append(step)
                    self._is_first.append(not arcs)
                arcs.append(self._arcs[uneven, chain])
            self._paths[key] = tuple(arcs)
        return self._paths[key]

    def _chain(self, source: Sharding, target: Sharding, uneven: Uneven) -> int:
        """The number of the chain; equal chains have one."""
        if not can_reshard(source, target):
            return _NONE
        of_pair = uneven_extents((source, target), self._mesh, uneven)
        steps = shares_of_steps(source, target, self._mesh, of_pair)
        chain = tuple(self._steps.setdefault(step, len(self._steps)) for step in steps)
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
