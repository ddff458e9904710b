"""Stages that lay optimizer state, or activations, on their hosts: what they cost, and the joint
search."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from shardopt.graph import offloading
from shardopt.graph.offloading import MODES
from shardopt.graph.op_graph import FactorRule, Op, OpGraph
from shardopt.hardware.cluster_file import load_cluster
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.candidates import CandidateProblem, candidate_mesh
from shardopt.solve.stages.costs.lazy_costs import LazyStageCosts
from shardopt.solve.stages.costs.offload import moved_bytes, offload, offload_state
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharded_part import ShardedPart
from shardopt.solve.stages.costs.sharders import OptimalSharder, memory_of
from shardopt.solve.stages.costs.stage_part import cut_part
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.stage_problem import (
    StageProblem,
    StageSolution,
    evaluate,
    is_plan,
    one_f_one_b_in_flight,
    stage_configs,
)
from shardopt.solve.stages.step_graph import StepGraph
from tests.draws import draws
from tests.unit.solve.stages.step_graphs import WIDTH, StepBuilder

BYTES = 4 * WIDTH * WIDTH
CLUSTER = load_cluster("cpu-test:1x2")
_DIMS = ((0,), (1,))
_ELEMENTWISE = FactorRule((WIDTH, WIDTH), (_DIMS, _DIMS), (_DIMS,))


def with_momentum(layers: int, products: int = 1) -> StepGraph:
    """A chain of so many products a layer, each weight with a moment that only its update uses."""
    builder = StepBuilder()
    value = builder.tensor()
    for _ in range(products * layers):
        value = builder.node(value, builder.weight())
    loss = builder.op("loss", "subtract", value, builder.tensor())
    builder.accumulate("loss.acc", builder.op("metric", "multiply", loss, loss))
    builder.backward(loss, builder.weights)
    step = builder.step(layers, 4)
    graph, layer = step.graph, list(step.op_layer)
    tensors, ops, inputs = list(graph.tensors), list(graph.ops), list(graph.inputs)
    outputs, tied, owner = list(graph.outputs), list(step.tied), dict(step.owner)
    for position in reversed(range(step.loop[1], len(ops))):
        op = ops[position]
        if op.name != "subtract":
            continue
        weight, total = op.operands
        moment, moved = len(tensors), len(tensors) + 1
        tensors += [tensors[weight]] * 2
        ops[position : position + 1] = [
            Op("add", (moment, total), (moved,), _ELEMENTWISE),
            Op("subtract", (weight, moved), op.results, _ELEMENTWISE),
        ]
        layer.insert(position, layer[position])
        inputs.append(moment)
        outputs.append(moved)
        tied.append((moment, moved))
        owner[moment] = layer[position]
    return replace(
        step,
        graph=OpGraph(tuple(tensors), tuple(ops), tuple(sorted(inputs)), tuple(outputs)),
        op_layer=tuple(layer),
        tied=tuple(tied),
        owner=owner,
    )


def test_moments_rest_and_are_updated_one_by_one() -> None:
    step = offload_state(with_momentum(2, 2))
    assert len(step.on_host) == 4
    assert moved_bytes(step).tolist() == [4 * BYTES, 4 * BYTES]
    part = cut_part(step, 0, 2)
    assert part.kinds.count("after") == 1 + 4, "what needs no moment, and each weight"
    assert sorted(part.moves_of.values()) == [2] * 4
    assert part.key != cut_part(with_momentum(2, 2), 0, 2).key


def test_a_device_never_holds_two_moments() -> None:
    """Four weights and four moments: in the loop none of these, behind it one at a time."""
    one = stage_configs(load_cluster("cpu-test:1x1"))[0]
    tables = StrategyTables(candidate_mesh(one, (0,)), load_cluster("cpu-test:1x1"))
    held = []
    for step in (with_momentum(2, 2), offload_state(with_momentum(2, 2))):
        part = cut_part(step, 0, 2)
        facts = PartFacts(part)
        held.append(memory_of(facts, tables, OptimalSharder().shard(part, facts, tables)))
    plain, offloaded = held
    assert plain.fixed_bytes - offloaded.fixed_bytes == 4 * BYTES
    assert plain.outside_bytes - offloaded.outside_bytes == 3 * BYTES
    assert (plain.host_bytes, offloaded.host_bytes) == (0, 4 * BYTES)


def test_the_update_waits_for_what_travels() -> None:
    step = with_momentum(2, 2)
    one = stage_configs(CLUSTER)[0]
    tables = StrategyTables(candidate_mesh(one, (0,)), CLUSTER)
    seconds = []
    for each in (step, offload_state(step)):
        part = cut_part(each, 0, 2)
        facts = PartFacts(part)
        choice = OptimalSharder().shard(part, facts, tables).choice
        seconds.append(sum(ShardedPart(facts, tables, choice, ()).seconds()))
    link = CLUSTER.groups[0].host_link
    assert link is not None
    travels = 8 * (link.latency_seconds + BYTES / link.bandwidth_bytes_per_second)
    assert seconds[1] - seconds[0] >= travels * (1 - 1e-9)
    assert seconds[1] - seconds[0] == pytest.approx(travels, rel=0.05)


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest activation is worth a message."""
    monkeypatch.setattr(offloading, "_SMALL_BYTES", 0)


