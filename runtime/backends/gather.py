"""Waiting for the answers of several workers at once, whatever becomes of some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from time import monotonic
from typing import Any

from shardopt.runtime.errors import MeshError, first_failure

# for workers that were told to stop: they leave their RECV at once, a running RUN must end
GRACE_SECONDS = 10.0
# Wait so long for the other hosts of a mesh that failed: they may hang in a collective with it.
_PEER_SECONDS = 1.5
# Short beside every limit that is watched, long beside what it takes to ask a worker.
_POLL_SECONDS = 0.25

# What is wrong though nobody has failed, given the workers that have not answered.
Check = Callable[[Sequence[str]], MeshError | None]


def gather(
    futures: Mapping[str, Future[Any]],
    cancel_all: Callable[[str], None],
    check: Check | None = None,
) -> dict[str, Any]:
    """The answers by worker. At the first failure all workers are told to stop; what they answer
    within a grace period tells the cause from its consequences. Raises it."""
    errors: dict[str, BaseException] = {}
    while not errors:
        wait(futures.values(), None if check is None else _POLL_SECONDS, FIRST_EXCEPTION)
        _collect(futures, errors)
        busy = [name for name, future in futures.items() if not future.done()]
        if not busy:
            break
        error = None if check is None or errors else check(busy)
        if error is not None:
            errors[error.worker] = error
    if not errors:
        return {name: future.result() for name, future in futures.items()}
    cancel_all(f"worker '{next(iter(errors))}' failed")
    began = monotonic()
    while pending := _worth_waiting(futures, errors, monotonic() - began):
        wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
        _collect(futures, errors)  # in the order of their arrival
    _collect(futures, errors)
    raise first_failure(errors)


def _worth_waiting(
    futures: Mapping[str, Future[Any]], errors: Mapping[str, BaseException], seconds: float
) -> list[Future[Any]]:
    """What has no answer so many seconds after the first failure and may still tell something."""
    failed = {_mesh_of(name) for name in errors}
    return [
        future
        for name, future in futures.items()
        if name not in errors
        and not future.done()
        and seconds < (_PEER_SECONDS if _mesh_of(name) in failed else GRACE_SECONDS)
    ]


def _mesh_of(worker: str) -> str:
    return worker.partition("/")[0]


def _collect(futures: Mapping[str, Future[Any]], errors: dict[str, BaseException]) -> None:
    for name, future in futures.items():
        error = future.exception() if future.done() and name not in errors else None
        if error is not None:
            errors[name] = error
