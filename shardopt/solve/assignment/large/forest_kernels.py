"""Compiled choice of induced forests: nodes whose edges among themselves form trees, everywhere or
in a neighbourhood.

Importing this module loads numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from shardopt.solve.assignment.large.flat_problem import Flat
from shardopt.support.compiled import INNER


class Scratch(NamedTuple):
    """Work space of one search; `chosen_count[0]` nodes of `forest` are chosen, parents before
    children.

    `state` is the generator's. `mark` and `seen` hold the number of the move that wrote them, so
    that nothing needs clearing; `tree` is a union-find over chosen nodes."""

    state: np.ndarray  # uint64 [1]
    move: np.ndarray  # int64 [1]
    chosen_count: np.ndarray  # int64 [1]
    chosen: np.ndarray  # int64 [nodes]
    seen: np.ndarray
    mark: np.ndarray
    tree: np.ndarray
    queue: np.ndarray
    forest: np.ndarray
    parent: np.ndarray  # half edge to the parent, -1 at a root
    old: np.ndarray  # strategies before the move, of chosen nodes
    span: np.ndarray  # int64 [2]: the times between which `change` is not 0
    sums: np.ndarray  # float64, strategies of all nodes
    fixed: np.ndarray  # float64, strategies of all nodes: cost and fixed neighbours
    lows: np.ndarray  # float64, strategies of a node
    change: np.ndarray  # int64 [times + 1]


def make_scratch(flat: Flat, seed: int) -> Scratch:
    nodes, strategies = flat.num_nodes, len(flat.costs)

    def ints(size: int) -> np.ndarray:
        return np.zeros(size, dtype=np.int64)

    # An odd number times an odd number is odd, and so not 0: a state that xorshift never leaves.
    return Scratch(
        state=np.array([0x9E3779B97F4A7C15 * (2 * seed + 1) % 2**64], dtype=np.uint64),
        move=ints(1),
        chosen_count=ints(1),
        chosen=ints(nodes),
        seen=ints(nodes),
        mark=ints(nodes),
        tree=ints(nodes),
        queue=ints(nodes),
        forest=ints(nodes),
        parent=ints(nodes),
        old=ints(nodes),
        span=ints(2),
        sums=np.zeros(strategies),
        fixed=np.zeros(strategies),
        lows=np.zeros(int(np.diff(flat.first).max(initial=0))),
        change=ints(len(flat.capacity) + 1),
    )


@njit(**INNER, inline="always")
def below(scratch: Scratch, count: int) -> int:
    """A random number in [0, count), by xorshift64* (Marsaglia's shifts, Vigna's multiplier)."""
    x = scratch.state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    scratch.state[0] = x
    return int(((x * np.uint64(2685821657736338717)) >> np.uint64(33)) % np.uint64(count))


@njit(**INNER)
def shuffle(scratch: Scratch, values: np.ndarray, begin: int, end: int) -> None:
    for i in range(begin, end - 1):
        j = i + below(scratch, end - i)
        values[i], values[j] = values[j], values[i]


@njit(**INNER, inline="always")
def root_of(tree: np.ndarray, node: int) -> int:
    while tree[node] != node:
        tree[node] = tree[tree[node]]
        node = tree[node]
    return node


@njit(**INNER, inline="always")
def try_choose(flat: Flat, scratch: Scratch, node: int) -> None:
    """Choose `node` unless that would close a circle: its chosen neighbours must lie in different
    trees."""
    move = scratch.move[0]
    begin, end = flat.half_first[node], flat.half_first[node + 1]
    stamp = move * len(scratch.chosen) + node  # of this node in this move
    for h in range(begin, end):
        other = flat.neighbour[h]
        if scratch.chosen[other] == move:
            root = root_of(scratch.tree, other)
            if scratch.mark[root] == stamp:
                return
            scratch.mark[root] = stamp
    scratch.chosen[node] = move
    scratch.tree[node] = node
    for h in range(begin, end):
        other = flat.neighbour[h]
        if scratch.chosen[other] == move:
            scratch.tree[root_of(scratch.tree, other)] = node


@njit(**INNER)
def choose_everywhere(flat: Flat, scratch: Scratch) -> None:
    """A maximal induced forest, from nodes in random order."""
    scratch.move[0] += 1
    nodes = len(scratch.queue)
    for node in range(nodes):
        scratch.queue[node] = node
    shuffle(scratch, scratch.queue, 0, nodes)
    for position in range(nodes):
        try_choose(flat, scratch, scratch.queue[position])
    order_forest(flat, scratch, nodes)


@njit(**INNER)
def choose_near(flat: Flat, scratch: Scratch, start: int, reach: int) -> None:
    """A forest among the first `reach` nodes of a breadth-first search with random order among
    neighbours."""
    scratch.move[0] += 1
    move = scratch.move[0]
    scratch.queue[0], scratch.seen[start] = start, move
    head, tail = 0, 1
    while head < tail:
        node = scratch.queue[head]
        head += 1
        try_choose(flat, scratch, node)
        first = tail
        for h in range(flat.half_first[node], flat.half_first[node + 1]):
            other = flat.neighbour[h]
            if tail < reach and scratch.seen[other] != move:
                scratch.seen[other] = move
                scratch.queue[tail] = other
                tail += 1
        shuffle(scratch, scratch.queue, first, tail)
    order_forest(flat, scratch, tail)


@njit(**INNER)
def order_forest(flat: Flat, scratch: Scratch, candidates: int) -> None:
    """List the chosen ones of the first `candidates` of the queue with parents before children."""
    move, count = scratch.move[0], 0
    for position in range(candidates):
        root = scratch.queue[position]
        if scratch.chosen[root] != move or scratch.tree[root] == -1:
            continue
        scratch.forest[count], scratch.parent[count] = root, -1
        scratch.tree[root] = -1  # listed; the trees are complete, so union-find is over
        head = count
        count += 1
        while head < count:
            node = scratch.forest[head]
            head += 1
            for h in range(flat.half_first[node], flat.half_first[node + 1]):
                other = flat.neighbour[h]
                if scratch.chosen[other] == move and scratch.tree[other] != -1:
                    scratch.tree[other] = -1
                    scratch.forest[count], scratch.parent[count] = other, flat.reverse[h]
                    count += 1
    scratch.chosen_count[0] = count
