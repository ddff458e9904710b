"""What `shardopt run` keeps of every step: results that are numbers, and how long it took."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import IO, TYPE_CHECKING, Any

from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.runtime.run import Outputs, Run


def float_scalars(run: Run, outputs: Outputs) -> dict[str, float]:
    """Results that are floating-point scalars, losses and metrics, by name."""
    specs = [result.value.spec for result in run.program.results]
    numbers = [k for k, spec in enumerate(specs) if spec.shape == () and "float" in spec.dtype]
    names = [run.program.results[k].name or f"result {k}" for k in numbers]
    if len(set(names)) < len(names):
        names = [f"result {k}" for k in numbers]
    return {name: float(outputs[k]) for name, k in zip(names, numbers, strict=True)}


class Metrics:
    """Lines of JSON, one a step: `{"step": 0, "time": …, "seconds": 0.12, "loss": 2.3}`. Numbers
    that are not finite are null, as JSON has none."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file = file

    def add(self, step: int, seconds: float, scalars: Mapping[str, float]) -> None:
        if self._file is None:
            return
        row: dict[str, Any] = {"step": step, "time": round(time(), 3), "seconds": seconds}
        for name, value in scalars.items():
            row[name] = value if math.isfinite(value) else None
        self._file.write(json.dumps(row) + "\n")
        # A run that is killed has told all its steps.
        self._file.flush()


@contextmanager
def open_metrics(path: Path | None) -> Iterator[Metrics]:
    """Append to a file: a run that is resumed goes on there. Raises UserError."""
    if path is None:
        yield Metrics(None)
        return
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror or error}") from error
    with file:
        yield Metrics(file)
