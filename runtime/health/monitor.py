"""Who is stuck, and which message was lost, from what the workers say of themselves.

Two things are looked for while a step runs, each with a limit that the error names:

1. A worker waits for a message that its sender has handed over, and nothing of it is on its way:
   it was lost. That one end has sent tells only what the other must have, or miss, from then on:
   both ends must say so in answers to questions that were asked later, for the limit's time.
2. Nobody gets on, and no bytes move: the first worker that does not wait for another holds the
   others up.

A third, a worker that gives no sign of life, is looked for in all calls (`watch.py`).

Time counts only while it is observed. A worker that was paused tells, once it goes on, what was
true before its pause; a driver that was paused finds all clocks ahead. So of the time between two
answers, or two looks, no more than `OBSERVED_SECONDS` count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from shardopt.runtime.errors import FailureKind, MeshError
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.program.instructions import Program, Recv, Send
from shardopt.runtime.program.text import place

# Twice as long as the driver takes from look to look (`gather.py`): answers that are later come
# from a worker that did not run meanwhile, looks that are later from a driver that did not.
OBSERVED_SECONDS = 0.5


class Status(NamedTuple):
    """`position` counts instructions of step `step`, both from 0; behind the last one comes the end
    of the step. `waiting`: for a message, of which the parts of the workers in `missing` are not
    there, nor on their way in. To the workers in `sending` something is on its way out. `received`
    counts bytes since the run began."""

    step: int
    position: int
    waiting: bool
    missing: tuple[str, ...] = ()
    sending: tuple[str, ...] = ()
    received: int = 0


class _Loss(NamedTuple):
    """What may be lost: the part of worker `source` of message `tag`, for which `worker` waits."""

    worker: str
    step: int
    position: int
    recv: Recv
    source: str


@dataclass
class _Evidence:
    """`since` is when a loss was first possible; the others are the observed seconds of each end at
    its first answer to a question that was asked after that."""

    since: float
    worker: float | None = None
    source: float | None = None


class Monitor:
    """`workers` are the names of each mesh's workers. Times are seconds of one clock."""

    def __init__(
        self, program: Program, workers: Mapping[str, Sequence[str]], limits: Limits
    ) -> None:
        self._parts = {name: part for part in program.meshes for name in workers[part.mesh.name]}
        self._limits = limits
        self._sends = {  # position of every SEND, by tag
            each.tag: position
            for part in program.meshes
            for position, each in enumerate(part.instructions)
            if isinstance(each, Send)
        }
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """A step begins: what was true before is forgotten."""
        self._seen: dict[str, Status] = {}
        self._answered = dict.fromkeys(self._parts, now)
        self._observed = dict.fromkeys(self._parts, 0.0)  # seconds of each worker
        self._asked = dict.fromkeys(self._parts, now)
        self._losses: dict[_Loss, _Evidence] = {}
        self._looked, self._stalled = now, 0.0

    def place(self, worker: str, at: Sequence[int] | None = None) -> str:
        """In words, (step, position), or where the worker said last that it is."""
        status = self._seen.get(worker)
        at = at or (status and status[:2])
        return place(self._parts[worker], *at[:2]) if at else ""

    def observe(
        self,
        statuses: Mapping[str, Status],
        busy: Sequence[str],
        now: float,
        asked: Mapping[str, float] | None = None,
    ) -> MeshError | None:
        """What is wrong with the step that the `busy` workers are in, if anything is. The statuses
        are the answers that have come since the last time; `asked` says when their questions were
        asked, by default now."""
        moved = any(self._seen.get(worker) != status for worker, status in statuses.items())
        self._stalled = 0.0 if moved else self._stalled + observed(self._looked, now)
        self._looked = now
        self._seen.update(statuses)
        for worker in statuses:
            self._observed[worker] += observed(self._answered[worker], now)
            self._answered[worker] = now
            self._asked[worker] = now if asked is None else asked[worker]
        # Lost messages first, as everybody stalls behind one.
        return self._lost(busy, now) or self._no_progress(busy)

    def _lost(self, busy: Sequence[str], now: float) -> MeshError | None:
        before, limit = self._losses, self._limits.message_seconds
        self._losses = {
            loss: before.get(loss, _Evidence(now)) for loss in self._possible_losses(busy)
        }
        for loss, evidence in self._losses.items():
            if self._seconds_lost(loss, evidence) >= limit:
                text = (
                    f"message {loss.recv.tag} of mesh '{loss.recv.source}' was sent and has not "
                    f"come for {limit:g} s, with nothing on its way "
                    f"(limit message_seconds={limit:g}): it was lost"
                )
                return self._error(loss.worker, text, FailureKind.LOST)
        return None

    def _seconds_lost(self, loss: _Loss, evidence: _Evidence) -> float:
        """For how long both ends have said so, which is noted in the evidence."""
        if evidence.worker is None and self._asked[loss.worker] >= evidence.since:
            evidence.worker = self._observed[loss.worker]
        if evidence.source is None and self._asked[loss.source] >= evidence.since:
            evidence.source = self._observed[loss.source]
        if evidence.worker is None or evidence.source is None:
            return 0.0
        return min(
            self._observed[loss.worker] - evidence.worker,
            self._observed[loss.source] - evidence.source,
        )

    def _possible_losses(self, busy: Sequence[str]) -> Iterator[_Loss]:
        """From what both ends said last."""
        for worker in busy:
            status = self._seen.get(worker)
            if status is None or not status.waiting:
                continue
            recv = dict(enumerate(self._parts[worker].instructions)).get(status.position)
            if not isinstance(recv, Recv):
                continue
            for source in status.missing:
                sender = self._seen.get(source)
                if sender is None or worker in sender.sending:
                    continue
                # Whoever is through with the step has sent all.
                if source not in busy or sender[:2] > (status.step, self._sends[recv.tag]):
                    yield _Loss(worker, status.step, status.position, recv, source)

    def _no_progress(self, busy: Sequence[str]) -> MeshError | None:
        limit = self._limits.progress_seconds
        if not busy or self._stalled < limit:
            return None
        known = {worker: self._seen[worker] for worker in busy if worker in self._seen}
        working = (worker for worker, status in known.items() if not status.waiting)
        # They wait for their devices or links, too, and not only for others.
        sending = (worker for worker, status in known.items() if status.sending)
        on_their_way = {name for status in self._seen.values() for name in status.sending}
        receiving = (worker for worker in known if worker in on_their_way)
        culprit = next(chain(working, sending, receiving, busy))
        text = f"no worker got on for {limit:g} s (limit progress_seconds={limit:g})"
        return self._error(culprit, text)

    def _error(self, worker: str, cause: str, kind: FailureKind = FailureKind.STUCK) -> MeshError:
        return MeshError(worker, self.place(worker), cause, kind)


def observed(since: float, now: float) -> float:
    """So many of the seconds between two answers, or two looks, count."""
    return min(now - since, OBSERVED_SECONDS)
