"""Resharding plans: known traffic, exact contents on random meshes, and the array form."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.cost.errors import UserError
from shardopt.cost.mesh import Mesh, Sharding
from shardopt.solve.resharding.plan import (
    ReshardingPlan,
    TileSend,
    bytes_on_wire,
    elements_gathered,
    elements_on_wire,
    messages,
)
from shardopt.solve.resharding.transfers import plan_resharding

Side = tuple[Mesh, Sharding]

LEFT2, RIGHT2 = Mesh("left", (("x", 2),), (0, 1)), Mesh("right", (("x", 2),), (2, 3))
LEFT4, RIGHT4 = Mesh("left", (("x", 1), ("y", 4)), (0, 1, 2, 3)), Mesh("right", (("x", 1), ("y", 4)), (4, 5, 6, 7))
REPLICATED, ROWS, COLUMNS = Sharding(((), (), ())), Sharding((("x",), (), ())), Sharding(((), ("x",), ()))


class TestTraffic:
    """Elements and messages counted by hand."""

    @pytest.mark.parametrize(
        ("source", "destination", "strategy", "elements", "count"),
        [
            (REPLICATED, ROWS, "send_recv", 512, 2),
            (COLUMNS, ROWS, "send_recv", 512, 4),
            (ROWS, REPLICATED, "local_allgather", 512, 2),
            (ROWS, REPLICATED, "send_recv", 1024, 4),
        ],
    )
    def test_two_to_two(
        self, source: Sharding, destination: Sharding, strategy: str, elements: int, count: int
    ) -> None:
        plan = plan_resharding((4, 8, 16), 4, (LEFT2, source), (RIGHT2, destination), strategy)
        assert (elements_on_wire(plan), messages(plan)) == (elements, count)
        assert bytes_on_wire(plan) == 4 * elements

    def test_replicas_share_the_work_on_finer_tiles(self) -> None:
        source, destination = (LEFT4, REPLICATED), (RIGHT4, REPLICATED)
        whole = plan_resharding((6, 8, 16), 4, source, destination, "send_recv")
        shared = plan_resharding((6, 8, 16), 4, source, destination, "local_allgather")
        assert (elements_on_wire(whole), elements_gathered(whole)) == (3072, 0)
        assert (elements_on_wire(shared), elements_gathered(shared)) == (768, 3 * 768)
        assert {send.shape for send in shared.sends} == {(3, 4, 16)}

    def test_replicas_of_the_source_share_the_load(self) -> None:
        plan = plan_resharding((8,), 4, (LEFT4, Sharding.replicated(1)), (RIGHT4, Sharding((("y",),))))
        assert [send.src_device for send in plan.sends] == [0, 1, 2, 3]

    def test_indivisible_extents_still_cross_once(self) -> None:
        plan = plan_resharding((5, 7), 4, (LEFT4, Sharding.replicated(2)), (RIGHT4, Sharding.replicated(2)))
        assert (plan.strategy, elements_on_wire(plan), elements_gathered(plan)) == ("local_allgather", 35, 3 * 35)

    def test_same_device_is_a_copy(self) -> None:
        side = (LEFT2, ROWS)
        plan = plan_resharding((4, 8, 16), 4, side, side)
        assert (elements_on_wire(plan), messages(plan)) == (0, 0)
        assert plan.sends == (TileSend(0, 0, (0, 0, 0), (2, 8, 16)), TileSend(1, 1, (2, 0, 0), (4, 8, 16)))

    def test_scalars_and_empty_tensors(self) -> None:
        scalar = plan_resharding((), 4, (LEFT2, Sharding(())), (RIGHT2, Sharding(())), "local_allgather")
        assert (scalar.sends, scalar.gathers) == ((TileSend(0, 2, (), ()),), (TileSend(2, 3, (), ()),))
        empty = plan_resharding((0, 4), 4, (LEFT2, Sharding.replicated(2)), (RIGHT2, Sharding.replicated(2)))
        assert (empty.sends, empty.gathers) == ((), ())


class TestStrategies:
    def test_auto_follows_the_cost(self) -> None:
        source, destination = (LEFT2, ROWS), (RIGHT2, REPLICATED)
        assert plan_resharding((4, 8, 16), 4, source, destination).strategy == "local_allgather"
        slow_inside = plan_resharding(
            (4, 8, 16), 4, source, destination, cost=lambda plan: elements_on_wire(plan) + 3 * elements_gathered(plan)
        )
        assert slow_inside.strategy == "send_recv"

    def test_auto_prefers_the_plain_plan_when_equal(self) -> None:
        assert plan_resharding((4, 8, 16), 4, (LEFT2, COLUMNS), (RIGHT2, ROWS)).strategy == "send_recv"

    def test_unknown_strategy(self) -> None:
        with pytest.raises(UserError, match=r"'send_rcv': did you mean 'send_recv'\? known strategies are auto"):
            plan_resharding((4,), 4, (LEFT2, Sharding.replicated(1)), (RIGHT2, Sharding.replicated(1)), "send_rcv")

    def test_sharding_must_fit(self) -> None:
        with pytest.raises(ValueError, match="not divisible"):
            plan_resharding((3,), 4, (LEFT2, Sharding((("x",),))), (RIGHT2, Sharding.replicated(1)))


class TestArray:
    def test_layout(self) -> None:
        plan = plan_resharding((4,), 4, (LEFT2, Sharding.replicated(1)), (RIGHT2, Sharding.replicated(1)))
        array = plan.to_array()
        assert array.dtype == np.int64
        assert array.tolist() == [[0, 0, 2, 0, 2], [0, 1, 3, 2, 4], [1, 2, 3, 0, 2], [1, 3, 2, 2, 4]]

    def test_bad_arrays(self) -> None:
        with pytest.raises(ValueError, match=r"integer array \[n, 3 \+ 2 \* rank\]"):
            ReshardingPlan.from_array(np.zeros((2, 4), dtype=np.int64), "send_recv", 4)
        with pytest.raises(ValueError, match="unknown phase 7"):
            ReshardingPlan.from_array(np.full((1, 5), 7), "send_recv", 4)


# ---- random plans, executed ----


@st.composite
def sides(draw: st.DrawFn, rank: int) -> Side:
    """A mesh of up to 16 devices out of 24, so that two may overlap, and a sharding on some of its axes."""
    sizes = draw(st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=3).filter(lambda s: prod(s) <= 16))
    devices = draw(st.permutations(range(24)))[: prod(sizes)]
    axes = tuple((f"a{index}", size) for index, size in enumerate(sizes))
    dims: list[list[str]] = [[] for _ in range(rank)]
    for name, _ in draw(st.permutations(axes)):
        dim = draw(st.integers(-1, rank - 1))
        if dim >= 0:
            dims[dim].append(name)
    return Mesh("m", axes, tuple(devices)), Sharding(tuple(map(tuple, dims)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], Side, Side]:
    rank = draw(st.integers(0, 3))
    source, destination = draw(sides(rank)), draw(sides(rank))
    tiles = zip(source[1].tile_counts(source[0]), destination[1].tile_counts(destination[0]), strict=True)
    shape = tuple(int(np.lcm(a, b)) * draw(st.integers(1, 3)) for a, b in tiles)
    return shape, source, destination


def shards(tensor: np.ndarray, side: Side) -> dict[int, np.ndarray]:
    """Per device a tensor-sized array with the shard's values, and -1 where the device holds nothing."""
    held = {}
    for device, box in zip(side[0].devices, side[1].tiles(side[0], tensor.shape), strict=True):
        window = tuple(slice(start, limit) for start, limit in box)
        held[device] = np.full(tensor.shape, -1, dtype=tensor.dtype)
        held[device][window] = tensor[window]
    return held


