"""What `shardopt run` keeps of every step: results that are numbers, how long it took, tokens a
second, how busy the meshes were, and memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time, time_ns
from typing import IO, TYPE_CHECKING, Any, Protocol

from shardopt.support.errors import UserError
from shardopt.tools.run.inputs import numbers_by_name

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

    from shardopt.runtime.program.instructions import Program
    from shardopt.runtime.run import Outputs, Run

# Of vocabularies. Unsigned words are keys of random numbers, bytes are pictures.
_TOKEN_TYPES = ("int16", "uint16", "int32", "int64")
_DRIVER = "driver"  # beside workers, which are named like meshes


@dataclass(frozen=True)
class StepMetrics:
    """Of one step. `tokens_per_second` is None where nothing is counted. `busy` is, by mesh, the
    share of `seconds` in which its devices computed; `device_bytes`, by worker, what one device
    held at the end of the step; `process_bytes` what the processes had, the driver's and those of
    workers that are others. `scalars` are results, by name; `task_seconds`, by mesh, what computing
    the tasks of microbatches took."""

    seconds: float
    tokens_per_second: float | None
    busy: Mapping[str, float]
    device_bytes: Mapping[str, int]
    process_bytes: Mapping[str, int]
    scalars: Mapping[str, float]
    task_seconds: Mapping[str, float]


_OWN_NAMES = {"step", "time", *StepMetrics.__dataclass_fields__} - {"scalars", "task_seconds"}


def float_scalars(run: Run, outputs: Outputs) -> dict[str, float]:
    """Results that are floating-point scalars, losses and metrics, by name."""
    results = run.program.signature.results
    numbers = [k for k, each in enumerate(results) if each.shape == () and "float" in each.dtype]
    names = [results[k].name or f"result {k}" for k in numbers]
    if len(set(names)) < len(names) or not _OWN_NAMES.isdisjoint(names):
        names = [f"result {k}" for k in numbers]
    return {name: float(outputs[k]) for name, k in zip(names, numbers, strict=True)}


def tokens_per_step(program: Program, choice: str | None) -> int | None:
    """How many tokens a step takes: `choice` is a number, or names an argument whose elements are
    tokens. Without it, they are those of the largest argument of integers, batch by sequence, that
    is no state; None if there is no such argument. Raises UserError."""
    if choice is None:
        sizes = [
            math.prod(argument.shape)
            for argument in program.signature.arguments
            if argument.alias is None
            and argument.dtype in _TOKEN_TYPES
            and len(argument.shape) == 2
        ]
        return max(sizes, default=None)
    if choice.isdecimal() and int(choice):
        return int(choice)
    number, arguments = numbers_by_name(program).get(choice), program.signature.arguments
    if number is None:
        raise UserError(
            "--tokens: expected a number of tokens a step, or an argument whose elements are "
            f"tokens (in0 to in{len(arguments) - 1}, or by name), found '{choice}'"
        )
    return math.prod(arguments[number].shape)


def measured(run: Run, outputs: Outputs, tokens: int | None, *, threads: bool) -> StepMetrics:
    """Of the last step of a run that was opened with `trace`; with `threads`, its workers are in
    this process. Raises MeshError."""
    from shardopt.runtime.tracing.usage import busy_shares, process_bytes, task_seconds

    usage, seconds = run.usage(), run.step_seconds
    processes = {} if threads else {name: each.process_bytes for name, each in usage.items()}
    return StepMetrics(
        seconds=seconds,
        tokens_per_second=None if tokens is None else tokens / seconds,
        busy=busy_shares(usage, seconds),
        device_bytes={name: each.device_bytes for name, each in usage.items()},
        process_bytes={_DRIVER: process_bytes(), **processes},
        scalars=float_scalars(run, outputs),
        task_seconds=task_seconds(usage),
    )


class Metrics(Protocol):
    """Is told of every step, also of one that runs a second time."""

    def add(self, step: int, metrics: StepMetrics) -> None: ...


class JsonLines:
    """A line a step: `{"step": 0, "time": …, "seconds": 0.12, "busy": {"m0": 0.9}, …, "loss":
    2.3}`. Numbers that are not finite are null, as JSON has none."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def add(self, step: int, metrics: StepMetrics) -> None:
        row: dict[str, Any] = {"step": step, "time": round(time(), 3), "seconds": metrics.seconds}
        if metrics.tokens_per_second is not None:
            row["tokens_per_second"] = round(metrics.tokens_per_second, 3)
        row["busy"] = {mesh: round(share, 4) for mesh, share in metrics.busy.items()}
        row["device_bytes"] = metrics.device_bytes
        row["process_bytes"] = metrics.process_bytes
        for name, value in metrics.scalars.items():
            row[name] = value if math.isfinite(value) else None
        self._file.write(json.dumps(row) + "\n")
        # A run that is killed has told all its steps.
        self._file.flush()


class TensorBoard:
    """The same as curves, `busy/m0` for the mesh `m0`. Numbers that are not finite are left out."""

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def add(self, step: int, metrics: StepMetrics) -> None:
        values = {"seconds": metrics.seconds, **metrics.scalars}
        if metrics.tokens_per_second is not None:
            values["tokens_per_second"] = metrics.tokens_per_second
        for group in ("busy", "device_bytes", "process_bytes"):
            by_name: Mapping[str, float] = getattr(metrics, group)
            values |= {f"{group}/{name}": value for name, value in by_name.items()}
        for name, value in values.items():
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
