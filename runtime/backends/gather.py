"""Waiting for the answers of several workers at once, whatever becomes of some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from time import monotonic
from typing import Any

from shardopt.runtime.errors import first_failure

_GRACE_SECONDS = 10.0  # for workers that were told to stop: they leave their RECV at once, a running RUN must end


def gather(futures: Mapping[str, Future[Any]], cancel_all: Callable[[str], None]) -> dict[str, Any]:
    """The answers by worker. At the first failure all workers are told to stop; what they answer within a grace period
    tells the cause from its consequences. Raises it."""
    wait(futures.values(), return_when=FIRST_EXCEPTION)
    errors: dict[str, BaseException] = {}
    _collect(futures, errors)
    if not errors:
        return {name: future.result() for name, future in futures.items()}
    cancel_all(f"worker '{next(iter(errors))}' failed")
    deadline = monotonic() + _GRACE_SECONDS
    while (pending := [future for future in futures.values() if not future.done()]) and monotonic() < deadline:
        wait(pending, timeout=max(0.0, deadline - monotonic()), return_when=FIRST_COMPLETED)
        _collect(futures, errors)  # in the order of their arrival
    _collect(futures, errors)
    raise first_failure(errors)


def _collect(futures: Mapping[str, Future[Any]], errors: dict[str, BaseException]) -> None:
    for name, future in futures.items():
        error = future.exception() if future.done() and name not in errors else None
        if error is not None:
            errors[name] = error
