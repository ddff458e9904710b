"""Problems with shared edges without forbidden strategies."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from shardopt.solve.assignment.search.restriction import Mask
from shardopt.solve.assignment.sharing.possible import possible_sharing
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from tests.unit.solve.assignment.test_shared_edges import random_sharing


def with_forbidden(sharing: Sharing, seed: int) -> Sharing:
    rng = np.random.default_rng(seed)
    costs = tuple(
        np.where(rng.random(len(cost)) < 0.5, np.inf, cost) for cost in sharing.problem.costs
    )
    return Sharing(replace(sharing.problem, costs=costs), sharing.groups)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_costs_what_it_did(seed: int) -> None:
    sharing = with_forbidden(random_sharing(seed), seed)
    possible = possible_sharing(sharing)
    costs, kept = sharing.problem.costs, possible.restricted.kept
    for cost, some in zip(costs, kept, strict=True):
        finite = np.flatnonzero(cost < np.inf)
        assert some.tolist() == (finite.tolist() or list(range(len(cost))))
    choices = list(product(*(range(len(some)) for some in kept)))
    for choice in choices[:: max(1, len(choices) // 200)]:
        whole = possible.restricted.spread(choice)
        assert possible.restricted.project(whole) == choice
        assert possible.sharing.seconds(choice) == sharing.seconds(whole)


@pytest.mark.parametrize("seed", range(12))
def test_no_arc_is_left_that_nobody_shares(seed: int) -> None:
    possible = possible_sharing(with_forbidden(random_sharing(seed), seed)).sharing
    for group in possible.groups:
        assert group.arcs.is_shared and group.arcs.usable.any(axis=0).all()
        for reader, edge in enumerate(group.edges):
            rows, columns = group.arcs.rows[reader], group.arcs.columns[reader]
            assert (len(rows), len(columns)) == possible.problem.edges[edge].cost.shape


def test_groups_stay_equal_where_the_same_is_forbidden() -> None:
    sharing = random_sharing(3, copies=3)
    first = sharing.problem.costs[0].copy()
    first[0] = np.inf
    nodes = sharing.problem.num_nodes // 3
    costs = list(sharing.problem.costs)
    costs[::nodes] = [first.copy() for _ in range(3)]
    possible = possible_sharing(
        Sharing(replace(sharing.problem, costs=tuple(costs)), sharing.groups)
    )
    assert len({id(group.arcs) for group in possible.sharing.groups}) == 2
    tables = [
        possible.sharing.problem.edges[group.edges[0]].cost for group in possible.sharing.groups
    ]
    assert tables[0] is tables[2] is tables[4]


def test_nothing_is_copied_where_all_is_possible() -> None:
    sharing = random_sharing(1)
    possible = possible_sharing(sharing).sharing
    assert all(a.arcs is b.arcs for a, b in zip(possible.groups, sharing.groups, strict=True))
    pairs = zip(possible.problem.edges, sharing.problem.edges, strict=True)
    assert all(a.cost is b.cost for a, b in pairs)


def test_masks_are_those_of_what_is_left() -> None:
    sharing = with_forbidden(random_sharing(0), 5)
    possible = possible_sharing(sharing)
    rng = np.random.default_rng(0)
    whole = Mask("some", tuple(rng.random(len(cost)) < 0.5 for cost in sharing.problem.costs))
    [mask] = possible.masks([whole])
    assert mask.name == "some"
    for part, every, kept in zip(
        mask.allowed, whole.allowed, possible.restricted.kept, strict=True
    ):
        np.testing.assert_array_equal(part, every[kept])
