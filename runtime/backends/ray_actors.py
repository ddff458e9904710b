"""The Ray backend: one actor, and so one process, per mesh; messages go over sockets between the actors.

Ray carries only commands: one call per worker and step. Arrays travel through `sockets.py`, which is several times
faster than Ray's object store for what passes between stages. Ray is imported only when a backend is made.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from shardopt.cost.errors import UserError
from shardopt.runtime.errors import Cancelled, Kind, MeshError, first_failure
from shardopt.runtime.program.hosts import Hosts, one_host_each
from shardopt.runtime.program.instructions import MeshProgram, Program, Route, Send
from shardopt.runtime.tracing.where import Standing
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.runtime.transports.sockets import Address, SocketTransport
from shardopt.runtime.worker import Worker

_CONTROL = "control"  # concurrency group whose calls are answered while a step runs
_ANSWER_SECONDS = 2.0  # for workers that are asked where they stand
_GRACE_SECONDS = 10.0  # for workers that were told to stop: they leave their RECV at once, a running RUN must end


class MeshActor:
    """What runs in the actor's process: a worker, and the socket its messages arrive on."""

    def __init__(self, token: bytes, name: str) -> None:
        import ray

        self._mailbox = Mailbox()
        self._transport = SocketTransport(self._mailbox, ray.util.get_node_ip_address(), token, name)
        self._worker: Worker | None = None

    def address(self) -> Address:
        return self._transport.address

    def start(
        self,
        part: MeshProgram,
        hosts: Hosts,
        routes: tuple[Route, ...],
        peers: dict[str, Address],
        options: dict[str, Any],
    ) -> None:
        self._transport.connect(peers)
        self._worker = Worker(part, hosts[part.mesh.name][0], hosts, routes, self._transport, **options)

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        assert self._worker is not None, "start() comes first"
        return getattr(self._worker, method)(*arguments)

    def where(self) -> Standing:
        assert self._worker is not None, "start() comes first"
        return self._worker.where()

    def cancel(self, reason: str) -> None:
        self._mailbox.cancel(Cancelled(reason))


class RayBackend:
    """Starts a Ray cluster on this machine unless the process is connected to one already."""

    def __init__(self, program: Program, **options: Any) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError("backend 'ray' needs the package ray: pip install 'shardopt[ray]'") from error
        self.hosts: Hosts = one_host_each(program)
        self._ray: Any = ray
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            ray.init(address="local", include_dashboard=False, log_to_driver=False)
        self._actors: dict[str, Any] = {}
        try:
            self._start(program, options)
        except BaseException:
            self.close()
            raise

    def _start(self, program: Program, options: dict[str, Any]) -> None:
        # No CPU is reserved: a mesh of CPU devices shares the machine, and meshes may outnumber cores.
        actor = self._ray.remote(num_cpus=0, concurrency_groups={_CONTROL: 1})(MeshActor)
        token = secrets.token_bytes(32)
        self._actors = {part.mesh.name: actor.remote(token, part.mesh.name) for part in program.meshes}
        addresses = self._gather({name: actor.address.remote() for name, actor in self._actors.items()})
        routes = self._ray.put(program.routes)
        self._gather(
            {
                part.mesh.name: self._actors[part.mesh.name].start.remote(
                    part, self.hosts, routes, {name: addresses[name] for name in _targets(part)}, options
                )
                for part in program.meshes
            }
        )

    def call(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call a `Worker` method on some meshes at once; their answers by mesh. Raises the first failure."""
        return self._gather(
            {name: self._actors[name].call.remote(method, values) for name, values in arguments.items()}
        )

    def where(self) -> dict[str, Standing | None]:
        refs = {name: actor.where.options(concurrency_group=_CONTROL).remote() for name, actor in self._actors.items()}
        self._ray.wait(list(refs.values()), num_returns=len(refs), timeout=_ANSWER_SECONDS)
        return {name: self._answer(ref) for name, ref in refs.items()}

    def _answer(self, ref: Any) -> Standing | None:
        try:
            found: Standing = self._ray.get(ref, timeout=0)
        except self._ray.exceptions.RayError:  # not there in time, or the actor is gone
            return None
        return found

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors = {}
        if self._owns_cluster and self._ray.is_initialized():
            self._ray.shutdown()

    def _gather(self, refs: Mapping[str, Any]) -> dict[str, Any]:
        names = {ref: name for name, ref in refs.items()}
        answers: dict[str, Any] = {}
        errors: dict[str, BaseException] = {}
        pending, deadline = list(names), None
        while pending:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, pending = self._ray.wait(pending, num_returns=1, timeout=timeout)
            if not ready:  # a worker that does not even stop: `close` will end it
                break
            name = names[ready[0]]
            try:
                answers[name] = self._ray.get(ready[0])
            except self._ray.exceptions.RayError as error:
                errors[name] = _cause(name, error)
                if deadline is None:
                    deadline = time.monotonic() + _GRACE_SECONDS
                    self._cancel_all(f"mesh '{name}' failed")
        if errors:
            raise first_failure(errors)
        return {name: answers[name] for name in refs}

    def _cancel_all(self, reason: str) -> None:
        for actor in self._actors.values():
            actor.cancel.options(concurrency_group=_CONTROL).remote(reason)


def _targets(part: MeshProgram) -> list[str]:
    """The meshes that `part` sends to, each once, in the order of first use."""
    return list(dict.fromkeys(each.target for each in part.instructions if isinstance(each, Send)))


def _cause(name: str, error: Any) -> BaseException:
    """What the worker raised, or that its process is gone."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return cause
    first_line = str(error).strip().splitlines()[0]
    return MeshError(name, "", f"its actor died ({type(error).__name__}: {first_line})", Kind.DIED)
