"""What a user's constraint costs: nothing where it moves nothing, the exchange and its memory where
it moves something."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.graph.op_graph import MARKER, Op, OpGraph
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Sharding
from shardopt.solve.assignment.problem import Solution, evaluate
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.constraints import Constraints
from tests.draws import draws
from tests.unit.solve.sharding.op_graphs import CLUSTER, LINE, MESH, elementwise, f32, matmul, rule

SHAPE = (8, 8)
BYTES = 4 * 64
IDENTITY = rule("ab->ab", dict(zip("ab", SHAPE, strict=True)))
GPUS = load_cluster("a100-80g:1x4")  # their compiler merges kernels
ROWS, COLUMNS = Sharding((("x",), ())), Sharding(((), ("x",)))


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    """Products and elementwise operations on matrices, each of any two values before it."""
    inputs, count = 2, draw(st.integers(2, 7))
    ops = []
    for number in range(count):
        first, second = draw(st.tuples(*(st.integers(0, inputs + number - 1) for _ in range(2))))
        result = inputs + number
        kind = draw(st.sampled_from(("dot_general", "add", "exponential", "tanh", "sort")))
        if kind == "dot_general":
            ops.append(matmul(*SHAPE, SHAPE[1], (first, second), result))
        elif kind == "add":
            ops.append(elementwise(kind, SHAPE, (first, second), result))
        else:
            ops.append(elementwise(kind, SHAPE, (first,), result))
    read = {tensor for op in ops for tensor in op.operands}
    unread = {inputs + number for number in range(count)} - read
    outputs = unread | draw(st.sets(st.integers(inputs, inputs + count - 1), max_size=2))
    tensors = (f32(*SHAPE),) * (inputs + count)
    return OpGraph(tensors, tuple(ops), tuple(range(inputs)), tuple(sorted(outputs)))


def with_markers(graph: OpGraph, marked: dict[int, frozenset[int]]) -> tuple[OpGraph, list[int]]:
    """The graph with a marker behind each of the values `marked`, for those of its readers that are
    named (-1: the caller), and the number of each of its own operations before."""
    tensors, ops, before = list(graph.tensors), list[Op](), list[int]()
    names: dict[tuple[int, int], int] = {}
    for number in range(-1, len(graph.ops)):
        made = graph.inputs if number < 0 else graph.ops[number].results
        if number >= 0:
            op = graph.ops[number]
            operands = tuple(names.get((t, number), t) for t in op.operands)
            ops.append(replace(op, operands=operands))
            before.append(number)
        for tensor in (t for t in made if t in marked):
            result = len(tensors)
            tensors.append(tensors[tensor])
            names.update(((tensor, reader), result) for reader in marked[tensor])
            ops.append(Op(MARKER, (tensor,), (result,), IDENTITY))
            before.append(-1)
    outputs = tuple(names.get((t, -1), t) for t in graph.outputs)
    return OpGraph(tuple(tensors), tuple(ops), graph.inputs, outputs), before


def constrained(
    graph: OpGraph, tables: IntraOpTables, choice: tuple[int, ...], data: st.DataObject
) -> tuple[IntraOpTables, tuple[int, ...]]:
    """Some values with a constraint to the sharding that they have, and the same choices there."""
    plan = tables.problem().decode(Solution(choice, 0.0, 0.0, 0.0, "feasible"))
    free = tables.cheap_to_clone
    values = [t for t in range(len(graph.tensors)) if t in plan.shardings and t not in free]
    marked = {}
    for tensor in data.draw(st.sets(st.sampled_from(values), min_size=1, max_size=3)):
        readers = (*graph.consumers()[tensor], *(-1 for t in graph.outputs if t == tensor))
        if readers:
            marked[tensor] = frozenset(
                data.draw(st.sets(st.sampled_from(sorted(set(readers))), min_size=1))
            )
    other, before = with_markers(graph, marked)
    allowed = {
        op.results[0]: (plan.shardings[op.operands[0]],) for op in other.ops if op.name == MARKER
    }
    pinned = IntraOpTables(other, tables.mesh, tables.strategies.cluster, Constraints(allowed))
    chosen = tuple(0 if number < 0 else choice[number] for number in before)
    return pinned, (*chosen, *choice[len(graph.ops) :])


@pytest.mark.parametrize("merged", [False, True])
@given(graph=graphs(), data=st.data())
@settings(max_examples=draws(40), deadline=None, derandomize=True)
def test_a_constraint_to_what_a_value_has_anyway_changes_no_cost(
    merged: bool, graph: OpGraph, data: st.DataObject
) -> None:
    """Neither of the best plan nor of any other, and the best plan stays the best."""
    tables = IntraOpTables(graph, MESH, GPUS if merged else CLUSTER)
    problem = tables.problem()
    best = problem.solve()
    choice = best.choice
    if data.draw(st.booleans()):
        sizes = [len(cost) for cost in problem.problem.costs]
        choice = tuple(data.draw(st.integers(0, size - 1)) for size in sizes)
    pinned, same = constrained(graph, tables, choice, data)
    other = pinned.problem()
    objective = evaluate(problem.problem, choice).objective
    assert evaluate(other.problem, same).objective == pytest.approx(objective)
    if choice == best.choice:
        assert other.solve().objective == pytest.approx(objective)
    one, two = (
        each.decode(Solution(row, 0.0, 0.0, 0.0, "feasible"))
        for each, row in ((problem, choice), (other, same))
    )
    assert two.summary().seconds == pytest.approx(one.summary().seconds)
    assert two.peak_bytes == one.peak_bytes
    assert two.summary().traffic == one.summary().traffic
    limited = pinned.problem(memory_limit_bytes=one.peak_bytes)
    held = evaluate(limited.problem, same)
    assert held.feasible, "the problem counts no more than the plan holds"


def moved(readers_of_value: int) -> IntraOpPlan:
    """A product in rows, read so by some operations, and in columns behind a marker by one more."""
    ops = [matmul(*SHAPE, SHAPE[1], (0, 1), 2), Op(MARKER, (2,), (3,), IDENTITY)]
    ops.append(elementwise("sort", SHAPE, (3,), 4))
    ops += [elementwise("sort", SHAPE, (2,), 5 + k) for k in range(readers_of_value)]
    outputs = (4, *(5 + k for k in range(readers_of_value)))
    graph = OpGraph((f32(*SHAPE),) * (5 + readers_of_value), tuple(ops), (0, 1), outputs)
    tables = IntraOpTables(graph, LINE, CLUSTER, Constraints({3: (COLUMNS,)}))
    fixed = dict.fromkeys((0, 2, *outputs[1:]), ROWS) | {4: COLUMNS}
    fixed[1] = Sharding.replicated(2)
    problem = tables.problem(fixed=fixed)
    return problem.decode(problem.solve())


@pytest.mark.parametrize("readers", [0, 1])
def test_a_constraint_that_moves_a_value_pays_for_the_exchange_and_holds_both(readers: int) -> None:
    plan = moved(readers)
    assert [item.step.kind for item in plan.communication] == ["all_to_all"]
    assert plan.communication[0].step.bytes == BYTES
    arguments = BYTES / 4 + BYTES
    at_marker, behind = (plan.live_bytes[plan.order.index(op)] for op in (1, 2))
    assert at_marker == arguments + 2 * BYTES / 4
    # What was moved is written over; not so where the value itself is read later, as the two might
    # be one memory.
    assert behind == arguments + (1 + 2 * readers) * BYTES / 4
