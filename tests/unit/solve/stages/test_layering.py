from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from shardopt.graph.op_graph import SHARED
from shardopt.solve.stages.layers.layering import Layering, LayerProblem, assign_layers
from shardopt.support.errors import UserError
from tests.draws import draws
from tests.unit.solve.stages.step_graphs import StepBuilder


def mlp(depth: int, trained: tuple[int, ...] | None = None) -> StepBuilder:
    """A chain with its loss and backward pass; `trained` are numbers of layers, by default all."""
    step = StepBuilder()
    value = step.tensor()
    for _ in range(depth):
        value = step.node(value, step.weight())
    loss = step.op("loss", "subtract", value, step.tensor())
    step.accumulate("loss.acc", step.op("metric", "multiply", loss, loss))
    step.backward(loss, [step.weights[k] for k in (range(depth) if trained is None else trained)])
    return step


def layers(step: StepBuilder, num_layers: int, **options: object) -> dict[str, int]:
    """Layer by label; labels that occur twice must not be asked for."""
    layering = assign_layers(step.problem(num_layers, **options))
    return dict(zip(step.names, layering.layer, strict=True))


def test_forward_backward_and_accumulation_share_a_layer() -> None:
    layering = layers(mlp(4), 4)
    for k in range(4):
        assert {layering[name] for name in (f"f{k}", f"f{k}.tanh", f"b{k}.tanh", f"b{k}.dw")} == {k}
    assert layering["loss"] == layering["metric"] == layering["loss.acc"] == 3
    assert [layering[f"w{weight}.acc"] for weight in mlp(4).weights] == [0, 1, 2, 3]


def test_two_layers_cut_in_the_middle() -> None:
    layering = layers(mlp(4), 2)
    assert (
        [layering[f"f{k}"] for k in range(4)]
        == [0, 0, 1, 1]
        == [layering[f"b{k}.dw"] for k in range(4)]
    )


@pytest.mark.parametrize("trained", [(0,), (3,), (1, 2)])
def test_frozen_weights_do_not_hide_the_forward_pass(trained: tuple[int, ...]) -> None:
    """With only early weights trained, all that their gradients have in common is most of the
    backward pass."""
    layering = layers(mlp(4, trained), 4)
    assert [layering[f"f{k}"] for k in range(4)] == [0, 1, 2, 3]
    assert [layering[f"b{k}.dw"] for k in trained] == list(trained)


def test_terms_of_a_tied_weight_stay_with_their_uses() -> None:
    step = StepBuilder()
    tied, value = step.weight(), step.tensor()
    for weight in (tied, step.weight(), step.weight(), tied):
        value = step.node(value, weight)
    loss = step.op("loss", "subtract", value, step.tensor())
    step.accumulate("loss.acc", step.op("metric", "multiply", loss, loss))
    step.backward(loss, list(dict.fromkeys(step.weights)))
    layering = layers(step, 4)
    assert [layering[f"b{k}.dw"] for k in range(4)] == [0, 1, 2, 3]
    assert layering[f"w{tied}.sum"] == layering[f"w{tied}.acc"] == 0, "complete with the first use"


def test_one_weight_in_every_layer() -> None:
    step = StepBuilder()
    weight, value = step.weight(), step.tensor()
    for _ in range(4):
        value = step.node(value, weight)
    loss = step.op("loss", "subtract", value, step.tensor())
    step.accumulate("loss.acc", step.op("metric", "multiply", loss, loss))
    step.backward(loss, [weight])
    layering = layers(step, 4)
    assert (
        [layering[f"f{k}"] for k in range(4)]
        == [0, 1, 2, 3]
        == [layering[f"b{k}.dw"] for k in range(4)]
    )


def test_weight_seen_in_two_forms() -> None:
    """An embedding is read by the first layer, its transpose, captured as another input, by the
    last."""
    step = StepBuilder()
    embedding, transposed, value = step.weight(), step.tensor(), step.tensor()
    first = step.node(value, embedding)
    middle = step.node(step.node(first, step.weight()), step.weight())
    last = step.node(middle, transposed)
    loss = step.op("loss", "subtract", last, step.tensor())
    step.accumulate("loss.acc", step.op("metric", "multiply", loss, loss))
    step.backward(loss, [*step.weights[1:], embedding])
    gradient = next(t for t, weight in step.weight_of.items() if weight == (embedding,))
    step.weight_of[gradient] = (embedding, transposed)
    layering = layers(step, 4)
    assert [layering[f"b{k}.dw"] for k in range(4)] == [0, 1, 2, 3]


def test_auxiliary_loss_keeps_its_layer() -> None:
    """A metric of an early layer is no reason to compute it late, and a sum of metrics comes after
    both."""
    step = mlp(4)
    early = step.op("aux", "multiply", step.nodes[0][2], step.nodes[0][2])
    late = step.op("late", "multiply", step.nodes[3][2], step.nodes[3][2])
    step.accumulate("aux.acc", early)
    step.op("both", "add", early, late)
    layering = layers(step, 4)
    assert (layering["aux"], layering["aux.acc"], layering["late"], layering["both"]) == (
        0,
        0,
        3,
        3,
    )


