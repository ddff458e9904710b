"""The backend of one process: a CPU client and a thread per mesh, messages handed over in memory. Knows no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from shardopt.runtime.errors import first_failure
from shardopt.runtime.program.hosts import Hosts, one_host_each
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.tracing.where import Standing
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.runtime.worker import Worker


class LocalTransport:
    """Writes the pieces into the receiver's shards, or makes them its shards where they may stay as they are."""

    def __init__(self, name: str, mailbox: Mailbox, peers: Mapping[str, Mailbox]) -> None:
        self.mailbox = mailbox
        self._name = name
        self._peers = peers

    def send(self, target: str, step: int, tag: int, pieces: Sequence[np.ndarray], *, keep: bool = False) -> None:
        self._peers[target].deliver(self._name, step, tag, pieces, keep=keep)

    def close(self) -> None:
        """Nothing to close."""


class LocalBackend:
    """Workers as objects, each used by one thread only."""

    def __init__(self, program: Program, **options: Any) -> None:
        mailboxes = {part.mesh.name: Mailbox() for part in program.meshes}
        self.hosts: Hosts = one_host_each(program)
        self._workers: dict[str, Worker] = {}
        self._threads = {name: ThreadPoolExecutor(1, thread_name_prefix=f"mesh-{name}") for name in mailboxes}
        futures = {
            part.mesh.name: self._threads[part.mesh.name].submit(
                Worker,
                part,
                self.hosts[part.mesh.name][0],
                self.hosts,
                program.routes,
                LocalTransport(part.mesh.name, mailboxes[part.mesh.name], mailboxes),
                **options,
            )
            for part in program.meshes
        }
        try:
            self._workers = self._gather(futures)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call a method of some workers at once; their answers by mesh. Raises the first failure as MeshError."""
        return self._gather(
            {
                name: self._threads[name].submit(getattr(self._workers[name], method), *values)
                for name, values in arguments.items()
            }
        )

    def where(self) -> dict[str, Standing | None]:
        return {name: worker.where() for name, worker in self._workers.items()}

    def close(self) -> None:
        for worker in self._workers.values():
            worker.cancel("the run is closed")
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers.values():
            worker.close()

    def _gather(self, futures: Mapping[str, Future[Any]]) -> dict[str, Any]:
        wait(futures.values(), return_when=FIRST_EXCEPTION)
        failed = [name for name, future in futures.items() if future.done() and future.exception() is not None]
        if not failed:
            return {name: future.result() for name, future in futures.items()}
        for worker in self._workers.values():
            worker.cancel(f"mesh '{failed[0]}' failed")
        wait(futures.values())
        errors = {name: future.exception() for name, future in futures.items()}
        raise first_failure({name: error for name, error in errors.items() if error is not None})
