"""Ways of messages between devices that have links of their own, and what many reach at once."""

from __future__ import annotations

import pytest
from hypothesis import given

from shardopt.cost.collectives import collective_seconds
from shardopt.hardware.cluster_file import load_cluster
from shardopt.hardware.link_routes import Links, route, seconds_together
from shardopt.hardware.topology import group_placement
from shardopt.mesh.mesh import Mesh
from tests.unit.hardware.drawn_links import some_links

V100 = load_cluster("v100")
CUBE_MESH = V100.groups[0].device_links
assert CUBE_MESH is not None
EIGHT = tuple(range(8))


def test_messages_on_the_cube_mesh_take_at_most_two_links() -> None:
    """As NCCL takes them: of thirds that pass a message on the one with the widest links."""
    assert CUBE_MESH is not None
    assert route(CUBE_MESH, EIGHT, 0, 3) == ((0, 3),)
    assert route(CUBE_MESH, EIGHT, 3, 4) == ((3, 0), (0, 4))
    assert route(CUBE_MESH, EIGHT, 0, 5) == ((0, 1), (1, 5))
    assert all(1 <= len(route(CUBE_MESH, EIGHT, a, b)) <= 2 for a in EIGHT for b in EIGHT if a != b)
    # Only members pass messages on.
    assert route(CUBE_MESH, (0, 5), 0, 5) == ()


# Of one link, by hand: messages on the busiest of the links of a group in an all-to-all, and what
# the slowest message to the next member has. None between devices 0 and 5 goes over links.
EXCHANGES = (
    ((0, 1), 1, 1),
    ((2, 3), 2, 2),
    ((0, 1, 2, 3), 3, 1),
    ((0, 1, 2, 3, 4, 5, 6, 7), 7 / 3, 1),
    ((0, 2, 4, 6), 1, 1 / 2),
)


@pytest.mark.parametrize(("members", "exchange", "shift"), EXCHANGES)
def test_exchanges_have_the_links_that_lead_to_their_members(
    members: tuple[int, ...], exchange: float, shift: float
) -> None:
    place = group_placement(V100, Mesh("m", (("x", len(members)),), members), ("x",))
    assert place.exchange == pytest.approx(20e9 * exchange)
    assert place.shift == pytest.approx(20e9 * shift)


def test_devices_without_links_exchange_over_the_memory_of_their_host() -> None:
    host = V100.groups[0].host_link
    assert host is not None
    place = group_placement(V100, Mesh("m", (("x", 2),), (0, 5)), ("x",))
    host_rate = host.bandwidth_bytes_per_second
    assert place.link.bandwidth_bytes_per_second == place.exchange == place.shift == host_rate


def test_collectives_of_messages_take_as_long_as_their_links_need() -> None:
    mesh, latency = Mesh("m", (("x", 8),), EIGHT), V100.groups[0].intra_host.latency_seconds
    # Three of the 64 parts of the value are on the busiest link.
    seconds = collective_seconds(V100, mesh, "all_to_all", ("x",), 64e9)
    assert seconds == pytest.approx(7 * latency + 3e9 / 20e9)
    seconds = collective_seconds(V100, mesh, "permute", ("x",), 1e9)
    assert seconds == pytest.approx(latency + 1e9 / 20e9)
    half = Mesh("m", (("x", 2), ("y", 4)), EIGHT)
    seconds = collective_seconds(V100, half, "all_to_all", ("y",), 16e9)
    assert seconds == pytest.approx(3 * latency + 1e9 / 20e9)


@given(some_links(most=6))
def test_messages_take_links_that_exist_and_the_shortest_way(links: Links) -> None:
    members = tuple(range(len(links)))
    for source in members:
        for target in members:
            if source == target:
                continue
            hops = route(links, members, source, target)
            direct = links[source][target]
            thirds = [min(links[source][by], links[by][target]) for by in members]
            assert len(hops) == (1 if direct else 2 if any(thirds) else 0)
            if hops:
                assert hops[0][0] == source and hops[-1][1] == target
                width = min(links[a][b] for a, b in hops)
                assert width == (direct or max(thirds))
                alone = seconds_together(links, members, [(source, target)], 4.0, 1.0)
                assert alone == pytest.approx(1 / (4.0 * width))


def test_messages_that_share_a_link_share_its_rate() -> None:
    chain = ((0, 1, 0), (1, 0, 1), (0, 1, 0))
    assert seconds_together(chain, (0, 1, 2), [(0, 1), (0, 2), (1, 2)], 2.0, 1.0) == 1.0
    assert seconds_together(chain, (0, 1, 2), [(0, 1), (1, 0)], 2.0, 1.0) == 0.5
    assert seconds_together(chain, (0, 1, 2), [], 2.0, 1.0) == 0.0
    # Over the host, each way once for each of its messages.
    assert seconds_together(chain, (0, 2), [(0, 2), (2, 0)], 2.0, 0.5) == 2.0
