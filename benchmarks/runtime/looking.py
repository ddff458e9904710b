"""What it costs to look at a run: the loop around instructions while nobody looks, and a step with
and without times being kept."""

from __future__ import annotations

from statistics import median

import numpy as np

from benchmarks.runtime.programs import chain
from benchmarks.runtime.samples import seconds
from shardopt.runtime.backends.local import LocalBackend
from shardopt.runtime.driver import open_run

_LINKS = 100
_NOTHING = 10_000  # instructions that do nothing


def looking_seconds(steps: int) -> list[dict[str, object]]:
    """Medians: of a step of 100 RUNs, 100 FREEs and one mesh, without and with times kept, and the
    cost of one RUN being looked at; of an instruction that does nothing, in the worker's loop and
    in a bare one."""
    program = chain(_LINKS)
    with (
        open_run(program, checked_steps=0) as plain,
        open_run(program, checked_steps=0, trace=True) as traced,
    ):
        for run in (plain, traced):
            run.load([np.ones(16, np.float32)])
            for _ in range(3):
                run.step()
        samples = [(seconds(plain.step), seconds(traced.step)) for _ in range(steps)]
        without, kept = (median(each) for each in zip(*samples, strict=True))
        loop, bare = _loop_seconds(plain, steps)
    return [
        {"what": "step, not looked at", "seconds": without},
        {"what": "step, times kept", "seconds": kept},
        {"what": "RUN and FREE being looked at", "seconds": (kept - without) / _LINKS},
        {"what": "instruction that does nothing", "seconds": loop},
        {"what": "the same in a bare loop", "seconds": bare},
    ]


def _loop_seconds(run, steps: int) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    assert isinstance(run._backend, LocalBackend)
    (worker,) = run._backend._workers.values()
    worker._actions = [int] * _NOTHING

    def bare() -> None:
        for action in worker._actions:
            action()

    samples = [(seconds(lambda: worker.step({}, 0)), seconds(bare)) for _ in range(steps)]
    loop, plain = (median(each) / _NOTHING for each in zip(*samples, strict=True))
    return loop, plain
