"""Stage costs of candidate stages: which are found, which share a solution, what they hold, and the
bounds below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardopt.caching.store import Store, using
from shardopt.cost.transfers import messages_seconds
from shardopt.graph.recomputed_units import searched_modes
from shardopt.hardware.cluster import Cluster, Submesh
from shardopt.hardware.cluster_file import load_cluster, with_overlap
from shardopt.schedule.builders.pipedream import pipedream_2bw_ages, pipedream_ages
from shardopt.schedule.schedules import find_schedule
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.intra_op.lifetimes import live_bytes
from shardopt.solve.sharding.intra_op.overlap import LEAST_SHARE
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.baselines.planner import PlannerInput
from shardopt.solve.stages.baselines.registry import find_planner
from shardopt.solve.stages.candidates import CandidateProblem, candidate_mesh, check_number
from shardopt.solve.stages.costs import lazy_costs
from shardopt.solve.stages.costs.bounds import Rooflines, relaxed_layer
from shardopt.solve.stages.costs.cost_arrays import MEMORY, CostArrays
from shardopt.solve.stages.costs.cost_cache import CostCache
from shardopt.solve.stages.costs.lazy_costs import LazyStageCosts, NothingFits
from shardopt.solve.stages.costs.lean import LeanSharder
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharded_part import ShardedPart
from shardopt.solve.stages.costs.sharders import (
    OptimalSharder,
    PartSharding,
    memory_of,
    sharding_of,
)
from shardopt.solve.stages.costs.stage_part import StagePart, cut_part
from shardopt.solve.stages.dp.infeasible import leanest_plan
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.search.costs_by_kind import CostsByKind
from shardopt.solve.stages.search.plan_search import NoneIsShorter, PlanSearch, search_plans
from shardopt.solve.stages.search.shared_meshes import sharing_planner
from shardopt.solve.stages.stage_problem import (
    StageConfig,
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    held_copies,
    is_plan,
    one_f_one_b_in_flight,
    stage_configs,
    stage_memory_bytes,
)
from shardopt.solve.stages.step_graph import StepGraph
from shardopt.support.errors import UserError
from tests.unit.solve.stages.step_graphs import WIDTH, StepBuilder

BYTES = 4 * WIDTH * WIDTH
MICROBATCHES = 4


# Collectives one after the other, or beside computing.
OVERLAP = pytest.mark.parametrize("overlap", ["off", "on", "combined"])


def cluster(shape: str = "1x4", overlap: str = "off") -> Cluster:
    on = "on" if overlap == "combined" else overlap
    found = with_overlap(load_cluster(f"cpu-test:{shape}"), on)
    if on == overlap:
        return found
    return replace(
        found, groups=tuple(replace(group, combined_bytes=1e6) for group in found.groups)
    )


def chain(depth: int = 4, microbatches: int = MICROBATCHES) -> StepGraph:
    """A chain of `depth` products, one a layer, with backward pass and update."""
    builder = StepBuilder()
    value = builder.tensor()
    for _ in range(depth):
        value = builder.node(value, builder.weight())
    loss = builder.op("loss", "subtract", value, builder.tensor())
    builder.accumulate("loss.acc", builder.op("metric", "multiply", loss, loss))
    builder.backward(loss, builder.weights)
    return builder.step(depth, microbatches)


def deep_layers(count: int) -> StepGraph:
    """As `chain`, with three products in each of so many layers."""
    builder = StepBuilder()
    value = builder.tensor()
    for _ in range(3 * count):
        value = builder.node(value, builder.weight())
    loss = builder.op("loss", "subtract", value, builder.tensor())
    builder.accumulate("loss.acc", builder.op("metric", "multiply", loss, loss))
    builder.backward(loss, builder.weights)
    return builder.step(count, MICROBATCHES)


def problem(
    depth: int = 4,
    num_stages: int | None = None,
    shape: str = "1x4",
    microbatches: int = MICROBATCHES,
    overlap: str = "off",
) -> CandidateProblem:
    where = cluster(shape, overlap)
    return CandidateProblem(
        chain(depth, microbatches), depth, where, stage_configs(where), microbatches, num_stages
    )


def exact(candidates: CandidateProblem) -> tuple[LazyStageCosts, StageProblem]:
    stage_costs = LazyStageCosts(candidates)
    stage_costs.compute_all()
    return stage_costs, stage_costs.problem(one_f_one_b_in_flight)


@pytest.fixture(scope="module")
def costs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs")


@pytest.fixture
def kept_costs(costs_folder: Path) -> Iterator[None]:
    """For tests of what is chosen by costs: equal stages are solved once for all of them."""
    with using(Store(costs_folder)):
        yield


@pytest.fixture(scope="module")
def exact_costs() -> tuple[LazyStageCosts, StageProblem]:
    return exact(problem())


def test_every_candidate_of_some_cover_has_a_cost(
    exact_costs: tuple[LazyStageCosts, StageProblem],
) -> None:
    """Four layers on 1x4: the whole model only on all devices, a part only on fewer."""
    stage_costs, stages = exact_costs
    finite = np.isfinite(stages.seconds)
    assert int(finite.sum()) == stage_costs.num_candidates == stage_costs.num_exact
    for o, config in enumerate(stages.configs):
        assert finite[0, 4, o] == (config.num_devices == 4)
        assert not finite[2, 2, o]
        assert finite[0, 1, o] == (config.num_devices < 4)


@pytest.mark.usefixtures("kept_costs")
@pytest.mark.parametrize(
    ("limit", "mode"),
    [(8000, "none"), (7000, "selective:1"), (6000, "layer"), (5400, "selective")],
)
def test_no_plan_is_shorter_whatever_stages_recompute(limit: int, mode: str) -> None:
    """Cuts, and what each of two stages recomputes, also in its first layers alone: all plans at
    exact costs, against the search that makes few costs exact. The less memory, the more."""
    where, modes = cluster("1x2"), searched_modes(4)
    assert modes[4:] == ("selective:1", "layer:1", "selective:2", "layer:2")
    configs = tuple(
        replace(config, recompute=mode)
        for config in stage_configs(where)
        if config.num_devices == 1
        for mode in modes
    )
    candidates = CandidateProblem(
        deep_layers(4), 4, where, configs, MICROBATCHES, 2, memory_limit_bytes=(limit,)
    )
    known = exact(candidates)[1]
    plans = [
        ((0, cut, a), (cut, 4, b))
        for cut in (1, 2, 3)
        for a in range(len(modes))
        for b in range(len(modes))
    ]
    seconds = {plan: evaluate(known, plan).seconds for plan in plans if is_plan(known, plan)}
    best = min(seconds.values())
    assert mode in {modes[first[2]] for (first, _), each in seconds.items() if each == best}
    lazy = LazyStageCosts(candidates, gap_tolerance=0.0, most_solves=10**6)
    found = lazy.best(one_f_one_b_in_flight, lambda p, first: solve_stages(p, 2, first))
    assert found.seconds == pytest.approx(best, rel=1e-12)
    assert found.bound == pytest.approx(best, rel=1e-12)


def test_equal_intervals_are_solved_once(exact_costs: tuple[LazyStageCosts, StageProblem]) -> None:
    """Layers 1 and 2 of the chain have equal operations and equal dataflow; the first and the last
    differ."""
    _, stages = exact_costs
    assert (
        cut_part(chain(), 1, 2).key == cut_part(chain(), 2, 3).key == cut_part(chain(5), 3, 4).key
    )
    assert len({cut_part(chain(), k, k + 1).key for k in range(4)}) == 3
    np.testing.assert_array_equal(stages.seconds[1, 2], stages.seconds[2, 3])
    np.testing.assert_array_equal(stages.fixed_bytes[1, 2], stages.fixed_bytes[2, 3])


@pytest.mark.parametrize("ages", [pipedream_ages, pipedream_2bw_ages])
def test_older_versions_of_weights_take_memory(
    ages: Callable[[int], tuple[int, ...]], exact_costs: tuple[LazyStageCosts, StageProblem]
) -> None:
    """On one device as much as the weights of a stage, for every version; the gradients' sums have
    none. Everything else is as without."""
    candidates = replace(problem(), weight_ages=ages)
    lazy, (_, plain) = LazyStageCosts(candidates), exact_costs
    first = lazy.problem(one_f_one_b_in_flight).weight_bytes
    assert first is not None
    least = first.copy()
    lazy.compute_all()
    known = lazy.problem(one_f_one_b_in_flight)
    assert known.weight_bytes is not None
    assert (least <= known.weight_bytes + 1e-9)[lazy.arrays.candidates].all()
    np.testing.assert_array_equal(known.seconds, plain.seconds)
    single = next(c for c, config in enumerate(known.configs) if config.num_devices == 1)
    for start, end in ((0, 1), (1, 2)):
        assert known.weight_bytes[start, end, single] == BYTES * (end - start)
    stages = tuple((k, k + 1, single) for k in range(4))
    more = np.subtract(stage_memory_bytes(known, stages), stage_memory_bytes(plain, stages))
    assert more.tolist() == [BYTES * age for age in ages(4)]


def test_bytes_are_weights_sums_and_what_the_backward_needs() -> None:
    """On one device: a weight and the sum of its gradients, and what layer 1 of three keeps for its
    backward."""
    step = chain(3)
    one = stage_configs(cluster("1x1"))[0]
    tables = StrategyTables(candidate_mesh(one, (0,)), cluster("1x1"))
    needs = []
    for start, end in ((1, 2), (2, 3)):
        part = cut_part(step, start, end)
        needs.append(
            memory_of(
                PartFacts(part), tables, OptimalSharder().shard(part, PartFacts(part), tables)
            )
        )
    inner, last = needs
    assert inner.activation_bytes == 2 * BYTES, "what the layer gets and what it makes"
    assert last.activation_bytes == 0, "the last stage holds nothing between forward and backward"
    assert 2 * BYTES <= inner.fixed_bytes <= 6 * BYTES


@OVERLAP
@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 3), (0, 4)])
def test_a_cost_is_what_the_plan_of_its_choices_takes(start: int, end: int, overlap: str) -> None:
    part, where = cut_part(chain(), start, end), cluster(overlap=overlap)
    for config in stage_configs(where):
        tables = StrategyTables(candidate_mesh(config, range(config.num_devices)), where)
        sharding = OptimalSharder().shard(part, PartFacts(part), tables)
        whole = IntraOpTables(part.graph, tables.mesh, where, linear=part.linear, strategies=tables)
        plan = whole.problem(tied=part.tied).decode(
            Solution(sharding.choice, 0.0, 0.0, 0.0, "feasible")
        )
        assert sum(sharding.fragment_seconds) == pytest.approx(plan.summary().seconds)


@OVERLAP
@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 3), (0, 4)])
def test_stage_cost_and_plan_of_a_choice_are_one_account(
    start: int, end: int, overlap: str
) -> None:
    """Seconds of each fragment; bytes with copies of operands, and without them for several
    microbatches in flight; whatever is chosen."""
    where = cluster(overlap=overlap)
    part = cut_part(replace(chain(), fusing=where.fusing), start, end)
    hidden = 0.0
    facts, random = PartFacts(part), np.random.default_rng(end)
    for config in stage_configs(where):
        tables = StrategyTables(candidate_mesh(config, range(config.num_devices)), where)
        whole = IntraOpTables(part.graph, tables.mesh, where, linear=part.linear, strategies=tables)
        problem = whole.problem(tied=part.tied, residency=part.residency(1))
        for _ in range(5):
            choice = tuple(int(random.integers(len(cost))) for cost in problem.problem.costs)
            try:
                plan = problem.decode(Solution(choice, 0.0, 0.0, 0.0, "feasible"))
            except ValueError:  # a value cannot become unreduced
                continue
            sharded = ShardedPart(facts, tables, choice, ())
            assert sharded.live_bytes(copies=True).tolist() == plan.live_bytes.tolist()
            fragments = [
                plan.summary(op for op, each in enumerate(part.graph.ops) if each.group == k)
                for k in range(len(part.kinds))
            ]
            assert sharded.seconds() == pytest.approx([each.seconds for each in fragments])
            for each in fragments:
                both = each.compute_seconds + each.communication_seconds
                assert LEAST_SHARE * both * (1 - 1e-9) <= each.seconds <= both
                hidden += each.hidden_seconds
            lives = problem.with_residency(part.residency(3)).lifetimes
            live = live_bytes(
                part.graph, tables.mesh, lives, plan.shardings, (), len(problem.order)
            )
            assert sharded.live_bytes(copies=False, in_flight=3).tolist() == live.tolist()
    assert hidden == 0.0 or overlap != "off"


@OVERLAP
@pytest.mark.parametrize("depth", [2, 4])
def test_bounds_never_exceed_costs(depth: int, overlap: str) -> None:
    step, where = chain(depth), cluster(overlap=overlap)
    roofs, costs = Rooflines(step, where), CostCache(where)
    for config in stage_configs(where):
        mesh = candidate_mesh(config, range(config.num_devices))
        tables, roof = StrategyTables(mesh, where), roofs.seconds(mesh)[0]
        for start in range(depth):
            for end in range(start + 1, depth + 1):
                part = cut_part(step, start, end)
                seconds_alone = sum(
                    OptimalSharder().shard(part, PartFacts(part), tables).fragment_seconds
                )
                layers = [
                    costs.bound(relaxed_layer(step, k, end == depth, {}), mesh)
                    for k in range(start, end)
                ]
                assert sum(layers) <= seconds_alone * (1 + 1e-9)
                assert roof[start:end].sum() <= seconds_alone * (1 + 1e-9)


@OVERLAP
@pytest.mark.parametrize(("start", "end", "raises"), [(0, 2, True), (0, 3, True), (1, 3, False)])
def test_bounds_within_memory_never_exceed_what_fits(
    start: int, end: int, raises: bool, overlap: str
) -> None:
    """Shardings from the shortest to lean ones, each within what it holds itself. The last layers
    of three hold no more than their weights and sums."""
    step, where = chain(3), cluster(overlap=overlap)
    costs, part, raised = CostCache(where), cut_part(step, start, end), 0
    facts = PartFacts(part)
    layers = [relaxed_layer(step, k, end == 3, {}) for k in range(start, end)]
    for config in stage_configs(where):
        mesh = candidate_mesh(config, range(config.num_devices))
        tables = StrategyTables(mesh, where)
        shortest = OptimalSharder().shard(part, facts, tables)
        shardings = [shortest]
        for strictness in (0.1, 1.0, 10.0, 100.0):
            lean = LeanSharder(shortest, strictness * sum(shortest.fragment_seconds) / BYTES, 1)
            shardings.append(lean.shard(part, facts, tables))
        plain = sum(costs.bound(layer, mesh) for layer in layers)
        for sharding in shardings:
            limit = memory_of(facts, tables, sharding).need(1)
            for worth in (0.3, 1.0, 3.0):
                price = worth * plain / limit
                within = sum(costs.bound(layer, mesh, price) for layer in layers) - price * limit
                assert within <= sum(sharding.fragment_seconds) * (1 + 1e-9)
                raised += within > plain * 1.001
    assert bool(raised) == raises


@pytest.mark.parametrize("shape", [(1, 4), (2, 2)])
def test_lean_stages_gather_weights_again_for_the_backward(shape: tuple[int, int]) -> None:
    """Where one fragment runs forward and backward, and bytes are dear."""
    step, where = chain(6, 1), cluster()
    part = cut_part(step, 0, 6)
    facts = PartFacts(part)
    config = next(each for each in stage_configs(where) if each.logical_shape == shape)
    tables = StrategyTables(candidate_mesh(config, range(4)), where)
    shortest = OptimalSharder().shard(part, facts, tables)
    byte_seconds = 100 * sum(shortest.fragment_seconds) / BYTES
    dropped = LeanSharder(shortest, byte_seconds, 1).shard(part, facts, tables)
    kept = sharding_of(facts, tables, dropped.choice)
    assert sum(dropped.fragment_seconds) > sum(kept.fragment_seconds)
    needs = [memory_of(facts, tables, each).need(1) for each in (dropped, kept)]
    assert needs[0] < 0.7 * needs[1]


@pytest.mark.usefixtures("kept_costs")
@OVERLAP
@pytest.mark.parametrize("num_stages", [None, 1, 2, 3])
@pytest.mark.parametrize("limit", [None, 24 * BYTES, 17 * BYTES])
def test_lazy_and_eager_costs_give_one_plan(
    num_stages: int | None, limit: int | None, overlap: str
) -> None:
    unlimited = problem(4, num_stages, overlap=overlap)
    candidates = replace(unlimited, memory_limit_bytes=(limit,))
    _, everything = exact(candidates)
    eager = solve_stages(everything, num_stages)
    lazy = LazyStageCosts(candidates, gap_tolerance=0.0)
    plan = lazy.best(
        one_f_one_b_in_flight, lambda stages, known: solve_stages(stages, num_stages, known)
    )
    assert plan.seconds == pytest.approx(eager.seconds, rel=1e-9)
    assert plan.bound == pytest.approx(eager.seconds, rel=1e-9)
    assert lazy.num_exact <= lazy.num_candidates


@pytest.fixture
def short_and_lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the shortest sharding of a stage has missed one of half the seconds, which
    that for a leaner one finds."""
    shard = LeanSharder.shard

    def shorter(
        self: LeanSharder, part: StagePart, facts: PartFacts, tables: StrategyTables
    ) -> PartSharding:
        found = shard(self, part, facts, tables)
        return replace(found, fragment_seconds=tuple(s / 2 for s in found.fragment_seconds))

    monkeypatch.setattr(LeanSharder, "shard", shorter)


