"""Intervals of layers with equal digests have equal parts, however stages recompute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from shardopt.dialect.program import read_program
from shardopt.graph.recomputed_units import searched_modes
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.context import make_context
from shardopt.passes.stages.read_step import read_step
from shardopt.pipeline.manager import run_pipeline
from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs import cost_arrays, layer_bounds
from shardopt.solve.stages.costs.bounds import common_forward, relaxed_layer
from shardopt.solve.stages.costs.cost_arrays import CostArrays
from shardopt.solve.stages.costs.cost_cache import CostCache
from shardopt.solve.stages.costs.interval_contents import IntervalContents
from shardopt.solve.stages.costs.layer_bounds import LayerBounds
from shardopt.solve.stages.costs.recomputation import can_recompute
from shardopt.solve.stages.costs.stage_part import cut_part
from shardopt.solve.stages.stage_problem import stage_configs
from shardopt.solve.stages.step_graph import StepGraph
from shardopt.support.errors import UserError
from tests.unit.solve.stages.model_steps import step_of
from tests.unit.solve.stages.step_graphs import StepBuilder

CLUSTER = load_cluster("cpu-test:1x4")


def network(weights: list[int], skips: list[int], num_layers: int) -> StepGraph:
    """Product k reads weight `weights[k]` and the output of product k - 1, or that many before
    it; those behind the loss are trained."""
    builder = StepBuilder()
    known = [builder.weight() for _ in range(max(weights) + 1)]
    values, read = [builder.tensor()], [0]
    for k, (weight, back) in enumerate(zip(weights, skips, strict=True)):
        read.append(max(k - back, 0))
        values.append(builder.node(values[read[-1]], known[weight]))
    loss = builder.op("loss", "subtract", values[-1], builder.tensor())
    builder.accumulate("loss.acc", builder.op("metric", "multiply", loss, loss))
    trained, value = dict[int, None](), len(weights)
    while value:
        trained[known[weights[value - 1]]], value = None, read[value]
    builder.backward(loss, list(trained))
    return builder.step(num_layers, 2)


def chain(depth: int) -> StepGraph:
    return network(list(range(depth)), [0] * depth, depth)


def arrays_of(step: StepGraph) -> CostArrays:
    modes = searched_modes(step.num_layers) if can_recompute(step) else ("none",)
    configs = tuple(
        replace(each, recompute=mode, offload=offload)
        for each in stage_configs(CLUSTER)[:1]
        for mode in modes
        for offload in ("none", "optimizer")
    )
    problem = CandidateProblem(step, step.num_layers, CLUSTER, configs, 2)
    return CostArrays(problem, CostCache(CLUSTER))


def check(step: StepGraph) -> None:
    """Every part is that of its own interval, and every bound that of its own layer."""
    arrays = arrays_of(step)
    for start, end in combinations(range(step.num_layers + 1), 2):
        for c, config in enumerate(arrays.problem.configs):
            own = arrays._cut(start, end, config.recompute, config.offload)
            assert arrays.part((start, end, c)).key == own.key
    for layer in range(step.num_layers):
        for last in (False, True):
            alone = relaxed_layer(step, layer, last, {})
            assert arrays.layers.relaxed_layer(layer, last, "none").key == alone.key
        check_forward(arrays.layers, layer)


def check_forward(layers: LayerBounds, layer: int) -> None:
    """What a layer runs forward in every stage is found from an equal layer as from itself, and is
    the same in every mode."""
    kinds = layers._kinds_of(layer)
    own = [relaxed_layer(layers.step(mode), layer, last, {}) for last, mode in kinds]
    steps = [layers.step(mode) for _, mode in kinds]
    for (last, _), step, alone in zip(kinds, steps, own, strict=True):
        turn = step.num_layers - (not last)
        assert alone.part.key == cut_part(step, layer, layer + 1, turn).key
    expected, found = common_forward(list(zip(steps, own, strict=True))), layers._forward(layer)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.key == expected.key
    results = set()
    for (_, mode), step, alone in zip(kinds, steps, own, strict=True):
        ops = layers._forward_ops(layer, mode)
        assert ops <= alone.forward_ops()
        results.add(frozenset(step.graph.ops[op].results for op in ops))
    assert len(results) == 1


@given(st.data(), st.integers(2, 6))
@settings(max_examples=10, deadline=None)
def test_a_part_is_that_of_its_own_interval(data: st.DataObject, depth: int) -> None:
    weights = data.draw(st.lists(st.integers(0, depth - 1), min_size=depth, max_size=depth))
    skips = data.draw(st.lists(st.integers(0, 2), min_size=depth, max_size=depth))
    used = sorted(set(weights))
    num_layers = data.draw(st.integers(1, depth))
    try:
        step = network([used.index(weight) for weight in weights], skips, num_layers)
    except UserError:  # no balanced layers
        assume(False)
    check(step)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny"])
def test_a_part_of_a_model_is_that_of_its_own_interval(name: str) -> None:
    check(step_of(name, 3, 2)[0])


def test_equal_intervals_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight layers the first and the last are different: four intervals of two layers are not,
    apart from that."""
    step, cut = chain(8), list[tuple[int, int]]()
    arrays = arrays_of(step)

    def counted(step: StepGraph, start: int, end: int) -> object:
        cut.append((start, end))
        return cut_part(step, start, end)

    monkeypatch.setattr(cost_arrays, "cut_part", counted)
    parts = [arrays.part((start, start + 2, 0)) for start in range(1, 6)]
    assert cut == [(1, 3)]
    assert all(part is parts[0] for part in parts)
    arrays.part((0, 2, 0))
    assert cut == [(1, 3), (0, 2)]


