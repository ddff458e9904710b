"""What a device may hold, as the phases that plan for memory are told."""

from __future__ import annotations

from shardopt.hardware.cluster import Cluster, Device, HostGroup
from shardopt.support.errors import UserError
from shardopt.support.sizes import format_bytes, parse_bytes


def check_memory_options(fraction: float, budget: str) -> None:
    """Raises ValueError that says what is expected."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"memory-fraction must lie between 0 and 1, found {fraction}")
    if budget:
        parse_bytes(budget)


def check_budget(cluster: Cluster, budget: str) -> None:
    """Raises UserError where the budget is no number of bytes, or a device of the cluster has
    less."""
    try:
        check_memory_options(0, budget)
    except ValueError as error:
        raise UserError(f"option memory-budget: {error}") from error
    least = min((group.device for group in cluster.groups), key=lambda device: device.memory_bytes)
    if budget and parse_bytes(budget) > least.memory_bytes:
        raise UserError(
            f"option memory-budget: expected at most the {format_bytes(least.memory_bytes)} of a "
            f"device {least.name} of cluster {cluster}, found {format_bytes(parse_bytes(budget))}"
        )


def memory_limit(device: Device, fraction: float, budget: str) -> int | None:
    """Bytes: those of `budget` (such as 512MiB) if there is one, else a share of the device's; None
    where 0 is left, which stands for no limit."""
    return parse_bytes(budget) if budget else int(fraction * device.memory_bytes) or None


def host_memory_limit(group: HostGroup) -> int | None:
    """Bytes that may lie on a host for one of its devices: an equal part of its memory for all;
    None where that is not known."""
    if group.host_memory_bytes is None:
        return None
    return group.host_memory_bytes // group.devices_per_host