@pytest.mark.usefixtures("short_and_lean")
@pytest.mark.parametrize("limit", [4 * BYTES, 7 * BYTES, 9 * BYTES])
def test_seconds_never_fall_on_the_way_to_exact_ones(limit: int) -> None:
    arrays = LazyStageCosts(replace(problem(), memory_limit_bytes=(limit,))).arrays
    for stage in map(tuple, np.argwhere(arrays.candidates).tolist()):
        before = 0.0
        while arrays.level[stage] < MEMORY:
            arrays.refine([stage])
            assert arrays.seconds[stage] >= before
            before = arrays.seconds[stage]


@pytest.mark.usefixtures("short_and_lean")
@pytest.mark.parametrize(
    "limit",
    [2432, 2528, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (2464, 2496))],
)
def test_bounds_hold_where_leaner_shardings_turn_out_shorter(limit: int) -> None:
    candidates = replace(problem(), memory_limit_bytes=(limit,))
    least = solve_stages(exact(candidates)[1]).seconds
    lazy = LazyStageCosts(candidates, gap_tolerance=0.0)
    plan = lazy.best(one_f_one_b_in_flight, lambda stages, known: solve_stages(stages, None, known))
    assert plan.bound == pytest.approx(least, rel=1e-9)
    assert plan.seconds == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("interleaved:2", 5 * BYTES),
        ("zb-v", 24 * BYTES),
        ("chimera", 5 * BYTES),
        ("pipedream", 24 * BYTES),
        *(
            pytest.param(name, limit, marks=pytest.mark.slow)
            for name, limit in (
                ("interleaved:2", 24 * BYTES),
                ("zb-v", 5 * BYTES),
                ("chimera", 24 * BYTES),
                ("pipedream", 5 * BYTES),
            )
        ),
    ],
)
def test_costs_found_for_one_schedule_serve_the_others(name: str, limit: int) -> None:
    """What is known already says nothing else than what is found anew, at fewer solves: bounds stay
    below, and in the end all is equal. How long what does not fit takes, bounds alone say, and which
    those are depends on what was asked for first."""
    alone = replace(problem(), memory_limit_bytes=(limit,))
    kinds = CostsByKind(alone)
    first = kinds.of(find_schedule("1f1b"))
    first.compute_all()
    solves = first.counts.solves
    costs, anew = kinds.of(find_schedule(name)), CostsByKind(alone).of(find_schedule(name))
    assert costs.candidates.memory_limit_bytes == anew.candidates.memory_limit_bytes
    assert (costs.candidates.memory_limit_bytes == (limit,)) == (name == "pipedream")
    anew.compute_all()
    assert (costs.arrays.seconds <= anew.arrays.seconds * (1 + 1e-9)).all()
    costs.compute_all()
    assert costs.counts.solves - solves < anew.counts.solves
    for found in ("forward_seconds", "fixed_bytes", "activation_bytes", "level"):
        np.testing.assert_array_equal(getattr(costs.arrays, found), getattr(anew.arrays, found))
    (share,) = costs.candidates.memory_limit_bytes
    fits = anew.arrays.fixed_bytes + anew.arrays.activation_bytes <= share
    assert fits.any() and np.array_equal(costs.arrays.seconds[fits], anew.arrays.seconds[fits])


