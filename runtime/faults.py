"""Faults made on purpose, to see what a run does: off unless `open_run(faults=…)` asks for them.

A fault happens when a worker comes to one instruction of one step:

    kill      its process is killed, as the kernel does when memory runs out (SIGKILL)
    stop      its process is stopped (SIGSTOP)
    cut       its connection to another worker is broken
    memory    its process asks for memory until there is none
    sleep     the instruction never ends
    drop      the next message that it sends is lost on the way
    raise     the instruction raises
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardopt.runtime.transports.mailbox import LinkStates, Transport
from shardopt.support.errors import UserError

FaultFields = tuple[str, str, int, int, int]
OF_PROCESSES = ("kill", "stop", "cut", "memory")
KINDS = (*OF_PROCESSES, "sleep", "drop", "raise")
_SPARE_BYTES = 256 << 20  # what the process may still have: threads of XLA that find nothing end it
# Small beside what is spare: little of that is left when the next one does not fit.
_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True)
class Fault:
    """`position` is that of an instruction in the list of `mesh`; `host` counts the mesh's
    workers."""

    kind: str
    mesh: str
    host: int
    step: int
    position: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"unknown fault '{self.kind}': known are {', '.join(KINDS)}")


def fault_fields(faults: Sequence[Fault], backend: str) -> tuple[FaultFields, ...]:
    """Faults as plain values. Raises UserError for one that would hit the driver as well."""
    for fault in faults:
        if backend == "local" and fault.kind in OF_PROCESSES:
            raise UserError(
                f"fault '{fault.kind}' needs workers that are processes, backend 'local' has "
                "threads"
            )
    return tuple((each.kind, each.mesh, each.host, each.step, each.position) for each in faults)


class FaultyTransport:
    """A transport that can be told to lose a message or to break a connection."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._dropping = False
        self.mailbox = inner.mailbox

    def send(
        self, target: str, step: int, tag: int, pieces: Sequence[np.ndarray], *, keep: bool = False
    ) -> None:
        if self._dropping:
            self._dropping = False
            return
        self._inner.send(target, step, tag, pieces, keep=keep)

    def links(self) -> LinkStates:
        return self._inner.links()

    def drop(self) -> None:
        self._dropping = True

    def cut(self) -> None:
        inner: Any = self._inner
        inner.cut()

    def close(self) -> None:
        self._inner.close()


class Injection:
    """An observer of a worker's step that makes one fault happen."""

    def __init__(self, fault: Fault, transport: FaultyTransport) -> None:
        self._fault = fault
        self._effect = _effects(transport)[fault.kind]
        self._step = -1

    def begin_step(self, step: int) -> None:
        self._step = step

    def begin(self, position: int) -> None:
        if (self._step, position) == (self._fault.step, self._fault.position):
            self._effect()

    def end(self, position: int) -> None:
        """Only beginnings count."""


def injections(
    faults: Sequence[FaultFields], mesh: str, host: int, transport: FaultyTransport
) -> list[Injection]:
    """The faults of one worker."""
    here = (
        fault
        for fault in (Fault(*fields) for fields in faults)
        if (fault.mesh, fault.host) == (mesh, host)
    )
    return [Injection(fault, transport) for fault in here]


def _effects(transport: FaultyTransport) -> dict[str, Callable[[], None]]:
    return {
        "kill": lambda: _signal(signal.SIGKILL),
        "stop": lambda: _signal(signal.SIGSTOP),
        "cut": transport.cut,
        "memory": _exhaust_memory,
        "sleep": _sleep,
        "drop": transport.drop,
        "raise": _raise,
    }


def _signal(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    _sleep()  # another thread may have got it, and this one does not get on until it takes effect


def _sleep() -> None:
    threading.Event().wait()


def _raise() -> None:
    raise RuntimeError("injected fault")


def _exhaust_memory() -> None:
    """Raises MemoryError."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _SPARE_BYTES, limits[1]))
    try:
        chunks = []
        while True:
            chunks.append(np.ones(_CHUNK_BYTES, np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
