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
from shardopt.cost.resharding_moves import Uneven
from shardopt.cost.resharding_patterns import Pairs, ReshardingPatterns, Side, row_keys
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.curves import CurveTable
from shardopt.mesh.mesh import Mesh, Sharding

_UNKNOWN, _NONE = -1, -2


class ChainTable(NamedTuple):
    """Chains between two lists of shardings, `[sources, targets]`: seconds (inf where there is no
    chain), and the number of collectives."""

    seconds: np.ndarray
    steps: np.ndarray


class ArcTable(NamedTuple):
    """Chains between two lists of shardings as arcs: `paths` int64 `[sources, targets, L]`, filled
    up with A, and `missing` bool `[sources, targets]` where there is no chain; `seconds` float64
    `[A]`, and `is_first` bool `[A]` of those that no other precedes. Arcs are in the order in which
    the rows of `paths` name them."""

    paths: np.ndarray
    missing: np.ndarray
    seconds: np.ndarray
    is_first: np.ndarray


class _ArcGrid(NamedTuple):
    """`ArcTable` with the number of the step that each arc is, int64 `[A]`, for its seconds."""

    paths: np.ndarray
    missing: np.ndarray
    steps: np.ndarray
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
        self._patterns = ReshardingPatterns(mesh)
        self._numbered: dict[Uneven, _Numbered] = {}
        self._grids: dict[tuple[Uneven, tuple[Sharding, ...], tuple[Sharding, ...]], _ArcGrid] = {}
        self._chains: dict[tuple[int, ...], int] = {}
        self._curves: tuple[CurveTable, np.ndarray] | None = None
        self._steps_of_chains: np.ndarray | None = None

    def table(
        self,
        sources: Sequence[Sharding],
        targets: Sequence[Sharding],
        shape: tuple[int, ...],
        itemsize: int,
    ) -> ChainTable:
        """For a tensor of that shape, which all shardings must fit."""
        froms, tos = (self._patterns.side(each, shape) for each in (sources, targets))
        uneven = _uneven_extents(froms, tos, shape)
        numbered = self._numbered.setdefault(uneven, _Numbered())
        at = numbered.places(sources, targets)
        rows, columns = np.nonzero(numbered.chain_of[at] == _UNKNOWN)
        if len(rows):
            pairs = self._patterns.pairs(froms, tos, shape, rows, columns)
            chains = np.array([self._chain(pattern.steps) for pattern in pairs.patterns])
            numbered.chain_of[at[0][rows, 0], at[1][0, columns]] = chains[pairs.pattern]
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
        """For a tensor of that shape, which all shardings must fit; no source stands there
        twice."""
        froms, tos = (self._patterns.side(each, shape) for each in (sources, targets))
        key = _uneven_extents(froms, tos, shape), tuple(sources), tuple(targets)
        if key not in self._grids:
            self._grids[key] = self._grid(froms, tos, shape)
        paths, missing, steps, is_first = self._grids[key]
        seconds = self._step_seconds(prod(shape) * itemsize)[steps]
        return ArcTable(paths, missing, seconds, is_first)

    def _grid(self, sources: Side, targets: Side, shape: tuple[int, ...]) -> _ArcGrid:
        size = len(sources.shardings), len(targets.shardings)
        rows, columns = (each.ravel() for each in np.indices(size))
        pairs = self._patterns.pairs(sources, targets, shape, rows, columns)
        missing = np.array([pattern.steps is None for pattern in pairs.patterns])[pairs.pattern]
        paths, steps, is_first = self._numbered_arcs(rows, size[0], pairs)
        return _ArcGrid(
            paths.reshape(*size, paths.shape[1]), missing.reshape(size), steps, is_first
        )

    def _numbered_arcs(
        self, rows: np.ndarray, sources: int, pairs: Pairs
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`ArcTable.paths` with a row for each pair, the step that each arc is, and `is_first`.

        An arc is known by the one before it, or the source, and the shardings at its ends."""
        longest = max((len(each.states) for each in pairs.patterns), default=0)
        width = pairs.order.shape[1] + 1
        steps = np.full((len(pairs.patterns), longest), -1, dtype=np.int64)
        states = np.zeros((len(pairs.patterns), longest, 2, width), dtype=np.int64)
        for place, each in enumerate(pairs.patterns):
            steps[place, : len(each.states)] = each.steps or ()
            states[place, : len(each.states)] = each.states
        paths = np.full((len(rows), longest), -1, dtype=np.int64)
        # For each arc where `paths` names it first, and the step that it is.
        found, step_of = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        count, num_first = 0, 0
        before, bound = rows, sources
        for k in range(longest):
            at = np.flatnonzero(steps[pairs.pattern, k] >= 0)
            pattern = pairs.pattern[at]
            ends = states[pattern, k]
            np.put_along_axis(ends, pairs.order[at, None, :], ends[:, :, :-1].copy(), axis=2)
            codes = ((column, self._patterns.num_codes) for column in ends.reshape(len(at), -1).T)
            _, first, number = np.unique(
                row_keys([(before[at], bound), *codes]), return_index=True, return_inverse=True
            )
            paths[at, k] = count + number
            found.append(at[first] * longest + k)
            step_of.append(steps[pattern[first], k])
            count += len(first)
            num_first = num_first or count
            before, bound = paths[:, k], count
        order = np.argsort(np.concatenate(found))
        renumbered = np.append(np.argsort(order), count)
        return renumbered[paths], np.concatenate(step_of)[order], order < num_first

    def _chain(self, steps: tuple[int, ...] | None) -> int:
        """The number of a chain; equal chains have one."""
        if steps is None:
            return _NONE
        return self._chains.setdefault(steps, len(self._chains))

    def _step_seconds(self, size_bytes: int) -> np.ndarray:
        """Seconds of every step, and none for one behind all others."""
        steps = self._patterns.steps
        if self._curves is None or len(self._curves[1]) < len(steps):
            curves = [
                collective_curve(self._cluster, self._mesh, kind, axes) for kind, axes, _ in steps
            ]
            self._curves = CurveTable(curves), np.array([share for _, _, share in steps])
        table, shares = self._curves
        return np.append(table.at(shares * size_bytes), 0.0)

    def _costs(self, size_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and number of steps of every chain."""
        seconds = self._step_seconds(size_bytes)
        lengths = np.array([len(chain) for chain in self._chains], dtype=np.int64)
        chains = self._steps_of_chains
        if chains is None or len(chains) < len(lengths):
            chains = np.full((len(lengths), lengths.max(initial=0)), -1, dtype=np.int64)
            for number, chain in enumerate(self._chains):
                chains[number, : len(chain)] = chain
            self._steps_of_chains = chains
        # Short chains are filled up with the step that takes no time.
        return seconds[chains].sum(axis=1), lengths


def _uneven_extents(sources: Side, targets: Side, shape: tuple[int, ...]) -> Uneven:
    """The extents of dimensions that some sharding pads, 0 for others: with them, chains depend on
    the shardings alone."""
    is_uneven = sources.is_uneven.any(axis=0) | targets.is_uneven.any(axis=0)
    return tuple((is_uneven * np.array(shape, dtype=np.int64)).tolist())
