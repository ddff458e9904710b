"""The intra-operator problem: its optimum, restrictions, memory, parts, and what the plan says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from math import ceil, prod

import pytest

from shardopt.cost.collectives import ALL_REDUCE, REDUCE_SCATTER, Step
from shardopt.cost.resharding_chain import resharding_steps
from shardopt.graph.op_graph import Op, OpGraph
from shardopt.hardware.cluster import Cluster, Link
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import evaluate
from shardopt.solve.presets.base import split_longest
from shardopt.solve.presets.presets import InputKinds, restrict
from shardopt.solve.sharding.intra_op.builder import ImpossibleSharding
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import (
    IntraOpProblem,
    IntraOpTables,
    build_problem,
)
from shardopt.solve.sharding.strategies.costs import communication_seconds
from shardopt.solve.sharding.strategies.linear import find_linear
from shardopt.solve.sharding.strategies.strategies import Strategy
from shardopt.support.errors import UserError
from tests.unit.solve.sharding.op_graphs import (
    CLUSTER,
    LINE,
    MESH,
    elementwise,
    f32,
    matmul,
    mlp,
    rule,
)

REPLICATED = Sharding.replicated(2)
ROWS, COLUMNS = Sharding((("x",), ())), Sharding(((), ("x",)))


def solved(problem: IntraOpProblem) -> IntraOpPlan:
    solution = problem.solve()
    assert solution.status == "optimal"
    return problem.decode(solution)


def seconds_of(
    graph: OpGraph,
    mesh: Mesh,
    strategies: Mapping[int, Strategy],
    shardings: Mapping[int, Sharding],
) -> float:
    """The objective from its definition: every input, edge and execution on its own."""
    total = 0.0
    for tensor in graph.inputs:
        value, counts = graph.tensors[tensor], shardings[tensor].tile_counts(mesh)
        padded = prod(ceil(extent / n) for extent, n in zip(value.shape, counts, strict=True))
        total += padded * value.itemsize / CLUSTER.groups[0].device.memory_bandwidth
    for index, strategy in strategies.items():
        op = graph.ops[index]
        total += strategy.seconds * op.repeat
        for tensor, target in set(zip(op.operands, strategy.operands, strict=True)):
            value = graph.tensors[tensor]
            move = shardings[tensor], target, mesh, value.shape, value.itemsize
            total += move_seconds(*move) * op.repeat
    return total


@cache
def move_seconds(
    source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], itemsize: int
) -> float:
    """Of an edge: who tries everything meets each of the few there are a thousand times."""
    steps = resharding_steps(source, target, mesh, shape, itemsize)
    return communication_seconds(CLUSTER, mesh, steps)


def brute_force(graph: OpGraph, mesh: Mesh, tied: tuple[tuple[int, int], ...] = ()) -> float:
    tables = IntraOpTables(graph, mesh, CLUSTER)
    best = float("inf")
    columns = [tables.column(tensor).distinct for tensor in graph.inputs]
    for inputs in product(*columns):
        for choice in product(*(op.strategies for op in tables.ops)):
            shardings = dict(zip(graph.inputs, inputs, strict=True))
            for op, strategy in zip(graph.ops, choice, strict=True):
                shardings.update(zip(op.results, strategy.results, strict=True))
            if all(shardings[a] == shardings[b] for a, b in tied):
                best = min(best, seconds_of(graph, mesh, dict(enumerate(choice)), shardings))
    return best


def chain(rows: int, inner: int, *, repeat: int = 1) -> OpGraph:
    """Tensor 0 times 1 is 2; the maximum of it and itself is 3; 3 times 1 is 4."""
    ops = (
        matmul(rows, inner, inner, (0, 1), 2, repeat),
        elementwise("maximum", (rows, inner), (2, 2), 3),
        matmul(rows, inner, inner, (3, 1), 4),
    )
    shape = f32(rows, inner)
    return OpGraph((shape, f32(inner, inner), shape, shape, shape), ops, (0, 1), (4,))


@pytest.mark.parametrize(("rows", "inner"), [(64, 4), (4, 16), (4, 4), (2, 8), (63, 4), (9, 15)])
@pytest.mark.parametrize("tied", [(), ((0, 4),)])
def test_the_optimum_is_that_of_brute_force(
    rows: int, inner: int, tied: tuple[tuple[int, int], ...]
) -> None:
    graph, mesh = chain(rows, inner, repeat=3), Mesh("m", (("x", 2),), (0, 1))
    problem = build_problem(graph, mesh, CLUSTER, tied=tied)
    solution = problem.solve()
    assert solution.objective == pytest.approx(brute_force(graph, mesh, tied))
    plan = problem.decode(solution)
    assert seconds_of(graph, mesh, plan.strategies, plan.shardings) == pytest.approx(
        solution.objective
    )
    assert all(plan.shardings[a] == plan.shardings[b] for a, b in tied)


def test_wide_batch_is_split_by_rows_and_wide_weights_by_columns() -> None:
    data = solved(build_problem(mlp(4096, 16, 2), LINE, CLUSTER))
    assert all(data.shardings[tensor] == ROWS for tensor in (0, 2, 3, 5, 6))
    assert {c.step.kind for c in data.communication} <= {"all_gather"}
    ends = {0: REPLICATED, 6: REPLICATED}
    model = solved(build_problem(mlp(4, 256, 2), LINE, CLUSTER, fixed=ends))
    assert (model.shardings[1], model.shardings[4]) == (COLUMNS, ROWS)  # as in Megatron


def test_fixed_shardings_are_kept() -> None:
    graph = chain(64, 16)
    plan = solved(build_problem(graph, LINE, CLUSTER, fixed={1: COLUMNS, 3: REPLICATED}))
    assert (plan.shardings[1], plan.shardings[3]) == (COLUMNS, REPLICATED)


def test_an_impossible_fixed_sharding_is_refused_with_the_possible_ones() -> None:
    graph = OpGraph((f32(4), f32(4)), (Op("while", (0,), (1,), None),), (0,), (1,))
    with pytest.raises(
        ImpossibleSharding,
        match=r"sharding \[\{\"x\"\}\] .* result of 'while' .*, expected one of \[\{\}\]",
    ) as raised:
        build_problem(graph, LINE, CLUSTER, fixed={1: Sharding((("x",),))})
    assert raised.value.op == 0


def test_contradictory_ties_are_infeasible_with_a_reason() -> None:
    problem = build_problem(
        chain(64, 16), LINE, CLUSTER, fixed={0: ROWS, 4: COLUMNS}, tied=((0, 4),)
    )
    with pytest.raises(UserError, match=r"no sharding found on mesh m\[x=4\]: .+"):
        problem.decode(problem.solve())


def test_a_memory_limit_is_kept_and_can_be_too_small() -> None:
    graph = mlp(4096, 16, 2)
    free = solved(build_problem(graph, LINE, CLUSTER, fixed={1: REPLICATED}))
    peak = int(free.live_bytes.max())
    limit = peak - 1
    tight = build_problem(graph, LINE, CLUSTER, fixed={1: REPLICATED}, memory_limit_bytes=limit)
    assert evaluate(tight.problem, tight.solve().choice).peak_usage <= limit
    problem = build_problem(graph, LINE, CLUSTER, memory_limit_bytes=1000)
    with pytest.raises(UserError, match="memory"):
        problem.decode(problem.solve())


@pytest.mark.parametrize("limits", [SearchLimits(1e-9), SearchLimits(work=0)])
def test_a_plan_is_found_however_little_the_limits_allow(limits: SearchLimits) -> None:
    problem = build_problem(mlp(64, 64, 12), MESH, CLUSTER)
    solution = problem.solve(limits)
    whole = sum(float(cost[0]) for cost in problem.problem.costs)
    assert solution.choice and solution.objective <= whole + 1e-12
    assert solution.bound <= solution.objective


def test_live_bytes_count_inputs_always_and_values_until_their_last_reader() -> None:
    graph = mlp(8, 4, 2)
    problem = build_problem(graph, Mesh("m", (("x", 1),), (0,)), CLUSTER)
    weight, value = 64, 128
    held = solved(problem).live_bytes.tolist()
    # The second product reads the first through the maximum, which is fused; the last maximum is
    # written in place.
    assert held == [2 * weight + value + k * value for k in (1, 1, 2, 1)]


def test_what_replaces_an_input_takes_its_memory() -> None:
    graph = OpGraph((f32(8), f32(8)), (elementwise("negate", (8,), (0,), 1),), (0,), (1,))
    mesh = Mesh("m", (("x", 1),), (0,))
    assert solved(build_problem(graph, mesh, CLUSTER)).live_bytes.tolist() == [64]
    assert solved(build_problem(graph, mesh, CLUSTER, tied=((0, 1),))).live_bytes.tolist() == [32]


@pytest.mark.parametrize(("read", "held"), [(True, [32, 48, 48]), (False, [32, 32, 32])])
def test_what_an_accumulator_begins_with_takes_memory_if_it_is_read(
    read: bool, held: list[int]
) -> None:
    """As that of a single microbatch is not: the result is written over what it is made of."""
    shape, mesh = (4,), Mesh("m", (("x", 1),), (0,))
    zeros = Op("constant", (), (1,), rule("->a", {"a": 4}))
    between = elementwise("sort", shape, (0,), 2)
    last = elementwise("sort", shape, (2, 1) if read else (2,), 3)
    graph = OpGraph((f32(*shape),) * 4, (zeros, between, last), (0,), (3,))
    assert solved(build_problem(graph, mesh, CLUSTER, tied=((1, 3),))).live_bytes.tolist() == held


def test_a_part_is_the_problem_of_the_graph_of_its_operations() -> None:
    whole = mlp(64, 32, 3)
    part = IntraOpTables(whole, MESH, CLUSTER).problem(range(2, 6))
    alone = build_problem(mlp(64, 32, 2), MESH, CLUSTER)
    assert part.solve().objective == pytest.approx(alone.solve().objective)
    assert sorted(solved(part).strategies) == [2, 3, 4, 5]
    assert part.inputs == (3, 4, 7)


def test_parts_share_the_tables_of_the_whole() -> None:
    tables = IntraOpTables(mlp(64, 32, 3), MESH, CLUSTER)
    first, second = tables.problem(range(4)), tables.problem(range(2, 6))
    shared = {id(edge.cost) for edge in first.problem.edges}
    assert shared == {id(edge.cost) for edge in second.problem.edges}


def test_repeated_operations_cost_their_repetitions() -> None:
    once, often = (solved(build_problem(chain(64, 16, repeat=n), LINE, CLUSTER)) for n in (1, 5))
    per_step, per_run = often.summary([0]), often.summary([0], repeated=False)
    assert per_step.compute_seconds == pytest.approx(5 * per_run.compute_seconds)
    assert per_run.compute_seconds == pytest.approx(once.summary([0]).compute_seconds)


def constant_with_two_readers() -> OpGraph:
    """Tensor 1 is a constant read by an operation on tensor 0 and by one on tensor 2."""
    constant = Op("constant", (), (1,), rule("->ij", {"i": 8, "j": 8}))
    ops = (
        Op("constant", (), (1,), constant.rule),
        elementwise("add", (8, 8), (0, 1), 3),
        elementwise("add", (8, 8), (2, 1), 4),
    )
    return OpGraph((f32(8, 8),) * 5, ops, (0, 2), (3, 4))


def test_a_constant_is_made_in_the_sharding_of_each_reader() -> None:
    graph = constant_with_two_readers()
    plan = solved(
        build_problem(graph, LINE, CLUSTER, fixed={0: ROWS, 3: ROWS, 2: COLUMNS, 4: COLUMNS})
    )
    assert plan.cheap_to_clone == {1}
    assert plan.communication == ()
    assert plan.shardings[1] == plan.strategies[1].operands[1]


def test_readers_of_one_group_share_a_resharding_in_the_plan() -> None:
    ops = tuple(elementwise("negate", (8, 8), (0,), k) for k in (1, 2))
    graph = OpGraph((f32(8, 8),) * 3, ops, (0,), (1, 2))
    plan = solved(build_problem(graph, LINE, CLUSTER, fixed={0: ROWS, 1: COLUMNS, 2: COLUMNS}))
    assert plan.summary().collectives == (("all_to_all", 1),)


ROLES = InputKinds(state=frozenset({1, 4}), batch={0: 0}, tied=())


def preset(
    name: str, graph: OpGraph, mesh: Mesh = LINE, input_kinds: InputKinds = ROLES
) -> IntraOpPlan:
    tables = IntraOpTables(graph, mesh, CLUSTER)
    restriction = restrict(name, tables, input_kinds)
    return solved(
        tables.problem(fixed=restriction.fixed, allowed=restriction.allowed, tied=input_kinds.tied)
    )


def test_replicate_splits_nothing() -> None:
    plan = preset("replicate", mlp(64, 64, 2))
    assert all(sharding.is_replicated for sharding in plan.shardings.values())
    assert plan.communication == ()


def test_data_keeps_state_whole_and_splits_the_batch() -> None:
    plan = preset("data", mlp(16, 64, 2))
    assert plan.shardings[0] == ROWS
    assert plan.shardings[1] == plan.shardings[4] == REPLICATED


def test_data_splits_the_microbatch_behind_the_slice() -> None:
    cut = Op(
        "dynamic_slice",
        (0,),
        (1,),
        rule("ab->ab", {"a": 4, "b": 8}, need_replication="a"),
        repeat=4,
    )
    ops = (cut, Op("reshape", (1,), (2,), rule("ab->b", {"a": 1, "b": 8}), repeat=4))
    tensors = (f32(4, 8), f32(1, 8), f32(8))
    tables = IntraOpTables(OpGraph(tensors, ops, (0,), (2,)), LINE, CLUSTER)
    assert restrict("data", tables, InputKinds(batch={0: 0})).fixed == {2: Sharding((("x",),))}


def test_heuristic_splits_the_largest_dimension_of_every_input() -> None:
    plan = preset("heuristic", mlp(16, 64, 2))
    assert plan.shardings[0] == COLUMNS
    assert split_longest(MESH, (6, 4, 2), ("x", "y")) == Sharding(((), ("x", "y"), ()))
    assert split_longest(MESH, (6, 2, 2), ("x", "y")) == Sharding((("x",), ("y",), ()))


def test_a_preset_gives_way_where_a_tied_tensor_cannot_follow() -> None:
    graph = OpGraph((f32(8), f32(8)), (Op("while", (0,), (1,), None),), (0,), (1,))
    plan = preset("heuristic", graph, input_kinds=InputKinds(state=frozenset({0}), tied=((0, 1),)))
    assert plan.shardings[0].is_replicated


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(
        UserError, match="unknown intra-op preset 'zero'; expected one of ilp, data, zero1"
    ):
        preset("zero", mlp(4, 4, 1))


def test_a_sum_over_hosts_is_scattered_inside_of_them_first() -> None:
    """A gradient over two hosts of two devices, on a weight of which each host has a copy."""
    device, fast, slow = CLUSTER.groups[0].device, Link(0.0, 1e8), Link(0.0, 1e6)
    cluster = Cluster.uniform("hosts", 2, 2, device, fast, slow, 0.0)
    ops = (matmul(64, 4096, 64, (0, 1), 3), elementwise("multiply", (64, 64), (2, 3), 4))
    graph = OpGraph((f32(64, 4096), f32(4096, 64), *[f32(64, 64)] * 3), ops, (0, 1, 2), (4,))
    rows, columns, kept = (("x", "y"), ()), ((), ("x", "y")), (("y",), ())
    lies = {k: Sharding(dims) for k, dims in enumerate((columns, rows, kept, None, kept)) if dims}
    in_steps, at_once = (
        solved(IntraOpTables(graph, MESH, cluster, linear=linear).problem(fixed=lies))
        for linear in (find_linear(graph), ())
    )
    size = 4 * 64 * 64
    assert [each.step for each in in_steps.communication] == [
        Step(REDUCE_SCATTER, ("y",), size),
        Step(ALL_REDUCE, ("x",), size / 2),
    ]
    # Otherwise what is summed is moved first.
    seconds = [plan.summary().communication_seconds for plan in (in_steps, at_once)]
    assert seconds[0] < 0.9 * seconds[1]
