from __future__ import annotations

import pytest

from shardopt.cost.cluster import Cluster, Device, Link
from shardopt.cost.transfers import messages_seconds

# Two hosts of two devices; a byte takes 1 s inside a host and 10 s between hosts.
CLUSTER = Cluster("test", 2, 2, Device("d", {"f32": 1.0}, 1, 1.0), Link(0.5, 1.0), Link(3.0, 0.1), 0.0)


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
