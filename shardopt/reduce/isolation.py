"""Work in a forked child, which may crash or hang without taking the search along."""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Ended:
    """What a child wrote before it ended, and how: by itself, by a signal, or out of time."""

    output: bytes
    signal: int = 0
    timed_out: bool = False

    @property
    def normally(self) -> bool:
        return not self.signal and not self.timed_out


def isolated(work: Callable[[Callable[[bytes], None]], None], seconds: float) -> Ended:
    """Run `work` in a child, which gets a function that writes to us; what it prints is dropped.

    A child that raises ends like one that has nothing more to say: `work` writes what matters."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _become(work, writer)
    os.close(writer)
    try:
        output, timed_out = _read(reader, monotonic() + seconds)
    except BaseException:
        end_group(child)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(reader)
    if timed_out:
        end_group(child)
    status = os.waitpid(child, 0)[1]
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Ended(output, 0 if timed_out else number, timed_out)


def end_group(leader: int) -> None:
    """Kill a process and what it started."""
    for end in (os.killpg, os.kill):  # the group is not there before the child has made it
        with suppress(ProcessLookupError):
            end(leader, signal.SIGKILL)
            return


def no_core_dumps() -> None:
    """Hundreds of crashes would fill the disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _become(work: Callable[[Callable[[bytes], None]], None], writer: int) -> None:
    """Never returns. In a group of its own, since an interrupt is for the search."""
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        no_core_dumps()
        faulthandler.disable()  # a crash is a result, and nobody's news
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        work(lambda data: _write(writer, data))
    except BaseException:
        os._exit(1)
    os._exit(0)


def _write(writer: int, data: bytes) -> None:
    while data:
        data = data[os.write(writer, data) :]


def _read(reader: int, deadline: float) -> tuple[bytes, bool]:
    """All that is written until the other end is closed, and whether time ran out before."""
    pieces: list[bytes] = []
    while True:
        left = deadline - monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return b"".join(pieces), True
        piece = os.read(reader, _PIECE_BYTES)
        if not piece:
            return b"".join(pieces), False
        pieces.append(piece)
