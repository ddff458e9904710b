"""What a worker's thread spends on each kind of instruction, and a step on having instructions at
all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.runtime.programs import chain, every_instruction
from benchmarks.runtime.samples import seconds
from shardopt.runtime.backends.local import LocalBackend
from shardopt.runtime.driver import open_run
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.run import Run

_LINKS = (0, 100)
_REPEATS = 50


def instruction_seconds(steps: int) -> dict[str, float]:
    """Medians by kind, on the local backend. RUN counts until it is dispatched, RECV what has come
    already."""
    with _opened(every_instruction(_REPEATS), "local") as run:
        assert isinstance(run._backend, LocalBackend)
        samples: dict[str, list[float]] = defaultdict(list)
        for worker in run._backend._workers.values():
            for position, instruction in enumerate(worker.program.instructions):
                kind = type(instruction).__name__.upper()
                if kind != "RECV" or position > 0:  # the first one waits for all
                    worker._actions[position] = _timed(worker._actions[position], samples[kind])
        for _ in range(steps):
            run.step()
        return {kind: median(seconds) for kind, seconds in samples.items()}


def _timed(action, samples):  # type: ignore[no-untyped-def]
    def measured() -> None:
        begin = perf_counter()
        action()
        samples.append(perf_counter() - begin)

    return measured


def step_seconds(backend: str, steps: int) -> dict[str, float]:
    """Medians of an empty step, and of what each tiny RUN (with its FREE) of a chain adds to it."""
    none, many = _LINKS
    with _opened(chain(none), backend) as empty, _opened(chain(many), backend) as long:
        samples = [(seconds(empty.step), seconds(long.step)) for _ in range(steps)]
    least, most = (median(each) for each in zip(*samples, strict=True))
    return {"empty step": least, "RUN and FREE": (most - least) / (many - none)}


@contextmanager
def _opened(program: Program, backend: str) -> Iterator[Run]:
    with open_run(program, backend, checked_steps=0) as run:
        run.load([np.ones(16, np.float32)])
        for _ in range(3):
            run.step()
        yield run
