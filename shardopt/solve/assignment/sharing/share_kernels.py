"""Compiled passes over a problem with shared edges whose tables stand in classes: strategies that
look alike over an edge have one row. Importing this module loads numba.

Messages are those of sequential tree-reweighted message passing (Kolmogorov, "Convergent
tree-reweighted message passing for energy minimization", TPAMI 2006), as in
`shardopt.solve.assignment.large.message_kernels`, with one number for each class. Inner loops go
over parts of arrays that begin where the loop does, as numba counts a negative index from the end:
one that it cannot see the sign of keeps a loop from being vectorised. What a sweep calls for each
node and half edge is put into it: with short loops, to hand a problem's arrays over takes longer
than they do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from shardopt.support.compiled import CALLED, INNER

# Minima over rows vectorise only if their order is free; infinities do not occur.
FAST = {"nnan", "nsz", "reassoc"}

# Ways of which the logarithm of the weight is smaller count as unused.
NEGLIGIBLE = -20.0


class Classes(NamedTuple):
    """A problem as flat arrays, int64 unless said otherwise: `n` nodes, `h` half edges, `e` edges.

    Node i owns the entries `first[i]..first[i+1]` of arrays over strategies and the half edges
    `half_first[i]..`. A half edge has its `neighbour`, its other end `reverse`, its `edge`, the
    number of `classes` of its own node's strategies, the first entry in `maps` of the class of each
    strategy, and the first entry of the message that comes in over it. `flipped` (bool) says that
    the rows of the table are the neighbour's classes; the table of an edge begins at `table`."""

    costs: np.ndarray  # float64, strategies of all nodes
    first: np.ndarray
    half_first: np.ndarray
    neighbour: np.ndarray
    reverse: np.ndarray
    edge: np.ndarray
    classes: np.ndarray
    class_map: np.ndarray
    maps: np.ndarray
    message: np.ndarray
    flipped: np.ndarray
    table: np.ndarray

    @property
    def num_nodes(self) -> int:
        return len(self.first) - 1


class Groups(NamedTuple):
    """The shared edges: group g has the edges `edge_first[g]..`, numbers in `edges`, and its arcs
    the entries `arc_first[g]..` of `seconds`. Its reader r pays the entries from
    `share_first[edge_first[g] + r]` on, one for each arc. The ways over an edge are the entries of
    `paths` from `path` on, `[rows, columns, length]` with the number of arcs of the group where
    there is none, and where `missing` (bool, from `gap` on) there is no way at all. `out` is the
    half edge at the source, which has the rows. `usable` (bool, as shares) says which arcs a reader
    can use. `several` are the groups of more than one reader: one alone pays for all, whatever it
    uses."""

    edge_first: np.ndarray
    edges: np.ndarray
    out: np.ndarray
    arc_first: np.ndarray
    seconds: np.ndarray  # float64
    share_first: np.ndarray
    path: np.ndarray
    length: np.ndarray
    paths: np.ndarray
    gap: np.ndarray
    missing: np.ndarray
    usable: np.ndarray
    several: np.ndarray


class Scratch(NamedTuple):
    """float64: strategies of a node, classes of either end of an edge, their pairs, and the readers
    of a group."""

    hat: np.ndarray
    least: np.ndarray
    other_least: np.ndarray
    reduced: np.ndarray
    ordered: np.ndarray


@njit(**INNER, fastmath=FAST, inline="always")
def gather(flat: Classes, messages: np.ndarray, node: int, hat: np.ndarray) -> None:
    """Costs of a node with what its neighbours say."""
    costs = flat.costs[flat.first[node] : flat.first[node + 1]]
    size = len(costs)
    for s in range(size):
        hat[s] = costs[s]
    for h in range(flat.half_first[node], flat.half_first[node + 1]):
        message, class_of = messages[flat.message[h] :], flat.maps[flat.class_map[h] :]
        for s in range(size):
            hat[s] += message[class_of[s]]


