"""A thread beside the driver that says where every worker stands when a step makes no progress. It
ends nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from shardopt.runtime.tracing.where import WorkerStatus, status_text

WorkerStatuses = Mapping[str, WorkerStatus | None]  # by worker

_LOOKS = 4  # in the time after which it speaks


class Watchdog:
    """`where` is asked for the standings, `say` gets the report: again after each `seconds` without
    progress."""

    def __init__(
        self, seconds: float, where: Callable[[], WorkerStatuses], say: Callable[[str], None]
    ) -> None:
        self._seconds, self._where, self._say = seconds, where, say
        self._running, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def step(self) -> Iterator[None]:
        """While a step runs."""
        self._running.set()
        try:
            yield
        finally:
            self._running.clear()

    def close(self) -> None:
        self._closed.set()
        self._running.set()
        self._thread.join(timeout=self._seconds)

    def _watch(self) -> None:
        seen: dict[str, tuple[int, int]] | None = None
        changed = spoke = monotonic()
        while self._running.wait() and not self._closed.wait(self._seconds / _LOOKS):
            statuses = self._where()
            places = {
                worker: (at["step"], at["position"])
                for worker, at in statuses.items()
                if at is not None
            }
            now = monotonic()
            if places != seen or not self._running.is_set():
                seen, changed, spoke = places, now, now
            elif now - spoke >= self._seconds:
                spoke = now
                self._say(report(statuses, now - changed))


def report(statuses: WorkerStatuses, seconds: float | None = None) -> str:
    """One line a worker; `seconds` without progress."""
    head = [] if seconds is None else [f"no progress for {seconds:.0f} s:"]
    return "\n".join([*head, *(status_text(worker, at) for worker, at in sorted(statuses.items()))])
