"""Chains that take sums: against a search over every state with every move, and carried out on
numpy arrays."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from shardopt.cost.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
    Step,
    steps_seconds,
)
from shardopt.cost.resharding_chain import resharding_steps, resharding_stops
from shardopt.cost.resharding_costs import ReshardingCosts
from shardopt.mesh.mesh import Mesh, Sharding
from tests.unit.solve.sharding.op_graphs import CLUSTER

SQUARE = Mesh("m", (("x", 2), ("y", 2)), (0, 1, 2, 3))
OBLONG = Mesh("m", (("x", 2), ("y", 4)), tuple(range(8)))
SHAPE = (8, 8)
WHOLE, ROWS, OPEN = Sharding(((), ())), Sharding((("x",), ())), Sharding(((), ()), ("x", "y"))


def canonical(mesh: Mesh) -> list[Sharding]:
    """Every sharding of rank 2 with axes in mesh order, each axis on a dimension, on the sum, or on
    none."""
    shardings = []
    for places in itertools.product(range(4), repeat=len(mesh.axes)):
        *dims, unreduced = (
            tuple(a for a, p in zip(mesh.axis_names, places, strict=True) if p == where)
            for where in range(3)
        )
        shardings.append(Sharding(tuple(dims), unreduced))
    return shardings


def moves(state: Sharding, mesh: Mesh) -> Iterator[tuple[float, Sharding]]:
    """(share of the local bytes that a device sends, state afterwards) of every single collective
    there is."""
    for d, dim in enumerate(state.dims):
        for cut in range(len(dim)):
            n = tiles(dim[cut:], mesh)
            yield n - 1, with_dims(state, {d: dim[:cut]})
            for e in {0, 1} - {d}:
                yield (n - 1) / n, with_dims(state, {d: dim[:cut], e: state.dims[e] + dim[cut:]})
    for size in range(1, len(state.unreduced) + 1):
        for axes in itertools.combinations(state.unreduced, size):
            n = tiles(axes, mesh)
            summed = Sharding(state.dims, tuple(a for a in state.unreduced if a not in axes))
            yield 2 * (n - 1) / n, summed
            for d, order in itertools.product((0, 1), itertools.permutations(axes)):
                yield (n - 1) / n, with_dims(summed, {d: (*state.dims[d], *order)})
    free = [axis for axis in mesh.axis_names if axis not in (*state.axes, *state.unreduced)]
    for d, axis in itertools.product((0, 1), free):
        yield 0, with_dims(state, {d: (*state.dims[d], axis)})
    for dims in itertools.product(*(orders(mesh, state.unreduced),) * 2):
        counts = [Sharding(tilings).tile_counts(mesh) for tilings in (dims, state.dims)]
        if counts[0] == counts[1] and not set(dims[0]) & set(dims[1]):
            yield 1, Sharding(dims, state.unreduced)


def orders(mesh: Mesh, taken: tuple[str, ...]) -> list[tuple[str, ...]]:
    axes = [axis for axis in mesh.axis_names if axis not in taken]
    return [order for size in range(len(axes) + 1) for order in itertools.permutations(axes, size)]


def tiles(axes: tuple[str, ...], mesh: Mesh) -> int:
    return math.prod(mesh.axis_size(axis) for axis in axes)


def with_dims(state: Sharding, change: dict[int, tuple[str, ...]]) -> Sharding:
    return Sharding(tuple(change.get(d, dim) for d, dim in enumerate(state.dims)), state.unreduced)


def least_bytes(src: Sharding, mesh: Mesh) -> dict[Sharding, float]:
    """From one state to all that can be reached: shares of the tensor that a device sends."""
    best: dict[Sharding, float] = {}
    queue = [(0.0, 0, src)]
    number = itertools.count(1)
    while queue:
        sent, _, state = heapq.heappop(queue)
        if state in best:
            continue
        best[state] = sent
        for share, after in moves(state, mesh):
            heapq.heappush(queue, (sent + share / tiles(state.axes, mesh), next(number), after))
    return best


def sent_by(step: Step, mesh: Mesh) -> float:
    n = tiles(step.axes, mesh)
    share = {
        ALL_GATHER: (n - 1) / n,
        REDUCE_SCATTER: (n - 1) / n,
        ALL_REDUCE: 2 * (n - 1) / n,
        ALL_TO_ALL: (n - 1) / n**2,
        PERMUTE: 1,
    }
    return step.bytes * share[step.kind]


def sent(src: Sharding, dst: Sharding, mesh: Mesh) -> float:
    return sum(sent_by(step, mesh) for step in resharding_steps(src, dst, mesh, SHAPE, 1))


@pytest.mark.parametrize("mesh", [SQUARE, OBLONG])
def test_a_chain_lies_between_every_trick_and_taking_the_sums_first(mesh: Mesh) -> None:
    """The search leaves out detours that a partitioner would not take, such as cutting a tensor to
    sum less of it."""
    for src in canonical(mesh):
        best = least_bytes(src, mesh)
        for dst in canonical(mesh):
            if not set(dst.unreduced) <= set(src.unreduced):
                assert dst not in best
                with pytest.raises(ValueError, match="to stay unreduced, found"):
                    resharding_steps(src, dst, mesh, SHAPE, 1)
                continue
            summed, moved = Sharding(src.dims, dst.unreduced), Sharding(dst.dims, src.unreduced)
            bytes_sent = sent(src, dst, mesh)
            assert bytes_sent >= 64 * best[dst] - 1e-9
            if not set(dst.axes) & set(src.unreduced):
                assert bytes_sent <= min(
                    sent(src, summed, mesh) + sent(summed, dst, mesh),
                    sent(src, moved, mesh) + sent(moved, dst, mesh),
                )
            if (
                not src.axes
                and set(dst.axes) <= set(src.unreduced)
                and mesh.axis_names == src.unreduced
            ):
                assert bytes_sent == pytest.approx(64 * best[dst])


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        (OPEN, WHOLE, [(ALL_REDUCE, ("x", "y"))]),
        (OPEN, Sharding((("x", "y"), ())), [(REDUCE_SCATTER, ("x", "y"))]),
        (OPEN, Sharding((("x",), ()), ("y",)), [(REDUCE_SCATTER, ("x",))]),
        (OPEN, Sharding((("x",), ("y",))), [(REDUCE_SCATTER, ("x",)), (REDUCE_SCATTER, ("y",))]),
        # Scattering first makes the rest smaller.
        (OPEN, ROWS, [(REDUCE_SCATTER, ("x",)), (ALL_REDUCE, ("y",))]),
        # Terms are moved while they are small, or summed while they are small.
        (Sharding((("x",), ()), ("y",)), Sharding(((), ("x",)), ("y",)), [(ALL_TO_ALL, ("x",))]),
        (Sharding((("x",), ()), ("y",)), WHOLE, [(ALL_REDUCE, ("y",)), (ALL_GATHER, ("x",))]),
    ],
)
def test_chains(src: Sharding, dst: Sharding, expected: list[tuple[str, tuple[str, ...]]]) -> None:
    chain = resharding_steps(src, dst, SQUARE, SHAPE, 1)
    assert [(step.kind, step.axes) for step in chain] == expected
    assert len(resharding_stops(src, dst, SQUARE, SHAPE)) == len(chain) - 1


@pytest.mark.parametrize("mesh", [SQUARE, OBLONG])
@pytest.mark.parametrize("shape", [(10, 8), (10, 7), (3, 3), (1, 12)])
def test_no_sum_is_open_in_padded_tiles(mesh: Mesh, shape: tuple[int, int]) -> None:
    """XLA ends the process there."""
    ends = [one for one in canonical(mesh) if not one.unreduced or one.is_even(mesh, shape)]
    found = 0
    for src, dst in itertools.product(ends, repeat=2):
        if set(dst.unreduced) <= set(src.unreduced):
            stops = resharding_stops(src, dst, mesh, shape)
            assert all(one.is_even(mesh, shape) for one in stops if one.unreduced)
            found += len(stops)
    assert found


def test_a_table_forbids_what_no_chain_does() -> None:
    choices = canonical(OBLONG)
    chains = ReshardingCosts(CLUSTER, OBLONG).table(choices, choices, SHAPE, 4)
    seconds = chains.seconds
    for (i, src), (j, dst) in itertools.product(enumerate(choices), repeat=2):
        if set(dst.unreduced) <= set(src.unreduced):
            chain = resharding_steps(src, dst, OBLONG, SHAPE, 4)
            assert seconds[i, j] == pytest.approx(steps_seconds(CLUSTER, OBLONG, chain))
        else:
            assert seconds[i, j] == np.inf


def test_a_table_may_forbid_everything() -> None:
    unreduced = Sharding(((), ()), ("y",))
    chains = ReshardingCosts(CLUSTER, OBLONG).table((WHOLE,), (unreduced,), (16,), 4)
    assert chains.seconds.tolist() == [[np.inf]] and chains.steps.tolist() == [[0]]


@pytest.mark.parametrize("mesh", [SQUARE, OBLONG])
def test_the_sum_over_open_axes_stays_the_value(mesh: Mesh) -> None:
    """Each state of a chain, filled as its collective fills it, adds up to the tensor that the
    first state held."""
    rng = np.random.default_rng(0)
    for src, dst in itertools.product(canonical(mesh), repeat=2):
        if not set(dst.unreduced) <= set(src.unreduced):
            continue
        held = terms_of(rng.integers(0, 9, SHAPE), src, mesh, rng)
        value = total(held, src, mesh)
        states = [src, *resharding_stops(src, dst, mesh, SHAPE), dst]
        for before, after in itertools.pairwise(states):
            held = carry_out(held, before, after, mesh)
            np.testing.assert_array_equal(total(held, after, mesh), value)


def boxes(sharding: Sharding, mesh: Mesh) -> list[tuple[slice, ...]]:
    return [tuple(slice(lo, hi) for lo, hi in box) for box in sharding.tiles(mesh, SHAPE).tolist()]


def coordinates(mesh: Mesh, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
    places = dict(
        zip(
            mesh.axis_names,
            np.indices(mesh.shape).reshape(len(mesh.axes), -1).tolist(),
            strict=True,
        )
    )
    return [tuple(places[axis][device] for axis in axes) for device in range(mesh.size)]


def terms_of(
    value: np.ndarray, sharding: Sharding, mesh: Mesh, rng: np.random.Generator
) -> list[np.ndarray]:
    """For every device its part of a term of its own along the unreduced axes."""
    terms = {
        where: rng.integers(-9, 9, SHAPE) for where in set(coordinates(mesh, sharding.unreduced))
    }
    return [
        terms[where][box]
        for where, box in zip(
            coordinates(mesh, sharding.unreduced), boxes(sharding, mesh), strict=True
        )
    ]


def total(held: list[np.ndarray], sharding: Sharding, mesh: Mesh) -> np.ndarray:
    """The value, from one replica of each term and tile."""
    summed = np.zeros(SHAPE, dtype=np.int64)
    seen = set()
    for part, box, where in zip(
        held, boxes(sharding, mesh), coordinates(mesh, sharding.unreduced), strict=True
    ):
        key = (where, *((side.start, side.stop) for side in box))
        if key not in seen:
            seen.add(key)
            summed[box] += part
    return summed


def carry_out(
    held: list[np.ndarray], before: Sharding, after: Sharding, mesh: Mesh
) -> list[np.ndarray]:
    """What a collective from `before` to `after` leaves: each device gets the part it wants of the
    terms it may see."""
    summed = tuple(axis for axis in before.unreduced if axis not in after.unreduced)
    keep = coordinates(mesh, after.unreduced)
    whole = {
        where: total(
            [part if at == where else 0 * part for part, at in zip(held, keep, strict=True)],
            before,
            mesh,
        )
        for where in set(keep)
    }
    assert set(summed) | set(after.unreduced) == set(before.unreduced)
    return [whole[where][box] for where, box in zip(keep, boxes(after, mesh), strict=True)]
