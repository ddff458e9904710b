"""Where the stages of a pipeline go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.hardware.cluster import Cluster, Device, Link, Submesh
from shardopt.hardware.topology import submeshes
from shardopt.solve.stages.search.placement import place
from shardopt.support.errors import UserError
from tests.draws import draws


def cluster(hosts: int, devices_per_host: int) -> Cluster:
    device = Device("d", {"f32": 1e12}, 2**30, 1e11)
    return Cluster.uniform(
        "c", hosts, devices_per_host, device, Link(1e-6, 100.0), Link(1e-5, 16.0), 0.0
    )


def shapes(*sizes: str, group: int = 0) -> list[tuple[int, Submesh]]:
    return [(group, Submesh(*map(int, size.split("x")))) for size in sizes]


def hops(c: Cluster, placed: Sequence[tuple[int, ...]]) -> int:
    """Neighbours in the pipeline that do not share a host."""
    hosts = [{c.host_of(device) for device in ids} for ids in placed]
    return sum(not a & b for a, b in itertools.pairwise(hosts))


def test_pipeline_order_is_kept_when_it_packs() -> None:
    ids = place(cluster(4, 8), shapes("1x2", "1x2", "1x4", "2x8", "1x8"))
    assert ids == ((0, 1), (2, 3), (4, 5, 6, 7), tuple(range(8, 24)), tuple(range(24, 32)))
    many = place(cluster(4, 8), shapes(*["1x1"] * 32))
    assert hops(cluster(4, 8), many) == 3  # Alpa's placement has 5


def test_stages_that_do_not_pack_in_order_are_regrouped() -> None:
    ids = place(cluster(2, 8), shapes("1x4", "1x8", "1x4"))
    assert ids == ((0, 1, 2, 3), tuple(range(8, 16)), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            ["1x4", "1x4", "1x4"],
            "cannot place 3 stages with submeshes 1x4, 1x4, 1x4 on cluster c:2x6",
        ),
        (["3x6"], "cannot place 1 stages with submeshes 3x6 on cluster c:2x6"),
        (
            ["1x1", "2x3"],
            "stage 1: submesh 2x3 is neither inside one host nor whole hosts of c:2x6",
        ),
    ],
)
def test_impossible_placements(sizes: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        place(cluster(2, 6), shapes(*sizes))
    assert str(error.value) == message


def test_groups_have_devices_of_their_own() -> None:
    slow, fast = cluster(2, 2).groups[0], cluster(1, 4).groups[0]
    c = Cluster("mixed", (slow, replace(fast, name="fast")))
    stages = [
        *shapes("1x1"),
        *shapes("1x2", group=1),
        *shapes("1x2", "1x1"),
        *shapes("1x2", group=1),
    ]
    assert place(c, stages) == ((0,), (4, 5), (2, 3), (1,), (6, 7))
    with pytest.raises(
        UserError, match="cannot place 3 stages with submeshes 1x2, 1x2, 1x2 on host group c:2x2 of"
    ):
        place(c, shapes("1x2", "1x2", "1x2"))


def fewest_hops(c: Cluster, stages: Sequence[tuple[int, Submesh]]) -> int | None:
    """Of all ways to give every stage hosts of its group."""
    frees = [group.devices_per_host for group in c.groups for _ in range(group.hosts)]
    firsts = [0, *itertools.accumulate(group.hosts for group in c.groups)]

    def search(at: int, free: list[int], last: range, crossed: int) -> Iterator[int]:
        if at == len(stages):
            yield crossed
            return
        group, mesh = stages[at]
        for host in range(firsts[group], firsts[group + 1] - mesh.hosts + 1):
            taken = range(host, host + mesh.hosts)
            if all(free[h] >= mesh.devices_per_host for h in taken):
                left = [f - mesh.devices_per_host * (h in taken) for h, f in enumerate(free)]
                yield from search(
                    at + 1, left, taken, crossed + (at > 0 and not set(last) & set(taken))
                )

    return min(search(0, frees, range(0), 0), default=None)


@settings(max_examples=draws(400), deadline=None)
@given(st.data())
def test_no_placement_crosses_hosts_less_often(data: st.DataObject) -> None:
    counts = data.draw(
        st.lists(st.tuples(st.integers(1, 3), st.sampled_from([2, 3, 4])), min_size=1, max_size=2)
    )
    c = Cluster(
        "c",
        tuple(replace(cluster(*count).groups[0], name=f"g{k}") for k, count in enumerate(counts)),
    )
    stages = data.draw(st.lists(st.sampled_from(submeshes(c)), min_size=1, max_size=6))
    fewest = fewest_hops(c, stages)
    if fewest is None:
        with pytest.raises(UserError, match="cannot place"):
            place(c, stages)
    else:
        assert hops(c, place(c, stages)) == fewest


@settings(max_examples=draws(200), deadline=None)
@given(st.data())
def test_powers_of_two_and_whole_hosts_always_pack(data: st.DataObject) -> None:
    c = cluster(data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 2, 4, 8])))
    left, stages = c.num_devices, []
    while left:
        stages.append(
            data.draw(st.sampled_from([s for s in submeshes(c) if s[1].num_devices <= left]))
        )
        left -= stages[-1][1].num_devices
    stages = data.draw(st.permutations(stages))
    placed = place(c, stages)
    assert sorted(itertools.chain(*placed)) == list(range(c.num_devices))
    for ids, submesh in zip(placed, (submesh for _, submesh in stages), strict=True):
        assert ids == tuple(range(ids[0], ids[0] + submesh.num_devices))
        assert len({c.host_of(device) for device in ids}) == submesh.hosts
