"""Compiled moves on induced forests: all other nodes stay fixed, and the chosen ones take their
exact optimum by dynamic programming. Importing this module loads numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from shardopt.solve.assignment.large.flat_problem import ROW_OVERHEAD, Flat
from shardopt.solve.assignment.large.forest_kernels import (
    Scratch,
    below,
    choose_everywhere,
    choose_near,
)
from shardopt.solve.assignment.large.message_kernels import FAST, pair_cost
from shardopt.support.compiled import CALLED, INNER

# Nodes of a neighbourhood: small ones are tried more often, large ones find exchanges over long
# lifetimes.
SMALLEST_REACH, LARGEST_REACH = 20, 300
_ATTEMPTS = 4  # prices tried on one neighbourhood

# What visiting a node or an end of an edge costs beside its entries, in entries.
NODE_OVERHEAD, HALF_EDGE_OVERHEAD = 64, 16


@njit(**INNER, fastmath=FAST)
def fix_others(flat: Flat, scratch: Scratch, choice: np.ndarray) -> None:
    """Cost of each strategy of the chosen nodes with its fixed neighbours, without prices;
    remembers old strategies."""
    move = scratch.move[0]
    for position in range(scratch.chosen_count[0]):
        node = scratch.forest[position]
        scratch.old[node] = choice[node]
        base, size = flat.first[node], flat.first[node + 1] - flat.first[node]
        fixed, costs = scratch.fixed[base:], flat.costs[base:]
        for s in range(size):
            fixed[s] = costs[s]
        for h in range(flat.half_first[node], flat.half_first[node + 1]):
            other = flat.neighbour[h]
            if scratch.chosen[other] == move:
                continue
            if flat.flipped[h]:
                row = flat.tables[flat.table[h] + choice[other] * size :]
                for s in range(size):
                    fixed[s] += row[s]
            else:
                width = flat.first[other + 1] - flat.first[other]
                column = flat.tables[flat.table[h] + choice[other] :]
                for s in range(size):
                    fixed[s] += column[s * width]


@njit(**INNER, fastmath=FAST)
def optimise(
    flat: Flat, scratch: Scratch, price: np.ndarray, scale: float, heat: float, choice: np.ndarray
) -> int:
    """The forest's optimum under fixed cost + scale * price, written into `choice`; the number of
    changed nodes.

    Among equals the strategy in `old` stays, so that a search does not drift without gain. `heat`
    is the mean of random extra costs of strategies: the optimum under these is a sample of the good
    assignments (perturb and maximise)."""
    count = scratch.chosen_count[0]
    for position in range(count):
        node = scratch.forest[position]
        for entry in range(flat.first[node], flat.first[node + 1]):
            scratch.sums[entry] = scratch.fixed[entry] + scale * price[entry]
            if heat > 0.0:
                scratch.sums[entry] -= heat * np.log((below(scratch, 1 << 30) + 0.5) / (1 << 30))
    for position in range(count - 1, -1, -1):
        if scratch.parent[position] >= 0:
            fold_into_parent(flat, scratch, scratch.forest[position], scratch.parent[position])
    changed = 0
    for position in range(count):
        node, h = scratch.forest[position], scratch.parent[position]
        base, size = flat.first[node], flat.first[node + 1] - flat.first[node]
        above = choice[flat.neighbour[h]] if h >= 0 else 0
        best = scratch.old[node]
        least = scratch.sums[base + best] + (
            pair_cost(flat, h, node, best, above) if h >= 0 else 0.0
        )
        for s in range(size):
            value = scratch.sums[base + s] + (pair_cost(flat, h, node, s, above) if h >= 0 else 0.0)
            if value < least:
                best, least = s, value
        choice[node] = best
        changed += 1 if best != scratch.old[node] else 0
    return changed


@njit(**INNER, fastmath=FAST, inline="always")
def fold_into_parent(flat: Flat, scratch: Scratch, node: int, h: int) -> None:
    parent = flat.neighbour[h]
    base, size = flat.first[node], flat.first[node + 1] - flat.first[node]
    width = flat.first[parent + 1] - flat.first[parent]
    sums, into, table = (
        scratch.sums[base:],
        scratch.sums[flat.first[parent] :],
        flat.tables[flat.table[h] :],
    )
    if flat.flipped[h]:
        for q in range(width):
            row, least = table[q * size :], np.inf
            for s in range(size):
                least = min(least, sums[s] + row[s])
            into[q] += least
        return
    lows = scratch.lows
    for q in range(width):
        lows[q] = np.inf
    for s in range(size):
        mine, row = sums[s], table[s * width :]
        for q in range(width):
            lows[q] = min(lows[q], mine + row[q])
    for q in range(width):
        into[q] += lows[q]


@njit(**INNER)
def cost_change(flat: Flat, scratch: Scratch, choice: np.ndarray) -> float:
    """True cost of the forest's new strategies minus that of the old ones."""
    total = 0.0
    for position in range(scratch.chosen_count[0]):
        node = scratch.forest[position]
        old = scratch.old[node]
        total += (
            scratch.fixed[flat.first[node] + choice[node]] - scratch.fixed[flat.first[node] + old]
        )
        h = scratch.parent[position]
        if h >= 0:
            parent = flat.neighbour[h]
            total += pair_cost(flat, h, node, choice[node], choice[parent])
            total -= pair_cost(flat, h, node, old, scratch.old[parent])
    return total