def test_metric_of_gradients_follows_the_earliest() -> None:
    step = mlp(4)
    gradients = [step.ops[step.names.index(f"b{k}.dw")].results[0] for k in (1, 2)]
    norm = step.op("norm", "add", *gradients)
    step.op("more", "add", norm, step.nodes[3][2])
    layering = layers(step, 4)
    assert (layering["norm"], layering["more"]) == (1, 1)


def test_inference_has_no_backward() -> None:
    step = StepBuilder()
    value = step.tensor()
    for _ in range(4):
        value = step.node(value, step.weight())
    step.accumulate("out", value)
    layering = assign_layers(step.problem(2))
    assert all(layering.is_forward)
    assert [k for k, _ in pairwise(layering.layer)] == sorted(layering.layer)[:-1]


def test_values_made_of_inputs_wait_for_their_readers() -> None:
    """Labels sliced at the head of the program belong to the layer that compares with them."""
    step = StepBuilder()
    labels = step.op("labels", "reshape", step.tensor())
    value = step.tensor()
    for _ in range(4):
        value = step.node(value, step.weight())
    loss = step.op("loss", "subtract", value, labels)
    step.accumulate("loss.acc", step.op("metric", "multiply", loss, loss))
    step.backward(loss, step.weights)
    assert layers(step, 4)["labels"] == 3


def test_constants_and_what_follows_from_the_index_are_shared() -> None:
    step = mlp(2)
    index = step.tensor(())
    step.free.add(index)
    one = step.op("one", "constant")
    mask = step.op("mask", "add", one, index)
    step.op("use", "multiply", mask, step.nodes[0][2])
    layering = layers(step, 2)
    assert layering["one"] == layering["mask"] == SHARED
    assert layering["use"] == 0


def test_mask_of_small_inputs_is_copied() -> None:
    """A mask that several layers read is not sent: each makes it from the few bytes it comes
    from."""
    step = StepBuilder()
    value, few = step.tensor(), step.tensor((1,))
    mask = step.op("mask", "broadcast_in_dim", step.op("clipped", "minimum", few, few))
    scale = step.op("scale", "broadcast_in_dim", few)
    for _ in range(4):
        value = step.op("masked", "multiply", step.node(value, step.weight()), mask)
    step.accumulate("out", step.op("scaled", "multiply", value, scale))
    layering = layers(step, 4)
    assert layering["mask"] == layering["clipped"] == SHARED
    assert layering["scale"] == 3, "one reader: nothing to copy"


def test_shared_work_is_never_heavy() -> None:
    step = mlp(2)
    one = step.op("one", "constant")
    step.op("product", "dot_general", one, one)
    assert layers(step, 2)["product"] >= 0


def test_number_of_layers_is_found() -> None:
    """Every cut of a chain costs the same, so there are at least as many layers as products."""
    assert assign_layers(mlp(4).problem(None)).num_layers >= 4
    assert assign_layers(mlp(4).problem(None, least_layers=8, delta=8.0)).num_layers >= 8


@pytest.mark.parametrize("method", ["equal-op", "equal-layer"])
def test_baselines(method: str) -> None:
    layering = layers(mlp(4), 2, method=method)
    assert (layering["f0"], layering["f3"]) == (0, 1)


def seconds_of(step: StepBuilder, **of_name: float) -> np.ndarray:
    """One second for each operation, or what is said of those whose labels begin so."""
    return np.array(
        [
            next((each for start, each in of_name.items() if name.startswith(start)), 1.0)
            for name in step.names
        ]
    )


@pytest.mark.parametrize(
    ("of_name", "expected"),
    [
        ({}, [0, 0, 0, 1, 1, 1]),
        # The backward pass of a block counts for its forward.
        ({"b0": 4.0, "b1": 4.0}, [0, 0, 1, 1, 1, 1]),
        ({"b4": 4.0, "b5": 4.0}, [0, 0, 0, 0, 1, 1]),
        # So does the sum of the gradient of a weight, and what follows the loss for the last one.
        ({"w": 0.0, "b5": 9.0}, [0, 0, 0, 0, 0, 1]),
        ({"metric": 12.0}, [0, 0, 0, 0, 1, 1]),
    ],
)
def test_layers_of_equal_seconds(of_name: dict[str, float], expected: list[int]) -> None:
    step = mlp(6)
    layering = layers(step, 2, seconds=seconds_of(step, **of_name))
    assert [layering[f"f{k}"] for k in range(6)] == expected


