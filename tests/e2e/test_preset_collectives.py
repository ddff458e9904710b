"""What the known methods exchange, tensor by tensor and byte by byte: plans against the formulas of
their papers, written here from the shapes of the weights.

Of the ResNet only kernels and the last matrix are compared: the sums of its batch statistics are no
matter of a method. What XLA compiles is compared in `test_presets_against_xla.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import prod

import jax
import pytest

from benchmarks.cost.xla_agreement_case import Case, annotated
from shardopt.cost.traffic import Traffic
from shardopt.mesh.mesh import Sharding, parse_mesh
from shardopt.solve.presets.presets import restrict
from tests.e2e.preset_models import (
    BALANCED,
    BATCH,
    EXPERTS,
    HEADS,
    HIDDEN,
    LAYERS,
    LENGTH,
    WORDS,
    Moved,
    Shape,
    models,
    module_of,
    planned,
    read,
    sorted_shape,
)

# A grid of unequal axes shows all that a square one does, and which axis is which.
EVERY_MESH = pytest.mark.parametrize("mesh", ["4", pytest.param("2x4", marks=pytest.mark.slow)])
EVERY_GRID = pytest.mark.parametrize("mesh", ["2x4"])
EVERY_MODEL = pytest.mark.parametrize(
    "model", ["gpt", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet", "moe"))]
)
# Of ZeRO: the third gathers again what those gather once.
SLOW_STAGES = [pytest.param(stage, marks=pytest.mark.slow) for stage in (1, 2)]
Axes = tuple[str, ...]

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
        models()[model].weights, is_leaf=lambda node: hasattr(node, "shape")
    )
    rows = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        uses = 1 if any(part in name for part in _ADDED) else 2
        if model == "gpt" and "tokens" in name:
            uses = 3  # looked up, and read by the last product and its backward
        rows.append(WeightUse(name, leaf.shape, uses))
    return tuple(row for row in rows if model != "resnet" or len(row.shape) > 1)


def exchanged(
    kind: str, weights: Iterable[WeightUse], axes: Axes, tiles: int = 1, again: bool = False
) -> Moved:
    """Each weight, or each use of it, by one collective, where each device has one of `tiles` parts
    of it."""
    moved = Moved()
    for each in weights if axes else ():
        row = (kind, axes, sorted_shape(each.shape), each.bytes // tiles)
        moved[row] += each.uses if again else 1
    return moved


def gathered(weights: Iterable[WeightUse], mesh: str, axes: Axes, again: bool = False) -> Moved:
    """Each weight, or each use of it, axis by axis and the minor one first; `axes` are the last of
    the mesh or, for weights that the last axis splits, those before it."""
    sizes, moved = dict(parse_mesh(mesh).axes), Moved()
    for each in weights:
        left = each.bytes // prod(sizes[axis] for axis in sizes if axis not in axes)
        for axis in axes:
            row = ("all_gather", (axis,), sorted_shape(each.shape), left)
            moved[row] += each.uses if again else 1
            left //= sizes[axis]
    return moved


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
    check_weights(model, "data", mesh, exchanged("all_reduce", weights_of(model), axes_of(mesh)))


@EVERY_MODEL
@EVERY_MESH
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_scatters_each_gradient_and_gathers_each_weight(
    model: str, mesh: str, stage: int
) -> None:
    """Once after the update, or for each use (section 7)."""
    weights, axes = weights_of(model), axes_of(mesh)
    expected = exchanged("reduce_scatter", weights, axes)
    expected += gathered(weights, mesh, axes, again=stage == 3)
    check_weights(model, f"zero{stage}", mesh, expected)


@pytest.mark.parametrize("stage", [0, *SLOW_STAGES, 3])
@EVERY_MESH
def test_experts_are_exchanged_among_their_copies_only(mesh: str, stage: int) -> None:
    weights, axes = weights_of("moe"), axes_of(mesh)
    experts = [each for each in weights if each.is_expert]
    others = [each for each in weights if not each.is_expert]
    size = parse_mesh(mesh).axis_size(axes[-1])
    kind = "reduce_scatter" if stage else "all_reduce"
    expected = exchanged(kind, others, axes) + exchanged(kind, experts, axes[:-1], size)
    if stage:
        expected += gathered(others, mesh, axes, again=stage == 3)
        expected += gathered(experts, mesh, axes[:-1], again=stage == 3)
    check_weights("moe", f"expert-zero{stage}" if stage else "expert", mesh, expected)


@EVERY_MESH
@pytest.mark.parametrize("model", ["gpt", "one-hot gpt", "moe"])
@pytest.mark.parametrize(("preset", "kinds"), [
    ("megatron", ("all_reduce",)), ("sequence", ("reduce_scatter", "all_gather")),
])  # fmt: skip
def test_tensor_parallelism_exchanges_activations_twice_a_layer_each_way(
    mesh: str, model: str, preset: str, kinds: tuple[str, ...]
) -> None:
    """And those of the embedding and of the last product, whether words are gathered or looked up
    by a product. Sequence parallelism scatters and gathers instead, once more for the gradient of
    each weight; the lookup gathers nothing, and its gradient what each device adds to its words.
    Where the batch is split as well, XLA adds up rows or has words of its own: each device adds
    some features to all words. Experts, every other layer's, are whole: what enters them, and its gradient, is gathered where
    the sequence is split."""
    axes, activation = axes_of(mesh), (BATCH, LENGTH, HIDDEN)
    rows = 4 * prod(activation) // prod(size for _, size in parse_mesh(mesh).axes[:-1])
    sparse = LAYERS // 2 if model == "moe" else 0
    blocks = 2 * LAYERS - sparse  # of attention, and of dense layers
    counts = {"all_reduce": 2 * blocks + 2, "reduce_scatter": 2 * blocks + 2}
    has_own_words = model == "one-hot gpt" or len(axes) == 1
    counts["all_gather"] = 3 * blocks + 1 + has_own_words + 2 * sparse
    expected = {(kind, axes[-1:], sorted_shape(activation), rows): counts[kind] for kind in kinds}
    moved = planned(model, preset, mesh).moved([activation])
    assert {row: moved[row] for row in moved if row[0] in counts} == expected


# The rest of the GPT is whole on the axis of the tensors.
_SPLIT = ("qkv", "'out'", "'up", "'down'", "tokens", "head_bias")


@pytest.mark.parametrize("method", ["megatron", "sequence"])
@pytest.mark.parametrize("stage", [0, *SLOW_STAGES, 3])
@EVERY_GRID
def test_tensor_parallelism_exchanges_tiles_of_weights_over_the_batch(
    mesh: str, stage: int, method: str
) -> None:
    """As `data` or ZeRO would for a model of such tiles, and for what all devices have. The rows of
    a bias that the tensors split are the only ones, and stay whole."""
    axes, again = axes_of(mesh), stage == 3
    weights = [w for w in weights_of("gpt") if method == "megatron" or not _is_of_sequence(w)]
    tiled = [each for each in weights if any(name in each.name for name in _SPLIT)]
    whole = [each for each in weights if each not in tiled]
    vectors = [each for each in tiled if len(each.shape) == 1]
    matrices = [each for each in tiled if each not in vectors]
    size, summed = parse_mesh(mesh).axis_size(axes[-1]), axes[:-1]
    kind = "reduce_scatter" if stage else "all_reduce"
    expected = exchanged("all_reduce", vectors, summed, size)
    expected += exchanged(kind, matrices, summed, size)
    expected += exchanged(kind, whole, summed if method == "megatron" else axes)
    if stage:
        expected += exchanged("all_gather", matrices, summed, size, again)
    if stage and method == "megatron":
        expected += exchanged("all_gather", whole, summed, again=again)
    elif stage:
        expected += gathered(whole, mesh, axes, again)
    check_weights("gpt", f"{method}-zero{stage}" if stage else method, mesh, expected)


def _is_of_sequence(weight: WeightUse) -> bool:
    """The tables: rows of the sequence, or of the words, that their gradients are summed for."""
    return any(name in weight.name for name in ("positions", "tokens"))


@pytest.mark.parametrize(
    ("model", "mesh"),
    [
        ("gpt", "2x4"),
        ("resnet", "2x2"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("gpt", "2x2"), ("resnet", "2x4"), ("moe", "2x2"), ("moe", "2x4"))
        ),
    ],
)
def test_mics_gathers_within_a_group_and_sums_between_groups(model: str, mesh: str) -> None:
    """Gradients are scattered within a group, and each part is all-reduced over those who have it
    in other groups (section 3.4)."""
    axes, weights = axes_of(mesh), weights_of(model)
    size = parse_mesh(mesh).axis_size(axes[-1])
    expected = exchanged("all_gather", weights, axes[-1:], again=True)
    expected += exchanged("reduce_scatter", weights, axes[-1:])
    expected += exchanged("all_reduce", weights, axes[:-1], size)
    check_weights(model, "mics", mesh, expected)


@pytest.mark.parametrize(("preset", "mesh"), [
    ("summa-2d", "2x2"), pytest.param("2.5d", "2x2x2", marks=pytest.mark.slow),
    pytest.param("summa-2d", "2x4", marks=pytest.mark.slow),
])  # fmt: skip
def test_grids_exchange_blocks_of_weights_by_columns_and_of_activations_by_rows(
    preset: str, mesh: str
) -> None:
    """A block of a weight is gathered, its gradient scattered, along the columns; of the two
    activations of a product the smaller one is exchanged along the rows, each way (Optimus, section
    3.1); between grids gradients are all-reduced (Tesseract, section 3.2)."""
    *grids, columns, rows = axes_of(mesh)
    sizes, weights = dict(parse_mesh(mesh).axes), weights_of("gpt")
    matrices = [each for each in weights if len(each.shape) > 1]
    vectors = [each for each in weights if each not in matrices]
    expected = Moved()
    for kind in ("all_gather", "reduce_scatter"):
        expected += exchanged(kind, matrices, (columns,), sizes[rows])
    expected += exchanged("all_reduce", matrices, tuple(grids), sizes[rows] * sizes[columns])
    expected += exchanged("all_reduce", vectors, (*grids, columns), sizes[rows])
    check_weights("gpt", preset, mesh, expected)
    features = {(HIDDEN,): 2 * LAYERS, (HEADS, HIDDEN // HEADS): LAYERS, (4 * HIDDEN,): LAYERS}
    shapes = {(BATCH, LENGTH, *each): count for each, count in features.items()}
    shapes[BATCH, LENGTH, WORDS] = 1
    local = prod(sizes.values()) // sizes[rows]
    activations = {
        (kind, (rows,), sorted_shape(shape), 4 * prod(shape) // local): count
        for shape, count in shapes.items()
        for kind in ("all_gather", "reduce_scatter")
    }
    assert planned("gpt", preset, mesh).moved(list(shapes)) == activations


# Where the words are looked up by a product, it scatters its result as well.
_AT_THE_ENDS = {
    "one-hot gpt": {"all_gather": 1, "reduce_scatter": 2},
    "gpt": {"all_to_all": 1, "reduce_scatter": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "one-hot gpt"])
def test_a_cube_moves_each_of_the_three_tensors_of_a_product_along_an_axis_of_its_own(
    model: str,
) -> None:
    """Both operands are gathered and the result is scattered, and the other way back, where the two
    axes of features change their places with every product (Bian et al., section 3.2); a weight is
    gathered once for forward and backward. What enters the last product of the tied table without
    one-hot words moves from the sequence to the features instead of being gathered."""
    first, second, batch = axes_of("2x2x2")
    weights = [
        each for each in weights_of("gpt") if "blocks" in each.name and "bias" not in each.name
    ]
    matrices = [each for each in weights if len(each.shape) > 1]
    expected = Moved()
    for kind in ("all_gather", "reduce_scatter"):
        expected += exchanged(kind, matrices, (batch,), 4)
    features = {
        ((3, HEADS, HIDDEN // HEADS), first): LAYERS,
        ((HEADS, HIDDEN // HEADS), first): LAYERS,
        ((4 * HIDDEN,), first): 2 * LAYERS,
        ((WORDS,), first): 1,
        ((HIDDEN,), second): 4 * LAYERS,
    }
    shapes = {each: (BATCH, LENGTH, *each[0]) for each in features}
    for (each, axis), count in features.items():
        shape = shapes[each, axis]
        for kind in ("all_gather", "reduce_scatter"):
            expected[kind, (axis,), sorted_shape(shape), 4 * prod(shape) // 4] += count
    hidden = (BATCH, LENGTH, HIDDEN)
    for kind, count in _AT_THE_ENDS[model].items():
        expected[kind, (second,), sorted_shape(hidden), 4 * prod(hidden) // 4] += count
    alone = (BATCH, LENGTH, 1, HEADS, HIDDEN // HEADS)  # of queries, keys and values
    among = [*(each.shape for each in matrices), *shapes.values(), alone]
    assert _bytes(planned(model, "3d", "2x2x2").moved(among)) == _bytes(expected)


def _bytes(moved: Moved) -> Counter[tuple[str, Axes, Shape]]:
    """Of queries, keys and values together: they may be gathered before they are told apart, or
    behind that."""
    total = Counter[tuple[str, Axes, Shape]]()
    for (kind, axes, shape, size), count in moved.items():
        total[kind, axes, tuple(extent for extent in shape if extent not in (1, 3))] += size * count
    return total


@pytest.mark.parametrize(("model", "mesh"), [
    ("gpt", "4"), ("resnet", "2x2"),
    *(pytest.param(model, mesh, marks=pytest.mark.slow)
      for model in ("gpt", "moe", "resnet") for mesh in ("4", "2x2", "2x4")
      if (model, mesh) not in {("gpt", "4"), ("resnet", "2x2")}),
])  # fmt: skip
def test_autodist_takes_for_each_weight_one_of_two_ways(model: str, mesh: str) -> None:
    """An all-reduce, or servers: the gradient is scattered and the weight gathered."""
    weights, axes = weights_of(model), axes_of(mesh)
    moved = planned(model, "autodist", mesh).moved([each.shape for each in weights])
    whole = exchanged("all_reduce", weights, axes)
    served = exchanged("reduce_scatter", weights, axes)
    back = gathered(weights, mesh, axes)
    for row, count in whole.items():
        scattered = ("reduce_scatter", *row[1:])
        assert moved[row] + moved[scattered] == count == served[scattered]
        assert moved["all_gather", axes[:1], *row[2:]] == moved[scattered]
    # Axis by axis: each of a weight's gathers is there as often as the others of it.
    assert {row for row in moved if row[0] == "all_gather"} <= back.keys()
    for shape in {row[2] for row in back}:
        counts = {moved[row] for row in back if row[2] == shape}
        assert len(counts) == 1


@EVERY_MODEL
@EVERY_MESH
def test_the_heuristic_splits_every_input_along_its_largest_dimension(
    model: str, mesh: str
) -> None:
    """By all devices, where these divide it (Alpa, section 8.3)."""
    graph, tables, kinds = read(model, mesh)
    fixed, devices = restrict("heuristic", tables, kinds).fixed, parse_mesh(mesh).size
    shapes = {tensor: graph.graph.tensors[tensor].shape for tensor in graph.graph.inputs}
    split = [tensor for tensor, shape in shapes.items() if shape and max(shape) % devices == 0]
    assert split
    for tensor in split:
        counts = fixed[tensor].tile_counts(parse_mesh(mesh))
        assert counts[shapes[tensor].index(max(shapes[tensor]))] == devices


@EVERY_MODEL
def test_what_is_whole_everywhere_exchanges_nothing(model: str) -> None:
    assert not planned(model, "replicate", "2x2").plan.communication


@EVERY_MESH
@pytest.mark.parametrize(("preset", "counts"), [
    ("context-gather", {"all_gather": 2, "reduce_scatter": 2}), ("ulysses", {"all_to_all": 8}),
])  # fmt: skip
@pytest.mark.parametrize(
    ("model", "zero"), [("gpt", ""), ("gpt", "-zero1"), ("gpt", "-zero3"), ("moe", "")]
)
def test_context_parallelism_exchanges_keys_and_values_or_heads(
    mesh: str, preset: str, counts: dict[str, int], model: str, zero: str
) -> None:
    """Keys and values are gathered once a layer, and their gradients scattered (Llama 3, section
    3.3.2); or queries, keys, values and the result change their places, forward and backward
    (Ulysses, section 3.2): each of them is one of `batch x length x hidden`."""
    axes = axes_of(mesh)
    shared = prod(size for _, size in parse_mesh(mesh).axes[:-1])
    bytes_ = 4 * BATCH * LENGTH * HIDDEN // shared
    elements = BATCH * LENGTH * HIDDEN
    each = planned(model, preset + zero, mesh, BALANCED)
    tensors = each.graph.graph.tensors
    moved = Counter(
        (row.step.kind, row.step.axes, int(row.step.bytes))
        for row in each.plan.communication
        if sorted(tensors[row.tensor].shape) == sorted((BATCH, LENGTH, HEADS, HIDDEN // HEADS))
        or (row.step.kind == "all_to_all" and prod(tensors[row.tensor].shape) == elements)
    )
    assert moved == {(kind, axes[-1:], bytes_): count * LAYERS for kind, count in counts.items()}


@EVERY_MESH
@pytest.mark.parametrize("model", ["gpt", "moe"])
def test_a_ring_passes_keys_and_values_on(mesh: str, model: str) -> None:
    """A block of keys and one of values go round once forward and twice backward, the second time
    with their gradients, which end where they began (Ring Attention, section 3)."""
    axes, (*_, (_, size)) = axes_of(mesh), parse_mesh(mesh).axes
    traffic, _ = annotated(module_of(model), Case(mesh, "ring", gap=0.05), "sdy")
    block = 4 * BATCH * LENGTH * HIDDEN // parse_mesh(mesh).size
    passed = LAYERS * (3 * 2 * (size - 1) + 2 * size)
    permutes = [each for each in traffic if each.kind == "permute"]
    assert permutes == [Traffic("permute", axes[-1:], passed, passed * block)]


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
    assert moved == exchanged("all_reduce", weights, axes)


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
@EVERY_MESH
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_holds_its_share_of_the_state(model: str, mesh: str, stage: int) -> None:
    """What every device is given of weights and of optimizer state: all of the weights up to stage
    2, and the share of one device of what it splits (section 5, figure 1)."""
    each = planned(model, f"zero{stage}", mesh)
    state = {slot.tensor for slots in each.flow.slots_of.values() for slot in slots}
    split = state | each.flow.weights if stage == 3 else state
    shapes = {t: each.graph.graph.tensors[t].shape for t in state | each.flow.weights}
    parts = {t: parse_mesh(mesh).size if t in split else 1 for t in shapes}
    assert {t: prod(each.plan.shardings[t].tile_counts(parse_mesh(mesh))) for t in shapes} == parts


@EVERY_MODEL
def test_what_zero_splits_is_what_its_peak_is_smaller_by(model: str) -> None:
    peaks = [planned(model, f"zero{stage}", "4").plan.peak_bytes for stage in (1, 2, 3)]
    weights = planned(model, "zero3", "4").flow.weights
    tensors = planned(model, "zero3", "4").graph.graph.tensors
    share = sum(tensors[weight].size_bytes for weight in weights) * 3 // 4
    assert peaks == [peaks[2] + share, peaks[2] + share, peaks[2]]
