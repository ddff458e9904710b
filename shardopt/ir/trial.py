"""Reading a binary module of somebody else: another process tries first.

C++ ends the process on some bytes that are no module, or never returns, and Python can catch
neither. The tools that read in a child of their own (`shardopt.tools.supervisor`) say so; for
everybody else a child reads the file before it is read here."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys

from shardopt.ir.formats import format_of
from shardopt.support.errors import UserError

# Reading is a matter of a second a gigabyte.
_SECONDS = 30.0
_BYTES_PER_SECOND = 10e6
_READ = """\
import sys
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
load_module(sys.stdin.buffer.read(), make_context())
"""
_is_child = False
_readable: set[bytes] = set()  # digests: a model is often planned again


def reads_in_child() -> None:
    """This process is a child whose parent survives what reading does to it."""
    global _is_child
    _is_child = True


def check_readable(data: bytes, name: str) -> None:
    """Raises UserError where reading would end this process. Text is checked where it is parsed,
    and what is wrong otherwise is said by who reads it."""
    if _is_child or format_of(data) in ("text", "unknown"):
        return
    digest = hashlib.sha256(data).digest()
    if digest in _readable:
        return
    limit = _SECONDS + len(data) / _BYTES_PER_SECOND
    try:
        status = subprocess.run(
            [sys.executable, "-c", _READ],
            input=data,
            capture_output=True,
            timeout=limit,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ).returncode
    except subprocess.TimeoutExpired:
        reason = f"it did not finish within {limit:.0f} s"
    else:
        if status >= 0:
            _readable.add(digest)
            return
        number = signal.Signals(-status)
        reason = f"{number.name}, {signal.strsignal(number)}"
    raise UserError(f"{name}: not a readable module: its reader failed ({reason})")
