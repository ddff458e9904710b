"""`shardopt cluster check`: does a cluster have what its description says, and how fast are its
links?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, get_args

from shardopt.options.names import PlatformName
from shardopt.support.counts import counted
from shardopt.support.errors import UserError
from shardopt.tools.common import EXIT_OK, EXIT_USER_ERROR, console

if TYPE_CHECKING:
    from rich.table import Table

    from shardopt.hardware.cluster import Cluster, HostGroup, Link
    from shardopt.runtime.profiling.cluster_probe import Probe

# A link that is so much slower than those of other hosts, or than the description, is told.
_SLOW = 0.8
_DIGITS = 3


def add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Start a process or an actor on every host of a cluster, compare versions and devices with "
        "its description, and measure its links: from device to device, and from each host to the "
        "next."
    )
    parser.add_argument("action", choices=("check",), help="what to do")
    parser.add_argument(
        "cluster", metavar="FILE|PRESET", help="the description, as `shardopt plan --cluster` takes"
    )
    parser.add_argument(
        "--backend",
        default="ray",
        choices=("process", "ray"),
        help="where the hosts are: of a Ray cluster, or processes of this machine",
    )
    parser.add_argument(
        "--platform",
        default="auto",
        choices=get_args(PlatformName),
        help="devices that are looked for; auto: GPUs where there are any",
    )
    parser.add_argument(
        "--ray-address", metavar="HOST:PORT", help="of a running Ray cluster (default: RAY_ADDRESS)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the description with what was found",
    )
    parser.set_defaults(run=_run)


@dataclass(frozen=True)
class Difference:
    """`matters` where a plan for the description does not run."""

    where: str
    expected: str
    found: str
    matters: bool = True

    def __str__(self) -> str:
        kind = "error" if self.matters else "note"
        return f"{kind}: {self.where}: expected {self.expected}, found {self.found}"


def _run(args: argparse.Namespace) -> int:
    from shardopt.hardware.cluster_file import load_cluster
    from shardopt.ir.io import check_output
    from shardopt.runtime.profiling.cluster_probe import probe

    if args.output is not None:
        check_output(args.output)
        if args.output.suffix not in (".yaml", ".yml", ".json"):
            raise UserError(f"expected a .yaml or .json file, found '{args.output}'")
    cluster = load_cluster(args.cluster)
    found = probe(cluster, args.backend, args.platform, args.ray_address)
    differences = list(compare(cluster, found, args.backend))
    console().print(_table(cluster, found))
    for each in differences:
        print(each)
    if args.output is not None:
        args.output.write_text(_text(measured(cluster, found), args.output), encoding="utf-8")
    return EXIT_USER_ERROR if any(each.matters for each in differences) else EXIT_OK


def compare(cluster: Cluster, found: Probe, backend: str) -> Iterator[Difference]:
    """What is not as it should be: nodes, versions, devices, links."""
    from shardopt.runtime.profiling.host_probe import own_versions

    hosts = len(found.facts)
    if backend == "ray" and found.nodes < hosts:
        yield Difference(
            "Ray cluster", counted(hosts, "node"), f"{found.nodes}: hosts share nodes", False
        )
    here = own_versions()
    for number, facts in enumerate(found.facts):
        where, group = f"host {number} ({facts.name})", _group_of(cluster, number)
        for name, version in here.items():
            if facts.versions.get(name) != version:
                there = facts.versions.get(name, "none")
                yield Difference(where, f"{name} {version}, as here", there)
        if facts.devices != group.devices_per_host:
            yield Difference(where, counted(group.devices_per_host, "device"), str(facts.devices))
        if facts.memory_bytes is not None and facts.memory_bytes < group.device.memory_bytes:
            yield Difference(
                where, f"{group.device.memory_bytes} bytes a device", str(facts.memory_bytes)
            )
        link = found.inside[number]
        if link is not None:
            yield from _slower(f"{where}, between devices", _to_neighbour(cluster, number), link)
    for (first, second), link in found.between.items():
        expected = _link_between(cluster, first, second)
        yield from _slower(f"from host {first} to host {second}", expected, link)


def measured(cluster: Cluster, found: Probe) -> Cluster:
    """The description with what was measured: medians over the hosts of a group, and devices and
    memory that all of them have."""
    from shardopt.hardware.cluster import GroupLink

    groups, links = [], {frozenset(link.groups): link for link in cluster.links}
    for index, group in enumerate(cluster.groups):
        mine = [k for k in range(len(found.facts)) if _group_of(cluster, k) is group]
        devices = min(found.facts[k].devices for k in mine)
        memory = [each for k in mine if (each := found.facts[k].memory_bytes) is not None]
        device = replace(group.device, memory_bytes=min(memory)) if memory else group.device
        inside = [_of_all_links(cluster, k, link) for k in mine if (link := found.inside[k])]
        between = [link for pair, link in found.between.items() if set(pair) <= set(mine)]
        groups.append(
            replace(
                group,
                devices_per_host=devices,
                device=device,
                intra_host=_median(inside) if inside else group.intra_host,
                inter_host=_median(between) if between else group.inter_host,
            )
        )
        if index:
            names = cluster.groups[index - 1].name, group.name
            link = found.between[mine[0] - 1, mine[0]]
            links[frozenset(names)] = GroupLink(names, _median([link]))
    return replace(cluster, groups=tuple(groups), links=tuple(links.values()))


def _group_of(cluster: Cluster, host: int) -> HostGroup:
    owners = [group for group in cluster.groups for _ in range(group.hosts)]
    return owners[host]


def _to_neighbour(cluster: Cluster, host: int) -> Link:
    """What is measured inside a host: every device sends to the next."""
    from shardopt.hardware.cluster import Link
    from shardopt.hardware.topology import group_placement
    from shardopt.mesh.mesh import Mesh

    hosts = cluster.hosts_of_devices.tolist()
    devices = tuple(device for device, each in enumerate(hosts) if each == host)
    place = group_placement(cluster, Mesh("host", (("x", len(devices)),), devices), ("x",))
    return Link(_group_of(cluster, host).intra_host.latency_seconds, place.shift)


def _of_all_links(cluster: Cluster, host: int, found: Link) -> Link:
    """`intra_host` as it was found: that of all links of a device, of which a neighbour may have
    few."""
    whole, neighbour = _group_of(cluster, host).intra_host, _to_neighbour(cluster, host)
    share = whole.bandwidth_bytes_per_second / neighbour.bandwidth_bytes_per_second
    return replace(found, bandwidth_bytes_per_second=found.bandwidth_bytes_per_second * share)


def _link_between(cluster: Cluster, first: int, second: int) -> Link:
    one, other = (cluster.groups.index(_group_of(cluster, host)) for host in (first, second))
    return cluster.groups[one].inter_host if one == other else cluster.link_between(one, other)


def _slower(where: str, expected: Link, found: Link) -> Iterator[Difference]:
    rates = expected.bandwidth_bytes_per_second, found.bandwidth_bytes_per_second
    if rates[1] < _SLOW * rates[0]:
        yield Difference(where, _rate(rates[0]), _rate(rates[1]), False)


def _median(links: list[Link]) -> Link:
    from shardopt.hardware.cluster import Link

    return Link(
        *(
            float(f"{median(values):.{_DIGITS}g}")
            for values in zip(
                *((each.latency_seconds, each.bandwidth_bytes_per_second) for each in links),
                strict=True,
            )
        )
    )


def _table(cluster: Cluster, found: Probe) -> Table:
    from rich.table import Table

    table = Table("link", "µs", "described", "GB/s", "described", "share")
    rows = [
        (f"host {k}, device to device", _to_neighbour(cluster, k), link)
        for k, link in enumerate(found.inside)
        if link is not None
    ]
    rows += [
        (f"host {first} to host {second}", _link_between(cluster, first, second), link)
        for (first, second), link in found.between.items()
    ]
    for name, expected, link in rows:
        share = link.bandwidth_bytes_per_second / expected.bandwidth_bytes_per_second
        table.add_row(
            name,
            f"{link.latency_seconds * 1e6:.1f}",
            f"{expected.latency_seconds * 1e6:.1f}",
            f"{link.bandwidth_bytes_per_second / 1e9:.3g}",
            f"{expected.bandwidth_bytes_per_second / 1e9:.3g}",
            f"{share:.2f}",
        )
    hosts, nodes = counted(len(found.facts), "host"), counted(found.nodes, "node")
    kinds = sorted({f"{facts.device_kind} ({facts.platform})" for facts in found.facts})
    table.title = f"{cluster}, {hosts} on {nodes}: {', '.join(kinds)}"
    return table


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3g} GB/s"


def _text(cluster: Cluster, path: Path) -> str:
    import yaml

    from shardopt.hardware.cluster_file import describe
    from shardopt.support.documents import json_text

    if path.suffix == ".json":
        return json_text(describe(cluster)) + "\n"
    return yaml.safe_dump(describe(cluster), sort_keys=False, allow_unicode=True)
