"""What a worker writes down while it runs, to be looked at afterwards: when each instruction began,
waited and ended.

The list is appended to by several threads: the worker's own, those that send, and one that waits
for what RUN has dispatched. An event is one tuple, and nothing is worked out before somebody asks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from time import perf_counter_ns, time_ns
from typing import Any

import numpy as np

from shardopt.runtime.actions.context import Context
from shardopt.runtime.program.instructions import Instruction, Run
from shardopt.runtime.program.labels import task_of

# What an event is about: the instruction on the worker's thread, the execution that a RUN
# dispatched, the sending that a SEND asked for.
DO, EXECUTE, TRANSMIT = 0, 1, 2

# step, position, DO | EXECUTE | TRANSMIT, begin, end of waiting, end (ns of the worker's clock),
# bytes, and the worker that a message is for
Event = tuple[int, int, int, int, int, int, int, str]

_MOST_STEPS = 32  # that are kept, the newest
_FLUSH_SECONDS = 2.0
# A thread that has to wait for its core between two clocks reads them milliseconds apart.
_CLOCK_READINGS = 16


class Recorder:
    """An observer, and the `recorder` of the context, to which messages tell when they waited. All
    that is sent in a step is through before the step ends."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._runs = frozenset(
            k for k, each in enumerate(context.program.instructions) if isinstance(each, Run)
        )
        self._tasks = frozenset(
            k for k in self._runs if _is_of_microbatch(context.program.instructions[k])
        )
        self._steps: dict[int, list[Event]] = {}
        self._events: list[Event] = []
        self._step = self._began = self._waited = 0
        self._sending = threading.local()  # there are several threads that send
        self._free_from = 0  # when the newest execution that is known to have ended did
        # One thread: executions of a mesh end in the order in which they were dispatched.
        self._executions = ThreadPoolExecutor(
            1, thread_name_prefix=f"trace-{context.program.mesh.name}"
        )

    def begin_step(self, step: int) -> None:
        self._step, self._events = step, []
        self._steps.pop(step, None)  # a step that runs again is a new one
        self._steps[step] = self._events
        while len(self._steps) > _MOST_STEPS:
            del self._steps[next(iter(self._steps))]

    def begin(self, position: int) -> None:
        self._waited = 0
        self._began = perf_counter_ns()

    def waited(self) -> None:
        """What the instruction waited for is there."""
        self._waited = perf_counter_ns()

    def end(self, position: int) -> None:
        began, now = self._began, perf_counter_ns()
        self._events.append((self._step, position, DO, began, self._waited or began, now, 0, ""))
        if position in self._runs:
            _, token = self._context.in_flight[-1]
            dispatched = self._waited or began
            self._executions.submit(
                self._await, self._events, self._step, position, dispatched, token
            )

    @contextmanager
    def transmitting(self, position: int, target: str) -> Iterator[None]:
        """Around all that the thread that sends does for an instruction."""
        sending, began = self._sending, perf_counter_ns()
        sending.ready, sending.bytes = began, 0
        yield
        self._events.append(
            (
                self._step,
                position,
                TRANSMIT,
                began,
                sending.ready,
                perf_counter_ns(),
                sending.bytes,
                target,
            )
        )

    def ready(self) -> None:
        """The values that are to be sent are there."""
        self._sending.ready = perf_counter_ns()

    def gave(self, pieces: Sequence[np.ndarray]) -> None:
        """The transport has these pieces."""
        self._sending.bytes += sum(piece.nbytes for piece in pieces)

    def trace(self) -> dict[str, Any]:
        """Plain values: the clock's offset to the time of day in ns, and the events of the newest
        steps."""
        # Behind all that was submitted before, so that these events are there; one that never ends
        # is in none.
        with suppress(FutureTimeout):
            self._executions.submit(int).result(_FLUSH_SECONDS)
        events = [list(event) for of_step in [*self._steps.values()] for event in [*of_step]]
        return {"offset_ns": _clock_offset(), "events": events}

    def computing_seconds(self) -> tuple[float, float]:
        """In which executions ran, in the newest step, and of these the tasks of microbatches."""
        self._executions.submit(int).result()
        busy, of_tasks = 0, 0
        for _, position, what, _, ready, end, *_ in self._events:
            if what == EXECUTE:
                busy += end - ready
                of_tasks += end - ready if position in self._tasks else 0
        return 1e-9 * busy, 1e-9 * of_tasks

    def close(self) -> None:
        self._executions.shutdown(wait=False, cancel_futures=True)

    def _await(
        self, events: list[Event], step: int, position: int, dispatched: int, token: Any
    ) -> None:
        """Executions of a mesh run one after the other: one begins when it was dispatched and the
        one before ended."""
        with suppress(Exception):  # the worker reports what failed
            token.block_until_ready()
            now = perf_counter_ns()
            ready = max(dispatched, self._free_from)
            events.append((step, position, EXECUTE, dispatched, ready, now, 0, ""))
            self._free_from = now


def _is_of_microbatch(each: Instruction) -> bool:
    task = task_of(each.label) if isinstance(each, Run) else None
    return task is not None and not task.kind.runs_once


def _clock_offset() -> int:
    """The time of day less the clock of the events, in ns: of several readings the one that was
    disturbed least."""

    def reading() -> tuple[int, int]:
        before, time, after = perf_counter_ns(), time_ns(), perf_counter_ns()
        return after - before, time - (before + after) // 2

    return min(reading() for _ in range(_CLOCK_READINGS))[1]
