"""Memory of a part of a graph against brute force, plans within a budget against exhaustive
search."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.graph.residency import MicrobatchLoop, Residency
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Solution, evaluate
from shardopt.solve.assignment.sharing.shared_model import solve_exactly
from shardopt.solve.sharding.budget import fewer_bytes, operand_copies, search
from shardopt.solve.sharding.budget.least_peak import find_least_peak
from shardopt.solve.sharding.budget.model import BudgetModel
from shardopt.solve.sharding.budget.priced_memory import PricedSearch
from shardopt.solve.sharding.budget.rematerialization import find_candidates
from shardopt.solve.sharding.budget.search import fit
from shardopt.solve.sharding.intra_op.copies import find_copies
from shardopt.solve.sharding.intra_op.finished import finished
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables, build_problem
from shardopt.solve.sharding.intra_op.sharded_ops import local_bytes
from shardopt.support.sizes import format_bytes, parse_bytes
from tests.draws import draws, seeds
from tests.unit.solve.sharding.op_graphs import CLUSTER, LINE, elementwise, f32, matmul, mlp

ONE = Mesh("m", (("x", 1),), (0,))
PAIR = Mesh("m", (("x", 2),), (0, 1))
SQUARE = (8, 8)
BYTES = f32(*SQUARE).size_bytes


def random_graph(seed: int, ops: int) -> OpGraph:
    """Matrix products and elementwise operations over 8 x 8 tensors; inputs are tensors 0 and 1."""
    rng = random.Random(seed)
    made: list[Op] = []
    for index in range(ops):
        result = index + 2
        operands = tuple(rng.randrange(result) for _ in range(2))
        if rng.random() < 0.5:
            made.append(matmul(8, 8, 8, operands, result))
        else:
            made.append(elementwise(rng.choice(["add", "power"]), SQUARE, operands, result))
    outputs = tuple({ops + 1, rng.randrange(2, ops + 2)})
    return OpGraph((f32(*SQUARE),) * (ops + 2), tuple(made), (0, 1), outputs)


def held_by_definition(problem: IntraOpProblem, plan: IntraOpPlan) -> list[int]:
    """Bytes while each operation runs, by walking the order and asking of every tensor whether it
    is needed again."""
    graph, order = plan.graph, problem.order
    fused = problem.tables.execution.fused
    position = {op: at for at, op in enumerate(order)}

    def touches(tensor: int) -> list[int]:
        """Positions at which memory of the tensor is read: a fused reader reads where its own
        result is."""
        positions = []
        for index, op in enumerate(graph.ops):
            if tensor in op.operands:
                positions += touches(op.results[0]) if op.results[0] in fused else [position[index]]
        return positions

    held = [sum(local_bytes(graph, plan.mesh, t, plan.shardings[t]) for t in graph.inputs)] * len(
        order
    )
    for made_at, index in enumerate(order):
        [tensor] = graph.ops[index].results
        if tensor in fused:
            continue
        last = len(order) - 1 if tensor in graph.outputs else max(touches(tensor), default=made_at)
        dying = [
            t
            for t in graph.ops[index].operands
            if t not in graph.inputs
            and t not in graph.outputs
            and t not in fused
            and max(touches(t)) == made_at
        ]
        first = made_at + 1 if dying and graph.ops[index].name != "dot_general" else made_at
        for at in range(first, last + 1):
            held[at] += local_bytes(graph, plan.mesh, tensor, plan.shardings[tensor])
    for copy in find_copies(replace(plan, cheap_to_clone=frozenset()), enumerate(order)):
        for at in range(copy.start, copy.stop):
            held[at] += copy.bytes
    return held


@pytest.mark.parametrize("seed", range(60))
def test_bytes_over_time_are_those_of_the_definition(seed: int) -> None:
    graph = random_graph(seed, 2 + seed % 7)
    problem = build_problem(graph, PAIR, CLUSTER)
    plan = problem.decode(problem.solve())
    assert plan.live_bytes.tolist() == held_by_definition(problem, plan)


def test_a_loop_keeps_what_it_reads_and_what_is_in_flight() -> None:
    """0 -> a -> (loop: forward b, c of a; backward d of b) -> e; the residual b is held for three
    microbatches."""
    ops = (
        matmul(8, 8, 8, (0, 1), 2),
        Op(**{**vars(matmul(8, 8, 8, (2, 1), 3)), "group": 1, "repeat": 4}),
        Op(**{**vars(matmul(8, 8, 8, (3, 3), 4)), "group": 1, "repeat": 4}),
        Op(**{**vars(matmul(8, 8, 8, (3, 3), 5)), "group": 2, "repeat": 4}),
        Op(**{**vars(matmul(8, 8, 8, (5, 1), 6)), "group": 3}),
    )
    graph = OpGraph((f32(*SQUARE),) * 7, ops, (0, 1), (6,))
    tables = IntraOpTables(graph, ONE, CLUSTER)

    def held(in_flight: int) -> list[int]:
        problem = tables.problem(residency=Residency(MicrobatchLoop(1, 4, in_flight)))
        return (problem.decode(problem.solve()).live_bytes // BYTES).tolist()

    # Inputs; the value from before the loop until the loop ends; b from forward to backward.
    assert held(1) == [3, 4, 5, 5, 4]
    assert held(3) == [3, 6, 7, 7, 4]


def test_stages_of_a_mesh_hold_what_is_in_flight_while_others_run() -> None:
    """Forward and backward of stage 0 (b, then c of b) and of stage 1 (d, then e of d), one behind
    the other in the order of operations. While stage 1 runs, all microbatches of stage 0 that are
    in flight wait, whatever the order says of one of them, and the other way round."""
    fragments = (
        matmul(8, 8, 8, (0, 1), 2),
        matmul(8, 8, 8, (2, 1), 3),
        matmul(8, 8, 8, (0, 1), 4),
        matmul(8, 8, 8, (4, 1), 5),
    )
    ops = (
        *(
            Op(**{**vars(op), "group": group, "repeat": 8})
            for group, op in enumerate(fragments, start=1)
        ),
        Op(**{**vars(matmul(8, 8, 8, (3, 5), 6)), "group": 5}),
    )
    graph = OpGraph((f32(*SQUARE),) * 7, ops, (0, 1), (6,))
    tables = IntraOpTables(graph, ONE, CLUSTER)
    stages, counts = {1: 0, 2: 0, 3: 1, 4: 1}, {1: 3, 2: 3, 3: 2, 4: 2}

    def held(beside: dict[tuple[int, int], int]) -> list[int]:
        loop = MicrobatchLoop(0, 4, 3, counts, stages, beside)
        problem = tables.problem(residency=Residency(loop))
        return (problem.decode(problem.solve()).live_bytes // BYTES).tolist()

    # Two inputs. In the fragments of stage 0: three of b, two of d, and c; in those of stage 1
    # three of b, two of d, and what leaves the loop.
    assert held({}) == [7, 8, 8, 9, 5]
    # A schedule tells that stage 1 has one in flight while stage 0 runs, and stage 0 two.
    assert held({(1, 1): 1, (2, 1): 1, (3, 0): 2, (4, 0): 2}) == [6, 7, 7, 8, 5]


def test_an_accumulator_is_one_buffer_from_before_the_loop_to_its_last_reader() -> None:
    ops = (
        elementwise("power", SQUARE, (0,), 1),
        Op(**{**vars(elementwise("power", SQUARE, (1, 0), 2)), "group": 1, "repeat": 4}),
        Op(**{**vars(matmul(8, 8, 8, (0, 0), 3)), "group": 1, "repeat": 4}),
        Op(**{**vars(matmul(8, 8, 8, (2, 0), 4)), "group": 2}),
    )
    graph = OpGraph((f32(*SQUARE),) * 5, ops, (0,), (4,))
    problem = IntraOpTables(graph, ONE, CLUSTER).problem(
        tied=((1, 2),), residency=Residency(MicrobatchLoop(1, 3))
    )
    assert (problem.decode(problem.solve()).live_bytes // BYTES).tolist() == [2, 2, 3, 3]


def test_an_accumulator_that_begins_with_a_constant_is_held_like_any_other() -> None:
    """The constant alone would be made by its reader; here the sum takes its place in every
    microbatch."""
    ops = (
        elementwise("constant", SQUARE, (), 1),
        Op(**{**vars(elementwise("power", SQUARE, (1, 0), 2)), "group": 1, "repeat": 4}),
        Op(**{**vars(matmul(8, 8, 8, (0, 0), 3)), "group": 1, "repeat": 4}),
        Op(**{**vars(matmul(8, 8, 8, (2, 0), 4)), "group": 2}),
    )
    graph = OpGraph((f32(*SQUARE),) * 5, ops, (0,), (4,))
    problem = IntraOpTables(graph, ONE, CLUSTER).problem(
        tied=((1, 2),), residency=Residency(MicrobatchLoop(1, 3))
    )
    held = (problem.decode(problem.solve()).live_bytes // BYTES).tolist()
    assert held[-3:] == [2, 3, 3]


def with_residuals() -> OpGraph:
    """z = x w, y = z ^ z, then h = y w, g = h h, and late a = g y and b = a z: y can be made again
    from z."""
    ops = (
        matmul(8, 8, 8, (0, 1), 2),
        elementwise("power", SQUARE, (2, 2), 3),
        matmul(8, 8, 8, (3, 1), 4),
        matmul(8, 8, 8, (4, 4), 5),
        matmul(8, 8, 8, (5, 4), 6),
        matmul(8, 8, 8, (6, 3), 7),
        matmul(8, 8, 8, (7, 2), 8),
    )
    return OpGraph((f32(*SQUARE),) * 9, ops, (0, 1), (8,))


def exhaustive(problem: IntraOpProblem) -> Callable[[int], float]:
    """limit -> the least objective over all assignments and sets of recomputed values that hold at
    most so much."""
    model = BudgetModel(problem, find_candidates(problem))
    full = model.problem(1 << 40, ())
    plans = []
    for choice in product(*(range(len(cost)) for cost in full.costs)):
        objective = evaluate(full, choice).objective
        if objective < inf:
            plan = model.decode(Solution(choice, objective, objective, 0.0, "optimal"))
            plans.append((problem.plan_seconds(plan), plan.peak_bytes))
    return lambda limit: min((objective for objective, peak in plans if peak <= limit), default=inf)


def test_plans_within_a_budget_are_those_of_exhaustive_search() -> None:
    problem = build_problem(with_residuals(), ONE, CLUSTER)
    free = problem.decode(problem.solve()).peak_bytes
    assert len(find_candidates(problem)) == 1
    least, counts = exhaustive(problem), []
    for limit in range(free, free - 3 * BYTES, -BYTES):
        result, expected = fit(problem, limit), least(limit)
        assert (result.plan is None) == (expected == inf)
        if result.plan is not None:
            assert result.solution.objective == pytest.approx(expected)
            assert result.plan.peak_bytes <= limit
            counts.append(len(result.plan.rematerialized))
    assert counts == [0, 1]


@pytest.mark.parametrize("seed", seeds(16, 4))
def test_two_devices_and_random_graphs_agree_with_exhaustive_search(seed: int) -> None:
    problem = build_problem(random_graph(seed, 3), PAIR, CLUSTER)
    free = problem.decode(problem.solve()).peak_bytes
    least = exhaustive(problem)
    for limit in (free, free - 1, free * 3 // 4, free // 2):
        result, expected = fit(problem, limit), least(limit)
        if result.plan is not None:
            assert result.plan.peak_bytes <= limit
            assert result.solution.bound <= expected * (1 + 1e-9) or expected == inf
            assert result.solution.status != "optimal" or result.solution.objective <= expected * (
                1 + 1e-9
            )
        elif expected == inf:
            assert result.least is not None and result.least.bound_bytes <= result.least.peak_bytes
        else:
            pytest.fail(f"missed a plan of {expected} seconds within {limit} bytes")


def test_the_objective_rises_as_the_budget_falls() -> None:
    problem = build_problem(mlp(512, 16, 2), LINE, CLUSTER)
    peak = fit(problem, None).plan.peak_bytes  # type: ignore[union-attr]
    problem = build_problem(mlp(512, 16, 2), LINE, CLUSTER, fixed={0: Sharding.replicated(2)})
    free = fit(problem, None).plan
    assert free is not None and free.peak_bytes > peak
    objectives = []
    for limit in range(free.peak_bytes, peak, -512):
        result = fit(problem, limit)
        if result.plan is None:
            break
        assert result.plan.peak_bytes <= limit
        objectives.append(result.solution.objective)
    assert objectives == sorted(objectives) and len(set(objectives)) > 1


@pytest.mark.parametrize("mesh", [PAIR, LINE])
def test_a_larger_budget_is_no_slower_and_small_problems_are_proven(mesh: Mesh) -> None:
    """Copies that are made twice, because they are held for long or their value is recomputed, are
    paid for in the search."""
    problem = build_problem(with_residuals(), mesh, CLUSTER)
    least, before = problem.decode(problem.solve()).peak_bytes, 0.0
    for limit in range(least, 0, -BYTES // 4):
        result = fit(problem, limit)
        if result.plan is None:
            break
        assert result.solution.status == "optimal" and result.solution.objective >= before
        before = result.solution.objective
    assert before > problem.solve().objective


@pytest.mark.parametrize("proves", [True, False])
def test_a_plan_whose_program_alone_exceeds_the_budget_leaves_no_gap(
    monkeypatch: pytest.MonkeyPatch, proves: bool
) -> None:
    """Programs that recompute hold more than their problem counts here, so that the best plan is
    one without. It is found even where integer programs are too hard to be proven."""

    def more(problem: IntraOpProblem, plan: IntraOpPlan) -> IntraOpPlan:
        held = finished(problem, plan)
        return replace(held, live_bytes=held.live_bytes + 9 * BYTES * bool(held.rematerialized))

    def unproven(*args: Any) -> Solution:
        solution = solve_exactly(*args)
        return replace(solution, bound=0.0, gap=1.0) if solution.choice else solution

    for module in (operand_copies, fewer_bytes):
        monkeypatch.setattr(module, "finished", more)
    problem = build_problem(with_residuals(), PAIR, CLUSTER)
    least = problem.decode(problem.solve()).peak_bytes
    limits = range(least - BYTES // 4, least - BYTES, -BYTES // 4)
    for limit in limits[: draws(len(limits))]:
        with monkeypatch.context() as context:
            if not proves:  # nor do prices find a plan
                context.setattr(search, "solve_exactly", unproven)
                context.setattr(PricedSearch, "run", lambda self, known: 0.0)
            found = fit(problem, limit).solution
        with monkeypatch.context() as context:
            context.setattr(search, "find_candidates", lambda problem: ())
            without = fit(problem, limit).solution
        assert found.objective == pytest.approx(without.objective)
        assert without.status == "optimal" and (found.status == "optimal" or not proves)


def test_the_least_peak_is_bracketed_and_its_plan_holds_it() -> None:
    problem = build_problem(with_residuals(), PAIR, CLUSTER)
    least = find_least_peak(BudgetModel(problem, find_candidates(problem)), problem.solve().choice)
    assert least.plan is not None and least.plan.peak_bytes == least.peak_bytes
    assert least.bound_bytes <= least.peak_bytes <= problem.decode(problem.solve()).peak_bytes
    assert fit(problem, least.bound_bytes - 1).plan is None
    within = fit(problem, least.peak_bytes)
    assert within.plan is not None and within.plan.peak_bytes <= least.peak_bytes


def test_rematerialized_values_take_no_memory_in_their_gap() -> None:
    problem = build_problem(with_residuals(), ONE, CLUSTER)
    free = problem.decode(problem.solve())
    result = fit(problem, free.peak_bytes - 1)
    assert result.plan is not None
    [again] = result.plan.rematerialized
    saved = free.live_bytes - result.plan.live_bytes
    inside = np.arange(len(saved))
    assert (saved[(inside >= again.gap[0]) & (inside < again.gap[1])] == BYTES).all()
    assert result.plan.summary().compute_seconds > free.summary().compute_seconds


@pytest.mark.parametrize("is_small", [True, False])
def test_a_search_without_work_still_keeps_the_limit(
    monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    monkeypatch.setattr(search, "is_small", lambda sharing, within_memory: is_small)
    problem = build_problem(with_residuals(), ONE, CLUSTER)
    free = problem.solve()
    limit = problem.decode(free).peak_bytes - 1
    result = fit(problem, limit, limits=SearchLimits(work=0), relaxed=free)
    assert result.plan is not None and result.plan.peak_bytes <= limit
    assert result.solution.bound <= fit(problem, limit).solution.objective


def test_a_plan_that_holds_less_is_where_the_search_within_a_limit_begins() -> None:
    problem = build_problem(mlp(512, 16, 2), LINE, CLUSTER, fixed={0: Sharding.replicated(2)})
    free = fit(problem, None)
    assert free.plan is not None
    within = fit(problem, free.plan.peak_bytes - 512)
    assert within.plan is not None and len(within.solution.choice) == len(free.solution.choice)
    again = fit(
        problem, free.plan.peak_bytes - 512, relaxed=free.solution, start=within.solution.choice
    )
    assert again.plan is not None and again.solution.objective <= within.solution.objective


@pytest.mark.parametrize(
    ("text", "count"),
    [("17", 17), ("512MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("2 KiB", 2048), ("3B", 3)],
)
def test_bytes_are_read_with_their_unit(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "many", "-1", "1XB", "1e9"])
def test_other_texts_are_no_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes such as 1073741824, 512MiB"):
        parse_bytes(text)


def test_bytes_are_printed_exactly_and_rounded() -> None:
    assert format_bytes(1000) == "1000 bytes"
    assert format_bytes(5 << 20) == "5242880 bytes (5.00 MiB)"
