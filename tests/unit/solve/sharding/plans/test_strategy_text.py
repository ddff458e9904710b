"""Solutions as a plan file keeps them: read back they are the same, values that are recomputed
among them."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, replace

import numpy as np
import pytest

from shardopt.planfile.parts import VERSION, PlannedShardings
from shardopt.planfile.plan_file import read_plan_file
from shardopt.solve.sharding.budget.search import fit
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, build_problem
from shardopt.solve.sharding.plans.strategy_text import StrategyTexts, fixed_inputs, record, restore
from shardopt.support.errors import UserError
from tests.unit.solve.sharding.budget.test_memory_budget import (
    ONE,
    PAIR,
    random_graph,
    with_residuals,
)
from tests.unit.solve.sharding.op_graphs import CLUSTER, LINE, mlp

ARGUMENTS = {0: 0, 1: 3}  # the other inputs are no arguments of the model


def through_a_file(planned: PlannedShardings) -> PlannedShardings:
    written = json.loads(
        json.dumps({"version": VERSION, "stages": [{"shardings": asdict(planned)}]})
    )
    plan, errors = read_plan_file(written)
    assert not errors
    shardings = plan.stages[0].shardings
    assert shardings is not None
    return shardings


def recorded(problem: IntraOpProblem, plan: IntraOpPlan) -> PlannedShardings:
    numbers = {op: op for op in problem.ops}
    planned = record(plan, problem.tables, numbers, ARGUMENTS)
    # Another process hands over equal plans.
    assert record(pickle.loads(pickle.dumps(plan)), problem.tables, numbers, ARGUMENTS) == planned
    return through_a_file(planned)


def assert_kept(problem: IntraOpProblem, plan: IntraOpPlan) -> None:
    solution, again = restore(problem, recorded(problem, plan), ARGUMENTS, "stages[0].shardings")
    for name in (
        "shardings",
        "strategies",
        "communication",
        "rematerialized",
        "fresh",
        "cheap_to_clone",
        "order",
    ):
        assert getattr(again, name) == getattr(plan, name), name
    assert np.array_equal(again.live_bytes, plan.live_bytes)
    assert again.summary() == plan.summary() and np.isfinite(solution.objective)


def test_plans_are_read_as_they_are_written() -> None:
    problem = build_problem(mlp(512, 16, 2), LINE, CLUSTER)
    assert_kept(problem, problem.decode(problem.solve()))


def test_values_that_are_computed_again_are_kept() -> None:
    problem = build_problem(with_residuals(), ONE, CLUSTER)
    free = problem.decode(problem.solve())
    plan = fit(problem, free.peak_bytes - 1).plan
    assert plan is not None and len(plan.rematerialized) == 1
    assert_kept(problem, plan)


@pytest.mark.parametrize("seed", range(12))
def test_random_plans_within_memory_are_kept(seed: int) -> None:
    problem = build_problem(random_graph(seed, 4), PAIR, CLUSTER)
    free = problem.decode(problem.solve()).peak_bytes
    plans = [fit(problem, limit).plan for limit in (free, free * 7 // 8, free * 3 // 4)]
    for plan in plans:
        if plan is not None:
            assert_kept(problem, plan)


def test_every_strategy_has_a_text_of_its_own() -> None:
    problem = build_problem(mlp(512, 16, 2), LINE, CLUSTER)
    texts = StrategyTexts(problem.tables)
    for op in problem.ops:
        strategies = problem.tables.ops[op].strategies
        op_texts = [texts.text(op, strategy) for strategy in strategies]
        assert len(set(op_texts)) == len(strategies)
        assert [texts.number(op, text, "p") for text in op_texts] == list(range(len(strategies)))


def test_what_does_not_exist_is_refused() -> None:
    problem = build_problem(mlp(512, 16, 2), LINE, CLUSTER)
    planned = recorded(problem, problem.decode(problem.solve()))
    cases = [
        (replace(planned, ops=planned.ops[1:]), "field 'p.ops': expected "),
        (
            replace(planned, ops=("dot", *planned.ops[1:])),
            r"field 'p.ops\[0\]': expected a way to split operation 0: ",
        ),
        (replace(planned, inputs={}), "missing field 'p.inputs.arg0'"),
        (
            replace(planned, inputs={**planned.inputs, "arg0": "[{q}, {}]"}),
            "field 'p.inputs.arg0': expected a sharding of",
        ),
        (
            replace(planned, inputs={**planned.inputs, "arg0": "q"}),
            "field 'p.inputs.arg0': expected a sharding such as",
        ),
    ]
    for changed, message in cases:
        with pytest.raises(UserError, match=message):
            restore(problem, changed, ARGUMENTS, "p")


def test_shardings_of_arguments_are_demands() -> None:
    graph = mlp(512, 16, 2)
    fixed = fixed_inputs(PlannedShardings({"arg3": "[{}, {x}]"}), graph, LINE, ARGUMENTS, "p")
    assert [(tensor, sharding.dims) for tensor, sharding in fixed.items()] == [(1, ((), ("x",)))]
    for inputs, message in (
        ({"arg1": "[]"}, r"expected arguments of the stage \(arg0, arg3\), found 'arg1'"),
        ({"arg3": "[{x}]"}, "field 'p.inputs.arg3': sharding .* has rank 1, the tensor has rank 2"),
    ):
        with pytest.raises(UserError, match=message):
            fixed_inputs(PlannedShardings(inputs), graph, LINE, ARGUMENTS, "p")
