"""The devices that a worker's mesh consists of, in the order of the mesh: of a client of its own,
or of one that the processes of all its hosts make up together.

The processes of a mesh find each other through a coordination service, which the driver runs
(`CoordinationService`), and exchange data by gloo, or by NCCL between GPUs. Such a service is told
that its clients are *recoverable*: when one dies, the others get an error from the collective they
are in within milliseconds, instead of being aborted by it some seconds later. A client that can no
longer reach the service is aborted, so no worker outlives its driver. Who is gone or hangs is for
the driver to find out, so the service itself never loses patience."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from jax._src import distributed, named_sharding, sharding
from jaxlib import _jax, utils
from jaxlib import xla_client as xc

from shardopt.ir.jax_versions import forget_host_meshes
from shardopt.runtime.program.hosts import Host
from shardopt.support.errors import UserError

_START_SECONDS = 120  # until all processes of a mesh must have come up
_PATIENCE_SECONDS = 10**6
_ERRORS_ONLY = 2

# Python collects by numbers of objects, of which clients are few: a process that opened many and
# closed none of them would end for want of threads.
_CLIENTS_BETWEEN_COLLECTIONS = 64
_clients = count(1)

# Where XLA looks for the number of threads of a client of host devices when it makes one.
_THREADS = "PJRT_NPROC"
_told_threads = os.environ.get(_THREADS, os.environ.get("NPROC", ""))
_telling_threads = threading.Lock()


@dataclass(frozen=True)
class World:
    """The processes of one mesh: where the coordination service listens ("host:port" or
    "unix:path"), the address of this process for the collectives of the others, and which devices
    of the mesh each process has."""

    service: str
    address: str
    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class Devices:
    """`all` in the order of the mesh, and `local`, those of this process, in the same order; and
    what decides how many threads their client has, of which the code for them is made, too."""

    all: list[Any]
    local: list[Any]
    threads: str = _told_threads


class CoordinationService:
    """Where the processes of a mesh meet; must live as long as they do."""

    def __init__(self, address: str, processes: int) -> None:
        self.address = address
        # It warns of clients that are recoverable, of which nothing is bad.
        utils.absl_set_min_log_level(_ERRORS_ONLY)
        try:
            self._service = _jax.get_distributed_runtime_service(
                address,
                processes,
                heartbeat_timeout=_PATIENCE_SECONDS,
                cluster_register_timeout=_START_SECONDS,
                shutdown_timeout=1,
                recoverable=True,
            )
        finally:
            utils.absl_set_min_log_level(int(os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0")))

    def close(self) -> None:
        self._service.shutdown()


def free_address(host: str) -> str:
    """ "host:port" with a port that is free now."""
    with socket.create_server((host, 0)) as server:
        return f"{host}:{server.getsockname()[1]}"


def threads_of_worker(mesh_devices: int, here: int, beside: int) -> int | None:
    """How many threads a worker's client has: its part of the cores, where it has `here` of the
    `beside` devices of a run that share them, so that workers do not take them from each other.
    None for what XLA would have; as well where the environment says how many.

    Devices of one mesh wait for each other in collectives, each on a thread, of the two RUNs that
    may be under way; threads beyond the cores are of no use."""
    if _told_threads or here >= beside:
        return None
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    share = max(1, cores * here // beside)
    return share if mesh_devices == 1 else max(share, min(cores, 2 * here))


@contextmanager
def with_threads(number: int | None) -> Iterator[None]:
    """Clients that are made inside have so many threads."""
    if number is None:
        yield
        return
    with _telling_threads:
        os.environ[_THREADS] = str(number)
        try:
            yield
        finally:
            del os.environ[_THREADS]


def unshared_devices(number: int) -> Devices:
    """Host devices of a client of their own."""
    devices = list(unshared_client(number).devices())
    return Devices(devices, devices)


def unshared_client(devices: int) -> Any:
    """A client that nobody else has, of this many host devices."""
    if next(_clients) % _CLIENTS_BETWEEN_COLLECTIONS == 0:
        end_unused_clients()
    return xc.make_cpu_client(num_devices=devices)


def end_unused_clients() -> None:
    """End the clients of devices that nobody holds, and their threads, 16 for four devices on four
    cores."""
    # JAX keeps what it found out of thousands of shardings, and with each its devices. All of it is
    # found out again when it is needed.
    for value in (*vars(named_sharding).values(), *vars(sharding).values()):
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    forget_host_meshes()
    # A client and its devices refer to each other: nothing else ends one.
    gc.collect()


def shared_devices(world: World, here: Host) -> Devices:
    """Host devices of the client that this process makes up with those of the mesh's other hosts;
    waits for them."""
    coordinator = _joined(world, here)
    client: Any = xc.make_cpu_client(
        distributed_client=coordinator,
        node_id=here.number,
        num_nodes=here.count,
        collectives=_jax.make_gloo_tcp_collectives(coordinator, hostname=world.address),
        num_devices=len(here.shards),
    )
    return _of_mesh(world, here, client.devices(), client.local_devices())


def default_devices(world: World, here: Host, platform: str) -> Devices:
    """Devices of JAX's own backend for `platform`, which this process makes up with those of the
    mesh's other hosts; waits for them. The backend must not have been started before. Raises
    UserError where a process sees another number of devices than its part of the mesh has.

    JAX finds the other processes as after `jax.distributed.initialize`, but that the service is the
    driver's, which outlives all of them. Collectives are the platform's: NCCL's for GPUs."""
    import jax

    state: Any = distributed.global_state
    state.client = _joined(world, here)
    state.process_id, state.num_processes = here.number, here.count
    devices, local = jax.devices(platform), jax.local_devices(backend=platform)
    return _of_mesh(world, here, devices, local)


def _joined(world: World, here: Host) -> Any:
    """The connection of this process to the service of its mesh."""
    coordinator = _jax.get_distributed_runtime_client(
        world.service,
        here.number,
        init_timeout=_START_SECONDS,
        heartbeat_timeout=_PATIENCE_SECONDS,
        shutdown_timeout=1,
        shutdown_on_destruction=False,
        use_compression=False,
    )
    coordinator.connect()
    return coordinator


def _of_mesh(world: World, here: Host, devices: Sequence[Any], local: Sequence[Any]) -> Devices:
    """The devices of all processes in the order of the mesh: a process has as many as its host has
    shards, which are in the order of their numbers there."""
    by_process: dict[int, list[Any]] = {}
    for device in sorted(devices, key=lambda each: (each.local_hardware_id or 0, each.id)):
        by_process.setdefault(device.process_index, []).append(device)
    places: dict[int, Any] = {}
    for host in world.hosts:
        found = by_process.get(host.number, [])
        if len(found) != len(host.shards):
            raise UserError(
                f"mesh '{here.mesh}', host {host.number}: expected {len(host.shards)} devices, "
                f"found {len(found)}"
            )
        places.update(zip(host.shards, found, strict=True))
    in_order = [places[shard] for shard in sorted(places)]
    own = {device.id for device in local}
    return Devices(in_order, [device for device in in_order if device.id in own])
