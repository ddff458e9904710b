"""Who is stuck, and which message was lost, from what the workers say of themselves.

Two things are looked for while a step runs, each with a limit that the error names:

1. A worker waits for a message that its sender has handed over: it was lost on the way.
2. Nobody gets on: the first worker that does not wait for another holds the others up.

A third, a worker that gives no sign of life, is looked for in all calls (`watch.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardopt.runtime.errors import Kind, MeshError
from shardopt.runtime.program.instructions import Program, Recv, Send
from shardopt.runtime.program.text import place


class Status(NamedTuple):
    """`position` counts instructions of step `step`, both from 0; behind the last one comes the end
    of the step. `waiting`: for a message. `pending` counts messages that are not handed over
    yet."""

    step: int
    position: int
    waiting: bool
    pending: int


@dataclass(frozen=True)
class Limits:
    """After how many seconds a run is given up: without a sign of life of a worker; with a message
    handed over and not there; with no progress of any worker. The last must be longer than the
    longest RUN of the program."""

    silence_seconds: float = 20.0
    message_seconds: float = 10.0
    progress_seconds: float = 600.0


DEFAULT_LIMITS = Limits()


class Monitor:
    """`workers` are the names of each mesh's workers. Times are seconds of one clock."""

    def __init__(
        self, program: Program, workers: Mapping[str, Sequence[str]], limits: Limits
    ) -> None:
        self._parts = {name: part for part in program.meshes for name in workers[part.mesh.name]}
        self._workers = workers
        self._limits = limits
        self._sends = {  # position of every SEND, by tag
            each.tag: position
            for part in program.meshes
            for position, each in enumerate(part.instructions)
            if isinstance(each, Send)
        }
        self._seen: dict[str, Status] = {}
        self._changed: dict[str, float] = {}

    def begin(self, now: float) -> None:
        """A step begins: what was true before is forgotten."""
        self._seen.clear()
        self._changed = dict.fromkeys(self._parts, now)

    def place(self, worker: str, at: Sequence[int] | None = None) -> str:
        """In words, (step, position), or where the worker said last that it is."""
        at = at or self._seen.get(worker)
        return "" if at is None else place(self._parts[worker], *at[:2])

    def observe(
        self, statuses: Mapping[str, Status], busy: Sequence[str], now: float
    ) -> MeshError | None:
        """What is wrong with the step that the `busy` workers are in, if anything is."""
        for worker, status in statuses.items():
            if self._seen.get(worker) != status:
                self._seen[worker] = status
                self._changed[worker] = now
        # Lost messages first, as everybody stalls behind one.
        lost = (self._lost(worker, now) for worker in busy if worker in self._seen)
        return next((error for error in lost if error is not None), None) or self._stalled(
            busy, now
        )

    def _lost(self, worker: str, now: float) -> MeshError | None:
        status, limit = self._seen[worker], self._limits.message_seconds
        instructions = self._parts[worker].instructions
        if (
            not status.waiting
            or status.position >= len(instructions)
            or now - self._changed[worker] < limit
        ):
            return None
        recv = instructions[status.position]
        if not isinstance(recv, Recv):
            return None
        if not all(
            self._has_sent(sender, recv.tag, status.step) for sender in self._workers[recv.source]
        ):
            return None
        cause = (
            f"message {recv.tag} of mesh '{recv.source}' was sent and has not come for {limit:g} s"
        )
        return self._error(
            worker, f"{cause} (limit message_seconds={limit:g}): it was lost", Kind.LOST
        )

    def _has_sent(self, worker: str, tag: int, step: int) -> bool:
        status = self._seen.get(worker)
        # Past the SEND is not enough: the message may still wait on a thread of the sender.
        return status is not None and status[:2] > (step, self._sends[tag]) and not status.pending

    def _stalled(self, busy: Sequence[str], now: float) -> MeshError | None:
        limit = self._limits.progress_seconds
        if not busy or now - max(self._changed.values()) < limit:
            return None
        known = [worker for worker in busy if worker in self._seen]
        culprit = next((worker for worker in known if not self._seen[worker].waiting), busy[0])
        cause = f"no worker got on for {limit:g} s (limit progress_seconds={limit:g})"
        return self._error(culprit, cause)

    def _error(self, worker: str, cause: str, kind: Kind = Kind.STUCK) -> MeshError:
        return MeshError(worker, self.place(worker), cause, kind)
