"""The Ray backend: one actor, and so one process, for each host of a mesh; messages go over sockets
between the actors.

Ray carries only commands: one call per worker and step. Arrays travel through `sockets.py`, which
is several times faster than Ray's object store for what passes between stages; with the transport
"ray" they go through the store, which works where workers cannot reach each other's sockets. Ray is
imported only when a backend is made.

Where the actors go in the cluster, `ray_placement.py` says.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardopt.runtime.backends.ray_placement import RayPlacement, living_nodes
from shardopt.runtime.backends.remote import RemoteBackend
from shardopt.runtime.backends.remote_worker import RemoteWorker
from shardopt.runtime.devices.clients import free_address
from shardopt.runtime.devices.gpus import chosen_platform
from shardopt.runtime.errors import FailureKind, MeshError
from shardopt.runtime.health.limits import DEFAULT_LIMITS, Limits
from shardopt.runtime.options import WorkerOptions
from shardopt.runtime.program.hosts import Host, Hosts, num_devices
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.transports.ray_objects import RECEIVE
from shardopt.runtime.worker import unpack_position
from shardopt.support.errors import UserError

_UNKNOWN = -1  # position of a worker that has not noted any here
_CONTROL = "control"  # concurrency group whose calls are answered while a step runs
NEW_CLUSTER = "local"
_MEMORY_VARIABLES = "XLA_PYTHON_CLIENT_"
_CONNECT_SECONDS = 10.0


class WorkerActor:
    """What runs in the actor's process."""

    def __init__(self, position: str) -> None:
        """`position` is a file in which the driver looks for it, if it is on this machine."""
        self._worker = RemoteWorker(
            _shared_number(Path(position)) if Path(position).is_file() else None
        )

    def address(self) -> str:
        """Of the node."""
        import ray

        return str(ray.util.get_node_ip_address())

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return self._worker.call(method, arguments)

    def use_objects(self, actors: dict[str, Any]) -> None:
        self._objects = self._worker.use_objects(actors)

    def receive(self, source: str, number: int, step: int, tag: int, data: Any) -> None:
        self._objects.receive(source, number, step, tag, data)

    def control(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return self._worker.call(method, arguments)


class RayBackend(RemoteBackend):
    """Uses the Ray cluster that the process is connected to, else the one at `address` or
    RAY_ADDRESS, else starts one on this machine, which ends with the run."""

    def __init__(
        self,
        program: Program,
        hosts: Hosts,
        options: WorkerOptions,
        transport: str = "auto",
        limits: Limits = DEFAULT_LIMITS,
        *,
        address: str | None = None,
    ) -> None:
        super().__init__(program, hosts, limits)
        self._transport = transport
        ray = self._ray = import_ray()
        self._connects = not ray.is_initialized()
        if self._connects:
            connect(ray, address or os.environ.get("RAY_ADDRESS") or NEW_CLUSTER)
        self._placement: RayPlacement | None = None
        self._actors: dict[str, Any] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="shardopt-")  # for its owner only
        try:
            if options.platform == "auto":
                platform = chosen_platform("auto", num_devices(program), *connected_gpus())
                options = replace(options, platform=platform)
            self._make_actors(options.platform)
            # Ray shows an actor its own GPUs only, numbered from zero.
            self.start_workers(replace(options, gpus_from_zero=True))
        except BaseException:
            self.close()
            raise

    def _make_actors(self, platform: str) -> None:
        self._placement = placement = RayPlacement(
            self._ray, self._all_hosts(), gpus=platform == "gpu"
        )
        # The default group is busy with the step: cancellations and messages need others to get
        # through.
        actor = self._ray.remote(concurrency_groups={_CONTROL: 1, RECEIVE: 1})(WorkerActor)
        self._positions = {
            host.name: self._position_file(k) for k, host in enumerate(self._all_hosts())
        }
        self._actors = {
            host.name: actor.options(
                **placement.options(host), **_memory_settings(os.environ)
            ).remote(str(self._positions[host.name]))
            for host in self._all_hosts()
        }
        self._addresses = self._gather(
            {name: self._future(name, each.address.remote()) for name, each in self._actors.items()}
        )

    def submit(self, worker: str, method: str, *arguments: Any) -> Future[Any]:
        return self._future(worker, self._actors[worker].call.remote(method, arguments))

    def control(self, worker: str, method: str, *arguments: Any) -> Future[Any]:
        call = self._actors[worker].control.options(concurrency_group=_CONTROL)
        return self._future(worker, call.remote(method, arguments))

    def link_workers(self) -> None:
        if self._transport == "ray":
            refs = {
                name: actor.use_objects.remote(self._actors) for name, actor in self._actors.items()
            }
            self._gather({name: self._future(name, ref) for name, ref in refs.items()})

    def position(self, worker: str) -> tuple[int, int] | None:
        try:
            number = int.from_bytes(
                self._positions[worker].read_bytes(), sys.byteorder, signed=True
            )
        except OSError:  # closed
            return None
        return None if number == _UNKNOWN else unpack_position(number)

    def _position_file(self, number: int) -> Path:
        file = Path(self._folder.name) / str(number)
        file.write_bytes(_UNKNOWN.to_bytes(8, sys.byteorder, signed=True))
        return file

    def own_address(self, worker: Host) -> str:
        return str(self._addresses[worker.name])

    def service_address(self, mesh: str) -> str:
        return free_address(self._ray.util.get_node_ip_address())

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors = {}
        self.close_services()
        self._folder.cleanup()
        if self._placement is not None:
            self._placement.remove()
            self._placement = None
        if self._connects and self._ray.is_initialized():
            self._ray.shutdown()

    def _future(self, worker: str, ref: Any) -> Future[Any]:
        """The answer, with what the worker raised itself, or that its process is gone, as its
        error."""
        future: Future[Any] = Future()

        def done(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is None:
                future.set_result(answer.result())
            else:
                future.set_exception(self._cause(worker, error))

        ref.future().add_done_callback(done)
        return future

    def _cause(self, worker: str, error: BaseException) -> BaseException:
        """What the worker raised, or that its process is gone."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, BaseException):
            return cause
        first_line = str(error).strip().splitlines()[0]
        text = f"its actor died ({type(error).__name__}: {first_line})"
        return MeshError(worker, self.watch.place(worker), text, FailureKind.DIED)


def connected_gpus() -> tuple[int | None, str]:
    """How many the Ray cluster that this process is connected to has, None where it is to none; and
    where they are."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None, "this machine"
    return int(ray.cluster_resources().get("GPU", 0)), "the Ray cluster"


def count_hosts(address: str | None, devices: int, *, gpus: bool) -> int:
    """How many nodes of the Ray cluster can be a host of so many devices: with `gpus`, and where it
    has any, those with as many of them. Stays connected, so that no new cluster is started
    elsewhere. Raises UserError."""
    ray = import_ray()
    if not ray.is_initialized():
        connect(ray, address or os.environ.get("RAY_ADDRESS") or NEW_CLUSTER)
    of_nodes = [int(node["Resources"].get("GPU", 0)) for node in living_nodes(ray)]
    if gpus and any(of_nodes):
        return sum(number >= devices for number in of_nodes)
    return len(of_nodes)


def _memory_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the driver was told about the share of a GPU that XLA takes holds for its workers."""
    settings = {
        name: text for name, text in environment.items() if name.startswith(_MEMORY_VARIABLES)
    }
    # An environment of its own, even an empty one, makes Ray start a process anew.
    return {"runtime_env": {"env_vars": settings}} if settings else {}


def _shared_number(file: Path) -> memoryview:
    """The one integer of a file."""
    with file.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 8)).cast("q")


def import_ray() -> Any:
    """Raises UserError."""
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "backend 'ray' needs the package ray: pip install 'shardopt[ray]'"
        ) from error
    return ray


def connect(ray: Any, address: str) -> None:
    """Raises UserError."""
    # A new cluster has no use for a dashboard; an existing one has its own settings.
    settings = {"include_dashboard": False} if address == NEW_CLUSTER else {}
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, **settings)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"no Ray cluster at '{address}': {str(error).strip().splitlines()[0]}"
        ) from error
