"""What the known methods exchange, tensor by tensor and byte by byte: plans against the formulas of
their papers, written here from the shapes of the weights, and against what XLA compiles.

A tied GPT (AdamW), a mixture of experts (AdamW, and Adafactor for its state), a bottleneck ResNet
(momentum). Of the ResNet only kernels and the last matrix are compared: the sums of its batch
statistics are no matter of a method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any

import jax
import pytest
from jaxlib.mlir import ir

from benchmarks.cost.xla_agreement_case import Case, check
from shardopt.cost.traffic import comparable
from shardopt.extract.mesh_graphs import MeshGraph, read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Sharding, parse_mesh
from shardopt.models import gpt, moe, wresnet
from shardopt.models.optimizers import adafactor, adamw, momentum
from shardopt.models.specs import GptSpec, MoeSpec, ResnetSpec
from shardopt.models.train_step import Model, abstract_state, make_step
from shardopt.models.transformer import token_batch
from shardopt.passes.base import PassFailure
from shardopt.passes.microbatches.find_batch import find_batch, mark_batch
from shardopt.passes.sharding.decide.input_kinds import find_input_kinds
from shardopt.pipeline.manager import run_pipeline
from shardopt.solve.presets.base import InputKinds
from shardopt.solve.presets.flow import BatchFlow, follow_batch
from shardopt.solve.presets.presets import PRESETS, restrict
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.linear import find_linear

LAYERS, HIDDEN, HEADS, LENGTH, WORDS, BATCH, EXPERTS = 2, 32, 8, 16, 64, 16, 8
GPT = GptSpec(HIDDEN, LAYERS, HEADS, LENGTH, WORDS, BATCH, tied=True)
MOE = MoeSpec(HIDDEN, LAYERS, EXPERTS, HEADS, LENGTH, WORDS, BATCH, group=32)
RESNET = ResnetSpec(0, 16, 1, image=32, classes=32, batch=BATCH, blocks=(1, 1))
# No latencies: the methods are compared by bytes.
_LINK = Link(0.0, 1e8)
CLUSTER = Cluster.uniform("test", 1, 8, Device("d", {"f32": 1e8}, 1 << 31, 1e8), _LINK, _LINK, 0.0)
EVERY_MESH = pytest.mark.parametrize(
    "mesh", ["4", "2x2", pytest.param("2x4", marks=pytest.mark.slow)]
)
EVERY_MODEL = pytest.mark.parametrize("model", ["gpt", "moe", "resnet"])
Shape = tuple[int, ...]
Axes = tuple[str, ...]
# (kind, axes, shape of the tensor with its extents in order, bytes)
Moved = Counter[tuple[str, tuple[str, ...], Shape, int]]


def _models() -> dict[str, Model]:
    tokens, loss = token_batch(BATCH, LENGTH), partial(moe.loss, spec=MOE)
    images = wresnet.image_batch(RESNET)
    return {
        "gpt": Model(gpt.weights(GPT), tokens, gpt.loss, adamw(), "f32"),
        "moe": Model(moe.weights(MOE), tokens, loss, adamw(), "f32"),
        "factored": Model(moe.weights(MOE), tokens, loss, adafactor(), "f32"),
        "resnet": Model(wresnet.weights(RESNET), images, wresnet.loss, momentum(), "f32"),
    }


@cache
def module_of(model: str) -> bytes:
    built = _models()[model]
    traced = jax.jit(make_step(built), donate_argnums=0).trace(abstract_state(built), built.batch)
    return str(traced.lower().compiler_ir("stablehlo")).encode()


@cache
def read(model: str, mesh: str) -> tuple[MeshGraph, IntraOpTables, InputKinds]:
    with make_context() as context, ir.Location.unknown():
        module = load_module(module_of(model), context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        [main] = functions(module)
        mark_batch(main, find_batch(module))
        with sharding_rules(module):
            graph = read_plain(main, parse_mesh(mesh))
        linear = find_linear(graph.graph, graph.tied, graph.sent)
        tables = IntraOpTables(graph.graph, graph.mesh, CLUSTER, linear=linear)
        return graph, tables, find_input_kinds("ilp", graph, tables, ("auto",))


@dataclass(frozen=True, eq=False)
class Planned:
    graph: MeshGraph
    flow: BatchFlow
    plan: IntraOpPlan

    def moved(self, among: list[Shape]) -> Moved:
        """All collectives on tensors of the shapes of weights."""
        shapes, tensors = {_sorted(shape) for shape in among}, self.graph.graph.tensors
        rows = (
            (each.step.kind, each.step.axes, _sorted(tensors[each.tensor].shape), each.step.bytes)
            for each in self.plan.communication
        )
        return Counter((*row[:3], int(row[3])) for row in rows if row[2] in shapes)


@cache
def planned(model: str, preset: str, mesh: str) -> Planned:
    graph, tables, kinds = read(model, mesh)
    restriction = restrict(preset, tables, kinds)
    problem = tables.problem(fixed=restriction.fixed, allowed=restriction.allowed, tied=kinds.tied)
    problem = replace(problem, transient=restriction.transient)
    plan = problem.decode(problem.solve(gap_tolerance=1e-3))
    return Planned(graph, follow_batch(graph.graph, kinds, preset), plan)


# ---- formulas ----

_ADDED = ("bias", "gain", "positions", "tokens", "first'")


@dataclass(frozen=True)
class WeightUse:
    """A weight, and in how many places it is read in full: products read it forward and backward;
    what is added, looked up, or a kernel of the first layer, is read forward only."""

    name: str
    shape: Shape
    uses: int

    @property
    def bytes(self) -> int:
        return 4 * prod(self.shape)

    @property
    def is_expert(self) -> bool:
        return "experts" in self.name and len(self.shape) == 3


@cache
def weights_of(model: str) -> tuple[WeightUse, ...]:
    """Of the ResNet those that are no part of a batch norm, and no bias."""
    leaves = jax.tree_util.tree_leaves_with_path(
        _models()[model].weights, is_leaf=lambda node: hasattr(node, "shape")
    )
    rows = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        uses = 1 if any(part in name for part in _ADDED) else 2
        if model == "gpt" and "tokens" in name:
            uses = 3  # looked up, and read by the last product and its backward
        rows.append(WeightUse(name, leaf.shape, uses))
    return tuple(row for row in rows if model != "resnet" or len(row.shape) > 1)


def reduced(kind: str, weights: Iterable[WeightUse], axes: Axes, tiles: int = 1) -> Moved:
    """Each weight once, where each device has one of `tiles` parts of it."""
    return Counter(
        (kind, axes, _sorted(each.shape), each.bytes // tiles) for each in weights if axes
    )


def gathered(weights: Iterable[WeightUse], mesh: str, axes: Axes, again: bool = False) -> Moved:
    """Each weight, or each use of it, axis by axis and the minor one first; `axes` are the last of
    the mesh or, for weights that the last axis splits, those before it."""
    sizes, moved = dict(parse_mesh(mesh).axes), Moved()
    for each in weights:
        left = each.bytes // prod(sizes[axis] for axis in sizes if axis not in axes)
        for axis in axes:
            row = ("all_gather", (axis,), _sorted(each.shape), left)
            moved[row] += each.uses if again else 1
            left //= sizes[axis]
    return moved


def _sorted(shape: Shape) -> Shape:
    """Autodiff transposes some gradients."""
    return tuple(sorted(shape))


def axes_of(mesh: str) -> Axes:
    return parse_mesh(mesh).axis_names


def check_weights(model: str, preset: str, mesh: str, expected: Moved) -> None:
    moved = planned(model, preset, mesh).moved([each.shape for each in weights_of(model)])
    # What is left are activations of such shapes.
    assert {row: moved[row] for row in expected} == dict(expected)
    of_weights = {row[2] for row in expected}
    assert moved.keys() - expected.keys() == {row for row in moved if row[2] not in of_weights}


@EVERY_MODEL
@EVERY_MESH
def test_data_all_reduces_each_gradient_once(model: str, mesh: str) -> None:
    check_weights(model, "data", mesh, reduced("all_reduce", weights_of(model), axes_of(mesh)))


@EVERY_MODEL
@EVERY_MESH
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_scatters_each_gradient_and_gathers_each_weight(
    model: str, mesh: str, stage: int
) -> None:
    """Once after the update, or for each use (section 7)."""
    weights, axes = weights_of(model), axes_of(mesh)
    expected = reduced("reduce_scatter", weights, axes)
    expected += gathered(weights, mesh, axes, again=stage == 3)
    check_weights(model, f"zero{stage}", mesh, expected)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@EVERY_MESH
def test_experts_are_exchanged_among_their_copies_only(mesh: str, stage: int) -> None:
    weights, axes = weights_of("moe"), axes_of(mesh)
    experts = [each for each in weights if each.is_expert]
    others = [each for each in weights if not each.is_expert]
    size = parse_mesh(mesh).axis_size(axes[-1])
    kind = "reduce_scatter" if stage else "all_reduce"
    expected = reduced(kind, others, axes) + reduced(kind, experts, axes[:-1], size)
    if stage:
        expected += gathered(others, mesh, axes, again=stage == 3)
        expected += gathered(experts, mesh, axes[:-1], again=stage == 3)
    check_weights("moe", f"expert-zero{stage}" if stage else "expert", mesh, expected)


@EVERY_MESH
@pytest.mark.parametrize(("preset", "kinds"), [
    ("megatron", ("all_reduce",)), ("sequence", ("reduce_scatter", "all_gather")),
])  # fmt: skip
def test_tensor_parallelism_exchanges_activations_twice_a_layer_each_way(
    mesh: str, preset: str, kinds: tuple[str, ...]
) -> None:
    """And those of the embedding and of the last product. Sequence parallelism scatters and
    gathers instead; the lookup gathers nothing."""
    axes, activation = axes_of(mesh), (BATCH, LENGTH, HIDDEN)
    rows = 4 * prod(activation) // prod(size for _, size in parse_mesh(mesh).axes[:-1])
    counts = {"all_reduce": 4 * LAYERS + 2, "reduce_scatter": 4 * LAYERS + 2}
    counts["all_gather"] = 4 * LAYERS + 1
    expected = {(kind, axes[-1:], _sorted(activation), rows): counts[kind] for kind in kinds}
    moved = planned("gpt", preset, mesh).moved([activation])
    # How the gradient of the lookup gets to the rows of the table is the solver's choice, and where
    # it shares a collective one of all-reduces is saved.
    exchanged = {row: moved[row] for row in moved if row[0] in counts}
    saved = {row: count - (row[0] == "all_reduce") for row, count in expected.items()}
    assert exchanged in (expected, saved)


@EVERY_MESH
@pytest.mark.parametrize(("preset", "counts"), [
    ("context-gather", {"all_gather": 2, "reduce_scatter": 2}), ("ulysses", {"all_to_all": 8}),
])  # fmt: skip
@pytest.mark.parametrize("zero", ["", "-zero1", "-zero3"])
def test_context_parallelism_exchanges_keys_and_values_or_heads(
    mesh: str, preset: str, counts: dict[str, int], zero: str
) -> None:
    """Keys and values are gathered once a layer, and their gradients scattered (Llama 3, section
    3.3.2); or queries, keys, values and the result change their places, forward and backward
    (Ulysses, section 3.2): each of them is one of `batch x length x hidden`."""
    axes = axes_of(mesh)
    shared = prod(size for _, size in parse_mesh(mesh).axes[:-1])
    bytes_ = 4 * BATCH * LENGTH * HIDDEN // shared
    each = planned("gpt", preset + zero, mesh)
    tensors = each.graph.graph.tensors
    moved = Counter(
        (row.step.kind, row.step.axes, int(row.step.bytes))
        for row in each.plan.communication
        if sorted(tensors[row.tensor].shape) == sorted((BATCH, LENGTH, HEADS, HIDDEN // HEADS))
    )
    assert moved == {(kind, axes[-1:], bytes_): count * LAYERS for kind, count in counts.items()}


@EVERY_MESH
@pytest.mark.parametrize("preset", ["context-gather", "ulysses"])
def test_context_parallelism_reduces_each_gradient_once_over_all_axes(
    mesh: str, preset: str
) -> None:
    """As data parallelism over all axes does; but for the lookup, whose gradient XLA sums along one
    dimension at a time, and positions, of which each device has its own."""
    axes, added = axes_of(mesh), ("tokens", "positions")
    weights = [each for each in weights_of("gpt") if not any(part in each.name for part in added)]
    moved = planned("gpt", preset, mesh).moved([each.shape for each in weights])
    assert moved == reduced("all_reduce", weights, axes)


def test_factored_state_of_experts_lies_as_they_do() -> None:
    """Means of rows and of columns have the dimension of the experts, if not the one that they are
    means over."""
    each = planned("factored", "expert", "4")
    tensors, shardings = each.graph.graph.tensors, each.plan.shardings
    experts = [w for w in sorted(each.flow.weights) if len(tensors[w].shape) == 3
               and tensors[w].shape[0] == EXPERTS and tensors[w].shape[1] != 4]  # fmt: skip
    slots = [slot.tensor for weight in experts for slot in each.flow.slots_of[weight]]
    assert sorted(len(tensors[slot].shape) for slot in slots) == [2, 2, 2, 2]
    assert {shardings[slot] for slot in slots} == {Sharding((("x",), ()))}


@EVERY_MODEL
def test_split_weights_hold_less(model: str) -> None:
    peaks = [planned(model, f"zero{stage}", "4").plan.peak_bytes for stage in (1, 2, 3)]
    assert peaks[0] >= peaks[1] >= peaks[2]


# ---- compiled ----

_FAST = {
    ("gpt", "context-gather", "2x2"),
    ("gpt", "ulysses", "2x2"),
    ("gpt", "zero3", "2x2"),
    ("moe", "expert-zero2", "2x2"),
    ("resnet", "zero1", "4"),
}
_ON_A_CUBE = {"2.5d", "3d"}
# Weights that are gathered for each use while activations are split along another axis.
_GATHERED_AGAIN = {"megatron-zero3", "sequence-zero3"}
_AGAIN = "XLA gathers or sums some of these values once more, or once less, than is planned"

_ONCE = "XLA unrolls loops of one step, and sends keys once for the turns of a ring of two devices"


def _cases() -> Iterator[Any]:
    for model in ("gpt", "moe", "resnet"):
        for preset in PRESETS:
            meshes = ("2x2x2",) if preset in _ON_A_CUBE else ("4", "2x2", "2x4")
            for mesh in meshes:
                case = (model, preset, mesh)
                marks = [] if case in _FAST else [pytest.mark.slow]
                if preset in _GATHERED_AGAIN and mesh != "4":
                    marks.append(pytest.mark.xfail(reason=_AGAIN))
                if preset.startswith("ring") and mesh == "2x2":
                    marks.append(pytest.mark.xfail(reason=_ONCE))
                yield pytest.param(*case, marks=marks)


@pytest.mark.parametrize(("model", "preset", "mesh"), _cases())
def test_xla_exchanges_what_the_method_does(model: str, preset: str, mesh: str) -> None:
    case = Case(mesh, preset, cluster="cpu-test", gap=0.05, time_limit=20.0)
    try:
        [outcome] = check(module_of(model), case, ("sdy",))
    except PassFailure as failure:
        pytest.skip(f"{preset} does not apply: {failure}")
    assert comparable(outcome.emitted) == comparable(outcome.predicted)