@pytest.mark.usefixtures("any_size")
def test_activations_wait_for_the_backward_and_not_for_further_microbatches() -> None:
    step = with_momentum(3, 2)
    one = stage_configs(CLUSTER)[0]
    tables = StrategyTables(candidate_mesh(one, (0,)), CLUSTER)
    memories, seconds = [], []
    for mode in ("none", "activations"):
        part = cut_part(offload(step, mode), 0, 2)
        facts = PartFacts(part)
        sharding = OptimalSharder().shard(part, facts, tables)
        memories.append(memory_of(facts, tables, sharding))
        seconds.append(sum(sharding.fragment_seconds))
    plain, offloaded = memories
    assert part.waiting and part.waiting == part.on_host
    # What comes from elsewhere, and what goes on to another stage, stays.
    kept = len(part.waiting) * BYTES
    assert offloaded.waiting_bytes == kept
    assert plain.activation_bytes - offloaded.activation_bytes == kept
    assert offloaded.activation_bytes == BYTES, "what the stage receives"
    assert offloaded.need(1) == plain.need(1)
    assert plain.need(3) - offloaded.need(3) == 2 * kept
    assert all(move.times == 4 for move in part.moves), "once for every microbatch"
    link = CLUSTER.groups[0].host_link
    assert link is not None
    each = link.latency_seconds + BYTES / link.bandwidth_bytes_per_second
    assert seconds[1] - seconds[0] == pytest.approx(4 * 2 * len(part.waiting) * each)


@pytest.mark.usefixtures("any_size")
def test_nothing_waits_in_the_last_stage() -> None:
    part = cut_part(offload(with_momentum(3, 2), "activations"), 1, 3)
    assert not part.waiting


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_flight", [1, 3])
def test_stage_cost_and_plan_of_a_choice_hold_the_same(mode: str, in_flight: int) -> None:
    step = replace(with_momentum(3, 2), fusing=CLUSTER.fusing)
    part = cut_part(offload(step, mode), 0, 2)
    facts, random = PartFacts(part), np.random.default_rng(0)
    for config in stage_configs(CLUSTER):
        tables = StrategyTables(candidate_mesh(config, range(config.num_devices)), CLUSTER)
        whole = IntraOpTables(
            part.graph, tables.mesh, CLUSTER, linear=part.linear, strategies=tables
        )
        problem = whole.problem(tied=part.tied, residency=part.residency(in_flight))
        for _ in range(5):
            choice = tuple(int(random.integers(len(cost))) for cost in problem.problem.costs)
            try:
                plan = problem.decode(Solution(choice, 0.0, 0.0, 0.0, "feasible"))
            except ValueError:  # a value cannot become unreduced
                continue
            sharded = ShardedPart(facts, tables, choice, ())
            assert sharded.live_bytes(True, in_flight).tolist() == plan.live_bytes.tolist()
            assert problem.plan_seconds(plan) == pytest.approx(problem.seconds(choice))


def shortest_seconds(known: StageProblem) -> float:
    """Of all plans of two stages."""
    numbers = range(len(known.configs))
    cuts = range(1, known.num_layers)
    plans = [((0, k, a), (k, known.num_layers, b)) for k in cuts for a in numbers for b in numbers]
    return min(evaluate(known, plan).seconds for plan in plans if is_plan(known, plan))


