"""The step as one graph: what may stay an unfinished sum, and what a stage does in its backward."""

from __future__ import annotations

from shardopt.graph.op_graph import MARKER, Op
from shardopt.solve.stages.step_graph import StepGraph, unread
from tests.unit.solve.stages.step_graphs import StepBuilder

DEPTH = 2


def step(microbatches: int = 8) -> StepGraph:
    """A chain of products, one a layer, whose gradients are accumulated."""
    builder = StepBuilder()
    value = builder.tensor()
    for _ in range(DEPTH):
        value = builder.node(value, builder.weight())
    builder.backward(value, builder.weights)
    return builder.step(DEPTH, microbatches)


def test_an_accumulator_begins_before_the_loop_and_is_summed_behind_it() -> None:
    graph = step()
    names = [op.name for op in graph.graph.ops]
    assert names[: graph.loop[0]] == ["constant"] * DEPTH
    assert names[graph.loop[1] :] == [MARKER, "subtract"] * DEPTH
    assert {op.repeat for op in graph.graph.ops[slice(*graph.loop)]} == {8}
    for before, after in graph.carried:
        assert graph.op_layer[graph.producers[before]] == graph.op_layer[graph.producers[after]]


def test_gradients_and_accumulators_may_stay_open() -> None:
    graph = step()
    opened = {
        op.results[0]
        for op, linear in zip(graph.graph.ops, graph.linear, strict=True)
        if linear.unreduced
    }
    gradients = {graph.graph.ops[graph.producers[after]].operands[1] for _, after in graph.carried}
    assert gradients | {tensor for pair in graph.carried for tensor in pair} <= opened
    activations = {
        t for op in graph.graph.ops if op.name == "tanh" for t in (*op.operands, *op.results)
    }
    assert opened.isdisjoint(activations)


def test_what_the_backward_reaches() -> None:
    """The backward of layer 0 depends on layer 1, its forward does not; nothing in layer 1 depends
    on a later one."""
    graph = step()
    body = graph.body
    first = [body.reached[row] for row in body.rows_of([0])]
    assert first == sorted(first) and set(first) == {-1, 0, 1}
    assert all(reached <= 1 for reached in body.reached)


def test_what_only_unread_operations_read_is_unread() -> None:
    ops = [
        Op("tanh", operands, results, None)
        for operands, results in (((0,), (1,)), ((1,), (2,)), ((2,), (3,)), ((1,), (4,)))
    ]
    assert list(unread(ops, range(4), [4])) == [2, 1]
    assert list(unread(ops, range(4), [])) == [3, 2, 1, 0]
    assert list(unread(ops, [1, 3], [])) == [3]
