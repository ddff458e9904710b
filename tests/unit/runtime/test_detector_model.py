"""The failure detector on random schedules: whatever is slow or paused, no healthy run is ended;
whatever fails, it is named."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardopt.runtime.errors import FailureKind
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.program.instructions import Send
from tests.draws import draws
from tests.unit.runtime.detector_model import (
    Conditions,
    Interval,
    SimulatedFault,
    SimulatedRun,
    pipeline,
)

LIMITS = Limits(silence_seconds=8, message_seconds=1, progress_seconds=60)
# 2 s are left for asking, and for a driver that stands still before and after.
PAUSE_SECONDS = 6.0
STALL_SECONDS = 20.0  # two may follow each other
STEPS = 2


def seconds(most: float) -> st.SearchStrategy[float]:
    return st.integers(0, int(8 * most)).map(lambda eighths: eighths / 8)


def intervals(most: float, gap: float) -> st.SearchStrategy[tuple[Interval, ...]]:
    """Times to stand still, with a gap between two of them."""

    def placed(drawn: list[tuple[float, float]]) -> tuple[Interval, ...]:
        now, found = 0.0, []
        for before, length in drawn:
            found.append((now + gap + before, now + gap + before + length))
            now = found[-1][1]
        return tuple(found)

    return st.lists(st.tuples(seconds(10), seconds(most)), max_size=4).map(placed)


@st.composite
def conditions(draw: st.DrawFn) -> Conditions:
    stages = draw(st.integers(2, 3))
    names = [f"m{number}" for number in range(stages)]
    ends = [
        *pairwise(names),
        *pairwise(names[::-1]),
    ]
    return Conditions(
        stages=stages,
        microbatches=draw(st.integers(1, 3)),
        run_seconds=draw(st.tuples(*[seconds(12)] * stages)),
        units=draw(st.sampled_from([0.01, 1.0, 20.0])),
        rate=draw(st.sampled_from([0.5, 4.0, 1000.0])),
        buffer=draw(st.sampled_from([0.25, 4.0])),
        copy_seconds=draw(seconds(4)),
        begin_seconds={name: draw(seconds(5)) for name in names},
        paused={name: draw(intervals(PAUSE_SECONDS, 0.75)) for name in names},
        stalled={each: draw(intervals(STALL_SECONDS, 0.0)) for each in ends},
        driver_paused=draw(intervals(20.0, 0.5)),
    )


# The stage after it waits for 12 s: ended in three of four runs, once.
LONG_STAGE = Conditions(2, 1, (12.0, 12.0), 1.0, 1000.0, 0.25, 0.0)
# 169 MB over 100 Mbit/s.
SLOW_LINK = Conditions(2, 1, (0.5, 0.5), 20.0, 1.5, 4.0, 0.0)
PAUSED = Conditions(
    2, 3, (0.5, 0.5), 1.0, 1000.0, 4.0, 0.0, paused={"m1": ((0.25, 6.25), (8.0, 14.0))}
)


@given(conditions())
@example(LONG_STAGE)
@example(SLOW_LINK)
@example(PAUSED)
@settings(max_examples=draws(40), deadline=None)
def test_no_healthy_run_is_ended(of_run: Conditions) -> None:
    assert SimulatedRun(of_run, LIMITS).steps(STEPS) is None


@st.composite
def faults(draw: st.DrawFn, kind: str) -> tuple[Conditions, SimulatedFault]:
    of_run = draw(conditions())
    program = pipeline(of_run.stages, of_run.microbatches)
    part = draw(st.sampled_from(program.meshes))
    sends = [k for k, each in enumerate(part.instructions) if isinstance(each, Send)]
    last = sends[-1] if kind in ("drop", "block") else len(part.instructions) - 1
    where = draw(st.integers(0, STEPS - 1)), draw(st.integers(0, last))
    return of_run, SimulatedFault(kind, part.mesh.name, *where)


@pytest.mark.parametrize("kind", ["stop", "drop", "sleep", "block"])
def test_every_fault_is_named(kind: str) -> None:
    @given(faults(kind))
    @settings(max_examples=15, deadline=None)
    def check(drawn: tuple[Conditions, SimulatedFault]) -> None:
        named(*drawn)

    check()


def named(of_run: Conditions, fault: SimulatedFault) -> None:
    run = SimulatedRun(of_run, LIMITS, fault)
    error = run.steps(STEPS)
    assert error is not None
    place = f"step {fault.step}, instruction {fault.position} ("
    if fault.kind == "drop":
        assert run.dropped is not None
        worker, step, tag = run.dropped
        assert (error.kind, error.worker) == (FailureKind.LOST, worker), str(error)
        assert error.where.startswith(f"step {step}, ") and f"message {tag} of" in error.cause
    elif fault.kind == "block":
        assert run.blocked is not None
        assert error.kind is FailureKind.STUCK and error.worker in run.blocked, str(error)
        assert "no worker got on" in error.cause
    else:
        words = "no sign of life" if fault.kind == "stop" else "no worker got on"
        assert (error.kind, error.worker) == (FailureKind.STUCK, fault.worker), str(error)
        assert words in error.cause
        if fault.kind == "sleep":
            assert error.where.startswith(place), str(error)