def test_what_is_computed_again_counts_twice() -> None:
    """Only forward operations are: the backward pass of the same blocks is not."""
    step = mlp(6)
    seconds = seconds_of(step, f4=3.0, f5=3.0)
    again = frozenset(
        number for number, name in enumerate(step.names) if name.startswith(("f4", "f5", "b"))
    )
    one_layer = assign_layers(step.problem(1, seconds=seconds, computed_again=again))
    assert one_layer.solution.layer_weights == (seconds.sum() + 4 * 3.0,)
    once, twice = (
        layers(step, 2, seconds=seconds, computed_again=each) for each in (frozenset(), again)
    )
    first = [
        sum(found[f"f{k}{tail}"] == 0 for k in range(6) for tail in ("", ".tanh"))
        for found in (once, twice)
    ]
    assert first[0] < first[1]


@pytest.mark.parametrize("num_layers", [1, 2, 3, 5])
def test_the_seconds_of_layers_are_those_of_their_operations(num_layers: int) -> None:
    step = mlp(10)
    seconds = np.random.default_rng(0).uniform(1, 2, len(step.names))
    found = assign_layers(step.problem(num_layers, seconds=seconds))
    of_layer = np.bincount(found.layer, weights=seconds)
    assert found.solution.layer_weights == pytest.approx(of_layer)


def test_too_many_layers_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="cannot cut"):
        assign_layers(mlp(2).problem(50))


def groups_in_order(problem: LayerProblem, layering: Layering, cuts: tuple[int, ...]) -> bool:
    """Whether stages cut at `cuts` can run: forward fragments by rising stage, then backward ones
    by falling stage."""
    producers = problem.graph.producers()
    latest = [SHARED] * len(problem.graph.ops)
    place: list[tuple[int, int]] = []
    for index, op in enumerate(problem.graph.ops):
        stage = (
            SHARED
            if layering.layer[index] == SHARED
            else sum(layering.layer[index] >= cut for cut in cuts)
        )
        made_by = [p for t in op.operands if (p := producers[t]) >= 0]
        reached = max((latest[p] for p in made_by), default=SHARED)
        latest[index] = max(reached, stage)
        place.append((1, -stage) if reached > stage else (0, stage))
        if stage != SHARED and any(
            layering.layer[p] != SHARED and place[p] > place[index] for p in made_by
        ):
            return False
    return True


@st.composite
def networks(draw: st.DrawFn) -> StepBuilder:
    """Random networks with skip connections and tied weights, metrics of values and of
    gradients."""
    step = StepBuilder()
    weights = [step.weight() for _ in range(draw(st.integers(1, 4)))]
    values = [step.tensor()]
    sums: dict[int, tuple[int, int]] = {}
    for _ in range(draw(st.integers(2, 7))):
        source = draw(st.sampled_from(values[-3:]))
        if len(values) > 1 and draw(st.booleans()):
            parts = (source, draw(st.sampled_from(values)))
            source = step.op("skip", "add", *parts)
            sums[source] = parts
        values.append(step.node(source, draw(st.sampled_from(weights))))
    loss = step.op("loss", "subtract", values[-1], step.tensor())
    step.accumulate("loss.acc", step.op("metric", "multiply", loss, loss))
    step.backward(
        loss,
        [w for w in weights if any(w == weight for _, weight, _ in reached_nodes(step, sums))],
        sums,
    )
    for _ in range(draw(st.integers(0, 3))):
        made = [t for op in step.ops for t in op.results if t not in step.accumulators]
        step.accumulate(
            "extra.acc",
            step.op("extra", "multiply", draw(st.sampled_from(made)), draw(st.sampled_from(made))),
        )
    return step


def reached_nodes(
    step: StepBuilder, sums: dict[int, tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """The nodes that the last one depends on: those with a gradient."""
    needed = {step.nodes[-1][2]}
    nodes = []
    for node in reversed(step.nodes):
        if node[2] in needed:
            nodes.append(node)
            needed.update(sums.get(node[0], (node[0],)))
    return nodes


@settings(max_examples=draws(150), deadline=None)
@given(networks(), st.integers(1, 4), st.sampled_from(["dp", "equal-op", "equal-layer"]))
def test_dataflow_never_turns_back(step: StepBuilder, num_layers: int, method: str) -> None:
    problem = step.problem(num_layers, method=method, delta=float(num_layers))
    try:
        layering = assign_layers(problem)
    except UserError:
        reject()
    assert all(SHARED <= layer < num_layers for layer in layering.layer)
    for op, layer, forward in zip(
        problem.graph.ops, layering.layer, layering.is_forward, strict=True
    ):
        for producer in (p for t in op.operands if (p := problem.graph.producers()[t]) >= 0):
            if forward and layering.is_forward[producer]:
                assert layering.layer[producer] <= layer, "forward dataflow falls"
    for count in range(num_layers):
        for cuts in combinations(range(1, num_layers), count):
            assert groups_in_order(problem, layering, cuts)
