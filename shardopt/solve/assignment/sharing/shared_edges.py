"""Edges whose costs are made of common parts.

A value that many read is brought to each reader in steps. Readers whose ways begin alike share
these steps, so the value with its readers `v_1 … v_R` costs the sum over the *arcs* that any of
them uses, which is no sum over pairs of nodes. An arc is one step of the ways from one form of the
value.

*Shares* make pairs of it again: reader r pays `shares[r, a]` of arc a, and the shares of an arc add
up to 1. Whatever the shares are, no assignment costs more than it does in truth; where every arc
that is used is paid in full by those who use it, it costs just that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod
from typing import NamedTuple

import numpy as np

from shardopt.solve.assignment.problem import Edge, Problem, evaluate
from shardopt.solve.assignment.search.symmetry import tie
from shardopt.solve.assignment.sharing.arcs import Arcs, SharedEdges
from shardopt.solve.assignment.sharing.flat_groups import FlatGroups, flat_groups, joined


@dataclass(frozen=True, eq=False)
class Sharing:
    """All shared edges of `problem`, in which every reader pays all of its way."""

    problem: Problem
    groups: tuple[SharedEdges, ...]

    @cached_property
    def batches(self) -> tuple[_Batch, ...]:
        equal = defaultdict[int, list[SharedEdges]](list)
        for group in self.groups:
            equal[id(group.arcs)].append(group)
        return tuple(_Batch(tuple(groups)) for groups in equal.values())

    def around(self, node: int) -> Sharing:
        """With the groups alone that `node` takes part in."""
        groups = (g for g in self.groups if node in g.sources or node in g.readers)
        return Sharing(self.problem, tuple(groups))

    @cached_property
    def flat(self) -> FlatGroups:
        """All readers of all groups, batch by batch."""
        return flat_groups([batch.groups for batch in self.batches])

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """Values for each arc of each reader of `flat`, as `[G, R, A]` for each of `batches`."""
        parts, begin = [], 0
        for batch in self.batches:
            shape = len(batch.groups), *batch.arcs.usable.shape
            parts.append(values[begin : begin + prod(shape)].reshape(shape))
            begin += parts[-1].size
        return parts

    def used(self, choice: Sequence[int]) -> list[np.ndarray]:
        """Which arcs an assignment uses, for each of `batches`: bool `[G, R, A]`."""
        return self.split(self.flat.used(np.array(choice, dtype=np.int64)))

    def saved(self, used: Iterable[np.ndarray]) -> float:
        """What `problem` charges an assignment too much."""
        return self.flat.saved(joined(used, np.bool_))

    def seconds(self, choice: Sequence[int], used: Iterable[np.ndarray] | None = None) -> float:
        """What an assignment truly costs; inf if it is forbidden. `used` is what it uses, if
        known."""
        objective = evaluate(self.problem, choice).objective
        if objective == inf:
            return inf
        if used is not None:
            return objective - self.saved(used)
        return objective - self.flat.saved(self.flat.used(np.array(choice, dtype=np.int64)))

    def fair_shares(self, used: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Equal shares for those who use an arc, or could where nobody does: `[G, R, A]` for each
        of `batches`. What the assignment with this use costs is its true cost then."""
        flat, using = self.flat, joined(used, np.bool_)
        is_used = flat.count(using) > 0
        return self.split(flat.equal(np.where(is_used[flat.arc], using, flat.usable)))

    def joining_shares(self, used: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Prices, no shares, for those who look for better assignments near one with this use:
        whoever joins the users of an arc pays as much as they do, and who opens another pays all of
        it."""
        flat = self.flat
        users = np.maximum(flat.count(joined(used, np.bool_)), 1)
        return self.split(flat.usable / users[flat.arc])

    def equal_shares(self) -> list[np.ndarray]:
        """Equal shares for all who can use an arc: `[G, R, A]` for each of `batches`."""
        return self.split(self.flat.equal(self.flat.usable))

    def table_bytes(self, shares: Iterable[np.ndarray]) -> int:
        """Bytes of the distinct tables that the problem priced so has in place of shared edges."""
        return sum(
            len({share.tobytes() for share in each}) * batch.arcs.table_bytes
            for batch, each in zip(self.batches, shares, strict=True)
        )

    def priced(self, shares: Iterable[np.ndarray]) -> Problem:
        """The problem in which readers pay these shares: no assignment costs more than it truly
        does."""
        edges = list(self.problem.edges)
        for batch, each in zip(self.batches, shares, strict=True):
            for group, share in zip(batch.groups, each, strict=True):
                tables = batch.arcs.tables(share)
                for number, table in zip(group.edges, tables, strict=True):
                    edges[number] = replace(edges[number], cost=table)
        return replace(self.problem, edges=tuple(edges))

    def tied(self, colours: np.ndarray) -> TiedSharing:
        """Nodes of one colour get one strategy. Costs, and groups of equal arcs between the same
        colours, add up, and readers of one colour with equal ways are one reader."""
        inside = {edge for group in self.groups for edge in group.edges}
        private = tuple(e for number, e in enumerate(self.problem.edges) if number not in inside)
        rest = tie(replace(self.problem, edges=private), colours)
        edges, groups = list(rest.edges), list[SharedEdges]()
        merged = [_merged_readers(group, colours) for group in self.groups]
        keys = [
            (id(group.arcs), each.ends) for group, each in zip(self.groups, merged, strict=True)
        ]
        counts = Counter(keys)
        number = {key: place for place, key in enumerate(counts)}
        first = dict(
            zip(reversed(keys), zip(self.groups[::-1], merged[::-1], strict=True), strict=True)
        )
        scaled: dict[tuple[int, tuple[int, ...], int], Arcs] = {}
        for key, count in counts.items():
            group, readers = first[key]
            scale = id(group.arcs), readers.kept, count
            if scale not in scaled:
                scaled[scale] = group.arcs.of_readers(readers.kept, count)
            arcs, ends = scaled[scale], [readers.ends[place] for place in readers.kept]
            tables = arcs.tables(arcs.usable.astype(float))
            places = tuple(range(len(edges), len(edges) + len(ends)))
            edges += [Edge(u, v, table) for (u, v), table in zip(ends, tables, strict=True)]
            sources, nodes = zip(*ends, strict=True)
            groups.append(SharedEdges(arcs, sources, nodes, places))
        sharing = Sharing(replace(rest, edges=tuple(edges)), tuple(groups))
        readers_of = tuple(each.place for each in merged)
        of = tuple(number[key] for key in keys)
        return TiedSharing(self, sharing, colours, of, readers_of, len(rest.edges))

    def by_group(self, shares: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Of `[G, R, A]` for each batch, `[R, A]` for each group."""
        of = {
            id(group): share
            for batch, each in zip(self.batches, shares, strict=True)
            for group, share in zip(batch.groups, each, strict=True)
        }
        return [of[id(group)] for group in self.groups]

    def by_batch(self, shares: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The inverse of `by_group`."""
        of = dict(zip(map(id, self.groups), shares, strict=True))
        return [np.stack([of[id(group)] for group in batch.groups]) for batch in self.batches]


@dataclass(frozen=True, eq=False)
class TiedSharing:
    """Node n of `whole` is node `colours[n]` of `sharing`, its group g is group `groups[g]`, and
    reader r of that is reader `readers[g][r]`. The first `private` edges of `sharing` are shared
    by none."""

    whole: Sharing
    sharing: Sharing
    colours: np.ndarray
    groups: tuple[int, ...]
    readers: tuple[np.ndarray, ...]
    private: int

    def spread(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the original that belongs to one of the tied problem."""
        return tuple(np.asarray(choice, dtype=np.int64)[self.colours].tolist())

    @cached_property
    def edges(self) -> np.ndarray:
        """For each edge of the original that of `sharing` which stands for it, -1 where that is a
        node or nothing, and whether its rows are the other's columns: int64 `[edges, 2]`."""
        ends = self.colours[self.whole.problem.ends]
        standing = np.full(ends.shape, -1, dtype=np.int64)
        standing[:, 1] = ends[:, 0] > ends[:, 1]
        for group, number, readers in zip(
            self.whole.groups, self.groups, self.readers, strict=True
        ):
            tied = np.array(self.sharing.groups[number].edges, dtype=np.int64)
            standing[list(group.edges), 0] = tied[readers]
            standing[list(group.edges), 1] = 0
        private = self.sharing.problem.ends[: self.private]
        names, known = (_names(np.sort(each, axis=1)) for each in (ends, private))
        place = {pair: number for number, pair in enumerate(known.tolist())}
        of = np.flatnonzero(standing[:, 0] < 0)
        standing[of, 0] = [place.get(pair, -1) for pair in names[of].tolist()]
        return standing

    def spread_shares(self, shares: Iterable[np.ndarray]) -> list[np.ndarray]:
        """The shares of the original, for each of its batches: readers that are one here split its
        share."""
        of = self._split(shares)
        return self.whole.by_batch([of[group] for group in self.groups])

    def spread_tables(self, shares: Iterable[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
        """What each reader of each group of the original pays at these shares, spread: `[S, T_r]`.
        Groups that are one here have one tuple."""
        of = self._split(shares)
        arcs = dict(zip(self.groups, (group.arcs for group in self.whole.groups), strict=True))
        tables = {
            group: tuple(each.of_classes(reader, share) for reader, share in enumerate(of[group]))
            for group, each in arcs.items()
        }
        return [tables[group] for group in self.groups]

    def _split(self, shares: Iterable[np.ndarray]) -> dict[int, np.ndarray]:
        """For each group of `sharing` the shares of those for which it stands: `[R, A]`."""
        tied = self.sharing.by_group(shares)
        readers = dict(zip(self.groups, self.readers, strict=True))
        return {
            group: (tied[group] / np.bincount(reader)[:, None])[reader]
            for group, reader in readers.items()
        }


def _names(pairs: np.ndarray) -> np.ndarray:
    """One number for each pair of numbers below 2^32: int64 `[count]`."""
    return pairs[:, 0] << 32 | pairs[:, 1]


class _MergedReaders(NamedTuple):
    """The colours of source and node of each reader of a group, the readers of which others with
    the same are part (`kept`), and the place among these of each reader."""

    ends: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]
    place: np.ndarray


def _merged_readers(group: SharedEdges, colours: np.ndarray) -> _MergedReaders:
    sources, nodes = colours[list(group.sources)].tolist(), colours[list(group.readers)].tolist()
    ends = tuple(zip(sources, nodes, strict=True))
    kept: dict[tuple[tuple[int, int], int], int] = {}
    place = [kept.setdefault(each, len(kept)) for each in zip(ends, group.arcs.alike, strict=True)]
    first = [place.index(number) for number in range(len(kept))]
    return _MergedReaders(ends, tuple(first), np.array(place, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class _Batch:
    """Groups of equal arcs."""

    groups: tuple[SharedEdges, ...]

    @property
    def arcs(self) -> Arcs:
        return self.groups[0].arcs