def searched(candidates: CandidateProblem) -> StageSolution:
    lazy = LazyStageCosts(candidates, gap_tolerance=0.0, most_solves=10**6)
    return lazy.best(one_f_one_b_in_flight, lambda problem, start: solve_stages(problem, 2, start))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (10240, [("none", "none"), ("none", "none")]),
        (8192, [("layer", "none"), ("none", "none")]),
        (6784, [("layer", "optimizer"), ("layer", "none")]),
        (6016, [("layer", "optimizer"), ("none", "optimizer")]),
    ],
)
def test_no_plan_is_shorter_whatever_stages_recompute_and_offload(
    limit: int, expected: list[tuple[str, str]]
) -> None:
    """Cuts, and what each of two stages recomputes and offloads: all plans at exact costs, against
    the search that makes few costs exact."""
    configs = tuple(
        replace(config, recompute=recompute, offload=offload)
        for config in stage_configs(CLUSTER)
        if config.num_devices == 1
        for recompute in ("none", "layer")
        for offload in ("none", "optimizer")
    )
    candidates = CandidateProblem(
        with_momentum(4, 3), 4, CLUSTER, configs, 4, 2, memory_limit_bytes=(limit,)
    )
    eager = LazyStageCosts(candidates)
    eager.compute_all()
    found = searched(candidates)
    best = shortest_seconds(eager.problem(one_f_one_b_in_flight))
    assert found.seconds == pytest.approx(best, rel=1e-12)
    assert found.bound == pytest.approx(best, rel=1e-12)
    chosen = [configs[stage[2]] for stage in found.stages]
    assert [(config.recompute, config.offload) for config in chosen] == expected


@pytest.mark.usefixtures("any_size")
def test_no_plan_is_shorter_whatever_waits_on_hosts() -> None:
    """As above, with all modes of offloading, of which some budgets need several; what is known at
    first is a bound."""
    configs = tuple(
        replace(config, offload=mode)
        for config in stage_configs(CLUSTER)
        if config.num_devices == 1
        for mode in MODES
    )
    chosen = set()
    limits = (10240, 7168, 6144, 9216, 8192, 6656)
    for limit in limits[: 1 + draws(len(limits))]:
        candidates = CandidateProblem(
            with_momentum(4, 3), 4, CLUSTER, configs, 4, 2, memory_limit_bytes=(limit,)
        )
        eager = LazyStageCosts(candidates)
        first = deepcopy(eager.problem(one_f_one_b_in_flight))
        eager.compute_all()
        known = eager.problem(one_f_one_b_in_flight)
        which = eager.arrays.candidates
        for bound, exact in (
            (first.seconds, known.seconds),
            (first.fixed_bytes, known.fixed_bytes),
            (first.activation_bytes, known.activation_bytes),
        ):
            assert (bound[which] <= exact[which] * (1 + 1e-12)).all()
        found = searched(candidates)
        assert found.seconds == pytest.approx(shortest_seconds(known), rel=1e-12)
        chosen.update(configs[stage[2]].offload for stage in found.stages)
    assert {"none", "optimizer", "all"} <= chosen


@pytest.mark.usefixtures("any_size")
def test_what_waits_counts_against_the_host_for_every_microbatch_in_flight() -> None:
    """A stage of the first layer of four, with up to three behind it."""
    one = load_cluster("cpu-test:1x2")
    configs = tuple(
        replace(config, offload="activations")
        for config in stage_configs(one)
        if config.num_devices == 1
    )
    waiting = len(cut_part(offload(with_momentum(4, 2), "activations"), 0, 1).waiting) * BYTES
    for limit, fits in ((4 * waiting, True), (4 * waiting - 1, False)):
        costs = LazyStageCosts(
            CandidateProblem(
                with_momentum(4, 2), 4, one, configs, 8, 2, (None,), host_limit_bytes=(limit,)
            )
        )
        costs.compute_all()
        assert np.isfinite(costs.problem(one_f_one_b_in_flight).seconds[0, 1]).all() == fits


def test_hosts_have_limits_too() -> None:
    one = load_cluster("cpu-test:1x1")
    configs = tuple(replace(config, offload="optimizer") for config in stage_configs(one))
    for limit, fits in ((4 * BYTES, True), (4 * BYTES - 1, False)):
        costs = LazyStageCosts(
            CandidateProblem(
                with_momentum(4), 4, one, configs, 4, 1, (None,), host_limit_bytes=(limit,)
            )
        )
        costs.compute_all()
        seconds = costs.problem(one_f_one_b_in_flight).seconds[costs.arrays.candidates]
        assert seconds.size and np.isfinite(seconds).all() == fits
