"""Tables of chains against the chains of every pair, to the last bit."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from shardopt.cost.collectives import collective_curve
from shardopt.cost.resharding_chain import can_reshard, resharding_path
from shardopt.cost.resharding_costs import ReshardingCosts
from shardopt.cost.resharding_patterns import row_keys
from shardopt.mesh.mesh import Mesh, Sharding
from tests.unit.solve.sharding.op_graphs import CLUSTER

MESHES = [
    Mesh("m", (("x", 2), ("y", 4)), (0, 4, 1, 5, 2, 6, 3, 7)),
    Mesh("m", (("b", 2), ("a", 2), ("c", 2)), tuple(range(8))),
    Mesh("m", (("x", 2), ("one", 1), ("y", 2), ("z", 2)), tuple(range(8))),
    Mesh("m", (("z", 2), ("y", 3)), tuple(range(6))),
]
SHAPES = [(64,), (24, 24), (6, 64), (5, 7), (10, 10, 24), (8, 3, 6, 9)]
Chain = tuple[Sharding, ...]


def random_shardings(rng: random.Random, mesh: Mesh, rank: int, count: int) -> list[Sharding]:
    """Different ones, with axes in any order."""
    found: dict[Sharding, None] = {}
    for _ in range(count):
        axes = rng.sample(mesh.axis_names, len(mesh.axes))
        dims: list[tuple[str, ...]] = [()] * rank
        terms = set()
        for axis in axes:
            place = rng.randrange(-2, rank)
            if place >= 0:
                dims[place] = (*dims[place], axis)
            elif place == -2:
                terms.add(axis)
        unreduced = tuple(axis for axis in mesh.axis_names if axis in terms)
        found[Sharding(tuple(dims), unreduced)] = None
    return list(found)


def sides(mesh: Mesh, seed: int) -> list[tuple[tuple[int, ...], list[Sharding], list[Sharding]]]:
    rng = random.Random(seed)
    return [
        (shape, *(random_shardings(rng, mesh, len(shape), 12) for _ in range(2)))
        for shape in rng.choices(SHAPES, k=8)
    ]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_what_its_pairs_cost(mesh: Mesh, seed: int) -> None:
    costs = ReshardingCosts(CLUSTER, mesh)
    for (shape, sources, targets), itemsize in product(sides(mesh, seed), (2, 4)):
        table = costs.table(sources, targets, shape, itemsize)
        for (i, source), (j, target) in product(enumerate(sources), enumerate(targets)):
            if not can_reshard(source, target):
                assert table.seconds[i, j] == np.inf and table.steps[i, j] == 0
                continue
            path = resharding_path(source, target, mesh, shape, itemsize)
            steps = [step for step, _ in path if step is not None]
            curves = [collective_curve(CLUSTER, mesh, step.kind, step.axes) for step in steps]
            seconds = sum(curve.at(step.bytes) for curve, step in zip(curves, steps, strict=True))
            assert (table.seconds[i, j], table.steps[i, j]) == (seconds, len(steps))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_arcs_are_shared_by_chains_that_begin_alike(mesh: Mesh, seed: int) -> None:
    costs = ReshardingCosts(CLUSTER, mesh)
    for shape, sources, targets in sides(mesh, seed):
        arcs = costs.arcs(sources, targets, shape, 4)
        number: dict[Chain, int] = {}
        seconds, firsts = [], []
        for (i, source), (j, target) in product(enumerate(sources), enumerate(targets)):
            assert arcs.missing[i, j] != can_reshard(source, target)
            path, chain, expected = [], (source,), []
            if can_reshard(source, target):
                path = list(resharding_path(source, target, mesh, shape, 4))
            for step, after in path:
                chain = (*chain, after)
                if step is None:
                    continue
                if chain not in number:
                    number[chain] = len(number)
                    curve = collective_curve(CLUSTER, mesh, step.kind, step.axes)
                    seconds.append(curve.at(step.bytes))
                    firsts.append(not expected)
                expected.append(number[chain])
            found = arcs.paths[i, j].tolist()
            assert found == [*expected, *[len(arcs.seconds)] * (len(found) - len(expected))]
        assert arcs.seconds.tolist() == seconds and arcs.is_first.tolist() == firsts


def test_keys_of_rows_that_do_not_fit_into_an_integer() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 3, (200, 9)) << 40
    keys = row_keys([(column, 1 << 42) for column in table.T])
    _, distinct = np.unique(table, axis=0, return_inverse=True)
    assert len(np.unique(keys)) == len(np.unique(distinct))
    assert len(set(zip(keys.tolist(), distinct.tolist(), strict=True))) == len(np.unique(keys))
