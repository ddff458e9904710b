"""The body of a microbatch as a part of the step: accumulators that stay open until its end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from step_graphs import StepBuilder

from shardopt.cost.cluster_file import load_cluster
from shardopt.cost.graph import MARKER
from shardopt.solve.stages.layering import assign_layers
from shardopt.solve.stages.stage_costs import CandidateProblem, candidate_costs
from shardopt.solve.stages.stage_problem import one_f_one_b_in_flight, stage_options
from shardopt.solve.stages.step_graph import Accumulator, step_graph

DEPTH = 2


def problem(num_microbatches: int) -> CandidateProblem:
    """A chain of products, one a layer, whose gradients are accumulated."""
    step = StepBuilder()
    value = step.tensor()
    for _ in range(DEPTH):
        value = step.node(value, step.weight())
    step.backward(value, step.weights)
    layers = step.problem(DEPTH)
    where = load_cluster("cpu-test:1x4")
    return CandidateProblem(
        layers.graph,
        assign_layers(layers).layer,
        DEPTH,
        (0,) * DEPTH,
        where,
        stage_options(where),
        num_microbatches,
        None,
        one_f_one_b_in_flight,
        tuple(Accumulator(before, after) for after, before in step.accumulators.items()),
        (where.groups[0].device.memory_bytes,),
    )


def test_an_accumulator_begins_before_the_loop_and_is_summed_behind_it() -> None:
    given = problem(8)
    body, found = given.graph, step_graph(given.graph, given.op_layer, given.accumulators, 8)
    names = [op.name for op in found.graph.ops]
    count = len(given.accumulators)
    assert names == ["constant"] * count + [op.name for op in body.ops] + [MARKER] * count
    assert [op.repeat for op in found.graph.ops] == [1] * count + [8] * len(body.ops) + [1] * count
    assert {before for before, _ in found.tied}.isdisjoint(found.graph.inputs)
    assert {after for _, after in found.tied}.isdisjoint(found.graph.outputs)
    producers = found.graph.producers()
    for before, after in found.tied:
        assert found.op_layer[producers[before]] == found.op_layer[producers[after]]


def test_gradients_and_accumulators_may_stay_open() -> None:
    given = problem(8)
    found = step_graph(given.graph, given.op_layer, given.accumulators, 8)
    opened = {
        op.results[0] for op, linear in zip(found.graph.ops, found.linear(frozenset()), strict=True) if linear.open
    }
    producers = found.graph.producers()
    gradients = {found.graph.ops[producers[after]].operands[1] for _, after in found.tied}
    assert gradients | {tensor for pair in found.tied for tensor in pair} <= opened
    activations = {t for op in found.graph.ops if op.name == "tanh" for t in (*op.operands, *op.results)}
    assert opened.isdisjoint(activations)


def test_what_a_stage_sends_is_whole() -> None:
    """A gradient that is made in layer 0 and accumulated in layer 1 is open only where both are in one stage."""
    given = problem(8)
    before, after = given.accumulators[0].before, given.accumulators[0].after
    added = given.graph.producers()[after]
    gradient = given.graph.ops[added].operands[1]
    layers = [0] * len(given.graph.ops)
    layers[added] = 1
    found = step_graph(given.graph, layers, given.accumulators, 8)
    assert (before, after) in found.tied
    assert found.sent(0, 2) == frozenset()
    assert found.sent(0, 1) == found.sent(1, 2) == {gradient}
    producers = found.graph.producers()
    for whole, is_open in ((found.sent(0, 2), True), (found.sent(0, 1), False)):
        linear = found.linear(whole)
        assert linear[producers[gradient]].open == linear[producers[after]].open == is_open


def test_what_no_layer_accumulates_is_left_as_it_is() -> None:
    given = problem(8)
    found = step_graph(given.graph, (-1,) * len(given.graph.ops), given.accumulators, 8)
    assert found.tied == () and found.graph.inputs == given.graph.inputs and found.graph.outputs == given.graph.outputs


@pytest.fixture(scope="module")
def seconds() -> dict[int, np.ndarray]:
    return {count: candidate_costs(problem(count)).stage_problem.seconds for count in (1, 4, 64)}


def test_more_microbatches_share_the_sum(seconds: dict[int, np.ndarray]) -> None:
    finite = np.isfinite(seconds[1])
    assert (seconds[4][finite] <= seconds[1][finite] * (1 + 1e-9)).all()
    assert (seconds[64][finite] <= seconds[4][finite] * (1 + 1e-9)).all()
    assert (seconds[64][finite] < 0.99 * seconds[1][finite]).any()


def test_without_accumulators_every_microbatch_costs_the_same() -> None:
    one, many = (candidate_costs(replace(problem(count), accumulators=())).stage_problem for count in (1, 64))
    # Inputs are paid for once a step, which decides among equal plans at most.
    np.testing.assert_allclose(many.seconds, one.seconds, rtol=0.05)


def test_the_limit_of_memory_reaches_the_stages() -> None:
    assert candidate_costs(replace(problem(1), memory_limit_bytes=(1234,))).stage_problem.memory_bytes == (1234,)
    assert candidate_costs(replace(problem(1), memory_limit_bytes=(None,))).stage_problem.memory_bytes == (np.inf,)
