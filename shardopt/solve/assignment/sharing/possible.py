"""A problem with shared edges without the strategies that its costs forbid.

A preset leaves each operation a few of its strategies, and what is fixed leaves one: tables of all
the others would be read in each round of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardopt.solve.assignment.search.restriction import Mask, Restricted, without_forbidden
from shardopt.solve.assignment.sharing.arcs import Arcs, SharedEdges
from shardopt.solve.assignment.sharing.shared_edges import Sharing


@dataclass(frozen=True, eq=False)
class PossibleSharing:
    """`sharing` has the strategies of the original that `restricted` keeps."""

    sharing: Sharing
    restricted: Restricted

    def masks(self, masks: Sequence[Mask]) -> tuple[Mask, ...]:
        """The masks of the original."""
        parts: dict[tuple[int, int], np.ndarray] = {}

        def part(allowed: np.ndarray, kept: np.ndarray) -> np.ndarray:
            key = id(allowed), id(kept)
            if key not in parts:  # equal nodes share their arrays
                parts[key] = allowed[kept]
            return parts[key]

        return tuple(
            Mask(mask.name, tuple(map(part, mask.allowed, self.restricted.kept))) for mask in masks
        )


def possible_sharing(sharing: Sharing) -> PossibleSharing:
    """The same problem with the strategies alone that have finite costs, unless a node has none."""
    restricted = without_forbidden(sharing.problem)
    if restricted.problem is sharing.problem:
        return PossibleSharing(sharing, restricted)
    kept = restricted.kept
    known: dict[tuple[int, ...], Arcs] = {}
    groups = []
    for group in sharing.groups:
        sources, readers = ([kept[n] for n in nodes] for nodes in (group.sources, group.readers))
        key = (id(group.arcs), *map(id, sources), *map(id, readers))
        if key not in known:
            known[key] = _arcs_among(group.arcs, sources, readers)
        if known[key].is_shared:
            groups.append(SharedEdges(known[key], group.sources, group.readers, group.edges))
    return PossibleSharing(Sharing(restricted.problem, tuple(groups)), restricted)


def _arcs_among(arcs: Arcs, sources: Sequence[np.ndarray], readers: Sequence[np.ndarray]) -> Arcs:
    """The ways from the strategies `sources[r]` to the strategies `readers[r]` of each reader, and
    the arcs that are on them."""
    if all(
        len(some) == len(whole)
        for side, wholes in ((sources, arcs.rows), (readers, arcs.columns))
        for some, whole in zip(side, wholes, strict=True)
    ):
        return arcs
    rows = {(id(row), id(some)): row[some] for row, some in zip(arcs.rows, sources, strict=True)}
    forms = np.unique(np.concatenate(list(rows.values())))
    places = {key: np.searchsorted(forms, row) for key, row in rows.items()}
    # Equal readers have the same arrays, by which who looks at the arcs sees that they are.
    ways: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    of_reader = []
    for paths, missing, column, some in zip(
        arcs.paths, arcs.missing, arcs.columns, readers, strict=True
    ):
        key = (id(paths), id(missing), id(column), id(some))
        if key not in ways:
            targets, place = np.unique(column[some], return_inverse=True)
            at = np.ix_(forms, targets)
            ways[key] = paths[at], missing[at], place
        of_reader.append(key)
    used = np.unique(np.concatenate([paths.ravel() for paths, _, _ in ways.values()]))
    used = used[used < len(arcs.seconds)]
    number = np.full(len(arcs.seconds) + 1, len(used))
    number[used] = np.arange(len(used))
    each = [ways[key] for key in of_reader]
    renumbered = {key: number[paths] for key, (paths, _, _) in ways.items()}
    return Arcs(
        arcs.seconds[used],
        tuple(renumbered[key] for key in of_reader),
        tuple(missing for _, missing, _ in each),
        tuple(places[id(row), id(some)] for row, some in zip(arcs.rows, sources, strict=True)),
        tuple(place for _, _, place in each),
    )
