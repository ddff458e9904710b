"""Messages and shares, improved together: bounds that hold, and how close they come."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.sharing import price_splitting
from shardopt.solve.assignment.sharing.price_rounds import PriceRounds
from shardopt.solve.assignment.sharing.share_ascent import ShareAscent, SpreadMessages
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.assignment.table_store import TableStore
from tests.draws import seeds
from tests.unit.solve.assignment.test_shared_edges import exact, random_sharing, true_cost


def least_cost(sharing: Sharing) -> float:
    choices = product(range(3), repeat=sharing.problem.num_nodes)
    return min(true_cost(sharing, choice) for choice in choices)


@pytest.mark.parametrize("seed", seeds(8, 3))
def test_bounds_hold_and_rise_above_those_of_equal_shares(seed: int) -> None:
    sharing = random_sharing(seed)
    best = least_cost(sharing)
    if best == float("inf"):
        best = 100.0  # some figure to step towards
    ascent = ShareAscent(sharing, sharing.equal_shares(), best)
    ascent.run(0, 0.0, None)
    first = ascent.bound
    ascent.run(150, 0.0, None)
    assert first <= ascent.bound <= best + 1e-9
    choice = ascent.decide()
    assert true_cost(sharing, choice) >= ascent.bound - 1e-9


def test_most_bounds_are_close_to_brute_force() -> None:
    gaps = []
    for seed in range(12):
        sharing = random_sharing(seed)
        best = least_cost(sharing)
        if best < float("inf"):
            ascent = ShareAscent(sharing, sharing.equal_shares(), best)
            ascent.run(300, 1e-6, None)
            gaps.append(1 - ascent.bound / best)
    assert len(gaps) > 5 and np.median(gaps) < 0.05


@pytest.mark.parametrize("seed", seeds(6, 2))
def test_a_bound_spread_from_tied_copies_holds_and_begins_higher(seed: int) -> None:
    sharing = random_sharing(seed, copies=3)
    best = price_splitting.solve_shared(sharing, exact, SearchLimits(gap_tolerance=1e-9)).objective
    tied = sharing.tied(np.arange(sharing.problem.num_nodes) % (sharing.problem.num_nodes // 3))
    few = ShareAscent(tied.sharing, tied.sharing.equal_shares(), best)
    few.run(200, 1e-6, None)
    whole = SpreadMessages(few, tied, best)
    whole.settle(0.0)
    anew = ShareAscent(sharing, sharing.equal_shares(), best)
    anew.run(0, 0.0, None)
    assert anew.bound < whole.bound <= best * (1 + 1e-6)
    assert whole.bound >= 0.97 * few.bound
    freed = whole.freed()
    freed.run(20, 0.0, None)
    assert whole.bound <= freed.bound * (1 + 1e-9) and freed.bound <= best * (1 + 1e-6)


def test_shares_of_every_arc_add_up_and_charge_no_more_than_the_truth() -> None:
    sharing = random_sharing(5)
    ascent = ShareAscent(sharing, sharing.equal_shares(), 20.0)
    ascent.run(40, 0.0, None)
    for batch, shares in zip(sharing.batches, ascent.shares, strict=True):
        usable = batch.arcs.usable.any(axis=0)
        assert np.allclose(shares.sum(axis=1)[:, usable], 1.0)
        assert (shares >= 0.0).all()
    bound = exact(sharing.priced(ascent.shares), None, SearchLimits()).objective
    assert ascent.bound <= bound + 1e-9
    assert bound <= least_cost(sharing) + 1e-9


def test_a_reader_that_is_tied_to_its_value_pays_nothing() -> None:
    sharing = random_sharing(2)
    colours = np.arange(sharing.problem.num_nodes)
    colours[2] = 0
    tied = sharing.tied(np.unique(colours, return_inverse=True)[1]).sharing
    ascent = ShareAscent(tied, tied.equal_shares(), 100.0)
    ascent.run(30, 0.0, None)
    groups = [
        (group, each)
        for batch, shares in zip(tied.batches, ascent.shares, strict=True)
        for group, each in zip(batch.groups, shares, strict=True)
    ]
    assert any(
        source == reader
        for g, _ in groups
        for source, reader in zip(g.sources, g.readers, strict=True)
    )
    for group, shares in groups:
        pays = np.array(group.sources) != np.array(group.readers)
        assert not shares[~pays].any()
        others = group.arcs.usable[pays].any(axis=0)
        assert np.allclose(shares.sum(axis=0)[others], 1.0)


@pytest.mark.parametrize("copies", [1, 3])
def test_large_problems_get_bounds_that_hold(copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price_splitting, "_FEW_ENTRIES", 0)
    sharing = random_sharing(4, copies=copies)
    first = price_splitting.solve_shared(sharing, exact, SearchLimits())
    again = price_splitting.solve_shared(sharing, exact, SearchLimits())
    assert first.choice == again.choice and first.bound == again.bound
    assert true_cost(sharing, first.choice) == pytest.approx(first.objective)
    proof = exact(sharing.priced(sharing.equal_shares()), None, SearchLimits())
    assert proof.objective <= first.objective + 1e-9
    if copies == 1:
        assert first.bound <= least_cost(sharing) + 1e-9


def test_a_gap_that_rounds_leave_is_closed_by_an_integer_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(price_splitting, "_FEW_ENTRIES", 0)
    programs = 0
    for seed in range(6):
        sharing = random_sharing(seed)
        solution = price_splitting.solve_shared(sharing, exact, SearchLimits())
        if solution.choice:
            assert solution.status == "optimal"
            assert solution.objective == pytest.approx(least_cost(sharing))
            programs += int(str(solution.statistics["shared_integer_programs"]))
    assert programs


@pytest.mark.parametrize(("gap", "is_close"), [(0.0, False), (0.5, True)])
def test_nothing_is_sought_beyond_the_gap_that_was_asked_for(
    gap: float, is_close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(price_splitting, "_FEW_ENTRIES", 0)
    sought = []
    monkeypatch.setattr(PriceRounds, "seek", lambda _, choice: sought.append(choice))
    sharing = random_sharing(4, copies=3)
    solution = price_splitting.solve_shared(sharing, exact, SearchLimits(gap_tolerance=gap))
    assert (not sought) == is_close
    assert solution.gap <= 0.5


@pytest.mark.parametrize("by_ascent", [False, True], ids=["few tables", "many tables"])
@pytest.mark.parametrize("seed", seeds(8, 3))
def test_brief_answers_lie_between_their_bounds_and_the_start(
    monkeypatch: pytest.MonkeyPatch, seed: int, by_ascent: bool
) -> None:
    if by_ascent:
        monkeypatch.setattr(price_splitting, "_FEW_FOR_MANY", 0)
        monkeypatch.setattr(price_splitting, "_FEW_NODES", 0)
    sharing, limits = random_sharing(seed), SearchLimits(gap_tolerance=0.01, work=10_000_000)
    best, start = least_cost(sharing), (0,) * sharing.problem.num_nodes
    assert price_splitting.bound_alone(sharing, limits) <= best + 1e-9
    solution = price_splitting.solve_briefly(sharing, limits, start, TableStore())
    found = true_cost(sharing, solution.choice) if solution.choice else float("inf")
    assert best - 1e-9 <= found
    if by_ascent and true_cost(sharing, start) < float("inf"):
        assert solution.objective == pytest.approx(found)
        assert solution.bound <= best + 1e-9
        assert found <= true_cost(sharing, start)
