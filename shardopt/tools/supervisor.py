"""Surviving crashes and hangs of C++: the work runs in a child process, whose parent reports how a
signal ended it.

jaxlib's bytecode reader aborts the process on some damaged files, and a C++ pass may run into an
assertion or out of stack. Python cannot catch either. Forking before anything big is loaded costs
about a millisecond."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from shardopt.support.time_limits import ENDS, limit_time

# Binary input: reading is a matter of a second a gigabyte, but the reader loops for ever on some
# damaged files.
_READ_SECONDS = 30.0
_READ_BYTES_PER_SECOND = 10e6
# Signals by which a process ends through its own fault; others (an interrupt, a kill) come from
# outside.
_CRASHES = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGTRAP,
        *ENDS,
    }
)


@dataclass(frozen=True)
class Crash:
    """How the child ended, and what it last said about its work."""

    signal: signal.Signals
    trace: dict[str, Any]

    def __str__(self) -> str:
        if self.signal in ENDS:
            return f"it did not finish within {self.trace.get('limit_seconds', 0):.0f} s"
        return f"{self.signal.name}, {signal.strsignal(self.signal)}"


class Trace:
    """What a process is doing, kept in an unnamed file that outlives it."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = file
        self._known: dict[str, Any] = {}

    def note(self, **what: Any) -> None:
        """Replace what was said before under the same names."""
        self._known.update(what)
        if self._file is not None:
            self._file.seek(0)
            self._file.write(json.dumps(self._known).encode() + b"\n")
            self._file.flush()

    @contextmanager
    def reading(self, size_bytes: int) -> Iterator[None]:
        """Around the reading of binary input: the system ends the process when it takes far too
        long.

        Only under supervision, where the parent can say so; no Python code runs while C++ does not
        return."""
        if self._file is None:
            yield
            return
        limit = _READ_SECONDS + size_bytes / _READ_BYTES_PER_SECOND
        self.note(limit_seconds=limit)
        limit_time(limit)
        try:
            yield
        finally:
            limit_time(0)


def supervised(work: Callable[[Trace], int], on_crash: Callable[[Crash], int]) -> int:
    """The exit code of `work`, which runs in a child process, or that of `on_crash`, which runs
    here."""
    if not hasattr(os, "fork"):
        return work(Trace())
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _become(work, Trace(file))
        status = _wait(child)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        number = signal.Signals(os.WTERMSIG(status))
        if number not in _CRASHES:
            return 128 + number
        file.seek(0)
        line = file.readline()
    return on_crash(Crash(number, json.loads(line) if line else {}))


def _become(work: Callable[[Trace], int], trace: Trace) -> None:
    """Be the child: do the work and leave, without the parent's exit handlers."""
    code = 2
    try:
        code = work(trace)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int) -> int:
    """Wait for the child, which decides what an interrupt means; a termination is passed on to
    it."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM)),
    }
    try:
        return os.waitpid(child, 0)[1]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
