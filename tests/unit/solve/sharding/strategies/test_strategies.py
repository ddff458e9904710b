"""Strategies of one operation: which exist, what they mean on each device, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from shardopt.cost.collectives import (
    ALL_REDUCE,
    REDUCE_SCATTER,
    all_reduce_seconds,
    reduce_scatter_seconds,
)
from shardopt.graph.attention_use import AttentionUse
from shardopt.graph.op_graph import Dims, FactorRule, Island, Op
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.sharding.strategies.factors import shardable_factors
from shardopt.solve.sharding.strategies.layouts import Layouts
from shardopt.solve.sharding.strategies.linear import REDUCED, Linear
from shardopt.solve.sharding.strategies.strategies import (
    Strategy,
    all_shardings,
    is_cheap_to_clone,
    op_strategies,
)
from shardopt.solve.sharding.strategies.tables import StrategyTables
from tests.unit.solve.sharding.op_graphs import CLUSTER, LINE, MESH, elementwise, f32, matmul, rule

REPLICATED = Sharding.replicated(2)
LINK = CLUSTER.groups[0].intra_host
CUBE = Mesh("m", (("x", 2), ("y", 2), ("z", 2)), tuple(range(8)))


def strategies_of(
    op: Op, operands: tuple, results: tuple, mesh: Mesh = MESH
) -> tuple[Strategy, ...]:
    return op_strategies(op, operands, results, mesh, CLUSTER)


def dot_strategies(mesh: Mesh = MESH) -> tuple[Strategy, ...]:
    return strategies_of(matmul(8, 4, 16, (0, 1), 2), (f32(8, 4), f32(4, 16)), (f32(8, 16),), mesh)


def only(strategies: tuple[Strategy, ...], operands: str, results: str) -> Strategy:
    [strategy] = [
        s
        for s in strategies
        if ", ".join(map(str, s.operands)) == operands and str(s.results[0]) == results
    ]
    return strategy


def test_the_first_strategy_is_replicated_and_communicates_nothing() -> None:
    first = dot_strategies()[0]
    assert first.operands == (REPLICATED, REPLICATED)
    assert first.results == (REPLICATED,)
    assert first.collectives == ()


def test_every_assignment_of_axes_to_factors_of_a_matmul_is_there() -> None:
    splits = {(s.operands, s.unscattered) for s in dot_strategies()}
    assert len(splits) == 4**2  # rows, columns, contraction or nothing, for each of two axes


def test_a_split_contraction_is_all_reduced_or_scattered() -> None:
    strategies = dot_strategies(LINE)
    contracted = '[{}, {"x"}], [{"x"}, {}]'
    whole = only(strategies, contracted, "[{}, {}]")
    assert [(step.kind, step.axes, step.bytes) for step in whole.collectives] == [
        (ALL_REDUCE, ("x",), 512.0)
    ]
    assert whole.communication_seconds == pytest.approx(all_reduce_seconds(LINK, 4, 512) + 1e-6)
    scattered = only(strategies, contracted, '[{"x"}, {}]')
    assert [(step.kind, step.bytes) for step in scattered.collectives] == [(REDUCE_SCATTER, 512.0)]
    assert scattered.communication_seconds == pytest.approx(
        reduce_scatter_seconds(LINK, 4, 512) + 1e-6
    )
    assert scattered.unscattered == (REPLICATED,)


def test_axes_that_are_reduced_together_are_scattered_together() -> None:
    both = only(dot_strategies(), '[{}, {"x", "y"}], [{"x", "y"}, {}]', '[{"x", "y"}, {}]')
    assert [(s.kind, s.axes, s.bytes) for s in both.collectives] == [
        (REDUCE_SCATTER, ("x", "y"), 512.0)
    ]


def test_axes_of_a_dimension_stay_in_mesh_order() -> None:
    order = MESH.axis_names.index
    for strategy in dot_strategies():
        for sharding in (*strategy.operands, *strategy.results):
            assert all(list(dim) == sorted(dim, key=order) for dim in sharding)


@pytest.mark.parametrize("reducer", [None, "subtract"])
def test_without_a_collective_reducer_the_contraction_stays_whole(reducer: str | None) -> None:
    op = Op("reduce", (0,), (1,), rule("ij->i", {"i": 4, "j": 8}, reduction="j"), reducer)
    assert {s.reduced for s in strategies_of(op, (f32(4, 8),), (f32(4),))} == {()}


@pytest.mark.parametrize("kind", ["need_replication", "permutation", "blocked"])
def test_factors_that_must_stay_whole(kind: str) -> None:
    op = Op("slice", (0,), (1,), rule("ij->ij", {"i": 4, "j": 8}, **{kind: "j"}))
    assert shardable_factors(op) == (0,)


def test_calls_are_split_without_padding() -> None:
    of_rows = rule("ij->ij", {"i": 6, "j": 3}, need_replication="j")
    for name, count in (("tanh", 2), ("custom_call", 1)):
        made = strategies_of(Op(name, (0,), (1,), of_rows), (f32(6, 3),), (f32(6, 3),), LINE)
        assert len(made) == count  # six rows on four devices: padded, or not at all


def test_calls_of_attention_take_as_long_as_their_products() -> None:
    shape = f32(4096, 4096)
    both = []
    for use in (None, AttentionUse(64, 4096, triangular=False, backward=False)):
        op = Op("custom_call", (0,), (1,), rule("ij->ij", {"i": 4096, "j": 4096}), flops=1e13)
        whole, *split = strategies_of(replace(op, attention=use), (shape,), (shape,), LINE)
        both.append(whole.compute_seconds)
        assert min(each.compute_seconds for each in split) == pytest.approx(both[-1] / 4, rel=0.05)
    product = matmul(4096, 4096, 4096, (0, 1), 2)
    seconds = strategies_of(replace(product, flops=1e13), (shape, shape), (shape,))[0]
    assert both[1] == pytest.approx(seconds.compute_seconds, rel=0.2)


def test_tables_tell_calls_and_regions_apart() -> None:
    tables, tensors = StrategyTables(LINE, CLUSTER), (f32(8, 8), f32(8, 8))
    call = Op("custom_call", (0,), (1,), rule("ij->ij", {"i": 8, "j": 8}), flops=1e12)
    uses = [AttentionUse(64, 4096, triangular, backward=False) for triangular in (False, True)]
    first, second = (tables.of(replace(call, attention=use), tensors) for use in uses)
    assert first.seconds[0] > second.seconds[0]
    sides: list[tuple[Dims, ...]] = [((("x",), ()),), (((), ("x",)),)]
    islands = [Island(LINE.axes, side, side, ()) for side in sides]
    region = Op("manual_computation", (0,), (1,), None)
    first, second = (tables.of(replace(region, island=island), tensors) for island in islands)
    assert first.operands[0].distinct != second.operands[0].distinct


def test_opaque_operations_have_one_strategy() -> None:
    shapes = (f32(4, 8), f32(4))
    for op in (
        Op("while", (0, 1), (2,), None),
        Op("rng_bit_generator", (0, 1), (2,), rule("ij,i->i", {"i": 4, "j": 8})),
    ):
        [strategy] = strategies_of(op, shapes, (f32(4),))
        assert all(s.is_replicated for s in (*strategy.operands, *strategy.results))


def test_only_the_updated_dimension_keeps_dynamic_update_slice_whole() -> None:
    sizes = {"i": 16, "j": 1, "k": 4}
    op = Op("dynamic_update_slice", (0, 1), (2,), rule("ik,jk->ik", sizes, need_replication="j"))
    assert shardable_factors(op) == (2,)


def test_values_that_regions_capture_are_replicated() -> None:
    op = Op("reduce", (0, 1), (2,), rule("ij->i", {"i": 4, "j": 8}, reduction="j"), "add")
    for strategy in strategies_of(op, (f32(4, 8), f32(6)), (f32(4),)):
        assert strategy.operands[1].is_replicated


def test_uneven_dimensions_are_split_with_little_padding() -> None:
    """Six over four would be tiles of two with a device without work, nine over four tiles of three
    with three elements of padding; five over four are too short."""
    for extent, splits in ((6, True), (9, True), (5, False), (3, False)):
        op = elementwise("add", (extent, 8), (0, 1), 2)
        found = {
            s.results[0].dims
            for s in strategies_of(op, (f32(extent, 8),) * 2, (f32(extent, 8),), LINE)
        }
        assert found == {((), ()), ((), ("x",)), *((("x",), ()) for _ in range(splits))}


def test_terms_of_a_sum_have_no_padding() -> None:
    """Shardy ends the process where a value is unreduced and has padded tiles."""
    linear = Linear(((0,),), unreduced=True, contracts=True, sums=True)
    operands, results = (f32(39, 16), f32(16, 8)), (f32(39, 8),)
    made = op_strategies(matmul(39, 16, 8, (0, 1), 2), operands, results, MESH, CLUSTER, linear)
    pairs = [
        (sharding, tensor)
        for each in made
        for sharding, tensor in zip(
            (*each.operands, *each.results), (*operands, *results), strict=True
        )
    ]
    assert any(not sharding.is_even(MESH, tensor.shape) for sharding, tensor in pairs)
    assert any(sharding.unreduced for sharding, _ in pairs)
    assert all(sharding.is_even(MESH, tensor.shape) for sharding, tensor in pairs
               if sharding.unreduced)  # fmt: skip


def test_padding_is_paid_for() -> None:
    """A tile of nine rows over four has three of them, as one of twelve."""
    costs = []
    for rows in (9, 12):
        op = replace(elementwise("add", (rows, 8), (0, 1), 2), flops=rows * 8.0)
        strategies = strategies_of(op, (f32(rows, 8),) * 2, (f32(rows, 8),), LINE)
        costs.append(next(s for s in strategies if s.results[0].dims == (("x",), ())).seconds)
    assert costs[0] == pytest.approx(costs[1])


def test_an_uneven_dimension_of_several_factors_stays_whole() -> None:
    """Ten rows of three over four are tiles of three rows, the thirty elements tiles of eight."""
    rows = FactorRule((10, 3), ((((0,), (1,))),), (((0, 1),),))
    op = Op("reshape", (0,), (1,), rows)
    [whole] = strategies_of(op, (f32(10, 3),), (f32(30),), LINE)
    assert whole.results[0].is_replicated


def test_only_even_dimensions_are_scattered() -> None:
    sizes = {"i": 10, "j": 8, "k": 8}
    op = Op("dot_general", (0, 1), (2,), rule("ik,kj->ij", sizes, reduction="k"), "add")
    scattered = {
        s.results[0].dims
        for s in strategies_of(op, (f32(10, 8), f32(8, 8)), (f32(10, 8),), LINE)
        if s.reduced
    }
    assert scattered == {((), ()), ((), ("x",))}


def test_axes_of_size_one_split_nothing() -> None:
    mesh = Mesh("m", (("x", 1), ("y", 2)), (0, 1))
    assert {
        axis for s in dot_strategies(mesh) for sharding in s.results for axis in sharding.axes
    } == {"y"}
    assert all_shardings(mesh, (1, 4)) == (REPLICATED, Sharding(((), ("y",))))


def test_split_work_is_cheaper() -> None:
    strategies = dot_strategies(LINE)
    rows = only(strategies, '[{"x"}, {}], [{}, {}]', '[{"x"}, {}]')
    assert rows.compute_seconds < strategies[0].compute_seconds


@pytest.mark.parametrize("text", ["ik,kj->ij", "bik,bkj->bij", "ij->j", "ij,j->ij", "ij->ji"])
@pytest.mark.parametrize("mesh", [MESH, LINE])
def test_what_the_devices_compute_is_the_result(text: str, mesh: Mesh) -> None:
    """Each device contracts its tiles; the sum over the reduced axes holds the device's tile of the
    result."""
    sizes = {letter: 4 for letter in text if letter.isalpha()}
    left, right = text.split("->")
    contracted = "".join(sorted(set(left) - set(right) - {","}))
    op = Op("dot_general", (), (), rule(text, sizes, reduction=contracted), "add")
    operands = tuple(f32(*(sizes[letter] for letter in part)) for part in left.split(","))
    result = f32(*(sizes[letter] for letter in right))
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 9, tensor.shape) for tensor in operands]
    expected = np.einsum(text, *values)
    strategies = strategies_of(op, operands, (result,), mesh)
    assert len(strategies) > 2
    for strategy in strategies:
        local = _local_contractions(text, values, strategy, mesh)
        for device, box in enumerate(strategy.results[0].tiles(mesh, result.shape)):
            whole = sum(local[peer] for peer in _group(mesh, device, strategy.reduced))
            np.testing.assert_array_equal(whole[_slices(box)], expected[_slices(box)])


def _local_contractions(
    text: str, values: list[np.ndarray], strategy: Strategy, mesh: Mesh
) -> list[np.ndarray]:
    """Global arrays that hold what each device computes, zero elsewhere."""
    boxes = [s.tiles(mesh, value.shape) for s, value in zip(strategy.operands, values, strict=True)]
    contractions = []
    for device, keep in enumerate(
        strategy.unscattered[0].tiles(mesh, np.einsum(text, *values).shape)
    ):
        parts = []
        for value, tiles in zip(values, boxes, strict=True):
            part = np.zeros_like(value)
            part[_slices(tiles[device])] = value[_slices(tiles[device])]
            parts.append(part)
        product_ = np.einsum(text, *parts)
        kept = np.zeros_like(product_)
        kept[_slices(keep)] = product_[_slices(keep)]
        contractions.append(kept)
    return contractions


def _slices(box: np.ndarray) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def _group(mesh: Mesh, device: int, axes: tuple[str, ...]) -> list[int]:
    coordinates = np.array(np.unravel_index(device, mesh.shape))
    moving = [mesh.axis_names.index(axis) for axis in axes]
    peers = []
    for steps in product(*(range(mesh.shape[k]) for k in moving)):
        coordinates[moving] = steps
        peers.append(int(np.ravel_multi_index(tuple(coordinates), mesh.shape)))
    return peers or [device]


@pytest.mark.parametrize("text", ["(ab)->ab", "ab->(ab)", "(abc)->a(bc)"])
def test_a_split_reshape_keeps_its_elements_in_place(text: str) -> None:
    sizes = {letter: 4 if letter == "c" else 2 for letter in text if letter.isalpha()}
    mapping: FactorRule = rule(text, sizes)
    shapes = [
        f32(*(int(np.prod([mapping.sizes[f] for f in dim])) for dim in dims))
        for dims in (mapping.operands[0], mapping.results[0])
    ]
    strategies = strategies_of(Op("reshape", (0,), (1,), mapping), (shapes[0],), (shapes[1],))
    assert len(strategies) > 1
    for strategy in strategies:
        before = _elements(strategy.operands[0], shapes[0].shape)
        assert before == _elements(strategy.results[0], shapes[1].shape)


def _elements(sharding: Sharding, shape: tuple[int, ...]) -> list[list[int]]:
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return [sorted(numbers[_slices(box)].ravel().tolist()) for box in sharding.tiles(MESH, shape)]


def test_cheap_to_clone() -> None:
    assert is_cheap_to_clone(Op("constant", (), (0,), rule("->ij", {"i": 2, "j": 2})), ())
    broadcast = Op("broadcast_in_dim", (0,), (1,), None)
    assert is_cheap_to_clone(broadcast, (f32(),))
    assert not is_cheap_to_clone(broadcast, (f32(4),))


def test_equal_operations_share_their_tables() -> None:
    tables = StrategyTables(MESH, CLUSTER)
    tensors = (f32(8, 8),) * 4
    first, second = (tables.of(elementwise("add", (8, 8), (0, 1), k), tensors) for k in (2, 3))
    assert first is second
    assert first.operands[0] is first.results[0]
    edge = tables.resharding(tensors[0], first.results[0], second.operands[0], 1)
    assert edge is tables.resharding(tensors[1], second.results[0], first.operands[1], 1)
    assert edge is not None and edge.shape == (9, 9) and not edge.diagonal().any()


def test_resharding_that_costs_nothing_has_no_table() -> None:
    tables = StrategyTables(MESH, CLUSTER)
    scalar = tables.choices(())
    assert tables.resharding(f32(), scalar, scalar, 1) is None


@pytest.mark.parametrize("extents", [(8, 4, 16), (6, 4, 2), (12, 8, 3), (4, 1, 2)])
def test_meshes_share_layouts_only_where_they_divide_alike(extents: tuple[int, int, int]) -> None:
    """Whichever mesh asks first."""
    rows, inner, columns = extents
    op = matmul(rows, inner, columns, (0, 1), 2)
    tensors = (f32(rows, inner), f32(inner, columns), f32(rows, columns))
    shapes = [(2, 4), (4, 2), (2, 2), (2, 3), (8, 1), (1, 8), (3, 2)]
    meshes = [Mesh("m", (("x", x), ("y", y)), tuple(range(x * y))) for x, y in shapes]
    for order in (meshes, meshes[::-1]):
        layouts = Layouts()
        for mesh in order:
            alone = StrategyTables(mesh, CLUSTER).of(op, tensors)
            shared = StrategyTables(mesh, CLUSTER, layouts).of(op, tensors)
            assert shared.strategies == alone.strategies
            for mine, other in zip(
                (*alone.operands, *alone.results), (*shared.operands, *shared.results), strict=True
            ):
                assert mine.shardings == other.shardings


JOIN = Linear(((0, 1),), unreduced=True, sums=True)


def join_strategies(linear: Linear, mesh: Mesh = MESH) -> tuple[Strategy, ...]:
    op = elementwise("add", (8, 8), (0, 1), 2)
    return op_strategies(op, (f32(8, 8),) * 2, (f32(8, 8),), mesh, CLUSTER, linear)


def test_a_fused_value_is_written_where_it_is_exchanged() -> None:
    """And read again, each device its share before and after; a slice is taken inside of the
    kernel."""
    tables = StrategyTables(LINE, CLUSTER)
    tensor = f32(8, 8)
    column = tables.choices((8, 8))
    plain = tables.resharding(tensor, column, column, 3)
    fused = tables.resharding(tensor, column, column, 3, fused=True)
    assert plain is not None and fused is not None
    size = tables.local_bytes(tensor, column)
    moved = 3 * (size[:, None] + size[None, :]) / tables.device.memory_bandwidth
    assert np.allclose(fused - plain, np.where(plain > 0, moved, 0.0))
    assert (plain == 0).sum() > len(column.shardings)


def test_an_open_contraction_may_stay_partial() -> None:
    op, tensors = matmul(8, 4, 16, (0, 1), 2), (f32(8, 4), f32(4, 16))
    strategies = op_strategies(
        op, tensors, (f32(8, 16),), LINE, CLUSTER, Linear((), unreduced=True, contracts=True)
    )
    unreduced = only(strategies, '[{}, {"x"}], [{"x"}, {}]', '[{}, {}], unreduced={"x"}')
    assert unreduced.collectives == () and unreduced.reduced == ("x",)
    assert unreduced.unscattered == unreduced.results
    reduced = op_strategies(op, tensors, (f32(8, 16),), LINE, CLUSTER)
    assert len(strategies) == len(reduced) + 1


@pytest.mark.parametrize(
    ("result", "steps"),
    [
        ('[{"y"}, {}]', [(REDUCE_SCATTER, ("y",), 256.0), (ALL_REDUCE, ("x",), 128.0)]),
        ('[{}, {"y"}]', [(REDUCE_SCATTER, ("y",), 256.0), (ALL_REDUCE, ("x",), 128.0)]),
        ('[{"y"}, {}], unreduced={"x"}', [(REDUCE_SCATTER, ("y",), 256.0)]),
        ('[{"x", "y"}, {}]', [(REDUCE_SCATTER, ("x", "y"), 256.0)]),
    ],
)
def test_a_sum_is_scattered_along_the_faster_axes_first(
    result: str, steps: list[tuple[str, tuple[str, ...], float]]
) -> None:
    """The slower ones all-reduce the parts, at once or later (MiCS, arXiv 2205.00119, section
    3.4)."""
    op, tensors = matmul(8, 8, 8, (0, 1), 2), (f32(8, 8), f32(8, 8))
    linear = Linear((), unreduced=True, contracts=True)
    strategies = op_strategies(op, tensors, (f32(8, 8),), MESH, CLUSTER, linear)
    split = '[{}, {"x", "y"}], [{"x", "y"}, {}]'
    strategy = only(strategies, split, result)
    assert [(step.kind, step.axes, step.bytes) for step in strategy.collectives] == steps
    # Of a sum in steps the partitioner is told the terms.
    in_steps = '[{}, {}], unreduced={"x", "y"}' if "x" not in result[:9] else "[{}, {}]"
    assert str(strategy.unscattered[0]) == in_steps
    closed = op_strategies(op, tensors, (f32(8, 8),), MESH, CLUSTER)
    # Left open along one axis, while the other is anywhere else, or both; or in steps.
    assert len(strategies) == len(closed) + 2 * 3 + 1 + 2 * 2


def test_terms_of_a_padded_result_are_not_added_up_in_steps() -> None:
    """Values with padding cannot be unreduced."""
    op, tensors = matmul(7, 8, 8, (0, 1), 2), (f32(7, 8), f32(8, 8))
    strategies = op_strategies(op, tensors, (f32(7, 8),), CUBE, CLUSTER, Linear((), contracts=True))
    for strategy in strategies:
        sums = [s for s in strategy.collectives if s.kind in (ALL_REDUCE, REDUCE_SCATTER)]
        assert len(sums) < 2 or strategy.unscattered[0].is_even(CUBE, (7, 8))
    assert any(len(s.collectives) == 2 for s in strategies)


def test_what_is_linear_in_both_operands_takes_both_partial_along_the_same_axes() -> None:
    for strategy in join_strategies(JOIN):
        first, second = strategy.operands
        assert first == second
        assert first.unreduced == strategy.reduced
        assert not set(first.unreduced) & set(first.axes)


@pytest.mark.parametrize(
    ("result", "kinds"),
    [
        ("[{}, {}]", [ALL_REDUCE]),
        ('[{"x"}, {}]', [REDUCE_SCATTER]),
        ('[{}, {}], unreduced={"x"}', []),
    ],
)
def test_terms_are_summed_up_scattered_or_handed_on(result: str, kinds: list[str]) -> None:
    unreduced = ", ".join(['[{}, {}], unreduced={"x"}'] * 2)
    strategy = only(join_strategies(JOIN, LINE), unreduced, result)
    assert [(step.kind, step.axes, step.bytes) for step in strategy.collectives] == [
        (k, ("x",), 256.0) for k in kinds
    ]
    # The operation itself is written as unreduced; the sum stands behind it.
    assert str(strategy.unscattered[0]) == '[{}, {}], unreduced={"x"}'
    # Every device works on whole terms.
    assert strategy.compute_seconds == join_strategies(JOIN, LINE)[0].compute_seconds


def test_a_sum_is_taken_where_that_may_pay() -> None:
    """Elsewhere the readers take it, and the tables stay small."""
    inner = join_strategies(Linear(((0, 1),), unreduced=True))
    assert all(s.results[0].unreduced == s.reduced for s in inner)
    reduced = join_strategies(Linear(((0, 1),), sums=True))
    assert all(not s.results[0].unreduced for s in reduced)
    assert len(inner) < len(join_strategies(JOIN)) and len(join_strategies(REDUCED)) < len(reduced)


def test_zeros_are_terms_for_nothing() -> None:
    op = Op("constant", (), (0,), rule("->ij", {"i": 8, "j": 8}), zero=True)
    strategies = op_strategies(op, (), (f32(8, 8),), MESH, CLUSTER, Linear(((),), unreduced=True))
    assert {s.results[0].unreduced for s in strategies} == {(), ("x",), ("y",), ("x", "y")}
    assert all(not s.collectives for s in strategies)
    assert len({s.results for s in strategies}) == len(strategies) == 4**2


def test_a_gather_that_sums_up_by_itself_stays_whole_along_that_axis() -> None:
    """Unreduced along one axis because its operand is, but not along the one that splits what it
    looks up."""
    op = Op(
        "gather", (0, 1), (2,), rule("ik,j->jk", {"i": 8, "j": 4, "k": 8}, reduction="i"), "add"
    )
    tensors = (f32(8, 8), f32(4)), (f32(4, 8),)
    strategies = op_strategies(
        op, *tensors, MESH, CLUSTER, Linear(((0,),), unreduced=True, sums=True)
    )
    assert any(s.results[0].unreduced == ("x",) for s in strategies)
    for strategy in strategies:
        assert set(strategy.results[0].unreduced) <= set(strategy.operands[0].unreduced)


def test_capabilities_are_part_of_the_key_of_tables() -> None:
    tables = StrategyTables(MESH, CLUSTER)
    tensors, op = (f32(8, 8),) * 3, elementwise("add", (8, 8), (0, 1), 2)
    assert tables.of(op, tensors) is tables.of(op, tensors, REDUCED)
    assert tables.of(op, tensors) is not tables.of(op, tensors, JOIN)
    source, target = tables.of(op, tensors, JOIN).results[0], tables.of(op, tensors).operands[0]
    seconds = tables.resharding(tensors[0], source, target, 1)
    back = tables.resharding(tensors[0], target, source, 1)
    assert seconds is not None and np.isfinite(seconds).all()
    assert back is not None and not np.isfinite(back).all()
