"""Descriptions of clusters: YAML and JSON files, presets, and combinations of them
(`docs/guide/cluster.md`).

A file has the fields of one host group, or the fields of a cluster with a list of groups:

    name: pool                    name: mixed
    hosts: 2                      groups:
    devices_per_host: 8             - {name: old, hosts: 2, devices_per_host: 8, …}
    device: {…}                     - {name: new, hosts: 1, devices_per_host: 8, …}
    …                             between_groups: {…}
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

from shardopt.hardware.cluster import (
    DTYPE_FAMILIES,
    NCCL_GENERATIONS,
    PLATFORMS,
    AttentionRate,
    Cluster,
    Device,
    GroupLink,
    HostGroup,
    KernelRates,
    Link,
)
from shardopt.hardware.profile import COLLECTIVE_KINDS
from shardopt.hardware.torus import Torus
from shardopt.support.documents import parse_text, read_document, read_text
from shardopt.support.errors import UserError
from shardopt.support.readers import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Flag,
    Number,
    Schema,
    Text,
)
from shardopt.support.records import Field, Items, Nullable, Record, Table
from shardopt.support.suggestions import suggestion

LINK = Record(
    Link,
    {
        "latency_seconds": Field(NOT_NEGATIVE, "seconds of an empty message"),
        "bandwidth_bytes_per_second": Field(POSITIVE, "bytes/s in one direction"),
    },
)
ATTENTION = Record(
    AttentionRate,
    {
        "head": Field(COUNT, "numbers of one key"),
        "forward": Field(SHARE, "share of peak_flops that products reach forward"),
        "backward": Field(SHARE, "share of peak_flops that products reach backward"),
        "forward_fill": Field(NOT_NEGATIVE, "keys that take as long as a block's begin and end"),
        "backward_fill": Field(NOT_NEGATIVE, "the same, backward"),
    },
)
KERNELS = Record(
    KernelRates,
    {
        "products": Field(
            Table(SHARE, DTYPE_FAMILIES, ("f32",)),
            "share of peak_flops that the largest matrix products reach, by dtype",
        ),
        "convolutions": Field(SHARE, "share of what products reach that convolutions do"),
        "memory": Field(SHARE, "share of memory_bandwidth that a large copy reaches"),
        "least_seconds": Field(
            NOT_NEGATIVE, "seconds from the start of an empty kernel to that of the next"
        ),
        "merged": Field(
            Flag(), "whether the compiler makes one kernel of those over the same elements"
        ),
        "cores": Field(
            Nullable(COUNT),
            "multiprocessors that compute a tile of a product each; left out: no waves of tiles",
            None,
        ),
        "matrix_unit": Field(
            Nullable(COUNT),
            "side of the systolic array that products are filled up to; left out: none",
            None,
        ),
        "unaligned": Field(
            SHARE,
            "share of that rate that products reach whose rows do not fill words of 16 bytes",
            1.0,
        ),
        "attention": Field(
            Nullable(Items(ATTENTION, least=1)),
            "rates of attention that never writes its scores, by head size; left out: programs "
            "write them",
            None,
        ),
        "rows": Field(
            Flag(), "whether such a kernel may reduce rows and read the result, as a softmax", True
        ),
        "recomputes": Field(
            Flag(),
            "whether it computes exponentials and the like again rather than read them",
            True,
        ),
        "across": Field(
            Items(SHARE, least=2, most=2),
            "shares that products in f32 reach of which one operand, or both, lie across what they "
            "are multiplied along",
            (1.0, 1.0),
        ),
        "vector_flops": Field(
            Nullable(POSITIVE),
            "FLOP/s in f32 beside the units for products, which compute convolutions of single "
            "channels; left out: units for products do",
            None,
        ),
        "row_blocks": Field(
            Flag(), "whether kernels that hold rows take longer for it than for their bytes", True
        ),
    },
)
DEVICE = Record(
    Device,
    {
        "name": Field(Text(), "what messages call it"),
        "peak_flops": Field(
            Table(POSITIVE, DTYPE_FAMILIES, ("f32",)),
            "FLOP/s of dense matrix products by dtype; a dtype that is left out runs at the rate "
            "of the next wider one",
        ),
        "memory_bytes": Field(COUNT, "bytes that a program may use"),
        "memory_bandwidth": Field(POSITIVE, "bytes/s"),
        "kernels": Field(
            Nullable(KERNELS),
            "how close kernels come to these rates; left out: products to 60 %, memory to all",
            None,
        ),
        "platform": Field(
            Nullable(Text(choices=PLATFORMS)),
            "the platform for which XLA compiles, where planners have rules of their own for what "
            "lies in memory; left out: those of accelerators",
            None,
        ),
    },
)
TORUS = Record(
    Torus,
    {
        "slice": Field(Items(COUNT, 1, 3), "chips of the largest slice along each dimension"),
        "wraps": Field(COUNT, "dimensions of a multiple of so many chips lead around"),
        "wraps_together": Field(Flag(), "whether only where all dimensions do", False),
    },
)
_NUMBER_OF_LINKS = Number(at_least=0, whole=True)
_GROUP_FIELDS = {
    "name": Field(Text(), "what messages call it"),
    "hosts": Field(COUNT, "number of machines"),
    "devices_per_host": Field(COUNT, "devices of one machine"),
    "device": Field(DEVICE, "what one device can do"),
    "intra_host": Field(LINK, "between two devices of a host; every device has a link of its own"),
    "inter_host": Field(LINK, "a host's NIC, shared by its devices"),
    "dispatch_seconds": Field(NOT_NEGATIVE, "seconds that the host takes to start one program"),
    "fabric_bandwidth": Field(
        Nullable(POSITIVE),
        "bytes/s that all hosts together can send each other; left out: what their NICs can",
        None,
    ),
    "nccl": Field(
        Nullable(Text(choices=NCCL_GENERATIONS)),
        "generation of the GPUs, whose collectives then take what NCCL's own model says; left out: "
        "ring formulas over the links",
        None,
    ),
    "device_links": Field(
        Nullable(Items(Items(_NUMBER_OF_LINKS, least=1), least=1)),
        "for each device of a host, the number of links to each of them; left out: a switch "
        "joins them all",
        None,
    ),
    "torus": Field(
        Nullable(TORUS),
        "how the chips of all hosts are joined, with intra_host the two links of a chip along one "
        "dimension; left out: hosts are joined by inter_host alone",
        None,
    ),
    "between_slices": Field(
        Nullable(LINK),
        "a host's NIC, for collectives over several slices of the torus; left out: inter_host",
        None,
    ),
    "overlap": Field(
        Nullable(Flag()),
        "whether programs run collectives beside computing; left out: one after the other",
        None,
    ),
    "windowed_products": Field(
        Nullable(Flag()),
        "whether those that do take products and their gathers and scatters in pieces, one beside "
        "the other; left out: no",
        None,
    ),
    "windowed_share": Field(
        Nullable(SHARE),
        "by what share of the seconds of collectives in pieces products get on; left out: by what "
        "the cores that those take leave",
        None,
    ),
    "combined_bytes": Field(
        Nullable(POSITIVE),
        "bytes up to which those that run beside computing are combined into one; left out: each "
        "is alone",
        None,
    ),
    "awaited": Field(
        Nullable(Items(Text(choices=COLLECTIVE_KINDS), least=1)),
        "kinds of collectives that run beside nothing all the same; left out: none",
        None,
    ),
    "price_per_hour": Field(
        Nullable(NOT_NEGATIVE),
        "what a host costs an hour, in any currency; left out: unknown",
        None,
    ),
    "host_link": Field(
        Nullable(LINK),
        "between a device and the memory of its host, while all devices of the host use theirs; "
        "left out: unknown, and nothing is offloaded",
        None,
    ),
    "host_memory_bytes": Field(
        Nullable(COUNT),
        "bytes of a host's memory that programs may use; left out: unknown, and not a limit",
        None,
    ),
}
GROUP = Record(HostGroup, _GROUP_FIELDS)
FLAT = Record(lambda **fields: Cluster(fields["name"], (HostGroup(**fields),)), _GROUP_FIELDS)


def _group_error(cluster: Cluster) -> str:
    names = [group.name for group in cluster.groups]
    for name in names:
        if names.count(name) > 1:
            return f"field 'groups': expected unique names, got '{name}' twice"
    pairs = [frozenset(link.groups) for link in cluster.links]
    for number, link in enumerate(cluster.links):
        path = f"links[{number}].groups"
        for name in link.groups:
            if name not in names:
                return f"field '{path}': unknown group '{name}'{suggestion(name, names)}"
        if link.groups[0] == link.groups[1]:
            return (
                f"field '{path}': expected two groups, got '{link.groups[0]}' twice (its hosts "
                "talk over inter_host)"
            )
        if pairs.index(pairs[number]) < number:
            return (
                f"field '{path}': expected one link for '{link.groups[0]}' and "
                f"'{link.groups[1]}', got another"
            )
    return ""


GROUPED = Record(
    Cluster,
    {
        "name": Field(Text(), "what messages call it"),
        "groups": Field(Items(GROUP, least=1), "the host groups, in the order of their device ids"),
        "between_groups": Field(
            Nullable(LINK),
            "between hosts of different groups; left out: the worse of the two inter_host links",
            None,
        ),
        "links": Field(
            Items(
                Record(
                    GroupLink,
                    {
                        "groups": Field(Items(Text(), 2, 2), "the names of two groups"),
                        "link": Field(LINK, "between their hosts"),
                    },
                )
            ),
            "links of single pairs of groups, instead of between_groups",
            (),
        ),
    },
    _group_error,
)


class _Description:
    """One of the two forms; the key `groups` tells which."""

    def read(self, value: Any, path: str, errors: list[str]) -> Any:
        form = GROUPED if isinstance(value, dict) and "groups" in value else FLAT
        return form.read(value, path, errors)

    def schema(self) -> Schema:
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "shardopt cluster",
            "oneOf": [FLAT.schema(), GROUPED.schema()],
        }


DESCRIPTION = _Description()


# Meshes list their devices. Whether the planner can look at all submeshes of so many is checked
# where it would (`shardopt.solve.stages.candidates.check_number`).
MOST_DEVICES = 65_536


def presets() -> tuple[str, ...]:
    """Names of the built-in clusters, sorted."""
    folder = resources.files("shardopt.hardware") / "presets"
    return tuple(
        sorted(
            entry.name.removesuffix(".yaml")
            for entry in folder.iterdir()
            if entry.name.endswith(".yaml")
        )
    )


def load_cluster(spec: str) -> Cluster:
    """The cluster named by `spec`: the path of a YAML/JSON file or a preset, with an optional
    `:HxD` that overrides hosts x devices per host (`p3.16xlarge:2x8`); or several of these joined
    by `+`, each one a host group.

    Raises UserError with file and field path.
    """
    name, _, shape = spec.rpartition(":")
    parts = spec.split("+")
    if len(parts) == 1 or is_file(spec) or (is_file(name) and "+" not in shape):
        return checked_cluster(_load_one(spec))
    return checked_cluster(_combine(spec, [_load_one(part.strip()) for part in parts]))


def checked_cluster(cluster: Cluster) -> Cluster:
    """The same cluster. Raises UserError for what no field says alone."""
    if cluster.num_devices > MOST_DEVICES:
        raise UserError(
            f"cluster '{cluster.name}': expected at most {MOST_DEVICES} devices, got "
            f"{cluster.num_devices}"
        )
    for group in cluster.groups:
        rows = group.device_links or ()
        if group.between_slices is not None and group.torus is None:
            raise UserError(
                f"cluster '{cluster.name}': expected a field 'torus' of '{group.name}' beside "
                "'between_slices', got none"
            )
        if rows and group.torus is not None:
            raise UserError(
                f"cluster '{cluster.name}': expected one of the fields 'device_links' and 'torus' "
                f"of '{group.name}', got both"
            )
        if rows and (
            len(rows) < group.devices_per_host or {len(row) for row in rows} != {len(rows)}
        ):
            raise UserError(
                f"cluster '{cluster.name}': field 'device_links': expected as many rows as "
                f"columns, at least {group.devices_per_host} (devices_per_host), got rows of "
                f"{', '.join(str(len(row)) for row in rows)}"
            )
    return cluster


def is_file(name: str) -> bool:
    """Whether `name` names a file; no error for what cannot be a name."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def split_spec(spec: str) -> tuple[str, str]:
    """The file or preset that a spec of one part names, and its `HxD`, or nothing."""
    name, colon, shape = spec.rpartition(":")
    # A colon followed by a path separator belongs to a path such as `C:\clusters\a.yaml`.
    if not colon or re.search(r"[/\\]", shape) or is_file(spec):
        return spec, ""
    return name, shape


