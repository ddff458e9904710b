"""Compiled passes of sequential tree-reweighted message passing (Kolmogorov, "Convergent
tree-reweighted message passing for energy minimization", TPAMI 2006), and of memory. Importing this
module loads numba.

Inner loops go over parts of arrays that begin where the loop does, as numba counts a negative index
from the end: one that it cannot see the sign of keeps a loop from being vectorised."""

from __future__ import annotations

import numpy as np
from numba import njit

from shardopt.solve.assignment.large.flat_problem import Flat
from shardopt.support.compiled import CALLED, INNER

# Minima over contiguous rows vectorise only if their order is free; infinities stay allowed, NaN
# does not occur.
FAST = {"nnan", "nsz", "reassoc"}


@njit(**CALLED, fastmath=FAST)
def apply_prices(flat: Flat, prices: np.ndarray, priced: np.ndarray) -> None:
    """priced = costs + price of the bytes of each strategy; `prices` are per byte, float64
    `[times]`."""
    until = np.zeros(len(prices) + 1)
    for time in range(len(prices)):
        until[time + 1] = until[time] + prices[time]
    for place in range(len(priced)):
        priced[place] = flat.costs[place]
    for node in range(len(flat.first) - 1):
        base, size = flat.first[node], flat.first[node + 1] - flat.first[node]
        for g in range(flat.segment_first[node], flat.segment_first[node + 1]):
            price = until[flat.segment_hi[g]] - until[flat.segment_lo[g]]
            start = flat.segment_bytes[g]
            for s in range(size):
                priced[base + s] += price * flat.bytes[start + s]


@njit(**CALLED)
def usage_of(flat: Flat, choice: np.ndarray) -> np.ndarray:
    """int64 `[times]`: bytes of an assignment at each time, exactly."""
    change = np.zeros(len(flat.capacity) + 1, dtype=np.int64)
    for node in range(len(flat.first) - 1):
        for g in range(flat.segment_first[node], flat.segment_first[node + 1]):
            size = flat.bytes[flat.segment_bytes[g] + choice[node]]
            change[flat.segment_lo[g]] += size
            change[flat.segment_hi[g]] -= size
    return np.cumsum(change)[:-1]


@njit(**CALLED)
def cost_of(flat: Flat, costs: np.ndarray, choice: np.ndarray) -> float:
    total = 0.0
    for node in range(len(flat.first) - 1):
        total += costs[flat.first[node] + choice[node]]
        for h in range(flat.half_first[node], flat.half_first[node + 1]):
            other = flat.neighbour[h]
            if node < other:
                total += pair_cost(flat, h, node, choice[node], choice[other])
    return total


@njit(**INNER, inline="always")
def pair_cost(flat: Flat, h: int, node: int, strategy: int, other_strategy: int) -> float:
    """Entry of the table of half edge `h` of `node`."""
    if flat.flipped[h]:
        return flat.tables[
            flat.table[h] + other_strategy * (flat.first[node + 1] - flat.first[node]) + strategy
        ]
    other = flat.neighbour[h]
    return flat.tables[
        flat.table[h] + strategy * (flat.first[other + 1] - flat.first[other]) + other_strategy
    ]


@njit(**CALLED, fastmath=FAST)
def sweep(
    flat: Flat, priced: np.ndarray, messages: np.ndarray, forward: bool, hat: np.ndarray
) -> float:
    """One pass over all nodes, by number if `forward`, else against it. Returns a lower bound on
    priced cost.

    Each node shares its energy among the messages it sends on in the direction of the pass; what it
    sends is the minimum over its strategies, reduced to a least entry of 0. Those subtracted
    minima, and what a node keeps, add up to the bound, whatever the messages were before. `hat` is
    scratch for the strategies of one node."""
    num_nodes = len(flat.first) - 1
    bound = 0.0
    for step in range(num_nodes):
        node = step if forward else num_nodes - 1 - step
        base, size = flat.first[node], flat.first[node + 1] - flat.first[node]
        begin, end = flat.half_first[node], flat.half_first[node + 1]
        earlier = 0
        costs = priced[base:]
        for s in range(size):
            hat[s] = costs[s]
        for h in range(begin, end):
            earlier += 1 if flat.neighbour[h] < node else 0
            came = messages[flat.message[h] :]
            for s in range(size):
                hat[s] += came[s]
        later = end - begin - earlier
        # The weight of Kolmogorov's monotonic chains: so many of them are needed to cover the edges
        # here.
        share = 1.0 / max(earlier, later, 1)
        least = np.inf
        for s in range(size):
            least = min(least, hat[s])
        bound += (1.0 - share * (later if forward else earlier)) * least
        for h in range(begin, end):
            if (flat.neighbour[h] > node) == forward:
                bound += send(flat, messages, hat, h, node, share)
    return bound


@njit(**INNER, fastmath=FAST, inline="always")
def send(
    flat: Flat, messages: np.ndarray, hat: np.ndarray, h: int, node: int, share: float
) -> float:
    """Write the message of `node` over half edge `h`, reduced to a least entry of 0; what was
    subtracted."""
    other = flat.neighbour[h]
    size, width = flat.first[node + 1] - flat.first[node], flat.first[other + 1] - flat.first[other]
    came, sent = messages[flat.message[h] :], messages[flat.message[flat.reverse[h]] :]
    table = flat.tables[flat.table[h] :]
    if flat.flipped[h]:
        for q in range(width):
            row = table[q * size :]
            least = np.inf
            for s in range(size):
                least = min(least, share * hat[s] - came[s] + row[s])
            sent[q] = least
    else:
        for q in range(width):
            sent[q] = np.inf
        for s in range(size):
            mine, row = share * hat[s] - came[s], table[s * width :]
            for q in range(width):
                sent[q] = min(sent[q], mine + row[q])
    low = np.inf
    for q in range(width):
        low = min(low, sent[q])
    for q in range(width):
        sent[q] -= low
    return low


@njit(**CALLED, fastmath=FAST)
def decide(
    flat: Flat, priced: np.ndarray, messages: np.ndarray, choice: np.ndarray, hat: np.ndarray
) -> None:
    """Choose node by node: earlier neighbours as chosen, later ones through their messages (of a
    backward pass)."""
    for node in range(len(flat.first) - 1):
        base, size = flat.first[node], flat.first[node + 1] - flat.first[node]
        for s in range(size):
            hat[s] = priced[base + s]
        for h in range(flat.half_first[node], flat.half_first[node + 1]):
            other = flat.neighbour[h]
            if other > node:
                for s in range(size):
                    hat[s] += messages[flat.message[h] + s]
            elif flat.flipped[h]:
                row = flat.table[h] + choice[other] * size
                for s in range(size):
                    hat[s] += flat.tables[row + s]
            else:
                width = flat.first[other + 1] - flat.first[other]
                for s in range(size):
                    hat[s] += flat.tables[flat.table[h] + choice[other] + s * width]
        best = 0
        for s in range(1, size):
            if hat[s] < hat[best]:
                best = s
        choice[node] = best
