"""The Ray backend: one actor, and so one process, for each host of a mesh; messages go over sockets between the actors.

Ray carries only commands: one call per worker and step. Arrays travel through `sockets.py`, which is several times
faster than Ray's object store for what passes between stages; with the transport "ray" they go through the store, which
works where workers cannot reach each other's sockets. Ray is imported only when a backend is made.

Each worker has a bundle of a placement group, with the GPUs of its devices if they are GPUs. The workers of one host of
the plan share a node where the cluster has several, and hosts of one mesh are on different ones.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from shardopt.cost.errors import UserError
from shardopt.runtime.backends.remote import RemoteBackend
from shardopt.runtime.backends.remote_worker import RemoteWorker
from shardopt.runtime.devices.clients import free_address
from shardopt.runtime.errors import Kind, MeshError
from shardopt.runtime.program.hosts import Host, Hosts
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.transports.ray_objects import RECEIVE

_CONTROL = "control"  # concurrency group whose calls are answered while a step runs


class WorkerActor:
    """What runs in the actor's process."""

    def __init__(self) -> None:
        self._worker = RemoteWorker()

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
    """Starts a Ray cluster on this machine unless the process is connected to one already."""

    def __init__(self, program: Program, hosts: Hosts, transport: str = "auto", **options: Any) -> None:
        super().__init__(program, hosts)
        self._transport = transport
        try:
            import ray
        except ImportError as error:
            raise UserError("backend 'ray' needs the package ray: pip install 'shardopt[ray]'") from error
        self._ray: Any = ray
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            ray.init(address="local", include_dashboard=False, log_to_driver=False)
        self._actors: dict[str, Any] = {}
        try:
            self._make_actors()
            self.start_workers(options)
        except BaseException:
            self.close()
            raise

    def _make_actors(self) -> None:
        # No CPU is reserved: a mesh of CPU devices shares the machine, and meshes may outnumber cores.
        actor = self._ray.remote(num_cpus=0, concurrency_groups={_CONTROL: 1, RECEIVE: 1})(WorkerActor)
        self._actors = {host.name: actor.remote() for host in self._all_hosts()}
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
            refs = {name: actor.use_objects.remote(self._actors) for name, actor in self._actors.items()}
            self._gather({name: self._future(name, ref) for name, ref in refs.items()})

    def own_address(self, worker: Host) -> str:
        return str(self._addresses[worker.name])

    def service_address(self, mesh: str) -> str:
        return free_address(self._ray.util.get_node_ip_address())

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors = {}
        self.close_services()
        if self._owns_cluster and self._ray.is_initialized():
            self._ray.shutdown()

    def _future(self, worker: str, ref: Any) -> Future[Any]:
        """The answer, with what the worker raised itself, or that its process is gone, as its error."""
        found: Future[Any] = Future()

        def done(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is None:
                found.set_result(answer.result())
            else:
                found.set_exception(_cause(worker, error))

        ref.future().add_done_callback(done)
        return found


def _cause(worker: str, error: BaseException) -> BaseException:
    """What the worker raised, or that its process is gone."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return cause
    first_line = str(error).strip().splitlines()[0]
    return MeshError(worker, "", f"its actor died ({type(error).__name__}: {first_line})", Kind.DIED)