@njit(**INNER, fastmath=FAST, inline="always")
def least_of_classes(
    flat: Classes, hat: np.ndarray, h: int, size: int, share: float, least: np.ndarray
) -> None:
    """The least of `share * hat` in each class of half edge `h`."""
    class_of = flat.maps[flat.class_map[h] :]
    for c in range(flat.classes[h]):
        least[c] = np.inf
    for s in range(size):
        c = class_of[s]
        least[c] = min(least[c], share * hat[s])


@njit(**CALLED, fastmath=FAST)
def sweep(
    flat: Classes,
    tables: np.ndarray,
    messages: np.ndarray,
    forward: bool,
    scratch: Scratch,
) -> float:
    """One pass over all nodes, by number if `forward`, else against it. Returns a lower bound."""
    num_nodes = len(flat.first) - 1
    hat, least = scratch.hat, scratch.least
    bound = 0.0
    for step in range(num_nodes):
        node = step if forward else num_nodes - 1 - step
        size = flat.first[node + 1] - flat.first[node]
        begin, end = flat.half_first[node], flat.half_first[node + 1]
        gather(flat, messages, node, hat)
        earlier = 0
        for h in range(begin, end):
            earlier += 1 if flat.neighbour[h] < node else 0
        later = end - begin - earlier
        share = 1.0 / max(earlier, later, 1)
        low = np.inf
        for s in range(size):
            low = min(low, hat[s])
        bound += (1.0 - share * (later if forward else earlier)) * low
        for h in range(begin, end):
            if (flat.neighbour[h] > node) == forward:
                least_of_classes(flat, hat, h, size, share, least)
                bound += send(flat, tables, messages, h, least)
    return bound


@njit(**INNER, fastmath=FAST, inline="always")
def send(
    flat: Classes, tables: np.ndarray, messages: np.ndarray, h: int, least: np.ndarray
) -> float:
    """Write the message over half edge `h`, reduced to a least entry of 0; what was subtracted.
    `least` becomes that without what came in over the half edge."""
    back = flat.reverse[h]
    rows, columns, table = flat.classes[h], flat.classes[back], flat.table[flat.edge[h]]
    came, sent = messages[flat.message[h] :], messages[flat.message[back] :]
    for s in range(rows):
        least[s] -= came[s]
    if flat.flipped[h]:
        for q in range(columns):
            row, smallest = tables[table + q * rows :], np.inf
            for s in range(rows):
                smallest = min(smallest, least[s] + row[s])
            sent[q] = smallest
    else:
        for q in range(columns):
            sent[q] = np.inf
        for s in range(rows):
            mine, row = least[s], tables[table + s * columns :]
            for q in range(columns):
                sent[q] = min(sent[q], mine + row[q])
    low = np.inf
    for q in range(columns):
        low = min(low, sent[q])
    for q in range(columns):
        sent[q] -= low
    return low


@njit(**CALLED)
def price(
    flat: Classes,
    groups: Groups,
    which: np.ndarray,
    shares: np.ndarray,
    forbidden: float,
    tables: np.ndarray,
) -> None:
    """Write the tables of the shared edges of some groups under `shares`, in seconds."""
    for group in which:
        arcs = groups.arc_first[group + 1] - groups.arc_first[group]
        for r in range(groups.edge_first[group], groups.edge_first[group + 1]):
            h = groups.out[r]
            table, paid = tables[flat.table[groups.edges[r]] :], shares[groups.share_first[r] :]
            paths, missing = groups.paths[groups.path[r] :], groups.missing[groups.gap[r] :]
            length = groups.length[r]
            for p in range(flat.classes[h] * flat.classes[flat.reverse[h]]):
                total = 0.0
                for step in range(length):
                    arc = paths[p * length + step]
                    if arc < arcs:
                        total += paid[arc]
                table[p] = forbidden if missing[p] else total