def test_a_schedule_that_cannot_win_is_given_up_before_its_costs_are_exact() -> None:
    kind, name = find_schedule("interleaved:2"), "interleaved:2"
    planner = sharing_planner(find_planner("dp"), "dp", kind)

    def search(faster_than: float) -> tuple[LazyStageCosts, float]:
        costs = CostsByKind(problem(8)).of(kind)
        transfers, request = costs.candidates.transfers(), PlannerInput()
        found = search_plans(costs, [name], transfers, planner, request, faster_than=faster_than)
        return costs, found.best.step_seconds

    costs, seconds = search(np.inf)
    assert search(1.001 * seconds)[1] == seconds
    fresh = CostsByKind(problem(8)).of(kind)
    with pytest.raises(NoneIsShorter, match="no step was found that takes less than"):
        search_plans(
            fresh,
            [name],
            fresh.candidates.transfers(),
            planner,
            PlannerInput(),
            faster_than=0.9 * seconds,
        )
    assert fresh.counts.solves < costs.counts.solves and fresh.num_exact == 0


def test_more_candidates_than_memory_holds_are_refused() -> None:
    """128 layers on any submesh of 3,072 devices; 16 layers on any of 512, or 128 on few, are
    none too many."""
    modes = len(searched_modes(128))
    of_many = modes * stage_configs(load_cluster("a100-80g:384x8"))
    of_fewer = modes * stage_configs(load_cluster("a100-80g:64x8"))
    with pytest.raises(UserError, match=r"at most 100,000,000 .* of 128 layers on 105,894 comb"):
        check_number(128, of_many)
    check_number(16, of_fewer)
    check_number(128, 9 * modes * of_fewer[:1])


