"""Reading a binary module of somebody else: another process tries first.

C++ ends the process on some bytes that are no module, or never returns, and Python can catch
neither. The tools that read in a child of their own (`shardopt.tools.supervisor`) say so. `shardopt
run` and `program` have a child read and prepare it (`in_child`); for everybody else a child reads
files and bytes before they are read here (`check_readable`), unless this process made them
(`made_here`)."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from shardopt.ir.formats import format_of
from shardopt.support.children import Child, can_fork, send_answer
from shardopt.support.errors import UserError
from shardopt.support.time_limits import ENDS, limit_time

T = TypeVar("T")

# Reading is a matter of a second a gigabyte.
_SECONDS = 30.0
_BYTES_PER_SECOND = 10e6
# Verifying and preparing what was read takes longer.
_PREPARED_BYTES_PER_SECOND = 1e5
_READ = """\
import sys
from shardopt.support.time_limits import limit_time
limit_time(float(sys.argv[1]))
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.trial import reads_in_child
reads_in_child()  # or it would have a child of its own, and so on
load_module(sys.stdin.buffer.read(), make_context())
"""
_is_child = False
# Digests of what a child has read, as a model is often planned again, or a writer here has made.
_readable: set[bytes] = set()


def reads_in_child() -> None:
    """This process is a child whose parent survives what reading does to it."""
    global _is_child
    _is_child = True


def made_here(data: bytes) -> bytes:
    """The same bytes, which a writer of this process made, and which are read without a trial."""
    _readable.add(hashlib.sha256(data).digest())
    return data


def check_readable(data: bytes, name: str) -> None:
    """Raises UserError where reading would end this process. Text is checked where it is parsed,
    and what is wrong otherwise is said by who reads it."""
    if _is_child or format_of(data) in ("text", "unknown"):
        return
    digest = hashlib.sha256(data).digest()
    if digest in _readable:
        return
    limit = _SECONDS + len(data) / _BYTES_PER_SECOND
    status = subprocess.run(
        [sys.executable, "-c", _READ, str(limit)],
        input=data,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ).returncode
    if status < 0:
        reason = _reason(signal.Signals(-status), limit)
        raise UserError(f"{name}: not a readable module: its reader failed ({reason})")
    _readable.add(digest)


def in_child(work: Callable[[], T], name: str, size_bytes: int) -> T:
    """What `work` returns or raises. A child of this process does it, if it may be forked: C++ may
    end it, or not return, while it reads `name`, files of so many bytes. Raises UserError then."""
    if not can_fork():
        return work()
    limit = _SECONDS + size_bytes / _PREPARED_BYTES_PER_SECOND
    child = Child(lambda connection: _answer(work, connection, limit))
    try:
        result, error = child.connection.recv()
    except (EOFError, OSError):
        status = child.wait()
        if os.WIFSIGNALED(status):
            reason = _reason(signal.Signals(os.WTERMSIG(status)), limit)
            raise UserError(f"{name}: not readable: its reader failed ({reason})") from None
        raise KeyboardInterrupt from None  # it was interrupted
    child.wait()
    if error is not None:
        raise error
    return result


def _answer(work: Callable[[], object], connection: Connection, limit: float) -> None:
    """What the child does."""
    reads_in_child()
    # No Python code runs while C++ does not return: the system ends the process.
    limit_time(limit)
    try:
        send_answer(work, connection)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _reason(number: signal.Signals, limit: float) -> str:
    if number in ENDS:
        return f"it did not finish within {limit:.0f} s"
    return f"{number.name}, {signal.strsignal(number)}"
