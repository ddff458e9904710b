"""What is claimed of plans within a budget, against every program that a plan can be."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from math import inf

import numpy as np
import pytest

from shardopt.solve.assignment.problem import Solution, evaluate
from shardopt.solve.assignment.sharing.held_copies import HeldCopy, with_held
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.assignment.sharing.shared_model import made_again
from shardopt.solve.sharding.budget import search
from shardopt.solve.sharding.budget.exceeding import excluding, ways_to_share
from shardopt.solve.sharding.budget.kept_copies import KeptCopy, held_copy
from shardopt.solve.sharding.budget.model import BudgetModel
from shardopt.solve.sharding.budget.rematerialization import find_candidates
from shardopt.solve.sharding.budget.search import Fit, fit
from shardopt.solve.sharding.budget.start import held_bytes
from shardopt.solve.sharding.intra_op.copies import find_copies
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from tests.unit.solve.sharding.budget.all_programs import (
    assignments,
    decode,
    later_reads,
    peak_bytes,
    programs,
    random_problem,
    recomputations,
)

# Of the way from the least peak to that of the fastest plan.
SHARES = (0.0, 0.2, 0.5, 0.8)
ROUNDING = 1e-9


class WholeModel:
    """The problem within a limit that counts everything it can: the copies of all operands, and all
    that are held between readers."""

    def __init__(self, problem: IntraOpProblem) -> None:
        self.base, ops = problem, problem.tables.graph.ops
        self.model = BudgetModel(problem, find_candidates(problem))
        self.operands = [
            (op, tensor)
            for op in problem.ops
            for tensor in dict.fromkeys(ops[op].operands)
            if tensor not in problem.cheap_to_clone
        ]
        self.kept = list(self._kept())
        self.held = [held_copy(self.model, each) for each in self.kept]
        self.problem = with_held(self.model.problem(1 << 40, self.operands), self.held)
        self.sharing = Sharing(self.problem, problem.sharing.groups)

    def _kept(self) -> Iterator[KeptCopy]:
        handed_on, ops = self.base.tables.graph.handed_on, self.base.tables.graph.ops
        for number, reads in enumerate(self.base.shared_reads):
            if len(set(reads.tensors)) == 1 and not any(
                result in handed_on for op in reads.ops for result in ops[op].results
            ):
                columns = (sharding for column in reads.columns for sharding in column.distinct)
                yield from (KeptCopy(number, sharding) for sharding in dict.fromkeys(columns))

    def assignment(self, choice: tuple[int, ...], plan: IntraOpPlan) -> tuple[int, ...]:
        """What the problem has for a program of an assignment of the plain nodes."""
        recomputed = {remat.tensor for remat in plan.rematerialized}
        row = list(choice)
        for item, kept in zip(self.model.choices, self.model.kept(choice), strict=True):
            row.append(kept + (item.candidate.tensor in recomputed))
        row += self.model.copied(choice, self.operands)
        for each, copy in zip(self.kept, self.held, strict=True):
            row += self._stretches(each, copy, choice, plan)
        return tuple(row)

    def _stretches(
        self, kept: KeptCopy, held: HeldCopy, choice: tuple[int, ...], plan: IntraOpPlan
    ) -> Iterator[int]:
        """1 where a copy of the program is there, and not because it is read."""
        reads, ops = self.base.shared_reads[kept.group], plan.graph.ops
        there = [
            copy
            for copy in find_copies(plan, enumerate(self.base.order))
            if (copy.tensor, copy.sharding) == (reads.tensors[0], kept.sharding)
            and ops[copy.op].scope == ops[reads.ops[0]].scope
        ]
        readers = [time for r, time in enumerate(held.times) if held.is_read(choice, r)]
        for lo, hi in held.stretches:
            spans = any(copy.start <= lo and hi <= copy.stop for copy in there)
            yield int(spans and lo not in readers)

    def seconds(self, row: tuple[int, ...]) -> float:
        assert evaluate(self.problem.without_memory(), row).objective < inf
        again = sum(
            float(copy.way(reader)[copy.classes(row, reader)])
            for copy, readers in made_again(self.held, row)
            for reader in readers
        )
        return self.sharing.seconds(row) + again


def random_choice(problem: IntraOpProblem, rng: random.Random) -> tuple[int, ...]:
    """One that is not forbidden; empty where the nodes that were decided first leave none."""
    costs, edges = problem.problem.costs, problem.problem.edges
    choice = [-1] * len(costs)
    for node in rng.sample(range(len(costs)), len(costs)):
        cost = costs[node]
        for edge in edges:
            if edge.u == node and choice[edge.v] >= 0:
                cost = cost + edge.cost[:, choice[edge.v]]
            elif edge.v == node and choice[edge.u] >= 0:
                cost = cost + edge.cost[choice[edge.u]]
        possible = np.flatnonzero(np.isfinite(cost)).tolist()
        if not possible:
            return ()
        choice[node] = rng.choice(possible)
    return tuple(choice)


@pytest.mark.parametrize("seed", range(30))
def test_every_program_is_an_assignment_that_costs_and_holds_no_more(seed: int) -> None:
    """So that no bound of the problem is above a plan, whatever copies the search has it count."""
    rng = random.Random(seed)
    problem = random_problem(seed, 3 + seed % 5)
    whole = WholeModel(problem)
    for _ in range(15):
        if not (choice := random_choice(problem, rng)):
            continue
        plain = decode(problem, choice)
        remats = rng.choice(list(recomputations(problem, plain)))
        fresh = tuple(read for read in later_reads(problem, plain) if rng.random() < 0.4)
        plan = decode(problem, choice, remats, fresh)
        row = whole.assignment(choice, plan)
        assert whole.seconds(row) <= problem.plan_seconds(plan) * (1 + ROUNDING)
        assert (held_bytes(whole.problem, row) <= plan.live_bytes).all()


@pytest.mark.parametrize("seed", range(20))
def test_an_assignment_is_excluded_only_where_each_of_its_programs_exceeds_the_limit(
    seed: int,
) -> None:
    rng, most = random.Random(seed), 1 << 40
    problem = random_problem(seed, 4 + seed % 4)
    whole = WholeModel(problem)
    for _ in range(6):
        if not (choice := random_choice(problem, rng)):
            continue
        every = dict[tuple[int, ...], list[IntraOpPlan]]()
        for plan in programs(problem, choice, most):
            row = whole.assignment(choice, plan)[: len(choice) + len(whole.model.choices)]
            every.setdefault(row, []).append(plan)
        for row, plans in every.items():
            solution = Solution(row, 0.0, 0.0, 0.0, "feasible")
            for limit in (most, min(peak_bytes(problem, plan) for plan in plans)):
                fitting = (plan for plan in plans if peak_bytes(problem, plan) <= limit)
                found = ways_to_share(whole.model, solution, limit)
                if found is not None:
                    assert Counter(map(problem.plan_seconds, fitting)) == Counter(
                        map(problem.plan_seconds, found)
                    )


def alike(whole: WholeModel, row: tuple[int, ...], rng: random.Random) -> Iterator[tuple[int, ...]]:
    """Assignments that are excluded with one, those that are forbidden aside."""
    excluded = excluding(whole.model, row, alike=True)
    problem = whole.model.problem(1 << 40, ()).without_memory()
    for _ in range(10):
        other = tuple(int(rng.choice(strategies)) for _, strategies in excluded)
        if other != row and evaluate(problem, other).objective < inf:
            yield other


def test_programs_of_assignments_that_are_excluded_together_differ_by_the_same_seconds() -> None:
    """So that those of one which fit stand for those of all."""
    pairs = 0
    for seed in range(40):
        rng, most = random.Random(seed), 1 << 40
        problem = random_problem(seed, 4 + seed % 4)
        whole = WholeModel(problem)
        for _ in range(3):
            if not (choice := random_choice(problem, rng)):
                continue
            row = choice + tuple(whole.model.kept(choice))
            for other in alike(whole, row, rng):
                ways, others = (
                    ways_to_share(whole.model, Solution(each, 0.0, 0.0, 0.0, "feasible"), most)
                    for each in (row, other)
                )
                if ways is None or others is None:
                    continue
                pairs += len(ways) > 1
                assert [plan.peak_bytes for plan in ways] == [plan.peak_bytes for plan in others]
                more = [
                    problem.plan_seconds(b) - problem.plan_seconds(a)
                    for a, b in zip(ways, others, strict=True)
                ]
                assert more == pytest.approx([more[0]] * len(more), abs=1e-12)
    assert pairs


def found_within(problem: IntraOpProblem) -> dict[int, Fit]:
    """The plans within budgets that exclude the fastest one."""
    relaxed = problem.solve()
    free = fit(problem, None, relaxed=relaxed).plan
    least = fit(problem, 1, relaxed=relaxed).least
    assert free is not None and least is not None
    room = free.peak_bytes - least.peak_bytes
    limits = {least.bound_bytes - 1, least.peak_bytes - 1}
    limits |= {least.peak_bytes + int(share * room) for share in SHARES} if room > 0 else set()
    return {limit: fit(problem, limit, relaxed=relaxed) for limit in sorted(limits)}


def hold_against_all(problem: IntraOpProblem) -> int:
    """Each plan is what it says, and no program is better than what is claimed; how many budgets."""
    claims = dict[int, float]()
    for limit, found in found_within(problem).items():
        if found.plan is None:  # the bound is infinite where that is proven
            claims[limit] = found.solution.bound
            continue
        claims[limit], plan = found.solution.bound, found.plan
        again = decode(problem, found.solution.choice, plan.rematerialized, tuple(plan.fresh))
        assert peak_bytes(problem, again) <= limit
        assert problem.plan_seconds(again) == pytest.approx(found.solution.objective)
    for choice in assignments(problem):
        seconds = problem.seconds(choice)
        open_limits = [limit for limit, bound in claims.items() if seconds < bound * (1 - ROUNDING)]
        if not open_limits:
            continue
        for plan in programs(problem, choice, max(open_limits)):
            seconds = problem.plan_seconds(plan)
            better = [limit for limit in open_limits if seconds < claims[limit] * (1 - ROUNDING)]
            if better and plan.peak_bytes <= max(better):
                assert peak_bytes(problem, plan) > max(better)
    return len(claims)


@pytest.mark.parametrize("seed", range(6))
def test_no_program_is_better_than_what_is_claimed(seed: int) -> None:
    assert hold_against_all(random_problem(seed, 3 + seed % 2))


@pytest.mark.parametrize("seed", range(3))
def test_bounds_of_problems_that_are_not_small_hold_as_well(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "is_small", lambda sharing, within_memory: False)
    assert hold_against_all(random_problem(100 + seed, 3 + seed % 2))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_no_program_of_many_problems_is_better_than_what_is_claimed(seed: int) -> None:
    assert hold_against_all(random_problem(seed, 3 + seed % 5))
