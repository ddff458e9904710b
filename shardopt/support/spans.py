"""Wall and CPU time of named parts of a computation, such as building and solving an integer
program.

    with collecting() as seconds:
        …
            with timed("sharding program: solve"):
                …

Parts add up by name. Without a `collecting` around it, `timed` costs a microsecond and records
nothing, so that solvers need to know nothing of who listens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter, process_time


@dataclass(frozen=True)
class Seconds:
    """Of the wall, and of all threads of this process."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall - other.wall, self.cpu - other.cpu)


def clocks() -> Seconds:
    """What both clocks say now: only differences mean something."""
    return Seconds(perf_counter(), process_time())


_seconds: ContextVar[dict[str, Seconds] | None] = ContextVar("seconds", default=None)


@contextmanager
def collecting() -> Iterator[dict[str, Seconds]]:
    """Collect the seconds of every `timed` part inside, by name in the order of their first end."""
    seconds: dict[str, Seconds] = {}
    token = _seconds.set(seconds)
    try:
        yield seconds
    finally:
        _seconds.reset(token)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Add the time of the body to `name`."""
    started = clocks()
    try:
        yield
    finally:
        add_spans({name: clocks() - started})


def add_spans(spans: Mapping[str, Seconds]) -> None:
    """Add what another process has collected: parts may take longer than the whole then."""
    seconds = _seconds.get()
    if seconds is not None:
        for name, each in spans.items():
            seconds[name] = seconds.get(name, Seconds()) + each
