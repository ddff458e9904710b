"""What a long computation is at: so many of so many things done, and what they are.

    with watching(show):
        …
        progress(17, 240, "stage candidates")         # show(Progress(17, 240, "stage candidates"))

Without a `watching` around it, `progress` costs a microsecond, so that solvers need to know nothing
of who looks on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """`done` of `total` things that `what` names ("stage candidates", "meshes") are finished; 0 of
    0: nobody knows."""

    done: int
    total: int
    what: str


Watcher = Callable[[Progress], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher | None) -> Iterator[None]:
    """Hand what `progress` is told inside to `watcher`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def progress(done: int, total: int, what: str) -> None:
    """Say how far the work is; to be called as often as there is something new."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(Progress(done, total, what))
