"""What a device may hold, and budgets that no device can keep."""

from __future__ import annotations

import pytest

from shardopt.hardware.cluster_file import load_cluster
from shardopt.hardware.memory_limit import check_budget, memory_limit
from shardopt.support.errors import UserError

CLUSTER = load_cluster("p3.16xlarge:1x2")


def test_a_budget_above_the_memory_of_a_device_is_refused() -> None:
    memory = CLUSTER.groups[0].device.memory_bytes
    check_budget(CLUSTER, str(memory))
    check_budget(CLUSTER, "")
    with pytest.raises(UserError, match=rf"at most the {memory} bytes .* found {memory + 1} bytes"):
        check_budget(CLUSTER, str(memory + 1))


def test_a_budget_stands_before_a_share() -> None:
    device = CLUSTER.groups[0].device
    assert memory_limit(device, 0.5, "1KiB") == 1024
    assert memory_limit(device, 0.5, "") == device.memory_bytes // 2
    assert memory_limit(device, 0.0, "") is None