@njit(**INNER)
def weight(flat: Classes, node: int) -> float:
    """The share of a node's costs that one edge gets."""
    begin, end = flat.half_first[node], flat.half_first[node + 1]
    earlier = 0
    for h in range(begin, end):
        earlier += 1 if flat.neighbour[h] < node else 0
    return 1.0 / max(earlier, end - begin - earlier, 1)


@njit(**INNER)
def reduced_table(
    flat: Classes,
    tables: np.ndarray,
    messages: np.ndarray,
    hats: np.ndarray,
    h: int,
    scratch: Scratch,
) -> float:
    """Write the table of the edge at its rows' half edge `h`, with an edge's shares of both nodes,
    to `scratch.reduced`; its least entry."""
    back = flat.reverse[h]
    columns, least, other_least = flat.classes[back], scratch.least, scratch.other_least
    for half, lows in ((h, least), (back, other_least)):
        node = flat.neighbour[flat.reverse[half]]
        mine, came = hats[flat.first[node] : flat.first[node + 1]], messages[flat.message[half] :]
        least_of_classes(flat, mine, half, len(mine), weight(flat, node), lows)
        for c in range(flat.classes[half]):
            lows[c] -= came[c]
    table, low = flat.table[flat.edge[h]], np.inf
    for s in range(flat.classes[h]):
        one, row, reduced = least[s], tables[table + s * columns :], scratch.reduced[s * columns :]
        for q in range(columns):
            entry = row[q] + one + other_least[q]
            reduced[q] = entry
            low = min(low, entry)
    return low


@njit(**CALLED)
def gather_all(flat: Classes, messages: np.ndarray, hats: np.ndarray) -> None:
    """`gather` for every node."""
    for node in range(len(flat.first) - 1):
        gather(flat, messages, node, hats[flat.first[node] : flat.first[node + 1]])


@njit(**CALLED)
def usage(
    flat: Classes,
    groups: Groups,
    tables: np.ndarray,
    messages: np.ndarray,
    hats: np.ndarray,
    heat: float,
    scratch: Scratch,
    use: np.ndarray,
) -> None:
    """How much each reader uses each arc, 0 to 1, where there are several readers: Boltzmann's
    weights of the ways over its edge, `heat` in seconds. `hats` are those of all nodes
    (`gather_all`)."""
    reduced = scratch.reduced
    for group in groups.several:
        arcs = groups.arc_first[group + 1] - groups.arc_first[group]
        for r in range(groups.edge_first[group], groups.edge_first[group + 1]):
            h, base = groups.out[r], groups.share_first[r]
            pairs = flat.classes[h] * flat.classes[flat.reverse[h]]
            low = reduced_table(flat, tables, messages, hats, h, scratch)
            total = 0.0
            for p in range(pairs):
                colder = (low - reduced[p]) / heat
                reduced[p] = np.exp(colder) if colder > NEGLIGIBLE else 0.0
                total += reduced[p]
            use[base : base + arcs] = 0.0
            for p in range(pairs):
                if reduced[p] > 0.0:
                    for step in range(groups.length[r]):
                        arc = groups.paths[groups.path[r] + p * groups.length[r] + step]
                        if arc < arcs:
                            use[base + arc] += reduced[p] / total


@njit(**CALLED)
def slope(groups: Groups, use: np.ndarray) -> float:
    """Take the mean over those who can use an arc off each use; the square of the length of what is
    left, each arc weighted by its seconds."""
    length = 0.0
    for group in groups.several:
        begin, end = groups.edge_first[group], groups.edge_first[group + 1]
        first = groups.arc_first[group]
        for a in range(groups.arc_first[group + 1] - first):
            total, count = 0.0, 0
            for r in range(begin, end):
                place = groups.share_first[r] + a
                if groups.usable[place]:
                    total += use[place]
                    count += 1
            for r in range(begin, end):
                place = groups.share_first[r] + a
                if groups.usable[place]:
                    use[place] -= total / count
                    length += groups.seconds[first + a] * use[place] ** 2
    return length


