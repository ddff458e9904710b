"""What `shardopt run` keeps of every step: results that are numbers, and how long it took."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import time, time_ns
from typing import IO, TYPE_CHECKING, Any, Protocol

from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

    from shardopt.runtime.run import Outputs, Run


def float_scalars(run: Run, outputs: Outputs) -> dict[str, float]:
    """Results that are floating-point scalars, losses and metrics, by name."""
    specs = [result.value.spec for result in run.program.results]
    numbers = [k for k, spec in enumerate(specs) if spec.shape == () and "float" in spec.dtype]
    names = [run.program.results[k].name or f"result {k}" for k in numbers]
    if len(set(names)) < len(names):
        names = [f"result {k}" for k in numbers]
    return {name: float(outputs[k]) for name, k in zip(names, numbers, strict=True)}


class Metrics(Protocol):
    """Is told of every step, also of one that runs a second time."""

    def add(self, step: int, seconds: float, scalars: Mapping[str, float]) -> None: ...


class JsonLines:
    """A line a step: `{"step": 0, "time": …, "seconds": 0.12, "loss": 2.3}`. Numbers that are not
    finite are null, as JSON has none."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def add(self, step: int, seconds: float, scalars: Mapping[str, float]) -> None:
        row: dict[str, Any] = {"step": step, "time": round(time(), 3), "seconds": seconds}
        for name, value in scalars.items():
            row[name] = value if math.isfinite(value) else None
        self._file.write(json.dumps(row) + "\n")
        # A run that is killed has told all its steps.
        self._file.flush()


class TensorBoard:
    """The same as curves. Numbers that are not finite are left out."""

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def add(self, step: int, seconds: float, scalars: Mapping[str, float]) -> None:
        for name, value in {"seconds": seconds, **scalars}.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, step)
        self._writer.flush()


@contextmanager
def open_metrics(lines: Path | None, board: Path | None) -> Iterator[tuple[Metrics, ...]]:
    """What keeps them: lines appended to a file, a file more in a folder of TensorBoard's, where a
    run that is resumed goes on. Raises UserError."""
    with ExitStack() as stack:
        kept: list[Metrics] = []
        if lines is not None:
            try:
                file = stack.enter_context(lines.open("a", encoding="utf-8"))
            except OSError as error:
                raise UserError(f"cannot write '{lines}': {error.strerror or error}") from error
            kept.append(JsonLines(file))
        if board is not None:
            kept.append(TensorBoard(stack.enter_context(_summary_writer(board))))
        yield tuple(kept)


def _summary_writer(folder: Path) -> SummaryWriter:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise UserError(
            "--tensorboard needs tensorboardX: pip install 'shardopt[tensorboard]'"
        ) from None
    try:
        # Its own names differ by the second: one that goes on at once would take that of the first.
        return SummaryWriter(str(folder), filename_suffix=f".{time_ns()}")
    except OSError as error:
        raise UserError(f"cannot write to '{folder}': {error.strerror or error}") from error
