"""The step as one graph: what may stay an unfinished sum, and what a stage does in its backward."""

from __future__ import annotations

from step_graphs import StepBuilder

from shardopt.graph.op_graph import MARKER
from shardopt.solve.stages.step_graph import StepGraph

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
    found = step()
    names = [op.name for op in found.graph.ops]
    assert names[: found.loop[0]] == ["constant"] * DEPTH
    assert names[found.loop[1] :] == [MARKER, "subtract"] * DEPTH
    assert {op.repeat for op in found.graph.ops[slice(*found.loop)]} == {8}
    for before, after in found.carried:
        assert found.op_layer[found.producers[before]] == found.op_layer[found.producers[after]]


def test_gradients_and_accumulators_may_stay_open() -> None:
    found = step()
    opened = {
        op.results[0]
        for op, linear in zip(found.graph.ops, found.linear, strict=True)
        if linear.unreduced
    }
    gradients = {found.graph.ops[found.producers[after]].operands[1] for _, after in found.carried}
    assert gradients | {tensor for pair in found.carried for tensor in pair} <= opened
    activations = {
        t for op in found.graph.ops if op.name == "tanh" for t in (*op.operands, *op.results)
    }
    assert opened.isdisjoint(activations)


def test_what_the_backward_reaches() -> None:
    """The backward of layer 0 depends on layer 1, its forward does not; nothing in layer 1 depends
    on a later one."""
    found = step()
    body = range(*found.loop)
    first = [found.reached[op] for op in body if found.op_layer[op] == 0]
    assert first == sorted(first) and set(first) == {-1, 0, 1}
    assert all(found.reached[op] <= 1 for op in body)