def test_more_submeshes_than_memory_holds_are_refused() -> None:
    """Of 8,192 devices any number of hosts with one device each; the whole alone is one."""
    submeshes = [StageConfig(hosts, Submesh(hosts, 1), (hosts, 1)) for hosts in range(1, 8193)]
    with pytest.raises(UserError, match=r"at most 20,000,000 devices .* found 33,558,528 in 8,192"):
        check_number(2, submeshes)
    check_number(2, submeshes[-1:])


def test_few_candidates_get_exact_costs() -> None:
    lazy = LazyStageCosts(problem(6))
    lazy.best(one_f_one_b_in_flight, lambda stages, known: solve_stages(stages, None, known))
    assert lazy.num_exact < lazy.num_candidates / 2


@pytest.mark.usefixtures("kept_costs")
def test_a_search_that_ends_early_does_not_lose_to_one_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planner meets a pipeline of four, then one of three that looks shorter, and nothing more
    may be solved."""
    _, everything = exact(problem())
    whole, three, four = (solve_stages(everything, count) for count in (1, 3, 4))
    assert whole.seconds < four.seconds
    monkeypatch.setattr(lazy_costs, "MORE_SOLVES", 0)

    def planner(stages: StageProblem, known: Stages | None) -> StageSolution:
        return replace(
            evaluate(stages, (four if known is None else three).stages), seconds=0.5 * whole.seconds
        )

    plan = LazyStageCosts(problem(), gap_tolerance=0.0, most_solves=0).best(
        one_f_one_b_in_flight, planner
    )
    assert plan.stages == whole.stages
    assert plan.seconds == pytest.approx(whole.seconds, rel=0.005)


def test_cut_costs_what_crosses_it(exact_costs: tuple[LazyStageCosts, StageProblem]) -> None:
    """One activation forwards and one gradient back cross each cut, whatever the number of their
    readers."""
    expected = messages_seconds(cluster(), [(0, 1, BYTES)])
    cut_seconds = exact_costs[1].transfer_seconds
    assert cut_seconds is not None
    assert cut_seconds[:, 1:4] == pytest.approx(np.full((2, 3), expected))
    assert not cut_seconds[:, [0, 4]].any()


def test_a_given_number_of_stages_prunes_candidates() -> None:
    one, four = problem(num_stages=1).candidates(), problem(num_stages=4).candidates()
    assert one[0, 4].any() and not one[0, 1:4].any()
    assert not four[0, 2:].any(), "four stages of four layers have one each"


def test_forward_is_what_needs_no_later_stage(
    exact_costs: tuple[LazyStageCosts, StageProblem],
) -> None:
    """The last stage has its backward in the forward fragment; before it, one product of three is
    forward."""
    _, stages = exact_costs
    last, inner = (slice(3, 4), 4, slice(0, 1)), (slice(1, 2), 2, slice(0, 1))
    assert (stages.forward_seconds[last] > 0.5 * stages.seconds[last]).all()
    assert np.all(stages.forward_seconds[inner] > 0)
    assert np.all(stages.forward_seconds[inner] < stages.seconds[inner] / 2)


def test_more_microbatches_share_the_sum() -> None:
    seconds = {count: exact(problem(2, microbatches=count))[1].seconds for count in (1, 4, 64)}
    finite = np.isfinite(seconds[1])
    assert (seconds[4][finite] <= seconds[1][finite] * (1 + 1e-9)).all()
    assert (seconds[64][finite] <= seconds[4][finite] * (1 + 1e-9)).all()
    assert (seconds[64][finite] < 0.99 * seconds[1][finite]).any()


def test_the_limit_of_memory_reaches_the_stages() -> None:
    for limit, expected in ((1234, 1234.0), (None, np.inf)):
        candidates = replace(problem(1), memory_limit_bytes=(limit,))
        assert LazyStageCosts(candidates).problem(one_f_one_b_in_flight).memory_bytes == (expected,)


def test_candidate_mesh() -> None:
    config = next(config for config in stage_configs(cluster()) if config.logical_shape == (2, 2))
    assert candidate_mesh(config, range(4)).axes == (("x", 2), ("y", 2))
    assert candidate_mesh(config, (4, 5, 6, 7), "m1").devices == (4, 5, 6, 7)


_PRICES = """
import sys
from hashlib import sha256
from pathlib import Path
from tests.unit.solve.stages.test_stage_costs import one_f_one_b_in_flight, problem
from shardopt.caching.store import Store, using
from shardopt.solve.stages.costs.sharded_part import ShardedPart
from shardopt.solve.stages.costs.lazy_costs import LazyStageCosts
remarks = []
with using(Store(Path(sys.argv[1]), remarks.append)):
    costs = LazyStageCosts(problem(2))
    costs.compute_all()
    found = costs.problem(one_f_one_b_in_flight)
