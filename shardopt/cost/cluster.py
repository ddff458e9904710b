"""Clusters: what a device and a link can do, and where a logical mesh lies on the hosts.

A cluster is `hosts` equal machines of `devices_per_host` equal devices; device ids run host by host
(`host * devices_per_host + local`). It is read from a YAML or JSON file or from a preset (`load_cluster`). The rest of
the file answers the planner's questions about placement: which submeshes exist (`submeshes`, `logical_shapes`), how
fast one axis of a mesh is (`axis_link`), and on which devices consecutive pipeline stages go (`place`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from shardopt.cost.errors import UserError
from shardopt.cost.mesh import Mesh
from shardopt.cost.profile import Profile

DTYPE_FAMILIES = ("f64", "f32", "bf16", "f16", "f8", "i8")


@dataclass(frozen=True)
class Device:
    """One accelerator: peak FLOP/s by dtype family (`f32` always present), memory in bytes and bytes/s, and what was
    measured on such devices, if anything was (`with_profile`)."""

    name: str
    peak_flops: Mapping[str, float] = field(hash=False)  # a dict has no hash; equal devices still hash equally
    memory_bytes: int
    memory_bandwidth: float
    profile: Profile | None = None


@dataclass(frozen=True)
class Link:
    """Latency of one message and bandwidth in one direction."""

    latency_seconds: float
    bandwidth_bytes_per_second: float


@dataclass(frozen=True)
class Cluster:
    """Equal hosts of equal devices. `intra_host` is per device; `inter_host` is per host, shared by its devices."""

    name: str
    hosts: int
    devices_per_host: int
    device: Device
    intra_host: Link
    inter_host: Link
    dispatch_seconds: float

    @property
    def num_devices(self) -> int:
        return self.hosts * self.devices_per_host

    def host_of(self, device: int) -> int:
        return device // self.devices_per_host

    def __str__(self) -> str:
        return f"{self.name}:{self.hosts}x{self.devices_per_host}"


@dataclass(frozen=True)
class Submesh:
    """A physical rectangle of devices: part of one host (`hosts == 1`) or several whole hosts."""

    hosts: int
    devices_per_host: int

    @property
    def num_devices(self) -> int:
        return self.hosts * self.devices_per_host

    def __str__(self) -> str:
        return f"{self.hosts}x{self.devices_per_host}"


# ---- reading a description ----

Reader = Callable[[Any, str, str], Any]  # (value, field path, file) -> checked value, or UserError


def _type_error(file: str, path: str, expected: str, value: object) -> UserError:
    return UserError(f"{file}: field '{path}': expected {expected}, got {value!r}")


def _text(value: Any, path: str, file: str) -> str:
    if not isinstance(value, str) or not value:
        raise _type_error(file, path, "a name", value)
    return value


def _number(value: Any, path: str, file: str) -> float:
    # YAML 1.1 reads `15.7e12` (no sign in the exponent) as a string, so numeric strings are numbers here.
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise _type_error(file, path, "a number", value)
    return number


def _positive(value: Any, path: str, file: str) -> float:
    number = _number(value, path, file)
    if number <= 0:
        raise _type_error(file, path, "a positive number", value)
    return number


def _not_negative(value: Any, path: str, file: str) -> float:
    number = _number(value, path, file)
    if number < 0:
        raise _type_error(file, path, "a number of at least 0", value)
    return number


def _count(value: Any, path: str, file: str) -> int:
    number = _positive(value, path, file)
    if number != int(number):
        raise _type_error(file, path, "a whole number", value)
    return int(number)


def _fields(value: Any, known: Sequence[str], required: Sequence[str], path: str, file: str) -> dict[str, Any]:
    """`value` as a dict that has all `required` and only `known` keys."""
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected a mapping of fields{f' in {path!r}' if path else ''}, got {value!r}")
    prefix = f"{path}." if path else ""
    for key in value:
        if key not in known:
            raise UserError(f"{file}: unknown field '{prefix}{key}'{_suggestion(str(key), known)}")
    for key in required:
        if key not in value:
            raise UserError(f"{file}: missing field '{prefix}{key}'")
    return value


def _rates(value: Any, path: str, file: str) -> dict[str, float]:
    rates = _fields(value, DTYPE_FAMILIES, ("f32",), path, file)
    return {family: _positive(rates[family], f"{path}.{family}", file) for family in DTYPE_FAMILIES if family in rates}


def _record(cls: type, readers: Mapping[str, Reader]) -> Reader:
    """Reader of a mapping into the dataclass `cls`, one reader a field."""

    def read(value: Any, path: str, file: str) -> Any:
        data = _fields(value, tuple(readers), tuple(readers), path, file)
        prefix = f"{path}." if path else ""
        return cls(**{name: reader(data[name], prefix + name, file) for name, reader in readers.items()})

    return read


_read_link = _record(Link, {"latency_seconds": _not_negative, "bandwidth_bytes_per_second": _positive})
_read_device = _record(
    Device, {"name": _text, "peak_flops": _rates, "memory_bytes": _count, "memory_bandwidth": _positive}
)
_read_cluster = _record(
    Cluster,
    {
        "name": _text,
        "hosts": _count,
        "devices_per_host": _count,
        "device": _read_device,
        "intra_host": _read_link,
        "inter_host": _read_link,
        "dispatch_seconds": _not_negative,
    },
)


def _suggestion(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f" (known: {', '.join(known)})"


def presets() -> tuple[str, ...]:
    """Names of the built-in clusters, sorted."""
    folder = resources.files("shardopt.cost") / "presets"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def parse_text(text: str, file: str) -> Any:
    """The values of a JSON text (by the name of its file) or a YAML text. Raises UserError with file and line."""
    if file.endswith(".json"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{file}:{error.lineno}: not valid JSON: {error.msg}") from None
    import yaml  # after the JSON branch: a JSON description needs no YAML library

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{file}{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from None


def _source(name: str) -> tuple[str, str]:
    """Text of the description `name` (a path or a preset) and the file name to show in errors."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json") or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), name
        except OSError as error:
            raise UserError(f"{name}: cannot read the cluster file: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"{name}: cannot read the cluster file: not UTF-8 text") from None
    if name not in presets():
        raise UserError(f"unknown cluster preset '{name}'{_suggestion(name, presets())}")
    file = f"{name}.yaml"
    return (resources.files("shardopt.cost") / "presets" / file).read_text(encoding="utf-8"), file


def load_cluster(spec: str) -> Cluster:
    """The cluster named by `spec`: the path of a YAML/JSON file or a preset, with an optional `:HxD` that overrides
    hosts x devices per host (`p3.16xlarge:2x8`). Raises UserError with file and field path."""
    name, colon, shape = spec.rpartition(":")
    # A colon followed by a path separator belongs to a path such as `C:\clusters\a.yaml`.
    if not colon or re.search(r"[/\\]", shape):
        name, shape = spec, ""
    text, file = _source(name)
    cluster = _read_cluster(parse_text(text, file), "", file)
    if not colon or name == spec:
        return cluster
    match = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", shape)
    if match is None:
        raise UserError(f"cluster '{spec}': expected HOSTSxDEVICES after ':', such as '2x8', got '{shape}'")
    return replace(cluster, hosts=int(match[1]), devices_per_host=int(match[2]))


# ---- placement ----


def submeshes(cluster: Cluster) -> tuple[Submesh, ...]:
    """The shapes a stage may take (Alpa, section 5.2): powers of two inside a host, a host, then whole hosts."""
    width = cluster.devices_per_host
    inside = tuple(Submesh(1, 1 << bits) for bits in range(width.bit_length()) if 1 << bits < width)
    return (*inside, *(Submesh(hosts, width) for hosts in range(1, cluster.hosts + 1)))


def logical_shapes(submesh: Submesh) -> tuple[tuple[int, int], ...]:
    """All two-axis logical shapes of the submesh's devices; one axis alone appears once, as `(1, n)`."""
    n = submesh.num_devices
    return tuple((rows, n // rows) for rows in range(1, n + 1) if n % rows == 0 and (rows < n or n == 1))


@dataclass(frozen=True)
class GroupPlacement:
    """The device groups along some axes of a mesh: group size, the link a ring over one group sees, and the most
    members of one group on one host (1 where groups stay inside hosts: each device then has a link of its own)."""

    size: int
    link: Link
    members_per_host: int
    crosses: bool = False


@cache
def group_placement(cluster: Cluster, mesh: Mesh, axes: tuple[str, ...]) -> GroupPlacement:
    """Placement of the groups formed by `axes` together; KeyError for an axis the mesh does not have.

    A ring crosses a host's network card once, however many of its members sit on the host, so the card is shared by
    the number of crossing groups on the busiest host.
    """
    index = {name: position for position, name in enumerate(mesh.axis_names)}
    positions = [index[axis] for axis in axes]
    size = math.prod(mesh.shape[position] for position in positions)
    devices = np.asarray(mesh.devices).reshape(mesh.shape)
    groups = np.moveaxis(devices, positions, range(-len(axes), 0)).reshape(-1, size) // cluster.devices_per_host
    crossing = groups[(groups != groups[:, :1]).any(axis=1)]
    if not crossing.size:
        return GroupPlacement(size, cluster.intra_host, 1)
    members = np.stack([(crossing == host).sum(axis=1) for host in np.unique(crossing)])  # [hosts, groups]
    sharing = int((members > 0).sum(axis=1).max())
    card = cluster.inter_host
    bandwidth = min(cluster.intra_host.bandwidth_bytes_per_second, card.bandwidth_bytes_per_second / sharing)
    latency = max(cluster.intra_host.latency_seconds, card.latency_seconds)
    return GroupPlacement(size, Link(latency, bandwidth), int(members.max()), crosses=True)


def axis_link(cluster: Cluster, mesh: Mesh, axis: str) -> Link:
    """Effective link of a ring along one mesh axis, from the hosts its devices are on."""
    return group_placement(cluster, mesh, (axis,)).link


def place(cluster: Cluster, stages: Sequence[Submesh]) -> tuple[tuple[int, ...], ...]:
    """Global device ids of each pipeline stage, contiguous: inside one host, or whole neighbouring hosts.

    1. Lay the stages out in pipeline order, so that neighbours share a host or sit on neighbouring hosts.
    2. Where a stage would then straddle hosts, pack the small stages into hosts by decreasing size, each onto the
       host with its nearest pipeline neighbour. With sizes that divide each other (powers of two) this packs
       whenever any packing exists, because every host's free space is a multiple of the size at hand.

    Raises UserError if a stage fits no host, or the stages do not pack.
    """
    width = cluster.devices_per_host
    for stage, submesh in enumerate(stages):
        if submesh.devices_per_host > width or (submesh.hosts > 1 and submesh.devices_per_host != width):
            raise UserError(f"stage {stage}: submesh {submesh} is neither inside one host nor whole hosts of {cluster}")
    starts = _pack_in_order(cluster, stages) or _pack_by_size(cluster, stages)
    if starts is None:
        shapes = ", ".join(str(submesh) for submesh in stages)
        raise UserError(f"cannot place {len(stages)} stages with submeshes {shapes} on cluster {cluster}")
    return tuple(tuple(range(at, at + mesh.num_devices)) for at, mesh in zip(starts, stages, strict=True))


def _pack_in_order(cluster: Cluster, stages: Sequence[Submesh]) -> tuple[int, ...] | None:
    width, cursor, starts = cluster.devices_per_host, 0, []
    for submesh in stages:
        if cursor % width + submesh.devices_per_host > width:
            cursor += -cursor % width  # leave the rest of this host empty
        starts.append(cursor)
        cursor += submesh.num_devices
    return tuple(starts) if cursor <= cluster.num_devices else None


def _pack_by_size(cluster: Cluster, stages: Sequence[Submesh]) -> tuple[int, ...] | None:
    width = cluster.devices_per_host
    small = [stage for stage, submesh in enumerate(stages) if submesh.devices_per_host < width]
    whole = [stage for stage, submesh in enumerate(stages) if submesh.devices_per_host == width]
    shared_hosts = cluster.hosts - sum(stages[stage].hosts for stage in whole)
    bins: list[list[int]] = [[] for _ in range(max(shared_hosts, 0))]
    for stage in sorted(small, key=lambda stage: -stages[stage].num_devices):
        size = stages[stage].num_devices
        fitting = [b for b in bins if sum(stages[s].num_devices for s in b) + size <= width]
        if not fitting:
            return None
        # An empty host counts as `width` stages away: near neighbours fill a host up before the next is opened.
        min(fitting, key=lambda b: min((abs(stage - s) for s in b), default=width)).append(stage)
    if shared_hosts < 0:
        return None
    starts, cursor = [0] * len(stages), 0
    blocks = [sorted(b) for b in bins if b] + [[stage] for stage in whole]
    for block in sorted(blocks, key=lambda block: (sum(block) / len(block), block)):
        for stage in block:
            starts[stage] = cursor
            cursor += stages[stage].num_devices
        cursor += -cursor % width
    return tuple(starts)