def execute(plan: ReshardingPlan, held: dict[int, np.ndarray], side: Side) -> dict[int, np.ndarray]:
    """Run a plan; fails if a device sends what it does not hold or receives an element twice."""
    empty = np.full_like(next(iter(held.values())), -1)
    received = {device: empty.copy() for device in side[0].devices}
    deliver(plan.sends, held, received)
    deliver(plan.gathers, {device: array.copy() for device, array in received.items()}, received)
    return received


def deliver(sends: tuple[TileSend, ...], sources: dict[int, np.ndarray], received: dict[int, np.ndarray]) -> None:
    for send in sends:
        window = tuple(slice(start, limit) for start, limit in zip(send.start, send.limit, strict=True))
        assert (sources[send.src_device][window] >= 0).all(), f"{send}: sent but not held"
        assert (received[send.dst_device][window] < 0).all(), f"{send}: received twice"
        received[send.dst_device][window] = sources[send.src_device][window]


@settings(max_examples=150, deadline=None)
@given(problem=problems(), strategy=st.sampled_from(["send_recv", "local_allgather", "auto"]))
def test_random_plans_fill_every_tile_exactly_once(problem: tuple[tuple[int, ...], Side, Side], strategy: str) -> None:
    shape, source, destination = problem
    tensor = np.arange(prod(shape)).reshape(shape)
    plan = plan_resharding(shape, 8, source, destination, strategy)
    received = execute(plan, shards(tensor, source), destination)
    expected = shards(tensor, destination)
    for device in destination[0].devices:
        np.testing.assert_array_equal(received[device], expected[device])
    assert len({(send.src_device, send.dst_device) for send in plan.sends}) == len(plan.sends)
    if plan.strategy == "local_allgather":
        assert sum(send.elements for send in plan.sends) == tensor.size
    assert ReshardingPlan.from_array(plan.to_array(), plan.strategy, 8) == plan
