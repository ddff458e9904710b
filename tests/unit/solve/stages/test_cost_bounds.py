"""Every bound of a stage cost is one: whatever plan the shard phase may make of a stage, it takes no
less and holds no less.

Candidates are refused with a limit one byte below their bound, and planned with the search of the
shard phase: without a limit, and for the least memory that it finds, with copies made twice and
values computed again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.alpa.specs import TINY
from shardopt.graph.recomputed_units import searched_modes
from shardopt.hardware.cluster_file import load_cluster, with_overlap
from shardopt.solve.assignment.limits import SearchLimits, work_of
from shardopt.solve.presets.base import InputKinds
from shardopt.solve.sharding.budget.search import fit
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs.cost_arrays import (
    LAYERS,
    MEMORY,
    ROOFLINE,
    SECONDS,
    Candidate,
    CostArrays,
)
from shardopt.solve.stages.costs.cost_cache import CostCache
from shardopt.solve.stages.costs.recomputation import can_recompute
from shardopt.solve.stages.stage_problem import Copies, stage_configs
from shardopt.solve.stages.step_graph import StepGraph
from shardopt.support.errors import UserError
from tests.draws import draws
from tests.unit.solve.stages.model_steps import step_of
from tests.unit.solve.stages.step_graphs import StepBuilder

CLUSTER = load_cluster("cpu-test:1x4")
OVERLAPPING = with_overlap(CLUSTER, "on")
METHODS = ("ilp", "data", "zero2", "zero3", "megatron")


def plans(arrays: CostArrays, candidate: Candidate, limit: int, n: int) -> Iterator[IntraOpPlan]:
    """Plans of the shard phase for a candidate with n microbatches in flight: the fastest, and the
    leanest if none holds `limit` bytes or less."""
    part, config = arrays.part(candidate), candidate[2]
    tables = StrategyTables(arrays.meshes[config], arrays.problem.cluster)
    problem = arrays.sharders[config].problem(part, tables).with_residency(part.residency(n))
    limits = SearchLimits(gap_tolerance=0.01, work=work_of(2.0))
    relaxed = problem.solve(limits)
    yield problem.decode(relaxed)
    fitted = fit(problem, limit, limits=limits, relaxed=relaxed)
    yield from (
        plan for plan in (fitted.plan, fitted.least and fitted.least.plan) if plan is not None
    )


def check_bounds(problem: CandidateProblem, candidate: Candidate, in_flight: int) -> None:
    arrays = CostArrays(problem, CostCache(problem.cluster))
    while arrays.level[candidate] < LAYERS:
        arrays.refine([candidate])
    seconds = problem.num_microbatches * float(arrays.seconds[candidate])
    fixed, activation = (float(bound[candidate]) for bound in arrays.least_bytes)
    least = ceil(fixed + in_flight * activation)
    try:
        for plan in plans(arrays, candidate, max(least - 1, 0), in_flight):
            assert plan.peak_bytes >= least
            assert plan.summary().seconds >= seconds * (1 - 1e-9)
    except UserError:
        assume(False)  # the method does not apply to the stage
    while arrays.level[candidate] < MEMORY:
        arrays.refine([candidate])
    costs = arrays.stage_problem(lambda *_: in_flight)
    assert float(costs.need_bytes(Copies(in_flight), candidate)) >= least
    assert problem.num_microbatches * float(costs.seconds[candidate]) >= seconds * (1 - 1e-9)


@st.composite
def candidates(
    draw: st.DrawFn, step: StepGraph, kinds: InputKinds, methods: tuple[str, ...]
) -> tuple[CandidateProblem, Candidate, int]:
    """A stage of some layers on some mesh, however it is sharded and recomputed, and how many
    microbatches are in flight there."""
    modes = searched_modes(step.num_layers) if can_recompute(step) else ("none",)
    recompute, method = draw(st.sampled_from(modes)), draw(st.sampled_from(methods))
    configs = tuple(
        replace(config, recompute=recompute, method=method) for config in stage_configs(CLUSTER)
    )
    repeats = max(op.repeat for op in step.graph.ops)
    where = draw(st.sampled_from((CLUSTER, OVERLAPPING)))
    problem = CandidateProblem(step, step.num_layers, where, configs, repeats, input_kinds=kinds)
    start, end, config = draw(st.sampled_from(np.argwhere(problem.candidates()).tolist()))
    in_flight = 1 if end == step.num_layers else draw(st.integers(1, repeats))
    return problem, (start, end, config), in_flight


def chain(depth: int, microbatches: int, shares_weights: bool) -> StepGraph:
    """Products, with backward pass, sums of gradients and update; every second weight is that of
    the product before."""
    builder = StepBuilder()
    value = builder.tensor()
    for k in range(depth):
        again = shares_weights and k % 2 == 1
        value = builder.node(value, builder.weights[-1] if again else builder.weight())
    loss = builder.op("loss", "subtract", value, builder.tensor())
    builder.accumulate("loss.acc", builder.op("metric", "multiply", loss, loss))
    builder.backward(loss, builder.weights)
    return builder.step(depth, microbatches)


@given(st.data(), st.integers(1, 4), st.sampled_from((1, 2, 8)), st.booleans())
@settings(max_examples=draws(25), deadline=None)
def test_no_plan_of_a_chain_is_below_its_bounds(
    data: st.DataObject, depth: int, microbatches: int, shares_weights: bool
) -> None:
    step = chain(depth, microbatches, shares_weights)
    check_bounds(*data.draw(candidates(step, InputKinds(), ("ilp",))))


def test_a_last_stage_that_recomputes_all_is_one_that_recomputes_nothing() -> None:
    """No gradient comes to it from another stage: its forward and backward are one fragment."""
    step, plain = chain(3, 2, shares_weights=False), stage_configs(CLUSTER)
    full = tuple(replace(each, recompute="full") for each in plain)
    both, none, recomputing = (
        CostArrays(CandidateProblem(step, 3, CLUSTER, configs, 2), CostCache(CLUSTER))
        for configs in (plain + full, plain, full)
    )
    assert not both.candidates[:, -1, len(plain) :].any()
    assert (both.candidates[:, :-1, len(plain) :] == recomputing.candidates[:, :-1]).all()
    last = np.argwhere(none.candidates[:, -1]).tolist()
    assert len(last) > 2 and (none.candidates[:, -1] == recomputing.candidates[:, -1]).all()
    for level in (ROOFLINE, LAYERS, SECONDS):
        for arrays in (none, recomputing):
            for start, c in last:
                while arrays.level[start, 3, c] < level:
                    arrays.refine([(start, 3, c)])
        assert (none.seconds[:, -1] == recomputing.seconds[:, -1]).all()


@pytest.mark.slow
@given(st.data(), st.sampled_from(sorted(TINY)), st.integers(1, 3), st.sampled_from((1, 2, 4)))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_plan_of_a_model_is_below_its_bounds(
    data: st.DataObject, name: str, layers: int, microbatches: int
) -> None:
    step, kinds = step_of(name, layers, microbatches)
    check_bounds(*data.draw(candidates(step, kinds, METHODS)))
