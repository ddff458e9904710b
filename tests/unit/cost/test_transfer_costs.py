from __future__ import annotations

from dataclasses import replace

import pytest

from shardopt.cost.transfers import Links, Ordered, even_messages, messages_seconds, phases_seconds
from shardopt.hardware.cluster import Cluster, Device, Link

# Two hosts of two devices; a byte takes 1 s inside a host and 10 s between hosts.
CLUSTER = Cluster.uniform(
    "test", 2, 2, Device("d", {"f32": 1.0}, 1, 1.0), Link(0.5, 1.0), Link(3.0, 0.1), 0.0
)


@pytest.mark.parametrize(
    ("messages", "seconds"),
    [
        ([], 0.0),
        ([(0, 0, 100)], 0.0),  # a copy inside a device
        ([(0, 1, 4)], 0.5 + 4),
        ([(0, 1, 4), (1, 0, 4)], 0.5 + 4),  # links are full duplex
        ([(0, 1, 4), (2, 3, 6)], 0.5 + 6),  # disjoint pairs at once
        ([(0, 2, 4)], 3 + 40),
        ([(0, 2, 4), (1, 3, 4)], 3 + 80),  # two devices of a host share its card
        ([(0, 2, 4), (2, 0, 4)], 3 + 40),
        ([(0, 1, 100), (0, 2, 4)], 3 + 100),  # the busiest link decides, the slowest latency counts
    ],
)
def test_messages_seconds(messages: list[tuple[int, int, int]], seconds: float) -> None:
    assert messages_seconds(CLUSTER, messages) == pytest.approx(seconds)


def test_latency_counts_for_empty_messages() -> None:
    assert messages_seconds(CLUSTER, [(0, 2, 0)]) == pytest.approx(3.0)


# A third host with two devices in a group of its own: 4 s and 20 s a byte between the groups.
GROUPS = replace(
    CLUSTER,
    groups=(
        *CLUSTER.groups,
        replace(CLUSTER.groups[0], name="other", hosts=1, intra_host=Link(0.25, 2.0)),
    ),
    between_groups=Link(4.0, 0.05),
)


@pytest.mark.parametrize(
    ("messages", "seconds"),
    [
        ([(0, 2, 4)], 3 + 40),
        ([(4, 5, 4)], 0.25 + 2),
        ([(0, 4, 2)], 4 + 40),
        ([(4, 0, 2)], 4 + 40),
        ([(0, 4, 2), (1, 5, 2)], 4 + 80),  # the card of host 0
        ([(0, 4, 2), (1, 2, 4)], 4 + 80),  # the same card, into two groups
        ([(0, 4, 2), (2, 5, 2)], 4 + 80),  # the card of the other group's host
        ([(0, 4, 2), (4, 0, 2)], 4 + 40),
    ],
)
def test_messages_between_groups_share_the_cards(
    messages: list[tuple[int, int, int]], seconds: float
) -> None:
    assert messages_seconds(GROUPS, messages) == pytest.approx(seconds)


# Two hosts whose devices 0 and 1 have a link, 1 and 2 have two, 2 and 3 have one: a byte takes 1 s
# over one link, and 4 s over the memory of the host.
LINKED = replace(
    CLUSTER,
    groups=(
        replace(
            CLUSTER.groups[0],
            devices_per_host=4,
            intra_host=Link(0.5, 3.0),
            host_link=Link(0.0, 0.25),
            device_links=((0, 1, 0, 0), (1, 0, 2, 0), (0, 2, 0, 1), (0, 0, 1, 0)),
        ),
    ),
)


@pytest.mark.parametrize(
    ("messages", "seconds"),
    [
        ([(0, 1, 4)], 0.5 + 4),
        ([(0, 1, 4), (1, 0, 4)], 0.5 + 4),
        ([(1, 2, 4)], 0.5 + 2),  # two links
        ([(1, 2, 4), (1, 0, 3)], 0.5 + 3),  # links of their own
        ([(5, 6, 4)], 0.5 + 2),  # of the other host
        ([(1, 2, 4), (5, 6, 4)], 0.5 + 2),
        ([(0, 2, 4)], 0.5 + 16),  # device 1 is none of those that talk
        ([(0, 2, 4), (1, 2, 2)], 0.5 + 4 + 1),  # and passes on here, over the two links
        ([(0, 2, 4), (0, 1, 4)], 0.5 + 8),
        ([(0, 3, 4), (1, 2, 1)], 0.5 + 16),  # three links are too many
        ([(0, 1, 4), (1, 4, 4)], 3 + 40),
    ],
)
def test_messages_take_the_links_between_their_devices(
    messages: list[tuple[int, int, int]], seconds: float
) -> None:
    assert messages_seconds(LINKED, messages) == pytest.approx(seconds)


def test_a_message_waits_for_those_on_its_second_link() -> None:
    ordered = Ordered(Links.of(LINKED, [(1, 2, 4), (0, 2, 4), (2, 1, 4)]))
    assert ordered.starts.tolist() == [0.0, 2.0, 0.0]
    assert ordered.seconds == 0.5 + 2 + 4


def test_a_narrow_fabric_is_shared_by_the_hosts_of_a_group() -> None:
    narrow = replace(CLUSTER, groups=(replace(CLUSTER.groups[0], hosts=4, fabric_bandwidth=0.15),))
    assert messages_seconds(narrow, [(0, 2, 3), (4, 6, 3)]) == pytest.approx(3 + 6 / 0.15)
    assert messages_seconds(narrow, [(0, 2, 3)]) == pytest.approx(3 + 3 / 0.1)


def test_messages_in_order() -> None:
    """Each link carries one at a time: here the second waits for the card of host 0 and keeps the
    third waiting."""
    hosts = replace(CLUSTER, groups=(replace(CLUSTER.groups[0], hosts=4),))
    rows = [(0, 4, 4), (1, 6, 4), (2, 6, 4), (3, 3, 9), (2, 4, 4)]
    ordered = Ordered(Links.of(hosts, rows))
    assert ordered.links.numbers.tolist() == [0, 1, 2, 4]
    assert ordered.starts == pytest.approx([0, 40, 80, 120])
    assert ordered.seconds == pytest.approx(3 + 160)
    assert messages_seconds(hosts, rows) == pytest.approx(3 + 80)
    swapped = Ordered(ordered.links.reordered([0, 2, 1, 3]))
    assert swapped.seconds == pytest.approx(3 + 80)


def test_phases_follow_each_other() -> None:
    assert phases_seconds(CLUSTER, [[(0, 2, 4)], [], [(2, 3, 4), (3, 2, 4)]]) == pytest.approx(
        3 + 40 + 0.5 + 4
    )


def test_an_even_spread_takes_the_smaller_mesh_as_it_is() -> None:
    assert even_messages((0, 1, 2, 3), (4, 5), 9) == [(0, 4, 5), (2, 5, 5)]
    assert even_messages((4, 5), (0, 1, 2, 3), 8) == [(4, 0, 4), (5, 2, 4)]
