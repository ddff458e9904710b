"""Resharding plans: known traffic, exact contents on random meshes, balance against brute force,
and the array form."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.cost.transfers import Links, Ordered, phases_seconds, streamed_seconds
from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.hardware.cluster_file import load_cluster
from shardopt.hardware.profile import Measurement, Profile
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.resharding.message_order import best_order
from shardopt.solve.resharding.moved_meshes import moved, on_first_hosts
from shardopt.solve.resharding.plan import (
    ReshardingPlan,
    TileSend,
    bytes_on_wire,
    elements_by_nic,
    elements_on_wire,
    elements_passed_on,
    messages,
    plans_seconds,
)
from shardopt.solve.resharding.senders import Fetch, busiest_seconds, choose_senders
from shardopt.solve.resharding.slices import cut, volume
from shardopt.solve.resharding.strategies import Resharding
from shardopt.solve.resharding.transfers import plan_resharding, plan_together
from shardopt.support.errors import UserError
from tests.draws import draws

Side = tuple[Mesh, Sharding]
STRATEGIES = ("send_recv", "local_allgather", "broadcast")


DEVICE = Device("d", {"f32": 1.0}, 1, 1.0)
FAST, SLOW = Link(1e-6, 1e9), Link(1e-5, 1e8)


def cluster(hosts: int, devices: int, inside: Link = FAST, between: Link = SLOW) -> Cluster:
    return Cluster.uniform("test", hosts, devices, DEVICE, inside, between, 0.0)


ONE_HOST, HOSTS_OF_TWO, HOSTS_OF_FOUR = cluster(1, 24), cluster(12, 2), cluster(6, 4)
# Two kinds of hosts, with a slow link between them; and links that were measured.
TWO_GROUPS = replace(
    HOSTS_OF_TWO,
    groups=(
        replace(HOSTS_OF_TWO.groups[0], name="a", hosts=4, fabric_bandwidth=1.5e8),
        replace(HOSTS_OF_FOUR.groups[0], name="b", hosts=4, inter_host=FAST),
    ),
    between_groups=Link(1e-4, 5e7),
)
SENDS = tuple(
    Measurement("send", (8.0, 64.0, 1e6), (1e-6 * k, 2e-6 * k, 1e-3 * k), "", k, place)
    for k, place in ((1, "intra_host"), (4, "intra_host"), (2, "inter_host"))
)
MEASURED = replace(
    HOSTS_OF_TWO,
    groups=(
        replace(
            HOSTS_OF_TWO.groups[0],
            device=replace(DEVICE, profile=Profile("d", 2, SENDS, (1.0, 1.0))),
        ),
    ),
)
LEFT2, RIGHT2 = Mesh("left", (("x", 2),), (0, 1)), Mesh("right", (("x", 2),), (2, 3))
LEFT4 = Mesh("left", (("x", 1), ("y", 4)), (0, 1, 2, 3))
RIGHT4 = Mesh("right", (("x", 1), ("y", 4)), (4, 5, 6, 7))
RIGHT8_AT_4 = Mesh("right", (("x", 2), ("y", 4)), tuple(range(4, 12)))
REPLICATED = Sharding(((), (), ()))
ROWS = Sharding((("x",), (), ()))
COLUMNS = Sharding(((), ("x",), ()))


class TestTraffic:
    """Elements and messages counted by hand."""

    @pytest.mark.parametrize(
        ("source", "destination", "strategy", "elements", "count"),
        [
            (REPLICATED, ROWS, "send_recv", 512, 2),
            (COLUMNS, ROWS, "send_recv", 512, 4),
            (ROWS, REPLICATED, "local_allgather", 512, 2),
            (ROWS, REPLICATED, "broadcast", 512, 2),
            (ROWS, REPLICATED, "send_recv", 1024, 4),
        ],
    )
    def test_two_to_two(
        self, source: Sharding, destination: Sharding, strategy: str, elements: int, count: int
    ) -> None:
        plan = plan_resharding(
            (4, 8, 16), 4, (LEFT2, source), (RIGHT2, destination), HOSTS_OF_TWO, strategy
        )
        assert (elements_on_wire(plan), messages(plan)) == (elements, count)
        assert bytes_on_wire(plan) == 4 * elements

    def test_replicas_share_the_work_on_finer_tiles(self) -> None:
        source, destination = (LEFT4, REPLICATED), (RIGHT4, REPLICATED)
        whole = plan_resharding((6, 8, 16), 4, source, destination, HOSTS_OF_FOUR, "send_recv")
        shared = plan_resharding(
            (6, 8, 16), 4, source, destination, HOSTS_OF_FOUR, "local_allgather"
        )
        assert (elements_on_wire(whole), elements_passed_on(whole)) == (3072, 0)
        assert (elements_on_wire(shared), elements_passed_on(shared)) == (768, 3 * 768)
        assert {send.shape for send in shared.sends} == {(3, 4, 16)}

    def test_replicas_of_the_source_share_the_load(self) -> None:
        source, destination = (LEFT4, Sharding.replicated(1)), (RIGHT4, Sharding((("y",),)))
        plan = plan_resharding((8,), 4, source, destination, HOSTS_OF_FOUR)
        assert sorted(send.src_device for send in plan.sends) == [0, 1, 2, 3]

    def test_indivisible_extents_are_shared_unevenly(self) -> None:
        source, destination = (LEFT4, Sharding.replicated(2)), (RIGHT4, Sharding.replicated(2))
        plan = plan_resharding((5, 7), 4, source, destination, HOSTS_OF_FOUR, "local_allgather")
        assert (elements_on_wire(plan), elements_passed_on(plan)) == (35, 3 * 35)
        assert sorted(send.elements for send in plan.sends) == [5, 10, 10, 10]

    def test_a_destination_over_two_hosts_gets_each_element_once_a_card(self) -> None:
        """Alpa sends such a value whole to each device: here 8 times as much."""
        source = (Mesh("left", (("x", 4),), (0, 1, 2, 3)), Sharding((("x",), ())))
        for strategy, wire in (("send_recv", 8), ("local_allgather", 1), ("broadcast", 1)):
            ends = source, (RIGHT8_AT_4, Sharding.replicated(2))
            plan = plan_resharding((64, 160), 4, *ends, HOSTS_OF_FOUR, strategy)
            assert elements_on_wire(plan) == wire * 64 * 160
            nics = elements_by_nic(plan, HOSTS_OF_FOUR)
            received = 4 if strategy == "send_recv" else 1
            assert nics[1][1] == nics[2][1] == received * 64 * 160

    def test_same_device_is_a_copy(self) -> None:
        side = (LEFT2, ROWS)
        plan = plan_resharding((4, 8, 16), 4, side, side, ONE_HOST)
        assert (elements_on_wire(plan), messages(plan)) == (0, 0)
        assert plan.sends == (
            TileSend(0, 0, (0, 0, 0), (2, 8, 16)),
            TileSend(1, 1, (2, 0, 0), (4, 8, 16)),
        )

    @pytest.mark.parametrize("strategy", ["local_allgather", "broadcast"])
    def test_within_a_mesh_what_is_held_stays(self, strategy: str) -> None:
        """From rows to replicas on the same four devices: an all-gather, of which nothing crosses
        meshes."""
        mesh = Mesh("m", (("x", 4),), (0, 1, 2, 3))
        ends = (mesh, Sharding((("x",), ()))), (mesh, Sharding.replicated(2))
        plan = plan_resharding((8, 4), 4, *ends, HOSTS_OF_FOUR, strategy)
        assert (elements_on_wire(plan), elements_passed_on(plan)) == (0, 3 * 32)

    def test_devices_that_have_their_tile_take_no_part(self) -> None:
        mesh = Mesh("m", (("x", 4),), (0, 1, 2, 3))
        ends = (LEFT2, Sharding.replicated(1)), (mesh, Sharding.replicated(1))
        plan = plan_resharding((8,), 4, *ends, HOSTS_OF_TWO, "local_allgather")
        assert (elements_on_wire(plan), elements_passed_on(plan)) == (8, 8)

    def test_scalars_and_empty_tensors(self) -> None:
        ends = (LEFT2, Sharding(())), (RIGHT2, Sharding(()))
        scalar = plan_resharding((), 4, *ends, ONE_HOST, "local_allgather")
        assert scalar.phases == ((TileSend(0, 2, (), ()),), (TileSend(2, 3, (), ()),))
        empty = plan_resharding(
            (0, 4), 4, (LEFT2, Sharding.replicated(2)), (RIGHT2, Sharding.replicated(2)), ONE_HOST
        )
        assert not any(empty.phases)


class TestStrategies:
    def test_auto_follows_the_cost(self) -> None:
        ends = (LEFT2, ROWS), (RIGHT2, REPLICATED)
        slow_between = plan_resharding((4, 80, 160), 4, *ends, HOSTS_OF_TWO)
        assert slow_between.strategy == "local_allgather"
        slow_inside = cluster(2, 2, inside=Link(1e-4, 1e7))
        assert plan_resharding((4, 80, 160), 4, *ends, slow_inside).strategy == "send_recv"

    def test_auto_prefers_the_plain_plan_when_equal(self) -> None:
        assert (
            plan_resharding((4, 8, 16), 4, (LEFT2, COLUMNS), (RIGHT2, ROWS), ONE_HOST).strategy
            == "send_recv"
        )

    def test_a_chain_is_cut_where_latency_allows(self) -> None:
        ends = (LEFT4, REPLICATED), (RIGHT4, REPLICATED)
        small, large = (
            plan_resharding(shape, 4, *ends, HOSTS_OF_FOUR, "broadcast")
            for shape in ((4, 4, 4), (64, 64, 64))
        )
        assert (len(small.sends), len(small.passed_on)) == (1, 3)
        assert len(large.sends) == 1 and len(large.passed_on) == 3 * 16
        assert len(large.phases) == 1 + 3 + 15

    def test_a_chain_visits_each_host_once(self) -> None:
        ends = (
            (LEFT2, REPLICATED),
            (Mesh("right", (("x", 8),), (8, 4, 9, 5, 10, 6, 11, 7)), REPLICATED),
        )
        plan = plan_resharding((40, 80, 16), 4, *ends, HOSTS_OF_FOUR, "broadcast")
        size = 40 * 80 * 16
        assert elements_by_nic(plan, HOSTS_OF_FOUR) == {
            0: (size, 0),
            1: (0, size),
            2: (size, size),
        }

    def test_unknown_strategy(self) -> None:
        ends = (LEFT2, Sharding.replicated(1)), (RIGHT2, Sharding.replicated(1))
        with pytest.raises(UserError, match=r"'send_rcv'; did you mean 'send_recv'\?"):
            plan_resharding((4,), 4, *ends, ONE_HOST, "send_rcv")

    def test_sharding_must_fit(self) -> None:
        with pytest.raises(ValueError, match="names axis 'z'"):
            plan_resharding(
                (4,), 4, (LEFT2, Sharding((("z",),))), (RIGHT2, Sharding.replicated(1)), ONE_HOST
            )

    def test_terms_of_a_sum_are_refused(self) -> None:
        ends = (LEFT2, Sharding(((),), ("x",))), (RIGHT2, Sharding.replicated(1))
        with pytest.raises(ValueError, match="expected a value that is summed up, found sharding"):
            plan_resharding((4,), 4, *ends, ONE_HOST)

    def test_tensors_that_travel_together_pay_latency_once(self) -> None:
        one = Resharding(
            (64, 64), 4, (LEFT2, Sharding((("x",), ()))), (RIGHT2, Sharding((("x",), ())))
        )
        seconds = plans_seconds(HOSTS_OF_TWO, plan_together((one,), HOSTS_OF_TWO))
        both = plans_seconds(HOSTS_OF_TWO, plan_together((one, one), HOSTS_OF_TWO))
        assert both == pytest.approx(2 * seconds - 1e-5)

    def test_tensors_that_travel_together_are_balanced_together(self) -> None:
        """Each has one sender to choose; alone both would take the first host."""
        source = (Mesh("left", (("x", 4),), (0, 1, 2, 3)), Sharding.replicated(1))
        target = (Mesh("right", (("x", 1),), (4,)), (Mesh("right", (("x", 1),), (6,))))
        group = tuple(
            Resharding((64,), 4, source, (mesh, Sharding.replicated(1))) for mesh in target
        )
        plans = plan_together(group, HOSTS_OF_TWO, "send_recv")
        assert sorted(HOSTS_OF_TWO.host_of(plan.sends[0].src_device) for plan in plans) == [0, 1]


class TestArray:
    def test_layout(self) -> None:
        ends = (LEFT2, Sharding.replicated(1)), (RIGHT2, Sharding.replicated(1))
        array = plan_resharding((4,), 4, *ends, HOSTS_OF_TWO, "local_allgather").to_array()
        assert array.dtype == np.int64
        assert array.tolist() == [
            [0, 0, 2, 0, 2],
            [0, 1, 3, 2, 4],
            [1, 2, 3, 0, 2],
            [1, 3, 2, 2, 4],
        ]

    def test_bad_arrays(self) -> None:
        with pytest.raises(ValueError, match=r"integer array \[n, 3 \+ 2 \* rank\]"):
            ReshardingPlan.from_array(np.zeros((2, 4), dtype=np.int64), "send_recv", 4)
        with pytest.raises(ValueError, match="phases from 0 on, found -1"):
            ReshardingPlan.from_array(np.full((1, 5), -1), "send_recv", 4)


# ---- balance and order ----


@settings(max_examples=draws(80), deadline=None)
@given(data=st.data())
def test_the_assignment_of_senders_is_the_best(data: st.DataObject) -> None:
    """Against all assignments, with slices of random sizes that random devices hold, on four hosts
    or on one whose devices have links of their own."""
    hosts = cluster(
        4, 2, inside=Link(0.0, 1.0), between=Link(0.0, data.draw(st.sampled_from((0.1, 0.7))))
    )
    if data.draw(st.booleans()):
        links = load_cluster("v100").groups[0].device_links
        (group,) = cluster(1, 8, inside=Link(0.0, 6.0)).groups
        hosts = replace(hosts, groups=(replace(group, device_links=links),))
    fetches = tuple(
        Fetch(
            ((0, size),),
            size,
            data.draw(st.integers(0, 7)),
            tuple(data.draw(st.permutations(range(8)))[:held]),
        )
        for size, held in data.draw(
            st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=6)
        )
    )
    able = [(f.target,) if f.target in f.holders else f.holders for f in fetches]
    best = min(busiest_seconds(hosts, fetches, choice) for choice in product(*able))
    chosen = choose_senders(hosts, fetches)
    assert all(sender in senders for sender, senders in zip(chosen, able, strict=True))
    assert busiest_seconds(hosts, fetches, chosen) == pytest.approx(best)


def test_many_boxes_are_spread_evenly() -> None:
    """200 slices of which each lies on two of eight hosts; the search tree would be too large."""
    hosts, rng = cluster(24, 1), np.random.default_rng(0)
    fetches = tuple(
        Fetch(
            ((0, 100),),
            int(rng.integers(50, 150)),
            8 + k % 16,
            tuple(map(int, rng.choice(8, 2, replace=False))),
        )
        for k in range(200)
    )
    sent = [0] * 8
    for fetch, sender in zip(fetches, choose_senders(hosts, fetches), strict=True):
        sent[sender] += fetch.bytes
    assert max(sent) <= 1.01 * sum(sent) / 8


@settings(max_examples=draws(100), deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(4, 7), st.integers(1, 9)), min_size=1, max_size=14
    ),
)
def test_order_lets_hosts_send_at_once(rows: list[tuple[int, int, int]]) -> None:
    """Never longer than in the order given, never shorter than the busiest link needs, and at most
    twice that."""
    links = Links.of(cluster(8, 1, between=Link(0.0, 1.0)), rows)
    order = best_order(links)
    assert sorted(order) == list(range(len(rows)))
    seconds = Ordered(links.reordered(order)).seconds
    assert links.busiest_seconds <= seconds + 1e-9 <= Ordered(links).seconds + 2e-9
    assert seconds < 2 * links.busiest_seconds


def test_all_to_all_between_hosts_keeps_every_card_busy() -> None:
    source = (Mesh("a", (("x", 4),), (0, 2, 4, 6)), Sharding((("x",), ())))
    target = Mesh("b", (("x", 4),), (8, 10, 12, 14))
    plan = plan_resharding((8, 8), 4, source, (target, Sharding(((), ("x",)))), HOSTS_OF_TWO)
    assert plans_seconds(HOSTS_OF_TWO, [plan]) == pytest.approx(1e-5 + 64 / 1e8)
    first = {(send.src_device, send.dst_device) for send in plan.sends[:4]}
    assert len({a for a, _ in first}) == len({b for _, b in first}) == 4


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 12))
def test_pieces_make_up_the_box(shape: list[int], count: int) -> None:
    slice_ = tuple((3, 3 + extent) for extent in shape)
    pieces = cut(slice_, count)
    assert sum(map(volume, pieces)) == volume(slice_) and min(map(volume, pieces)) > 0
    assert len(pieces) <= count and len(pieces) >= min(count, max(shape))
    assert all(
        count != len(pieces) or prod(shape) % count or len(set(map(volume, pieces))) <= 2
        for _ in pieces
    )


# ---- random plans, executed ----

CLUSTERS = (ONE_HOST, HOSTS_OF_TWO, HOSTS_OF_FOUR, TWO_GROUPS, MEASURED)


@st.composite
def sides(draw: st.DrawFn, rank: int) -> Side:
    """A mesh of up to 16 devices out of 24, so that two may overlap, and a sharding on some of its
    axes."""
    sizes = draw(
        st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=3).filter(
            lambda s: prod(s) <= 16
        )
    )
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
    """Tiles that come out even, and those that do not."""
    rank = draw(st.integers(0, 3))
    source, destination = draw(sides(rank)), draw(sides(rank))
    if draw(st.booleans()):
        return tuple(draw(st.integers(0, 13)) for _ in range(rank)), source, destination
    tiles = zip(
        source[1].tile_counts(source[0]), destination[1].tile_counts(destination[0]), strict=True
    )
    shape = tuple(int(np.lcm(a, b)) * draw(st.integers(1, 3)) for a, b in tiles)
    return shape, source, destination


def shards(tensor: np.ndarray, side: Side) -> dict[int, np.ndarray]:
    """Per device a tensor-sized array with the shard's values, and -1 where the device holds
    nothing."""
    held = {}
    for device, slice_ in zip(side[0].devices, side[1].tiles(side[0], tensor.shape), strict=True):
        window = tuple(slice(start, limit) for start, limit in slice_)
        held[device] = np.full(tensor.shape, -1, dtype=tensor.dtype)
        held[device][window] = tensor[window]
    return held


def execute(plan: ReshardingPlan, held: dict[int, np.ndarray], side: Side) -> dict[int, np.ndarray]:
    """Run a plan; fails if a device sends what it does not hold or receives an element twice."""
    empty = np.full_like(next(iter(held.values())), -1)
    received = {device: empty.copy() for device in side[0].devices}
    for number, phase in enumerate(plan.phases):
        before = {device: array.copy() for device, array in received.items()}
        deliver(phase, before if number else held, received)
    return received


def deliver(
    sends: tuple[TileSend, ...], sources: dict[int, np.ndarray], received: dict[int, np.ndarray]
) -> None:
    for send in sends:
        window = tuple(
            slice(start, limit) for start, limit in zip(send.start, send.limit, strict=True)
        )
        assert (sources[send.src_device][window] >= 0).all(), f"{send}: sent but not held"
        assert (received[send.dst_device][window] < 0).all(), f"{send}: received twice"
        received[send.dst_device][window] = sources[send.src_device][window]


@settings(max_examples=draws(100), deadline=None)
@given(problem=problems(), hosts=st.sampled_from(CLUSTERS))
def test_random_plans_fill_every_tile_exactly_once(
    problem: tuple[tuple[int, ...], Side, Side], hosts: Cluster
) -> None:
    shape, source, destination = problem
    tensor = np.arange(prod(shape)).reshape(shape)
    held, expected = shards(tensor, source), shards(tensor, destination)
    seconds = {}
    for strategy in (*STRATEGIES, "auto"):
        plan = plan_resharding(shape, 8, source, destination, hosts, strategy)
        received = execute(plan, held, destination)
        for device in destination[0].devices:
            np.testing.assert_array_equal(received[device], expected[device])
        assert ReshardingPlan.from_array(plan.to_array(), plan.strategy, 8) == plan
        seconds[strategy] = plans_seconds(hosts, [plan])
    assert seconds["auto"] <= min(seconds[name] for name in STRATEGIES) * (1 + 1e-8)


@settings(max_examples=50, deadline=None)
@given(
    problem=problems(),
    hosts=st.sampled_from((HOSTS_OF_TWO, HOSTS_OF_FOUR, MEASURED)),
    by=st.integers(0, 3),
    strategy=st.sampled_from((*STRATEGIES, "auto")),
)
def test_what_is_alike_but_for_its_hosts_has_one_plan(
    problem: tuple[tuple[int, ...], Side, Side], hosts: Cluster, by: int, strategy: str
) -> None:
    """What is planned on some hosts, moved, is what is planned where it is."""
    shape, *ends = problem
    [group] = hosts.groups
    larger = replace(hosts, groups=(replace(group, hosts=group.hosts + 3),))
    devices = by * group.devices_per_host
    first, there = (
        Resharding(
            shape,
            4,
            *(
                (replace(mesh, name=name, devices=tuple(d + more for d in mesh.devices)), sharding)
                for name, (mesh, sharding) in zip(names, ends, strict=True)
            ),
        )
        for names, more in (("ab", 0), ("cd", devices))
    )
    (one, before), (other, behind) = (on_first_hosts([each], larger) for each in (first, there))
    assert one == other and behind == before + devices
    [plan] = plan_together(one, larger, strategy)
    assert (moved(plan, behind),) == plan_together([there], larger, strategy)


def test_meshes_on_several_groups_of_hosts_stay_where_they_are() -> None:
    ends = (Mesh("m", (("x", 2),), (2, 8)), ROWS), (Mesh("n", (("x", 2),), (4, 5)), REPLICATED)
    resharding = Resharding((4, 4, 4), 4, *ends)
    [same], by = on_first_hosts([resharding], TWO_GROUPS)
    assert by == 0 and same.source[0].devices == (2, 8)
    behind = [(replace(mesh, devices=(14, 15)), sharding) for mesh, sharding in ends]
    [there], by = on_first_hosts([Resharding((4, 4, 4), 4, *behind)], TWO_GROUPS)
    assert by == 4 and there.source[0].devices == (10, 11)


class TestStreaming:
    """Hosts of the destination pass slices on to each other while others still come in."""

    SOURCE = (Mesh("left", (("x", 4),), (0, 1, 2, 3)), Sharding((("x",), ())))
    ENDS = SOURCE, (RIGHT8_AT_4, Sharding.replicated(2))

    def plan(self, strategy: str) -> ReshardingPlan:
        return plan_resharding((4096, 4096), 4, *self.ENDS, HOSTS_OF_FOUR, strategy)

    def phase_by_phase(self, plan: ReshardingPlan) -> float:
        return phases_seconds(HOSTS_OF_FOUR, [plan.messages(k) for k in range(len(plan.phases))])

    def test_chunks_go_on_while_others_come_in(self) -> None:
        """The NIC of the source is busy all the time, and a sixteenth of what hosts exchange comes
        after it."""
        plan = self.plan("broadcast")
        first = phases_seconds(HOSTS_OF_FOUR, [plan.messages(0)])
        seconds = plans_seconds(HOSTS_OF_FOUR, [plan])
        assert first < seconds < 1.05 * first < 1.4 * first < self.phase_by_phase(plan)

    def test_each_chunk_takes_a_latency(self) -> None:
        slow = cluster(3, 4, between=Link(1.0, 1e9))
        phases = [[(0, 4, 16)], *([(4, 8, 1)] for _ in range(16))]
        assert streamed_seconds(slow, phases, 16) == pytest.approx(17.0)
        small = plan_resharding((64, 64), 4, *self.ENDS, slow, "broadcast")
        assert len(small.phases) <= 5 and len(self.plan("broadcast").phases) == 20

    def test_what_leaves_at_once_waits_for_all(self) -> None:
        plan = self.plan("local_allgather")
        assert plans_seconds(HOSTS_OF_FOUR, [plan]) == self.phase_by_phase(plan)

    def test_values_of_one_message_wait_for_all(self) -> None:
        plan = self.plan("broadcast")
        phases = [
            [(source, target, 2 * size) for source, target, size in plan.messages(k)]
            for k in range(len(plan.phases))
        ]
        together = plans_seconds(HOSTS_OF_FOUR, [plan, plan])
        assert together == pytest.approx(phases_seconds(HOSTS_OF_FOUR, phases))

    def test_one_host_keeps_all_to_itself(self) -> None:
        ends = self.SOURCE, (Mesh("right", (("x", 4),), (4, 5, 6, 7)), Sharding.replicated(2))
        plan = plan_resharding((4096, 4096), 4, *ends, HOSTS_OF_FOUR, "broadcast")
        assert plans_seconds(HOSTS_OF_FOUR, [plan]) == self.phase_by_phase(plan)
