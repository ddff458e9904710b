"""The intra-operator problem under what users demand: the cheapest of the assignments that obey,
and no other."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.graph.op_graph import MARKER, Op, OpGraph
from shardopt.mesh.mesh import Sharding
from shardopt.mesh.shardings import all_shardings
from shardopt.solve.presets import presets as intra_op_presets
from shardopt.solve.presets.presets import PRESETS, InputKinds, Restriction, restrict
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.constraints import Constraints
from shardopt.solve.sharding.strategies.strategies import Strategy, marker_strategy
from tests.draws import draws
from tests.unit.solve.sharding.intra_op.test_intra_op import seconds_of
from tests.unit.solve.sharding.op_graphs import CLUSTER, MESH, f32, matmul, rule

SHAPE = (8, 8)
EVERY = tuple(
    dict.fromkeys(
        Sharding(dims)
        for sharding in all_shardings(MESH, SHAPE)
        for dims in product(*(permutations(dim) for dim in sharding.dims))
    )
)
IDENTITY = rule("ij->ij", {"i": 8, "j": 8})


def marked_product() -> OpGraph:
    """(0, 1) -> 2, marked as 3."""
    ops = (matmul(8, 8, 8, (0, 1), 2), Op(MARKER, (2,), (3,), IDENTITY))
    return OpGraph((f32(*SHAPE),) * 4, ops, (0, 1), (3,))


def solve(graph: OpGraph, constraints: Constraints) -> IntraOpPlan:
    tables = IntraOpTables(graph, MESH, CLUSTER, constraints)
    problem = tables.problem()
    solution = problem.solve()
    assert solution.status == "optimal"
    return problem.decode(solution)


def cheapest(graph: OpGraph, constraints: Constraints) -> float:
    """By trying everything, without the code under test."""
    free = IntraOpTables(graph, MESH, CLUSTER)
    axes = constraints.forbidden.get(0, frozenset())
    products: list[Strategy] = []
    for strategy in free.ops[0].strategies:
        used = {
            a for s in (*strategy.operands, *strategy.results) for dim in s.dims for a in dim
        } | {*strategy.reduced}
        products += [] if used & axes else [strategy]
    inputs = [constraints.allowed.get(tensor, all_shardings(MESH, SHAPE)) for tensor in (0, 1)]
    marks = constraints.allowed.get(3, all_shardings(MESH, SHAPE))
    best = float("inf")
    for left, right, strategy, mark in product(*inputs, products, marks):
        shardings = {0: left, 1: right, 2: strategy.results[0], 3: mark}
        best = min(
            best, seconds_of(graph, MESH, {0: strategy, 1: marker_strategy(mark)}, shardings)
        )
    return best


def some_shardings() -> st.SearchStrategy[tuple[Sharding, ...]]:
    return st.lists(st.sampled_from(EVERY), min_size=1, max_size=3, unique=True).map(tuple)


@settings(max_examples=draws(40), deadline=None)
@given(
    st.dictionaries(st.sampled_from([0, 1, 3]), some_shardings(), min_size=1),
    st.sampled_from([frozenset[str](), frozenset("x"), frozenset("y"), frozenset("xy")]),
)
def test_the_plan_obeys_and_is_the_cheapest_that_does(
    allowed: dict[int, tuple[Sharding, ...]], forbidden: frozenset[str]
) -> None:
    graph = marked_product()
    constraints = Constraints(allowed, {0: forbidden} if forbidden else {})
    plan = solve(graph, constraints)
    assert all(plan.shardings[tensor] in shardings for tensor, shardings in allowed.items())
    used = {axis for sharding in plan.strategies[0].operands for axis in sharding.axes}
    assert forbidden.isdisjoint(used | {*plan.strategies[0].reduced})
    assert seconds_of(graph, MESH, plan.strategies, plan.shardings) == pytest.approx(
        cheapest(graph, constraints)
    )


def test_a_marker_alone_costs_nothing() -> None:
    plan = solve(marked_product(), Constraints())
    assert plan.strategies[1].seconds == 0 and plan.shardings[2] == plan.shardings[3]


def test_a_value_is_moved_where_no_strategy_makes_what_is_asked() -> None:
    odd = Sharding((("y", "x"), ()))
    graph = marked_product()
    plan = solve(graph, Constraints({3: (odd,)}))
    assert odd not in IntraOpTables(graph, MESH, CLUSTER).column(2).distinct
    assert plan.shardings[3] == odd and plan.shardings[2] != odd


@pytest.mark.parametrize("preset", ["replicate", "heuristic"])
def test_presets_leave_to_the_user_what_the_user_constrains(preset: str) -> None:
    assert preset in PRESETS
    rows = Sharding((("x",), ()))
    tables = IntraOpTables(
        marked_product(), MESH, CLUSTER, Constraints({0: (rows,), 3: (rows,)}, {0: frozenset("y")})
    )
    restriction = restrict(preset, tables, InputKinds())
    problem = tables.problem(fixed=restriction.fixed, allowed=restriction.allowed)
    plan = problem.decode(problem.solve())
    assert plan.shardings[0] == plan.shardings[3] == rows
    assert "y" not in plan.strategies[0].operands[1].axes


def test_a_preset_does_not_limit_operations_to_forbidden_axes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = marked_product()
    free = IntraOpTables(graph, MESH, CLUSTER).ops[0].strategies
    over_y = [
        number
        for number, s in enumerate(free)
        if any("y" in sharding.axes for sharding in s.operands)
    ]
    monkeypatch.setattr(
        intra_op_presets,
        "PRESETS",
        {"y": lambda tables, input_kinds: Restriction(allowed={0: over_y})},
    )
    assert restrict("y", IntraOpTables(graph, MESH, CLUSTER), InputKinds()).allowed == {0: over_y}
    tables = IntraOpTables(graph, MESH, CLUSTER, Constraints({}, {0: frozenset("y")}))
    assert restrict("y", tables, InputKinds()).allowed == {}
