"""The backend of one process: a CPU client and a thread per mesh, messages handed over in memory.
Knows no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

import numpy as np

from shardopt.runtime.backends.gather import GRACE_SECONDS, gather
from shardopt.runtime.backends.thread import WorkerThread
from shardopt.runtime.devices.clients import end_unused_clients
from shardopt.runtime.errors import FailureKind, MeshError
from shardopt.runtime.health.limits import DEFAULT_LIMITS, Limits
from shardopt.runtime.health.watch import Watch
from shardopt.runtime.options import WorkerOptions
from shardopt.runtime.program.hosts import Hosts, one_host_each
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.tracing.where import WorkerStatus
from shardopt.runtime.transports.mailbox import LinkStates, Mailbox
from shardopt.runtime.worker import Site, Worker, start_worker


class LocalTransport:
    """Writes the pieces into the receiver's shards, or makes them its shards where they may stay as
    they are."""

    def __init__(self, name: str, mailbox: Mailbox, peers: Mapping[str, Mailbox]) -> None:
        self.mailbox = mailbox
        self._name = name
        self._peers = peers

    def send(
        self, target: str, step: int, tag: int, pieces: Sequence[np.ndarray], *, keep: bool = False
    ) -> None:
        self._peers[target].deliver(self._name, step, tag, pieces, keep=keep)

    def links(self) -> LinkStates:
        """A message is there when it has been sent."""
        return LinkStates(frozenset(), frozenset(self._peers))

    def close(self) -> None:
        """Nothing to close."""


class LocalBackend:
    """Workers as objects, each used by one thread only."""

    def __init__(
        self, program: Program, options: WorkerOptions, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        mailboxes = {part.mesh.name: Mailbox() for part in program.meshes}
        self.hosts: Hosts = one_host_each(program)
        self._workers: dict[str, Worker] = {}
        self._stuck: set[str] = set()  # nobody waits for them
        self.watch = Watch(program, self.hosts, limits, self._ask, lambda worker: None)
        self._threads = {name: WorkerThread(f"mesh-{name}") for name in mailboxes}
        futures = {
            part.mesh.name: self._threads[part.mesh.name].submit(
                start_worker,
                part,
                program.routes,
                Site(
                    self.hosts[part.mesh.name][0],
                    self.hosts,
                    LocalTransport(part.mesh.name, mailboxes[part.mesh.name], mailboxes),
                ),
                options,
            )
            for part in program.meshes
        }
        try:
            self._workers = gather(futures, self._cancel_all)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call a method of some workers at once; their answers by mesh. Raises the first failure as
        MeshError."""
        self.watch.begin(method, arguments)
        futures = {
            name: self._threads[name].submit(getattr(self._workers[name], method), *values)
            for name, values in arguments.items()
        }
        try:
            return gather(futures, self._cancel_all, self.watch.check)
        except MeshError as error:
            if error.kind is FailureKind.STUCK:
                self._stuck.add(error.worker)
            raise

    def where(self) -> dict[str, WorkerStatus | None]:
        return {name: worker.where() for name, worker in self._workers.items()}

    def ask(self, method: str, seconds: float) -> dict[str, Any]:
        """Call a method that any thread may call, on all workers, from threads that nobody waits
        for longer; None for one that does not answer."""
        threads = {name: WorkerThread(f"ask-{name}") for name in self._workers}
        answers = {
            name: threads[name].submit(getattr(worker, method))
            for name, worker in self._workers.items()
        }
        answered, _ = wait(answers.values(), timeout=seconds)
        for thread in threads.values():
            thread.close(0)
        return {
            name: future.result() if future in answered and future.exception() is None else None
            for name, future in answers.items()
        }

    def close(self) -> None:
        # A thread that waits for a message never comes to the end of its tasks.
        self._cancel_all("the run is closed")
        ended = [
            thread.close(0 if name in self._stuck else GRACE_SECONDS)
            for name, thread in self._threads.items()
        ]
        if all(ended):  # a thread that never ends keeps what it uses
            while self._workers:  # whoever holds the closed run holds none of them
                self._workers.popitem()[1].close()
            end_unused_clients()

    def _cancel_all(self, reason: str) -> None:
        for worker in self._workers.values():
            worker.cancel(reason)

    def _ask(self, worker: str) -> Future[WorkerStatus]:
        answer: Future[WorkerStatus] = Future()
        answer.set_result(self._workers[worker].where())
        return answer
