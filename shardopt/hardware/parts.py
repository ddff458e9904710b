"""Parts of a cluster, each larger than the one before: some devices of a host, then whole hosts."""

from __future__ import annotations

from collections.abc import Iterator

from shardopt.hardware.cluster import HostGroup
from shardopt.hardware.cluster_file import load_cluster, split_spec
from shardopt.support.errors import UserError


def parts_of(spec: str) -> tuple[tuple[str, HostGroup], ...]:
    """For each part what `load_cluster` takes, and its hosts: powers of two and, last, the whole.

    Raises UserError as `load_cluster` does, and for a cluster of several host groups, of which it
    is not said in which order they grow."""
    cluster = load_cluster(spec)
    if len(cluster.groups) > 1:
        raise UserError(
            f"cluster '{spec}': expected one host group, parts of which can be compared, found "
            f"{len(cluster.groups)}"
        )
    name, _ = split_spec(spec)
    whole = cluster.groups[0]
    return tuple((part, load_cluster(part).groups[0]) for part in _specs(name, whole))


def _specs(name: str, whole: HostGroup) -> Iterator[str]:
    for devices in _up_to(whole.devices_per_host):
        yield f"{name}:1x{devices}"
    for hosts in _up_to(whole.hosts):
        if hosts > 1:
            yield f"{name}:{hosts}x{whole.devices_per_host}"


def _up_to(count: int) -> Iterator[int]:
    power = 1
    while power < count:
        yield power
        power *= 2
    yield count
