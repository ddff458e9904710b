"""How many rings fit into the links between some devices of a host."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise, permutations

import pytest
from hypothesis import given

from shardopt.hardware.cluster_file import load_cluster
from shardopt.hardware.link_rings import rings
from shardopt.hardware.link_routes import Links, route
from shardopt.hardware.topology import group_placement
from shardopt.mesh.mesh import Mesh
from tests.unit.hardware.drawn_links import some_links

CUBE_MESH = load_cluster("v100").groups[0].device_links
assert CUBE_MESH is not None

# GB/s of the bus in all-reduces of 1 GB over the first GPUs of a host of eight V100, which vTrain
# (arXiv 2312.12391) published; a link carries 22.5.
PUBLISHED = ((2, 22.55), (3, 45.14), (4, 85.36), (5, 37.17), (6, 45.74), (7, 87.01), (8, 134.51))


@pytest.mark.parametrize(("members", "bus"), PUBLISHED)
def test_rings_of_the_cube_mesh_are_as_many_as_its_rates_say(members: int, bus: float) -> None:
    assert CUBE_MESH is not None
    assert rings(CUBE_MESH, tuple(range(members))) == round(bus / 22.5)


@given(some_links(most=4))
def test_no_more_rings_fit_than_are_found(links: Links) -> None:
    """Against every choice of rings: of those from member to member, or, where there are none, of
    those through third members."""
    members = tuple(range(len(links)))
    paths = [[*pairwise((0, *order, 0))] for order in permutations(members[1:])]

    def fits(chosen: tuple[list[tuple[int, int]], ...]) -> bool:
        hops = [hop for cycle in chosen for hop in cycle]
        return all(hops.count((a, b)) <= links[a][b] for a, b in hops)

    direct = [path for path in paths if fits((path,))]
    ways = [[route(links, members, *pair) for pair in path] for path in paths]
    through = [[hop for way in path for hop in way] for path in ways if all(path)]
    most = max(sum(row) for row in links)
    best = max(
        count
        for count in range(most + 1)
        if any(map(fits, combinations_with_replacement(direct or through, count)))
    )
    assert rings(links, members) == best


def test_a_mesh_has_the_rings_of_its_slowest_group() -> None:
    """Devices 0 and 1 share one link, 2 and 3 two."""
    cluster = load_cluster("v100:1x4")
    mesh = Mesh("m", (("x", 2), ("y", 2)), (0, 1, 2, 3))
    whole = cluster.groups[0].intra_host.bandwidth_bytes_per_second
    rates = [
        group_placement(cluster, mesh, axes).link.bandwidth_bytes_per_second / whole
        for axes in (("y",), ("x",), ("x", "y"))
    ]
    assert rates == pytest.approx([1 / 6, 1 / 6, 4 / 6])
    pair = Mesh("m", (("x", 2),), (2, 3))
    assert group_placement(cluster, pair, ("x",)).link.bandwidth_bytes_per_second == whole / 3
