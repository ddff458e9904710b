"""Seconds of the kernels of a GPU, as XLA's profiler has them."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import jax
from jax.profiler import ProfileData


@dataclass
class Kernels:
    """By (module, operation of its optimized HLO): seconds of all its kernels, and how many ran.
    `busy` is the seconds in which any kernel ran, `span` those from the first to the last."""

    seconds: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    runs: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    busy: float = 0.0
    span: float = 0.0

    def of_module(self, module: str) -> float:
        return sum(value for (name, _), value in self.seconds.items() if name == module)


@contextmanager
def kernels() -> Iterator[Kernels]:
    """Those that start and end inside the block; filled at its end."""
    traced = Kernels()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            yield traced
        (path,) = Path(folder).rglob("*.xplane.pb")
        _read(ProfileData.from_file(str(path)), traced)


def _read(data: ProfileData, traced: Kernels) -> None:
    spans = []
    for plane in data.planes:
        if not plane.name.startswith("/device:"):
            continue
        for line in plane.lines:
            # The others are what the profiler derives from these.
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                stats = dict(event.stats)
                key = str(stats.get("hlo_module", "")), str(stats.get("hlo_op", event.name))
                traced.seconds[key] += event.duration_ns * 1e-9
                traced.runs[key] += 1
                spans.append((event.start_ns, event.start_ns + event.duration_ns))
    spans.sort()
    reached = float("-inf")
    for begin, end in spans:
        traced.busy += max(0.0, end - max(begin, reached)) * 1e-9
        reached = max(reached, end)
    if spans:
        traced.span = (reached - spans[0][0]) * 1e-9
