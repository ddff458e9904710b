"""Hashes that are computed once: of values that are parts of keys over and over again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T", bound=type)
_HASH = "_kept_hash"


def keeps_hash(cls: _T) -> _T:
    """A frozen dataclass whose values remember their hash, which neither copies nor other processes
    get: there strings have other hashes."""
    computed: Callable[[Any], int] = cls.__hash__  # type: ignore[assignment]

    def kept(self: Any) -> int:
        # Not a `cached_property`, which takes a lock for every value.
        known: int | None = self.__dict__.get(_HASH)
        if known is None:
            known = self.__dict__[_HASH] = computed(self)
        return known

    def state(self: Any) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _HASH}

    cls.__hash__ = kept  # type: ignore[method-assign, assignment]
    cls.__getstate__ = state  # type: ignore[method-assign, assignment]
    return cls
