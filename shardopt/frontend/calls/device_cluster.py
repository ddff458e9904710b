"""The cluster that devices of JAX make up, and a mesh of theirs as the planner knows it.

Hosts are what can be told from outside: processes, or, on GPUs, where a process often has one
device only, the machines that JAX tells apart when processes connect. What a device can do comes
from the preset for its kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from shardopt.mesh.mesh import MAX_AXES, MESH_NAME, Mesh
from shardopt.support.errors import UserError

# `device_kind` as JAX says it -> the preset that describes such devices.
_PRESETS = (
    (r"cpu", "cpu-test"),
    (r".*V100-SXM2-16GB", "p3.16xlarge"),
    (r".*A100-SXM4-80GB", "a100-80g"),
    (r".*H100 80GB HBM3", "h100-sxm"),
    (r"TPU v5( lite|e)", "tpu-v5e"),
)


def cluster_text(devices: Sequence[jax.Device]) -> str:
    """The cluster of all these devices as `PRESET:HxD`. Raises UserError where no preset describes
    them, or hosts have unequal numbers of them."""
    kinds = sorted({device.device_kind for device in devices})
    if len(kinds) > 1:
        raise UserError(
            f"expected devices of one kind, found {' and '.join(kinds)}: describe them with "
            "cluster=… (docs/guide/cluster.md)"
        )
    preset = next((name for kind, name in _PRESETS if re.fullmatch(kind, kinds[0])), None)
    if preset is None:
        raise UserError(
            f"no preset describes devices of kind '{kinds[0]}': describe them with cluster=… "
            "(docs/guide/cluster.md)"
        )
    counts = sorted(set(Counter(map(_host, devices)).values()))
    if len(counts) > 1:
        raise UserError(
            f"expected equally many devices of each host in the mesh, found {counts[0]} and "
            f"{counts[-1]}: describe the cluster with cluster=… (docs/guide/cluster.md)"
        )
    return f"{preset}:{len(devices) // counts[0]}x{counts[0]}"


def logical_mesh(mesh: jax.sharding.Mesh) -> Mesh:
    """A mesh of JAX as the planner knows it: without axes of extent one, over the devices of
    `cluster_text(mesh.devices)`, numbered host by host. Raises UserError for one with too many
    axes, or names that are none."""
    axes = tuple((name, size) for name, size in mesh.shape.items() if size > 1)
    if len(axes) > MAX_AXES:
        raise UserError(
            f"expected a mesh with at most {MAX_AXES} axes of more than one device, "
            f"found {dict(axes)}"
        )
    for name in mesh.axis_names:
        if not isinstance(name, str) or re.fullmatch(r"[A-Za-z_]\w*", name) is None:
            raise UserError(
                f"expected names of mesh axes to be letters, digits and underscores, found {name!r}"
            )
    devices: list[Any] = list(mesh.devices.flat)
    ordered = sorted(devices, key=lambda device: (_host(device), device.id))
    numbers = {device.id: number for number, device in enumerate(ordered)}
    kept = axes or ((mesh.axis_names[0], 1),)
    return Mesh(MESH_NAME, kept, tuple(numbers[device.id] for device in devices))


def export_platform(device: jax.Device) -> str:
    """What `jax.export` calls the platform of a device."""
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def _host(device: Any) -> int:
    machine = getattr(device, "slice_index", None) if device.platform == "gpu" else None
    return device.process_index if machine is None else machine
