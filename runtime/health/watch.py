"""What a backend asks while it waits for its workers: is anything wrong though nobody says so?

Every worker is asked again and again where it stands, on the connection that its commands come on;
the answers are its signs of life, and what the monitor judges by, if they are about the call that
goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any, NamedTuple

from shardopt.runtime.errors import FailureKind, MeshError
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.health.monitor import Monitor, Status, observed
from shardopt.runtime.program.hosts import Hosts
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.tracing.where import WorkerStatus


class _Question(NamedTuple):
    """Asked in call number `call`, at `asked` seconds."""

    call: int
    asked: float
    answer: Future[WorkerStatus]


class Watch:
    """`ask` has a worker tell where it stands; `position` is what is known of that without its
    help: (step, position), or None; `clock` gives seconds."""

    def __init__(
        self,
        program: Program,
        hosts: Hosts,
        limits: Limits,
        ask: Callable[[str], Future[WorkerStatus]],
        position: Callable[[str], tuple[int, int] | None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self._limits, self._ask, self._position, self._hosts = limits, ask, position, hosts
        self._main = self._monitor = self._monitor_of(program)
        self._attached: dict[str, Monitor] = {}
        self._names = [host.name for of_mesh in hosts.values() for host in of_mesh]
        self._questions: dict[str, _Question] = {}
        self._silent: dict[str, float] = {}  # seconds since the last answer
        self._call, self._program, self._looked = 0, "", 0.0
        self._stepping = False

    def add(self, name: str, program: Program) -> None:
        """Another program of the same workers, which `on_attached` runs."""
        self._attached[name] = self._monitor_of(program)

    def begin(self, method: str, arguments: Mapping[str, Sequence[Any]]) -> None:
        """A call to the workers begins; only steps make progress that can be seen."""
        self._monitor, self._program = self._main, ""
        if method == "on_attached" and arguments:
            self._program, method = next(iter(arguments.values()))[:2]
            self._monitor = self._attached[self._program]
        self._stepping = method == "step"
        self._call += 1
        self._looked = self._clock()
        self._silent = dict.fromkeys(self._names, 0.0)
        self._monitor.begin(self._looked)

    def check(self, busy: Sequence[str]) -> MeshError | None:
        """What is wrong with the call that the busy workers are in, if anything is."""
        now = self._clock()
        statuses, asked = self._listen(now, busy)
        error = self._monitor.observe(statuses, busy, now, asked) if self._stepping else None
        # Others look stuck behind a stopped worker: its silence is nearer to the cause.
        return self._silence(busy) or error

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

    def _listen(
        self, now: float, busy: Sequence[str]
    ) -> tuple[dict[str, Status], dict[str, float]]:
        """The answers that have come and are about this call, with when they were asked for; new
        questions to all who gave one."""
        statuses, asked = {}, {}
        passed, self._looked = observed(self._looked, now), now
        for name in self._names:
            self._silent[name] += passed
            question = self._questions.get(name)
            if question is not None and question.answer.done():
                del self._questions[name]
                if question.answer.exception() is None:  # who is gone says so in its call
                    self._silent[name] = 0.0
                    status = question.answer.result()
                    if question.call == self._call and self._concerns(status, name in busy):
                        statuses[name], asked[name] = _status(status), question.asked
            if name not in self._questions:
                self._questions[name] = _Question(self._call, now, self._ask(name))
        return statuses, asked

    def _concerns(self, status: WorkerStatus, is_busy: bool) -> bool:
        """Whether a worker told of the step that goes on. Before that has begun, it stands at the
        end of the last one, or in another program; after it, all that counts is what its links
        say."""
        return not is_busy or (status["busy"] and status["program"] == self._program)

    def _silence(self, busy: Sequence[str]) -> MeshError | None:
        """A worker that was not heard of for too long."""
        limit = self._limits.silence_seconds
        for worker in busy:
            seconds = self._silent[worker]
            if seconds > limit:
                cause = f"no sign of life for {seconds:.1f} s (limit silence_seconds={limit:g})"
                text = f"{cause}: its process is stopped, or cannot be reached"
                return MeshError(worker, self.place(worker), text, FailureKind.STUCK)
        return None


def _status(status: WorkerStatus) -> Status:
    return Status(
        status["step"],
        status["position"],
        status["waiting"],
        tuple(status["missing"]),
        tuple(status["sending"]),
        status["received"],
    )