def test_equal_layers_are_bounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []

    def counted(step: StepGraph, layer: int, last: bool, alike: dict) -> object:
        cut.append(layer)
        return relaxed_layer(step, layer, last, alike)

    monkeypatch.setattr(layer_bounds, "relaxed_layer", counted)
    layers = arrays_of(chain(8)).layers
    cut.clear()
    layers._layers.clear()
    for layer in range(8):
        layers.relaxed_layer(layer, False, "none")
    assert cut == [0, 1, 7]


def test_the_order_in_which_a_model_lists_its_updates_does_not_matter() -> None:
    step = chain(6)
    ops, layers, (_, stop) = list(step.graph.ops), list(step.op_layer), step.loop
    # Pairs of the sum of a gradient and the update.
    order = [*range(stop), *(k for at in range(len(ops) - 2, stop, -2) for k in (at, at + 1)), stop]
    assert sorted(order) == list(range(len(ops)))
    shuffled = replace(
        step,
        graph=replace(step.graph, ops=tuple(ops[k] for k in order)),
        op_layer=tuple(layers[k] for k in order),
    )
    contents = IntervalContents(shuffled)
    found = [contents.of(k, k + 1, k + 1) for k in range(6)]
    digests = [each.digest for each in found if each is not None]
    assert len(set(digests[1:5])) == 1
    assert len(digests) == 6
    assert len(set(digests)) == 3


def test_a_layer_with_a_loop_is_no_other() -> None:
    step = chain(6)
    first = next(op for op in range(*step.loop) if step.op_layer[op] == 2)
    looping = replace(step, graph=replace(step.graph, loops=((first, first + 1),)))
    contents = IntervalContents(looping)
    found = [contents.of(k, k + 1, k + 1) for k in range(1, 5)]
    digests = [each.digest for each in found if each is not None]
    assert digests[0] == digests[2] == digests[3] != digests[1]


def checkpointed(run: Callable[..., jax.Array], rises: bool) -> StepGraph:
    """Four blocks in as many layers, which are computed again; where it `rises`, with something
    that a later layer reads as well."""

    def step(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            return jnp.mean(run(weights, x) ** 2)

        value, grads = jax.value_and_grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value

    weights = [jnp.zeros((8, 8)) for _ in range(8)]
    text = jax.jit(step, donate_argnums=0).lower(weights, jnp.zeros((8, 8))).as_text()
    phases = ("import", "microbatch{num-microbatches=2}", "cluster{layers=4}")
    with make_context():
        module = ir.Module.parse(text)
        passes = ",".join(f"shardopt-{phase}" for phase in phases)
        run_pipeline(module, f"builtin.module({passes})")
        made = read_step(read_program(module))[0]
    assert made.repeated
    assert made.is_cut_alike != rises
    return made


def in_blocks(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    @jax.checkpoint
    def block(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.tanh(x @ first) @ second

    for first, second in zip(weights[::2], weights[1::2], strict=True):
        x = block(x, first, second)
    return x


def in_pairs(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """Two blocks at a time are computed again, which are two layers."""

    @jax.checkpoint
    def pair(x: jax.Array, *weights: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x

    return pair(pair(x, *weights[:4]), *weights[4:])


@pytest.mark.parametrize(("run", "rises"), [(in_blocks, False), (in_pairs, True)])
def test_what_the_model_computes_again_is_cut_where_each_stage_begins(
    run: Callable[..., jax.Array], rises: bool
) -> None:
    step = checkpointed(run, rises)
    assert (IntervalContents(step).of(1, 2, 2) is None) == rises
    check(step)