arrays = (found.seconds, found.forward_seconds, found.fixed_bytes, found.activation_bytes)
print(sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())
counts = costs.counts
print(counts.solves + counts.parts + counts.accounts, counts.from_store, len(remarks))
"""


def test_costs_from_disk_are_those_that_would_be_computed(tmp_path: Path) -> None:
    """In two processes whose hashes differ; a damaged entry is made again, with a remark."""

    def run(seed: str) -> tuple[str, list[int]]:
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": str(Path(__file__).parents[4]),
        }
        command = [sys.executable, "-c", _PRICES, str(tmp_path)]
        text = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout
        arrays, counts = text.splitlines()
        return arrays, [int(count) for count in counts.split()]

    first, (made, known, _) = run("1")
    second, counts = run("2")
    assert second == first and made > 0 and known == 0
    assert counts == [0, made, 0]
    entry = next(path for path in sorted(tmp_path.rglob("*")) if path.is_file())
    entry.write_bytes(entry.read_bytes()[:-1])
    repaired, counts = run("3")
    assert repaired == first and counts == [1, made - 1, 1]


@pytest.mark.usefixtures("kept_costs")
@pytest.mark.parametrize(
    ("spent", "fits"),
    [("MOST_WITHOUT_PLAN", True), ("MOST_WITHOUT_PLAN", False), ("MOST_WORK", True)],
)
def test_a_search_without_a_plan_ends_with_the_leanest(
    monkeypatch: pytest.MonkeyPatch, spent: str, fits: bool
) -> None:
    """The planner goes on with a plan that never fits, as bounds promise one after the other: the
    search looks at the leanest plan itself, after so many problems or operations in them."""
    _, everything = exact(problem())
    leanest = leanest_plan(replace(everything, memory_bytes=(0.0,)), None)
    assert leanest is not None
    copies = held_copies(everything, len(leanest))[::-1]
    needs = [
        float(everything.need_bytes(held, stage))
        for stage, held in zip(leanest, copies, strict=True)
    ]
    largest = solve_stages(everything, 1).stages
    monkeypatch.setattr(lazy_costs, spent, 1)
    limit = int(max(needs)) + 1 if fits else int(0.9 * min(needs))
    lazy = LazyStageCosts(replace(problem(), memory_limit_bytes=(limit,)), most_solves=0)

    def planner(stages: StageProblem, known: Stages | None) -> StageSolution:
        return replace(evaluate(everything, known or largest), seconds=1e-9)

    if not fits:
        with pytest.raises(NothingFits, match=r"no plan was found .* lacks"):
            lazy.best(one_f_one_b_in_flight, planner)
        return
    plan = lazy.best(one_f_one_b_in_flight, planner)
    found = lazy.problem(one_f_one_b_in_flight)
    assert is_plan(found, plan.stages) and not is_plan(found, largest)


@pytest.mark.parametrize("schedule", ["1f1b", "chimera"])
def test_a_refusal_names_bytes_that_a_plan_needs(schedule: str) -> None:
    """Whatever less there is: what stages lack of which only bounds are known is no plan."""
    kind, planner = find_schedule(schedule), find_planner("dp")
    if kind.stages_per_mesh > 1:
        planner = sharing_planner(planner, "dp", kind)

    def search(limit: int | None) -> PlanSearch:
        within = replace(problem(), memory_limit_bytes=(limit,))
        costs = CostsByKind(within).of(kind)
        return search_plans(costs, [schedule], within.transfers(), planner, PlannerInput())

    peak = search(None).best.peak_bytes
    for share in (0.3, 0.5):
        with pytest.raises(UserError) as refused:
            search(int(share * peak))
        match = re.search(r"the least that was found is (\d+) bytes", str(refused.value))
        assert match
        search(int(match[1]))


@pytest.mark.parametrize("can_fit", [True, False])
def test_a_much_shorter_plan_that_misses_the_memory_by_little_is_sharded_within_it(
    monkeypatch: pytest.MonkeyPatch, can_fit: bool
) -> None:
    lazy, everything = exact(problem())
    stages = solve_stages(everything).stages
    arrays, limit = lazy.arrays, 1e12
    lazy.candidates = arrays.problem = replace(lazy.candidates, memory_limit_bytes=(int(limit),))
    others = np.ones_like(arrays.level, dtype=bool)
    for stage in stages:
        others[stage] = False
    arrays.seconds[others] *= 10
    missing = max(stages, key=lambda stage: everything.seconds[stage])
    arrays.fixed_bytes[missing] = 1.05 * limit
    asked = []

    def fit(self: CostArrays, stage: tuple[int, int, int], in_flight: int, versions: int) -> bool:
        asked.append(stage)
        if can_fit:
            self.fixed_bytes[stage] = 0.9 * limit
            self.seconds[stage] *= 1.1
        return can_fit

    monkeypatch.setattr(CostArrays, "fit", fit)
    plan = lazy.best(one_f_one_b_in_flight, lambda found, _: solve_stages(found))
    assert asked == [missing]
    assert (plan.stages == stages) == can_fit and plan.bound <= plan.seconds
    assert is_plan(lazy.problem(one_f_one_b_in_flight), plan.stages)
