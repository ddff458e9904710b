"""Samples of two things that are measured in turns, so that what else the machine does strikes
both."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter


@dataclass(frozen=True)
class Pair:
    """Seconds of the runtime's way and of the plain one, turn by turn."""

    name: str
    bytes: int
    runtime: tuple[float, ...]
    plain: tuple[float, ...]

    @property
    def share(self) -> float:
        """Of the plain one's speed, by medians."""
        return median(self.plain) / median(self.runtime)

    def record(self) -> dict[str, object]:
        return {
            "name": self.name,
            "bytes": self.bytes,
            "seconds": median(self.runtime),
            "GB_per_second": self.bytes / median(self.runtime) / 1e9,
            "plain_seconds": median(self.plain),
            "share": self.share,
            "share_of_best": min(self.plain) / min(self.runtime),
            "turns": len(self.runtime),
        }


def seconds(action: Callable[[], object]) -> float:
    begin = perf_counter()
    action()
    return perf_counter() - begin


def in_turns(
    name: str,
    bytes: int,
    runtime: Callable[[], object],
    plain: Callable[[], object],
    turns: int,
    parts: int = 1,
) -> Pair:
    """Seconds of one of so many equal `parts` of each action."""
    for _ in range(2):
        runtime()
        plain()
    samples = [(seconds(runtime) / parts, seconds(plain) / parts) for _ in range(turns)]
    return Pair(name, bytes, *zip(*samples, strict=True))


def workers_cpu_seconds() -> float:
    """CPU time so far of all threads of the processes that this one has started, and of theirs.
    Linux only."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone by now
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    pids, level = set[int](), {os.getpid()}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        pids |= level
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(path.read_text().split()[0])
    return total / 1e9


def load() -> float:
    """How many processes wanted a core, on the average of the last minute."""
    return os.getloadavg()[0]