@njit(**INNER)
def level_of_some(values: np.ndarray, total: float) -> float:
    """What to take off the values so that those of them that stay positive add up to `total`;
    sorts them, largest first."""
    for number in range(1, len(values)):
        value, at = values[number], number
        while at > 0 and values[at - 1] < value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value
    added, level = 0.0, 0.0
    for number in range(len(values)):
        added += values[number]
        excess = (added - total) / (number + 1)
        if values[number] > excess:
            level = excess
    return level


@njit(**CALLED)
def move(
    groups: Groups, direction: np.ndarray, step: float, shares: np.ndarray, scratch: Scratch
) -> None:
    """Shares after a step, each arc's in proportion to its seconds, projected back to those that
    add up to these: onto the simplex by sorting (Held, Wolfe and Crowder, 1974)."""
    for group in groups.several:
        begin, end = groups.edge_first[group], groups.edge_first[group + 1]
        first = groups.arc_first[group]
        for a in range(groups.arc_first[group + 1] - first):
            seconds, moves = groups.seconds[first + a], False
            total, least, count = 0.0, np.inf, 0
            for r in range(begin, end):
                place = groups.share_first[r] + a
                moves |= direction[place] != 0.0
                if groups.usable[place]:
                    value = shares[place] + step * seconds * direction[place]
                    scratch.ordered[count] = value
                    total, least, count = total + value, min(least, value), count + 1
            if not moves:
                continue
            level = (total - seconds) / count
            if least < level:
                level = level_of_some(scratch.ordered[:count], seconds)
            for r in range(begin, end):
                place = groups.share_first[r] + a
                if groups.usable[place]:
                    value = shares[place] + step * seconds * direction[place]
                    shares[place] = max(value - level, 0.0)


@njit(**CALLED, fastmath=FAST)
def decide(
    flat: Classes, tables: np.ndarray, messages: np.ndarray, choice: np.ndarray, hat: np.ndarray
) -> None:
    """Choose node by node: earlier neighbours as chosen, later ones through their messages (of a
    backward pass)."""
    for node in range(len(flat.first) - 1):
        base, size = flat.first[node], flat.first[node + 1] - flat.first[node]
        for s in range(size):
            hat[s] = flat.costs[base + s]
        for h in range(flat.half_first[node], flat.half_first[node + 1]):
            other, back, place = flat.neighbour[h], flat.reverse[h], flat.class_map[h]
            if other > node:
                for s in range(size):
                    hat[s] += messages[flat.message[h] + flat.maps[place + s]]
                continue
            theirs = flat.maps[flat.class_map[back] + choice[other]]
            row, column = flat.classes[back], flat.classes[h]
            table = flat.table[flat.edge[h]]
            for s in range(size):
                c = flat.maps[place + s]
                if flat.flipped[h]:
                    hat[s] += tables[table + theirs * column + c]
                else:
                    hat[s] += tables[table + c * row + theirs]
        best = 0
        for s in range(1, size):
            if hat[s] < hat[best]:
                best = s
        choice[node] = best


@njit(**CALLED)
def spread(
    few: Classes, few_messages: np.ndarray, flat: Classes, of: np.ndarray, messages: np.ndarray
) -> None:
    """Messages of a problem from those of one in which equal parts are tied: half edge h stands
    for half edge `of[h]` of the latter, which all that do share (none where it is negative)."""
    counts = np.zeros(len(few.edge), dtype=np.int64)
    for h in of:
        if h >= 0:
            counts[h] += 1
    for h in range(len(of)):
        begin, there = flat.message[h], of[h]
        if there < 0:
            messages[begin : begin + flat.classes[h]] = 0.0
            continue
        node = flat.neighbour[flat.reverse[h]]
        for s in range(flat.first[node + 1] - flat.first[node]):
            entry = few_messages[few.message[there] + few.maps[few.class_map[there] + s]]
            messages[begin + flat.maps[flat.class_map[h] + s]] = entry / counts[there]