@njit(**INNER)
def restore(scratch: Scratch, choice: np.ndarray) -> None:
    for position in range(scratch.chosen_count[0]):
        choice[scratch.forest[position]] = scratch.old[scratch.forest[position]]


@njit(**INNER)
def overflow(flat: Flat, scratch: Scratch, choice: np.ndarray, usage: np.ndarray) -> int:
    """Most bytes by which the new strategies exceed the capacity where they change usage; 0 or less
    if they fit.

    Leaves the change of usage in `scratch.change` for `commit`.
    """
    low, high = len(usage), 0
    for position in range(scratch.chosen_count[0]):
        node = scratch.forest[position]
        old = scratch.old[node]
        if choice[node] == old:
            continue
        for g in range(flat.segment_first[node], flat.segment_first[node + 1]):
            more = (
                flat.bytes[flat.segment_bytes[g] + choice[node]]
                - flat.bytes[flat.segment_bytes[g] + old]
            )
            scratch.change[flat.segment_lo[g]] += more
            scratch.change[flat.segment_hi[g]] -= more
            low, high = min(low, flat.segment_lo[g]), max(high, flat.segment_hi[g])
    scratch.span[0], scratch.span[1] = low, high
    worst, running = -1, np.int64(0)
    for time in range(low, high):
        running += scratch.change[time]
        # The assignment before the move keeps the limit, so only a rise can break it.
        if running > 0:
            worst = max(worst, usage[time] + running - flat.capacity[time])
    return worst


@njit(**INNER)
def commit(scratch: Scratch, usage: np.ndarray, keep: bool) -> None:
    """Clear the change of usage that `overflow` left, after adding it to `usage` if `keep`."""
    running = np.int64(0)
    for time in range(scratch.span[0], scratch.span[1] + 1):
        running += scratch.change[time]
        scratch.change[time] = 0
        if keep and time < len(usage):
            usage[time] += running


@njit(**CALLED)
def search(
    flat: Flat,
    scratch: Scratch,
    price: np.ndarray,
    choice: np.ndarray,
    usage: np.ndarray,
    budget: int,
    noise: float,
    heat: float,
) -> int:
    """Change `choice`, whose bytes are `usage`, on random neighbourhoods until `budget` entries
    were touched.

    `price` is the cost of the bytes of each strategy, 0 without memory. A move stands if cost does
    not rise (with `heat`: however cost changes) and memory fits; if memory overflows prices rise,
    if cost rises they fall. Changes of cost below `noise` count as rounding. Returns the work done.
    """
    nodes, work = len(scratch.chosen), 0
    while work < budget:
        largest = SMALLEST_REACH + below(scratch, LARGEST_REACH - SMALLEST_REACH)
        choose_near(
            flat,
            scratch,
            below(scratch, nodes),
            min(nodes, SMALLEST_REACH + below(scratch, largest)),
        )
        fix_others(flat, scratch, choice)
        effort = forest_work(flat, scratch)
        low, high, scale = 0.0, np.inf, 1.0
        for _ in range(_ATTEMPTS):
            work += effort
            over, change = 0, 0.0
            if optimise(flat, scratch, price, scale, heat, choice) > 0:
                change = cost_change(flat, scratch, choice)
                over = overflow(flat, scratch, choice, usage)
                work += scratch.span[1] - scratch.span[0]
                # A sample that costs more stands, too: with heat the aim is to leave the present
                # optimum.
                stands = over <= 0 and (heat > 0.0 or change <= noise)
                commit(scratch, usage, stands)
                if stands:
                    break
                restore(scratch, choice)
            if over > 0:
                low = scale
            else:
                high = scale
            scale = 2.0 * low if high == np.inf else 0.5 * (low + high)
    return work


@njit(**INNER)
def forest_work(flat: Flat, scratch: Scratch) -> int:
    """Entries that one optimisation of the chosen forest touches."""
    total = 0
    for position in range(scratch.chosen_count[0]):
        node, h = scratch.forest[position], scratch.parent[position]
        size = flat.first[node + 1] - flat.first[node]
        total += (
            2 * size
            + NODE_OVERHEAD
            + HALF_EDGE_OVERHEAD * (flat.half_first[node + 1] - flat.half_first[node])
        )
        if h >= 0:
            other = flat.neighbour[h]
            total += size * (flat.first[other + 1] - flat.first[other] + ROW_OVERHEAD)
    return total


@njit(**CALLED)
def relax(flat: Flat, scratch: Scratch, price: np.ndarray, choice: np.ndarray, passes: int) -> None:
    """Lower the priced cost of `choice` by `passes` maximal forests; memory counts through its
    price only."""
    for _ in range(passes):
        choose_everywhere(flat, scratch)
        fix_others(flat, scratch, choice)
        optimise(flat, scratch, price, 1.0, 0.0, choice)
