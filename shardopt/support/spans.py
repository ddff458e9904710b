"""Wall time of named parts of a computation, such as building and solving an integer program.

    with collecting() as seconds:
        …
            with timed("sharding program: solve"):
                …

Parts add up by name. Without a `collecting` around it, `timed` costs a microsecond and records
nothing, so that solvers need to know nothing of who listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter

_seconds: ContextVar[dict[str, float] | None] = ContextVar("seconds", default=None)


@contextmanager
def collecting() -> Iterator[dict[str, float]]:
    """Collect the seconds of every `timed` part inside, by name in the order of their first end."""
    seconds: dict[str, float] = {}
    token = _seconds.set(seconds)
    try:
        yield seconds
    finally:
        _seconds.reset(token)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Add the wall time of the body to `name`."""
    seconds = _seconds.get()
    started = perf_counter()
    try:
        yield
    finally:
        if seconds is not None:
            seconds[name] = seconds.get(name, 0.0) + perf_counter() - started
