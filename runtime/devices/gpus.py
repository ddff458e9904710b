"""GPUs as the devices of a mesh. They belong to JAX's default GPU backend, the one client that a
process can have on them; several meshes of a process share it, each on devices of its own. Where a
mesh has several hosts, that client is one that the processes of all of them make up, each with the
GPUs that it sees."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from shardopt.mesh.mesh import Mesh
from shardopt.options.names import PlatformName
from shardopt.runtime.devices.clients import Devices, World, default_devices, shared_devices
from shardopt.runtime.devices.gpu_drivers import gpu_kind, num_gpus
from shardopt.runtime.program.hosts import Host
from shardopt.support.errors import UserError

PLATFORMS = ("auto", "cpu", "gpu")


def chosen_platform(
    platform: PlatformName,
    devices: int,
    gpus: int | None = None,
    where: str = "this machine",
    *,
    share: bool = False,
) -> PlatformName:
    """What "auto" stands for: GPUs if there are as many as the program has devices, of `gpus`
    `where` the workers will be, by default those that the driver shows here; and wherever meshes
    are to share them. GPUs that are not used are told, by a warning. Raises UserError for a name
    that is none."""
    if platform not in PLATFORMS:
        raise UserError(
            f"unknown platform '{platform}': known platforms are {', '.join(PLATFORMS)}"
        )
    if platform != "auto":
        return platform
    if share:
        return "gpu"
    has_plugin = gpus is not None or gpu_kind() is not None
    gpus = num_gpus() if gpus is None else gpus
    if gpus >= devices and has_plugin:
        return "gpu"
    if gpus:
        wanted = (
            f"the program has {devices} devices" if has_plugin else "JAX has no plugin for GPUs"
        )
        warnings.warn(
            f"the run takes the CPU, not the {gpus} GPUs of {where}: {wanted} (platform 'cpu' says "
            "so without this warning, 'gpu' insists)",
            stacklevel=2,
        )
    return "cpu"


def devices_of(
    mesh: Mesh,
    host: Host,
    world: World | None,
    platform: str,
    *,
    gpus_from_zero: bool = False,
    share_gpus: bool = False,
) -> Devices | None:
    """Those of a worker; None for host devices of a client of their own. With `gpus_from_zero`, the
    process sees the GPUs of this worker only; with `share_gpus`, meshes take turns on those that
    are there. Raises UserError where GPUs are missing, or a mesh of GPUs has several hosts and its
    processes see others, too."""
    if world is not None and platform == "gpu":
        if not gpus_from_zero:
            found = f"workers that see all GPUs, and {host.count} hosts"
            raise UserError(f"mesh '{mesh.name}': expected GPUs of one host, found {found}")
        return default_devices(world, host, platform)
    if world is not None:
        return shared_devices(world, host)
    if platform == "gpu":
        numbers = [mesh.devices[shard] for shard in host.shards]
        if share_gpus:
            return mesh_gpus(mesh.name, shared_gpus(mesh.name, numbers, len(visible_gpus())))
        return mesh_gpus(mesh.name, range(len(numbers)) if gpus_from_zero else numbers)
    return None


def mesh_gpus(name: str, ordinals: Sequence[int]) -> Devices:
    """The GPUs with these numbers on this machine. Raises UserError when one of them is not
    there."""
    by_ordinal = {device.local_hardware_id: device for device in visible_gpus()}
    missing = sorted(set(ordinals) - set(by_ordinal))
    if missing:
        raise UserError(f"mesh '{name}' needs GPU {missing[0]}, found {len(by_ordinal)} GPUs")
    devices = [by_ordinal[ordinal] for ordinal in ordinals]
    return Devices(devices, devices)


def shared_gpus(name: str, numbers: Sequence[int], gpus: int) -> list[int]:
    """Which of so many GPUs the devices of a mesh are when there are fewer GPUs than devices: a
    plan is tried on a machine that is smaller than the one it is for. Raises UserError where a mesh
    has more devices than there are GPUs: XLA runs a program once on a device."""
    if len(numbers) > gpus:
        raise UserError(f"mesh '{name}' has {len(numbers)} devices, found {gpus} GPUs to share")
    return [number % gpus for number in numbers]


@cache
def visible_gpus() -> tuple[Any, ...]:
    """Opens them, all that this process may see. Without a plugin for GPUs, JAX is not even asked:
    it would start a backend of its own on the host."""
    if gpu_kind() is None:
        return ()
    import jax

    try:
        return tuple(jax.local_devices(backend="gpu"))
    except RuntimeError:  # a plugin, but no driver or no device
        return ()
