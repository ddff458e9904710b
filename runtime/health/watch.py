"""What a backend asks while it waits for its workers: is anything wrong though nobody says so?

Every worker is asked again and again where it stands, on the connection that its commands come on;
the answers are its signs of life, and what the monitor judges by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any

from shardopt.runtime.errors import Kind, MeshError
from shardopt.runtime.health.monitor import Limits, Monitor, Status
from shardopt.runtime.program.hosts import Hosts
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.tracing.where import WorkerStatus


class Watch:
    """`ask` has a worker tell where it stands; `position` is what is known of that without its
    help: (step, position), or None."""

    def __init__(
        self,
        program: Program,
        hosts: Hosts,
        limits: Limits,
        ask: Callable[[str], Future[WorkerStatus]],
        position: Callable[[str], tuple[int, int] | None],
    ) -> None:
        self._limits, self._ask, self._position, self._hosts = limits, ask, position, hosts
        self._main = self._monitor = self._monitor_of(program)
        self._attached: dict[str, Monitor] = {}
        self._names = [host.name for of_mesh in hosts.values() for host in of_mesh]
        self._answers: dict[str, Future[WorkerStatus]] = {}
        self._heard: dict[str, float] = {}
        self._stepping = False

    def add(self, name: str, program: Program) -> None:
        """Another program of the same workers, which `on_attached` runs."""
        self._attached[name] = self._monitor_of(program)

    def begin(self, method: str, arguments: Mapping[str, Sequence[Any]]) -> None:
        """A call to the workers begins; only steps make progress that can be seen."""
        self._monitor = self._main
        if method == "on_attached" and arguments:
            name, method = next(iter(arguments.values()))[:2]
            self._monitor = self._attached[name]
        self._stepping = method == "step"
        self._heard = dict.fromkeys(self._names, monotonic())
        self._monitor.begin(monotonic())

    def check(self, busy: Sequence[str]) -> MeshError | None:
        """What is wrong with the call that the busy workers are in, if anything is."""
        statuses = self._listen()
        error = self._monitor.observe(statuses, busy, monotonic()) if self._stepping else None
        # Others look stuck behind a stopped worker: its silence is nearer to the cause.
        return self._silent(busy) or error

    def place(self, worker: str) -> str:
        """Where in a step a worker is that can say nothing any more; "" outside of steps."""
        return self._monitor.place(worker, self._position(worker)) if self._stepping else ""

    def _monitor_of(self, program: Program) -> Monitor:
        hosts = {part.mesh.name: self._hosts[part.mesh.name] for part in program.meshes}
        return Monitor(
            program,
            {mesh: [host.name for host in of_mesh] for mesh, of_mesh in hosts.items()},
            self._limits,
        )

    def _listen(self) -> dict[str, Status]:
        """The answers that have come, and new questions to those who gave them."""
        statuses = {}
        for name in self._names:
            if name in self._answers and self._answers[name].done():
                answer = self._answers.pop(name)
                if answer.exception() is None:  # who is gone says so in the call that it is in
                    self._heard[name] = monotonic()
                    at = answer.result()
                    statuses[name] = Status(
                        at["step"], at["position"], at["waiting"], at["pending"]
                    )
            if name not in self._answers:
                self._answers[name] = self._ask(name)
        return statuses

    def _silent(self, busy: Sequence[str]) -> MeshError | None:
        """A worker that was not heard of for too long."""
        limit = self._limits.silence_seconds
        for worker in busy:
            seconds = monotonic() - self._heard[worker]
            if seconds > limit:
                cause = f"no sign of life for {seconds:.1f} s (limit silence_seconds={limit:g})"
                text = f"{cause}: its process is stopped, or cannot be reached"
                return MeshError(worker, self.place(worker), text, Kind.STUCK)
        return None
