"""Prices of candidate stages: which are solved, which share a solution, what they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from step_graphs import WIDTH, StepBuilder

from shardopt.cost.cluster import Cluster
from shardopt.cost.cluster_file import load_cluster
from shardopt.cost.transfers import messages_seconds
from shardopt.solve.stages.layering import assign_layers
from shardopt.solve.stages.stage_costs import CandidateCosts, CandidateProblem, candidate_costs, candidate_mesh
from shardopt.solve.stages.stage_dp import solve_stages
from shardopt.solve.stages.stage_problem import one_f_one_b_in_flight, stage_options

BYTES = 4 * WIDTH * WIDTH


def cluster(shape: str = "1x4") -> Cluster:
    return load_cluster(f"cpu-test:{shape}")


def problem(depth: int = 4, num_stages: int | None = None, shape: str = "1x4") -> CandidateProblem:
    """A chain of `depth` products, one a layer, with backward pass and accumulators."""
    step = StepBuilder()
    value = step.tensor()
    for _ in range(depth):
        value = step.node(value, step.weight())
    loss = step.op("loss", "subtract", value, step.tensor())
    step.accumulate("loss.acc", step.op("metric", "multiply", loss, loss))
    step.backward(loss, step.weights)
    layer_problem = step.problem(depth)
    layers = assign_layers(layer_problem).layer
    where, options = cluster(shape), stage_options(cluster(shape))
    state = (0,) * depth
    return CandidateProblem(
        layer_problem.graph, layers, depth, state, where, options, 4, num_stages, one_f_one_b_in_flight
    )


@pytest.fixture(scope="module")
def priced() -> CandidateCosts:
    return candidate_costs(problem())


def test_every_candidate_of_some_cover_has_a_price(priced: CandidateCosts) -> None:
    """Four layers on 1x4: the whole model only on all devices, a part only on fewer."""
    stages = priced.stage_problem
    finite = np.isfinite(stages.seconds)
    assert int(finite.sum()) == priced.num_candidates
    for o, option in enumerate(stages.options):
        assert finite[0, 4, o] == (option.num_devices == 4)
        assert not finite[2, 2, o]
        assert finite[0, 1, o] == (option.num_devices < 4)


def test_equal_intervals_are_solved_once(priced: CandidateCosts) -> None:
    """Layers 1 and 2 of the chain have equal operations and equal dataflow; the first and the last differ."""
    assert priced.num_solves < priced.num_candidates
    stages = priced.stage_problem
    np.testing.assert_array_equal(stages.seconds[1, 2], stages.seconds[2, 3])
    np.testing.assert_array_equal(stages.fixed_bytes[1, 2], stages.fixed_bytes[2, 3])


def test_fixed_bytes_are_weights_accumulators_and_state() -> None:
    """On one device: what the body is given from outside, and the optimizer state the layers own."""
    one_device = problem(2, shape="1x1")
    plain = candidate_costs(one_device).stage_problem
    with_state = candidate_costs(replace(one_device, state_bytes=(100, 1000))).stage_problem
    # two weights, two gradient accumulators, that of the loss, the input and the labels
    assert plain.fixed_bytes[0, 2, 0] == 7 * BYTES
    assert with_state.fixed_bytes[0, 2, 0] == 7 * BYTES + 1100
    assert plain.activation_bytes[0, 2, 0] > 0


def test_cut_costs_what_crosses_it(priced: CandidateCosts) -> None:
    """One activation forwards and one gradient back cross each cut, whatever the number of their readers."""
    expected = messages_seconds(cluster(), [(0, 1, BYTES)])
    found = priced.stage_problem.transfer_seconds
    assert found is not None
    assert found[:, 1:4] == pytest.approx(expected)
    assert not found[:, [0, 4]].any()


def test_a_given_number_of_stages_prunes_candidates() -> None:
    one, four = candidate_costs(problem(num_stages=1)), candidate_costs(problem(num_stages=4))
    assert np.isfinite(one.stage_problem.seconds[0, 4]).any()
    assert not np.isfinite(one.stage_problem.seconds[0, 1:4]).any()
    assert not np.isfinite(four.stage_problem.seconds[0, 2:]).any(), "four stages of four layers have one each"
    assert len(solve_stages(four.stage_problem, 4).stages) == 4


def test_pruning_keeps_the_optimum(priced: CandidateCosts) -> None:
    everything = solve_stages(priced.stage_problem)
    count = len(everything.stages)
    pruned = solve_stages(candidate_costs(problem(num_stages=count)).stage_problem, count)
    assert (pruned.stages, pruned.seconds) == (everything.stages, everything.seconds)


def test_forward_is_what_needs_no_later_stage(priced: CandidateCosts) -> None:
    """The last stage has its backward in the forward fragment; before it, one product of three is forward."""
    stages = priced.stage_problem
    last, inner = (slice(3, 4), 4, slice(0, 1)), (slice(1, 2), 2, slice(0, 1))
    np.testing.assert_array_equal(stages.forward_seconds[last], stages.seconds[last])
    assert np.all(stages.forward_seconds[inner] > 0)
    assert np.all(stages.forward_seconds[inner] < stages.seconds[inner] / 2)


def test_progress_counts_to_the_total() -> None:
    seen: list[tuple[int, int]] = []
    found = candidate_costs(problem(2), progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, found.num_candidates + 1))
    assert {total for _, total in seen} == {found.num_candidates}


def test_candidate_mesh() -> None:
    option = next(option for option in stage_options(cluster()) if option.logical_shape == (2, 2))
    assert candidate_mesh(option, range(4)).axes == (("x", 2), ("y", 2))
    assert candidate_mesh(option, (4, 5, 6, 7), "m1").devices == (4, 5, 6, 7)