def _load_one(spec: str) -> Cluster:
    name, shape = split_spec(spec)
    text, file = _source(name)
    cluster = read_document(DESCRIPTION, parse_text(text, file), file)
    if name == spec:
        return cluster
    match = re.fullmatch(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})", shape)
    if match is None:
        raise UserError(
            f"cluster '{spec}': expected HOSTSxDEVICES after ':', such as '2x8', got '{shape}'"
        )
    if len(cluster.groups) > 1:
        raise UserError(
            f"cluster '{spec}': expected no ':{shape}' for a description with several host groups"
        )
    group = replace(cluster.groups[0], hosts=int(match[1]), devices_per_host=int(match[2]))
    return replace(cluster, groups=(group,))


def _source(name: str) -> tuple[str, str]:
    """Text of the description `name` (a path or a preset) and the file name to show in errors."""
    if name.endswith((".yaml", ".yml", ".json")) or is_file(name):
        return read_text(Path(name), "cluster file"), name
    if name not in presets():
        # The name that was meant may be none of those that look like it.
        meant, listed = suggestion(name, presets()), ", ".join(presets())
        more = "" if listed in meant else f" There are {listed}"
        raise UserError(f"unknown cluster preset '{name}'{meant}{more}")
    file = f"{name}.yaml"
    return (resources.files("shardopt.hardware") / "presets" / file).read_text(
        encoding="utf-8"
    ), file


