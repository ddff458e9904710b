"""Shared edges: what they cost, and the least of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Edge, Problem, Solution, Usage, evaluate
from shardopt.solve.assignment.search.sharding_ilp import solve
from shardopt.solve.assignment.sharing.arcs import Arcs, SharedEdges
from shardopt.solve.assignment.sharing.held_copies import HeldCopy, Recomputed, with_held
from shardopt.solve.assignment.sharing.price_rounds import PriceRounds, Solve
from shardopt.solve.assignment.sharing.price_splitting import solve_shared
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.assignment.sharing.shared_model import solve_exactly
from tests.draws import draws, seeds


def exact(problem: Problem, start: object, limits: SearchLimits) -> Solution:
    return solve(problem, SearchLimits(gap_tolerance=limits.gap_tolerance))


def random_sharing(seed: int, *, copies: int = 1) -> Sharing:
    """Two values with two or three readers each, which are joined by edges of their own; some ways
    are missing. `copies` of it, each of which ends where the next begins."""
    rng = np.random.default_rng(seed)
    strategies, readers = 3, int(rng.integers(2, 4))
    ways = [_arcs(rng, strategies, readers) for _ in range(2)]
    one = 2 + 2 * readers
    node_costs = [rng.integers(0, 5, strategies).astype(float) for _ in range(one)]
    links = [
        (u, v, rng.integers(0, 4, (strategies, strategies)).astype(float))
        for u, v in zip(range(2, one), rng.permutation(np.arange(2, one)).tolist(), strict=True)
    ]
    edges: list[Edge] = []
    groups = []
    for copy in range(copies):
        base = copy * one
        edges += [Edge(base + u, base + v, table) for u, v, table in links]
        if copy:
            edges.append(Edge(base - 1, base, links[0][2]))
        for value, arcs in enumerate(ways):
            nodes = tuple(range(base + 2 + value * readers, base + 2 + (value + 1) * readers))
            places = tuple(range(len(edges), len(edges) + readers))
            tables = arcs.tables(arcs.usable.astype(float))
            edges += [Edge(base + value, v, t) for v, t in zip(nodes, tables, strict=True)]
            groups.append(SharedEdges(arcs, (base + value,) * readers, nodes, places))
    return Sharing(Problem(tuple(node_costs * copies), tuple(edges)), tuple(groups))


def _arcs(rng: np.random.Generator, strategies: int, readers: int) -> Arcs:
    """From each form two first steps, and two second ones behind each."""
    seconds = rng.integers(1, 12, 6 * strategies).astype(float)
    none = len(seconds)
    ways = [
        [(none, none)]
        + [(6 * s + a, none) for a in range(2)]
        + [(6 * s + a, 6 * s + 2 + 2 * a + b) for a in range(2) for b in range(2)]
        for s in range(strategies)
    ]
    paths, missing = [], []
    for _ in range(readers):
        picks = rng.integers(0, 7, (strategies, strategies))
        paths.append(np.array([[ways[s][pick] for pick in row] for s, row in enumerate(picks)]))
        absent = rng.random((strategies, strategies)) < 0.1
        paths[-1][absent] = none
        missing.append(absent)
    each = np.arange(strategies)
    return Arcs(seconds, tuple(paths), tuple(missing), (each,) * readers, (each,) * readers)


def true_cost(sharing: Sharing, choice: tuple[int, ...]) -> float:
    """From the definition: every arc that is used, once."""
    inside = {edge for group in sharing.groups for edge in group.edges}
    private = tuple(e for n, e in enumerate(sharing.problem.edges) if n not in inside)
    total = evaluate(Problem(sharing.problem.costs, private), choice).objective
    for group in sharing.groups:
        arcs, used = group.arcs, set()
        for r, (source, reader) in enumerate(zip(group.sources, group.readers, strict=True)):
            at = arcs.rows[r][choice[source]], arcs.columns[r][choice[reader]]
            if arcs.missing[r][at]:
                return float("inf")
            used |= set(arcs.paths[r][at].tolist())
        total += sum(arcs.seconds[arc] for arc in used if arc < len(arcs.seconds))
    return total


@settings(deadline=None, max_examples=draws(40))
@given(st.integers(0, 10**6))
def test_shares_never_charge_more_than_the_truth_and_fair_ones_charge_it(seed: int) -> None:
    sharing, rng = random_sharing(seed), np.random.default_rng(seed)
    choices = rng.integers(0, 3, (6, sharing.problem.num_nodes))
    fair = sharing.priced(sharing.fair_shares(sharing.used(choices[0])))
    for choice in map(tuple, choices.tolist()):
        truth = true_cost(sharing, choice)
        paid_by_all = evaluate(sharing.problem, choice).objective
        assert paid_by_all - sharing.saved(sharing.used(choice)) == pytest.approx(truth)
        assert evaluate(fair, choice).objective <= truth + 1e-9
    first = tuple(choices[0].tolist())
    assert evaluate(fair, first).objective == pytest.approx(true_cost(sharing, first))


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_the_least_true_cost_is_that_of_brute_force(seed: int) -> None:
    sharing = random_sharing(seed)
    solution = solve_shared(sharing, exact, SearchLimits())
    best = min(
        true_cost(sharing, choice) for choice in product(range(3), repeat=sharing.problem.num_nodes)
    )
    if not solution.choice:
        assert best == float("inf")
        return
    assert true_cost(sharing, solution.choice) == pytest.approx(solution.objective)
    assert solution.bound <= best + 1e-9
    assert best <= solution.objective + 1e-9
    assert solution.status != "optimal" or solution.objective == pytest.approx(best)


def test_prices_at_which_a_search_came_within_its_gap_are_not_searched_again() -> None:
    sharing, searched = random_sharing(0), list[Problem]()

    def search(problem: Problem, start: object, limits: SearchLimits) -> Solution:
        searched.append(problem)
        return exact(problem, start, limits)

    rounds = PriceRounds(sharing, search, SearchLimits(gap_tolerance=0.01), 0.0, 1.0)
    start = exact(sharing.problem, None, SearchLimits()).choice
    rounds.offer_choice(start)
    rounds.seek(start)
    once = len(searched)
    rounds.seek(start)
    rounds.seek(rounds.choice)
    assert len(searched) == once > 0


def test_what_is_close_to_the_bound_is_improved_as_it_is() -> None:
    sharing, ways = random_sharing(0), list[str]()

    def way(name: str) -> Solve:
        def search(problem: Problem, start: object, limits: SearchLimits) -> Solution:
            ways.append(name)
            return exact(problem, start, limits)

        return search

    best = solve_shared(sharing, exact, SearchLimits())
    limits = SearchLimits(gap_tolerance=0.01)
    rounds = PriceRounds(sharing, way("far"), limits, 0.0, 1.0, from_near=way("near"))
    rounds.solved(sharing.problem, best.choice)
    rounds.bound = 0.995 * best.objective
    rounds.solved(sharing.problem, best.choice)
    rounds.solved(sharing.problem, None)
    rounds.bound = 0.98 * best.objective
    rounds.solved(sharing.problem, best.choice)
    assert ways == ["far", "near", "far", "far"]


def test_every_random_problem_is_proven() -> None:
    solutions = [solve_shared(random_sharing(seed), exact, SearchLimits()) for seed in range(40)]
    allowed = [solution for solution in solutions if solution.choice]
    assert {solution.status for solution in allowed} == {"optimal"}
    assert any(s.objective < float(s.statistics["pair_objective"]) - 1e-9 for s in allowed)
    # Some by prices alone, others by an integer program.
    assert {s.statistics["shared_integer_programs"] for s in allowed} == {0, 1}


@pytest.mark.parametrize("seed", range(6))
def test_an_integer_program_finds_the_least_true_cost_within_memory(seed: int) -> None:
    sharing, rng = random_sharing(seed), np.random.default_rng(seed)
    problem = sharing.problem
    starts = np.arange(problem.num_nodes) % 2
    usages = tuple((Usage(at, at + 2, rng.integers(0, 9, 3)),) for at in starts.tolist())
    limited = Problem(problem.costs, problem.edges, usages, 3 * problem.num_nodes, 3)
    free = solve_exactly(sharing, SearchLimits(), None)
    within = [
        choice
        for choice in product(range(3), repeat=problem.num_nodes)
        if evaluate(limited, choice).feasible
    ]
    best = min(true_cost(sharing, choice) for choice in within)
    assert free.objective <= best + 1e-9
    # What costs more than a start need not be looked at: from a bad, an ordinary and the best one.
    ordered = sorted(within, key=lambda choice: true_cost(sharing, choice))
    for start in (None, ordered[-1], ordered[len(ordered) // 2], ordered[0]):
        solution = solve_exactly(replace(sharing, problem=limited), SearchLimits(), start)
        assert solution.status == "optimal" and solution.objective == pytest.approx(best)
        assert evaluate(limited, solution.choice).feasible


@pytest.mark.parametrize("seed", range(6))
def test_what_is_excluded_is_no_answer(seed: int) -> None:
    sharing = random_sharing(seed)
    nodes = sharing.problem.num_nodes
    usages = tuple((Usage(0, 1, np.array([3, 1, 2])),) for _ in range(nodes))
    problem = replace(sharing.problem, usages=usages, memory_limit=2 * nodes, num_times=1)
    limited = replace(sharing, problem=problem)
    best = solve_exactly(limited, SearchLimits(), None).choice
    # The best itself, and all that have one of its strategies or the next for two nodes.
    excluded = (
        tuple((node, np.array([best[node]])) for node in range(nodes)),
        tuple((node, np.array([best[node], (best[node] + 1) % 3])) for node in range(2)),
    )
    allowed = [
        choice
        for choice in product(range(3), repeat=nodes)
        if evaluate(problem, choice).feasible
        and not any(all(choice[node] in each for node, each in those) for those in excluded)
    ]
    solution = solve_exactly(limited, SearchLimits(), best, excluded=excluded)
    assert solution.choice in allowed and solution.status == "optimal"
    assert solution.objective == pytest.approx(min(true_cost(sharing, each) for each in allowed))


@pytest.mark.parametrize("seed", seeds(12, 4))
@pytest.mark.parametrize("recomputes", [False, True])
def test_held_copies_take_memory_or_are_made_again(seed: int, recomputes: bool) -> None:
    """Readers run one after the other, each other one reads the copy; perhaps the value can be
    recomputed for the last one, by a node of its own that is kept or not."""
    sharing, rng = random_sharing(seed), np.random.default_rng(seed)
    problem, group = sharing.problem, sharing.groups[0]
    reads = tuple(~missing & (rng.random((3, 3)) < 0.7) for missing in group.arcs.missing)
    costs = (*problem.costs, np.array([0.0, 1.0])) if recomputes else problem.costs
    segments = tuple((Usage(0, 8, rng.integers(0, 4, 3)),) for _ in problem.costs)
    segments += ((Usage(2, 3, np.array([6, 0])),),) if recomputes else ()
    late = frozenset({len(reads) - 1})
    recomputed = Recomputed(len(costs) - 1, np.array([False, True]), late) if recomputes else None
    copy = HeldCopy(group, reads, tuple(range(1, 2 * len(reads), 2)), 5, recomputed)
    limited = Problem(costs, problem.edges, segments, int(1.2 * problem.num_nodes) + 3, 8)
    held = with_held(limited, [copy])
    solution = solve_exactly(replace(sharing, problem=held), SearchLimits(), None, [copy])
    best = float("inf")
    for choice in product(*(range(len(cost)) for cost in costs)):
        seconds = true_cost(sharing, choice[: problem.num_nodes]) + sum(choice[problem.num_nodes :])
        if seconds >= best:
            continue
        for kept in product(range(2), repeat=len(copy.stretches)):
            if evaluate(held, choice + kept).feasible:
                best = min(best, seconds + again(copy, choice, kept))
    assert (solution.objective if solution.choice else float("inf")) == pytest.approx(best)


def again(copy: HeldCopy, choice: tuple[int, ...], kept: tuple[int, ...]) -> float:
    """From the definition: whoever reads the copy and finds it dropped since it was last read, or
    the value recomputed, pays for all of its way."""
    group, last, seconds = copy.group, None, 0.0
    for reader, time in enumerate(copy.times):
        pair = copy.classes(choice, reader)
        if not copy.reads[reader][pair]:
            continue
        if last is not None:
            between = [
                k for k, (lo, _) in zip(kept, copy.stretches, strict=True) if last < lo < time
            ]
            other = copy.recomputed is not None and choice[copy.recomputed.node] == 1
            if not all(between) or (other and reader == len(copy.times) - 1):
                way = group.arcs.paths[reader][pair].tolist()
                seconds += sum(group.arcs.seconds[a] for a in way if a < len(group.arcs.seconds))
        last = time
    return seconds


def test_what_costs_more_than_a_cutoff_is_not_sought() -> None:
    sharing = random_sharing(1)
    problem = sharing.problem
    usages = tuple((Usage(0, 1, np.array([0, 1, 2])),) for _ in problem.costs)
    limited = replace(problem, usages=usages, memory_limit=problem.num_nodes // 2, num_times=1)
    within = replace(sharing, problem=limited)
    best = solve_exactly(within, SearchLimits(), None).objective
    for cutoff in (0.9 * best, 1.1 * best):
        solution = solve_exactly(within, SearchLimits(), None, (), cutoff)
        assert min(best, cutoff) - 1e-6 <= solution.bound <= best + 1e-6
        assert solution.status != "infeasible"
        assert cutoff < best or solution.objective == pytest.approx(best)


def test_a_tied_assignment_costs_as_much_as_what_it_stands_for() -> None:
    sharing, rng = random_sharing(3, copies=4), np.random.default_rng(0)
    one = sharing.problem.num_nodes // 4
    colours = np.tile(np.arange(one), 4)
    tied = sharing.tied(colours)
    assert len(tied.sharing.groups) == len(sharing.groups) // 4
    for _ in range(10):
        choice = tuple(rng.integers(0, 3, one).tolist())
        assert true_cost(tied.sharing, choice) == pytest.approx(
            true_cost(sharing, tied.spread(choice))
        )
    shares = tied.sharing.fair_shares(tied.sharing.used((0,) * one))
    whole = sharing.priced(tied.spread_shares(shares))
    priced = tied.sharing.priced(shares)
    choice = tuple(rng.integers(0, 3, one).tolist())
    assert evaluate(whole, tied.spread(choice)).objective == pytest.approx(
        evaluate(priced, choice).objective
    )
