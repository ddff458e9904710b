"""Where the batch goes, on graphs small enough to check by hand, and on random ones against
block-wise meaning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.graph.microbatching import Cut, Split
from shardopt.graph.op_graph import FactorRule, Op, OpGraph, Tensor
from shardopt.solve.microbatches.axis import AxisKind, Batch, CouplingError, TimeAxis
from shardopt.solve.microbatches.batch_factors import locate, split_of
from shardopt.solve.microbatches.time_axis import analyse
from shardopt.solve.microbatches.time_plan import place_ops


class Builder:
    """Ops by name on f32 tensors; a rule is given as `"ij,jk->ik"` with one letter a factor, spaces
    between dims."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.inputs: list[int] = []

    def tensor(self, *shape: int) -> int:
        self.tensors.append(Tensor(shape, "f32", 4))
        return len(self.tensors) - 1

    def input(self, *shape: int) -> int:
        self.inputs.append(self.tensor(*shape))
        return self.inputs[-1]

    def op(
        self,
        name: str,
        rule: str,
        *operands: int,
        reducer: str | None = None,
        moved: str = "",
        **sizes: int,
    ) -> int:
        letters = list(sizes)
        sources, _, target = rule.partition("->")
        shape = [self._extent(dim, sizes) for dim in target.split()]
        result = self.tensor(*shape)
        mappings = tuple(self._mapping(text, letters) for text in (*sources.split(","), target))
        reduction = {letters.index(c) for c in sources if c in letters and c not in target}
        parsed = FactorRule(
            tuple(sizes.values()),
            mappings[: len(operands)],
            mappings[-1:],
            frozenset(reduction) if reducer else frozenset(),
            frozenset(letters.index(c) for c in moved),
        )
        self.ops.append(Op(name, operands, (result,), parsed, reducer))
        return result

    def opaque(self, *operands: int, shape: tuple[int, ...]) -> int:
        result = self.tensor(*shape)
        self.ops.append(Op("while", operands, (result,), None))
        return result

    def graph(self, *outputs: int) -> OpGraph:
        return OpGraph(tuple(self.tensors), tuple(self.ops), tuple(self.inputs), outputs)

    @staticmethod
    def _mapping(text: str, letters: list[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(letters.index(c) for c in dim) for dim in text.split())

    @staticmethod
    def _extent(dim: str, sizes: dict[str, int]) -> int:
        extent = 1
        for c in dim:
            extent *= sizes[c]
        return extent


def linear() -> tuple[Builder, dict[str, int]]:
    """h = x w; g = xᵀ h; u = w + g, with x batched in dimension 0."""
    b = Builder()
    t = {"w": b.input(4, 4), "x": b.input(8, 4)}
    t["h"] = b.op("dot_general", "n i,i j->n j", t["x"], t["w"], n=8, i=4, j=4, reducer="add")
    t["g"] = b.op("dot_general", "n i,n j->i j", t["x"], t["h"], n=8, i=4, j=4, reducer="add")
    t["u"] = b.op("add", "i j,i j->i j", t["w"], t["g"], i=4, j=4)
    return b, t


def run(b: Builder, t: dict[str, int], *outputs: int, count: int = 2, **options: bool) -> TimeAxis:
    splits = {t["x"]: Split(0, 1, 8)}
    return analyse(b.graph(*outputs), Batch(count, splits, frozenset({t["w"]}), **options))


def test_a_gradient_is_partial_and_its_update_whole() -> None:
    b, t = linear()
    axis = run(b, t, t["u"], t["h"])
    assert [axis.states[t[k]].kind for k in "wxhgu"] == [
        AxisKind.CONST,
        AxisKind.BATCHED,
        AxisKind.BATCHED,
        AxisKind.PARTIAL,
        AxisKind.WHOLE,
    ]
    plan = place_ops(axis)
    assert (plan.prologue, [op.op for op in plan.body], plan.epilogue) == ((), [0, 1], (2,))
    assert plan.captures == (t["w"],)
    assert [(a.view.tensor, a.reducer) for a in plan.accumulators] == [
        (t["h"], ""),
        (t["g"], "add"),
    ]


def test_what_nothing_needs_runs_nowhere() -> None:
    b, t = linear()
    plan = place_ops(run(b, t, t["h"]))
    assert [op.op for op in plan.body] == [0]


def test_opaque_ops_take_constants_only() -> None:
    b, t = linear()
    bits = b.opaque(t["w"], shape=(8, 4))
    y = b.op("multiply", "n j,n j->n j", t["h"], bits, n=8, j=4)
    plan = place_ops(run(b, t, y))
    assert plan.prologue == (3,)
    assert [view.tensor for view in plan.slices] == [t["x"], bits]
    z = b.opaque(y, shape=(8, 4))
    g = b.op("dot_general", "n i,n j->i j", t["x"], z, n=8, i=4, j=4, reducer="add")
    with pytest.raises(CouplingError, match="no sharding rule") as caught:
        run(b, t, g)
    assert caught.value.op == 5


def test_what_nobody_reads_of_a_call_need_not_have_rows() -> None:
    """Such as the workspace of a kernel."""
    b, t = linear()
    dims, workspace = ((0,), (1,)), b.tensor(16)
    called = b.tensor(8, 4)
    rule = FactorRule((8, 4, 16), (dims,), (dims, ((2,),)), need_replication=frozenset({2}))
    b.ops.append(Op("custom_call", (t["h"],), (called, workspace), rule))
    plan = place_ops(run(b, t, called))
    [_, call] = plan.body
    assert [view.split for view in call.results] == [Split(0, 1, 8), None]
    with pytest.raises(CouplingError, match="needs all rows of the batch"):
        b.op("dot_general", "n j,k->j k", called, workspace, n=8, j=4, k=16, reducer="add")
        run(b, t, len(b.tensors) - 1)


def test_a_coupling_is_accepted_when_no_matrix_product_follows() -> None:
    b, t = linear()
    order = b.op("sort", "n j->n j", t["h"], n=8, j=4, moved="n")
    axis = run(b, t, order)
    assert axis.couplings == (3,)
    assert place_ops(axis).epilogue == (3,)
    product = b.op("dot_general", "n i,n j->i j", t["x"], order, n=8, i=4, j=4, reducer="add")
    with pytest.raises(CouplingError, match="moves data along the batch"):
        run(b, t, product)


def test_the_origin_of_a_coupling_is_the_reduction() -> None:
    b, t = linear()
    spread = b.op("broadcast_in_dim", "i j->n i j", t["g"], n=8, i=4, j=4)
    y = b.op("dot_general", "n i j,n i->n j", spread, t["x"], n=8, i=4, j=4, reducer="add")
    with pytest.raises(CouplingError) as caught:
        run(b, t, y)
    assert (caught.value.op, caught.value.origin) == (4, 1)
    plan = place_ops(run(b, t, y, per_microbatch=True))
    assert [view.estimate for op in plan.body for view in op.operands if view.estimate] == ["add"]


def test_only_the_major_part_of_a_split_batch_may_be_cut() -> None:
    b, t = linear()
    parts = b.op("reshape", "am j->a m j", t["h"], a=2, m=4, j=4)
    assert run(b, t, parts).states[parts].split == Split(0, 1, 2)
    place_ops(run(b, t, parts))
    product = b.op(
        "dot_general", "a m i,i j->a m j", parts, t["w"], a=2, m=4, i=4, j=4, reducer="add"
    )
    with pytest.raises(
        CouplingError, match="major part has 2 rows, not divisible by 4 microbatches"
    ):
        run(b, t, product, count=4)


def test_a_light_reduction_runs_on_the_whole_batch() -> None:
    b, t = linear()
    total = b.op("reduce", "n i->i", t["x"], n=8, i=4, reducer="maximum")
    y = b.op("multiply", "n i,i->n i", t["h"], total, n=8, i=4)
    plan = place_ops(run(b, t, y))
    assert plan.prologue == (3,)
    assert total in plan.captures


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.data())
def test_locating_a_split_and_placing_it_back_agree(sizes: list[int], data: st.DataObject) -> None:
    """Element e of a dimension belongs to block i; the located factor's coordinate gives the same
    block."""
    factors = tuple(range(len(sizes)))
    target = data.draw(st.sampled_from(factors))
    count = data.draw(st.sampled_from([n for n in (1, 2, 3, 4) if sizes[target] % n == 0]))
    split = split_of((factors,), tuple(sizes), Cut(target, 1, sizes[target]))
    assert split is not None
    located = locate(factors, tuple(sizes), split)
    assert located is not None
    assert split_of((factors,), tuple(sizes), located) == split
    extent = 1
    for size in sizes:
        extent *= size
    minor = 1
    for size in sizes[target + 1 :]:
        minor *= size
    block = extent // (split.outer * count)
    for element in range(extent):
        assert (element // block) % count == (element // minor % sizes[target]) // (
            sizes[target] // count
        )
