"""Submeshes of a cluster, and what the placement of a mesh means for its links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardopt.forms.mesh_checks import mesh_errors
from shardopt.hardware.cluster import Cluster, Device, Link, Submesh
from shardopt.hardware.topology import (
    axis_link,
    group_placement,
    logical_shapes,
    neighbours,
    submeshes,
)
from shardopt.mesh.mesh import Mesh


def cluster(hosts: int, devices_per_host: int) -> Cluster:
    device = Device("d", {"f32": 1e12}, 2**30, 1e11)
    return Cluster.uniform(
        "c", hosts, devices_per_host, device, Link(1e-6, 100.0), Link(1e-5, 16.0), 0.0
    )


def changed(c: Cluster, **fields: object) -> Cluster:
    return replace(c, groups=(replace(c.groups[0], **fields),))


def mesh(*shape: int, devices: tuple[int, ...] | None = None) -> Mesh:
    ids = devices or tuple(range(int.__mul__(*shape) if len(shape) == 2 else shape[0]))
    return Mesh("m", tuple(zip("xyz", shape, strict=False)), ids)


# ---- submeshes ----


def test_submeshes_are_those_of_the_paper() -> None:
    assert [str(s) for _, s in submeshes(cluster(3, 8))] == [
        "1x1",
        "1x2",
        "1x4",
        "1x8",
        "2x8",
        "3x8",
    ]
    assert [str(s) for _, s in submeshes(cluster(1, 6))] == ["1x1", "1x2", "1x4", "1x6"]
    assert [str(s) for _, s in submeshes(cluster(2, 1))] == ["1x1", "2x1"]


def test_logical_shapes_list_each_factorization_once() -> None:
    assert logical_shapes(Submesh(1, 1)) == ((1, 1),)
    assert logical_shapes(Submesh(1, 4)) == ((1, 4), (2, 2))
    assert logical_shapes(Submesh(2, 8)) == ((1, 16), (2, 8), (4, 4), (8, 2))
    assert logical_shapes(Submesh(1, 6)) == ((1, 6), (2, 3), (3, 2))


# ---- links ----


def test_axis_inside_a_host_uses_the_fast_link() -> None:
    c = cluster(2, 4)
    assert axis_link(c, mesh(2, 4), "y") == c.groups[0].intra_host
    assert axis_link(c, mesh(2, 2, devices=(4, 5, 6, 7)), "x") == c.groups[0].intra_host


def test_axis_across_hosts_shares_the_network_card_between_its_groups() -> None:
    c = cluster(2, 4)
    assert axis_link(c, mesh(2, 4), "x") == Link(1e-5, 4.0)  # four groups leave each host
    # One ring over both hosts crosses each card once.
    assert axis_link(c, mesh(8), "x") == Link(1e-5, 16.0)
    assert group_placement(c, mesh(8), ("x",)).members_per_host == 4
    assert group_placement(c, mesh(2, 4), ("x", "y")) == group_placement(c, mesh(8), ("x",))
    assert axis_link(c, mesh(4, 2), "x") == Link(1e-5, 8.0)


def test_fast_network_is_capped_by_the_device_link() -> None:
    c = changed(cluster(2, 1), inter_host=Link(0.0, 1e9))
    assert axis_link(c, mesh(2), "x") == Link(1e-6, 100.0)


def test_unknown_axis_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        axis_link(cluster(1, 4), mesh(4), "q")


def test_a_narrow_fabric_is_shared_by_all_crossings() -> None:
    c = changed(cluster(4, 2), fabric_bandwidth=24.0)
    assert axis_link(c, mesh(8), "x") == Link(1e-5, 6.0)  # one ring leaves each of four hosts
    assert axis_link(c, mesh(4, 2), "x") == Link(1e-5, 3.0)
    # Two rings, two hosts.
    assert axis_link(c, mesh(2, 2, devices=(0, 1, 2, 3)), "x") == Link(1e-5, 6.0)
    # As wide as the cards.
    assert axis_link(changed(c, fabric_bandwidth=64.0), mesh(8), "x") == Link(1e-5, 16.0)


def test_a_mesh_has_the_links_of_its_host_group() -> None:
    slow = cluster(2, 2)
    fast = changed(cluster(2, 2), name="fast", intra_host=Link(0.0, 1e6), inter_host=Link(0.0, 1e5))
    c = Cluster("mixed", (slow.groups[0], fast.groups[0]))
    assert axis_link(c, mesh(2, 2, devices=(0, 1, 2, 3)), "x") == Link(1e-5, 8.0)
    assert axis_link(c, mesh(2, 2, devices=(4, 5, 6, 7)), "x") == Link(0.0, 5e4)
    assert axis_link(c, mesh(2, 2, devices=(4, 5, 6, 7)), "y") == Link(0.0, 1e6)
    with pytest.raises(
        ValueError, match="expected mesh 'm' inside one host group of cluster mixed:2x2"
    ):
        axis_link(c, mesh(2, 2, devices=(2, 3, 4, 5)), "x")


def test_submeshes_lie_in_one_group() -> None:
    c = Cluster("mixed", (cluster(2, 2).groups[0], changed(cluster(1, 4), name="other").groups[0]))
    expected = [(0, "1x1"), (0, "1x2"), (0, "2x2"), (1, "1x1"), (1, "1x2"), (1, "1x4")]
    assert [(group, str(submesh)) for group, submesh in submeshes(c)] == expected


def test_neighbours_are_one_pair_for_each_kind_of_link() -> None:
    c = Cluster(
        "c", tuple(changed(cluster(*s), name=f"{s}").groups[0] for s in ((2, 2), (1, 4), (1, 1)))
    )
    assert neighbours(c) == ((0, 2), (4, 5), (0, 4), (0, 8), (4, 8))
    assert neighbours(cluster(1, 1)) == ()


def test_a_mesh_over_two_groups_is_a_mistake() -> None:
    c = Cluster("mixed", (cluster(2, 2).groups[0], changed(cluster(1, 4), name="other").groups[0]))
    apart = [mesh(2, 2, devices=(0, 1, 2, 3)), replace(mesh(2, 2), name="n", devices=(4, 5, 6, 7))]
    assert list(mesh_errors(apart, c)) == []
    (error,) = mesh_errors([mesh(2, devices=(3, 4))], c)
    assert error.startswith(
        "expected mesh 'm' inside one host group of cluster mixed:2x2+1x4, found devices of 'c'"
    )
