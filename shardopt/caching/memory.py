"""What one run of shardopt keeps in memory between runs of a pass: objects that are dear to make,
as long as what they were made of is the same.

The store keeps results on disk; this keeps what they are computed with, such as the costs of stages
found so far, for a search that runs the same pass with several options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, cast

_T = TypeVar("_T")

_active: ContextVar[dict[str, tuple[str, object]] | None] = ContextVar("memory", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Until the end keep what `remembered` makes: of each kind the last."""
    token = _active.set({})
    try:
        yield
    finally:
        _active.reset(token)


def remembered(kind: str, key: Callable[[], str], make: Callable[[], _T]) -> _T:
    """What was made last of its kind, if `key` was the same, or what `make` makes."""
    known = _active.get()
    if known is None:
        return make()
    its_key = key()
    if known.get(kind, ("",))[0] != its_key:
        known[kind] = its_key, make()
    return cast("_T", known[kind][1])