def _combine(spec: str, parts: list[Cluster]) -> Cluster:
    """One host group a part. A second group of a name is called `name-2`, and so on."""
    groups: list[HostGroup] = []
    for part in parts:
        if len(part.groups) > 1:
            raise UserError(
                f"cluster '{spec}': expected parts with one host group each, "
                f"'{part.name}' has several"
            )
        group = part.groups[0]
        earlier = sum(
            other.name == group.name or other.name.startswith(f"{group.name}-") for other in groups
        )
        groups.append(replace(group, name=f"{group.name}-{earlier + 1}") if earlier else group)
    return Cluster("+".join(part.name for part in parts), tuple(groups))


def describe(cluster: Cluster) -> dict[str, Any]:
    """What a file that describes the cluster would hold; read by `DESCRIPTION`, it gives an equal
    cluster, apart from profiles, which have files of their own."""
    groups = [_fields(group) for group in cluster.groups]
    if len(groups) == 1 and groups[0]["name"] == cluster.name:
        return groups[0]
    links = [{"groups": list(link.groups), "link": asdict(link.link)} for link in cluster.links]
    between = asdict(cluster.between_groups) if cluster.between_groups is not None else None
    grouped = {
        "name": cluster.name,
        "groups": groups,
        "between_groups": between,
        "links": links or None,
    }
    return _without_none(grouped)


def with_overlap(cluster: Cluster, choice: str) -> Cluster:
    """The cluster as it says itself for `auto`; or with collectives beside computing (`on`), or
    never (`off`), everywhere."""
    if choice == "auto":
        return cluster
    groups = tuple(replace(group, overlap=choice == "on" or None) for group in cluster.groups)
    return replace(cluster, groups=groups)


def content_of(cluster: Cluster) -> str:
    """A text that two clusters share if plans for them are the same."""
    return json.dumps(describe(cluster), sort_keys=True) + repr(cluster)


def _fields(group: HostGroup) -> dict[str, Any]:
    fields = asdict(replace(group, device=replace(group.device, profile=None)))
    rows, torus = group.device_links, fields["torus"]
    if torus is not None:
        fields["torus"] = torus | {"slice": list(torus["slice"])}
    if (kernels := fields["device"]["kernels"]) is not None:
        kernels["across"] = list(kernels["across"])
    fields["awaited"] = group.awaited and list(group.awaited)
    return _without_none(fields | {"device_links": rows and [list(row) for row in rows]})


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if value is not None
    }
