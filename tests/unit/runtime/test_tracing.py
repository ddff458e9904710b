"""What a run tells about itself: times of instructions, the trace, memory, and where workers
stand."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from shardopt.runtime.driver import open_run
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.program.instructions import Broadcast, Free, Program, Recv, Send
from shardopt.runtime.program.instructions import Run as RunInstruction
from shardopt.runtime.program.labels import label_of, task_of
from shardopt.runtime.program.memory import mesh_memory, over_limit
from shardopt.runtime.run import Run
from shardopt.runtime.tracing import recorder
from shardopt.runtime.tracing.chrome import run_trace
from shardopt.runtime.tracing.spans import Span, route_bytes, task_times
from shardopt.runtime.tracing.usage import Usage, busy_shares, process_bytes, task_seconds
from shardopt.runtime.tracing.watchdog import Watchdog
from shardopt.runtime.tracing.where import status_text
from shardopt.schedule.tasks import Task
from shardopt.support.errors import UserError
from tests.unit.runtime.test_runtime_program import build

STEPS = 3


@pytest.fixture(scope="module")
def program() -> Program:
    return build()


@pytest.fixture(scope="module")
def run(program: Program) -> Iterator[Run]:
    with open_run(program, quick_compile=True, track_bytes=True, trace=True) as run:
        run.load(random_inputs(program, 0))
        for _ in range(STEPS):
            run.step()
        yield run


@pytest.fixture(scope="module")
def spans(run: Run) -> tuple[Span, ...]:
    return run.spans()


def test_every_instruction_of_every_step_has_its_spans(
    program: Program, spans: tuple[Span, ...]
) -> None:
    for part in program.meshes:
        of_mesh = [span for span in spans if span.worker == part.mesh.name]
        thread = [
            (s.step, s.position)
            for s in of_mesh
            if s.row == "worker" or s.text.split(" = ")[-1].startswith(COMPLETES)
        ]
        positions = range(len(part.instructions) + 2)
        assert sorted(thread) == [
            (step, position) for step in range(STEPS) for position in positions
        ]
        for row, kind in (("compute", RunInstruction), ("send", Send)):
            listed = [k for k, each in enumerate(part.instructions) if isinstance(each, kind)]
            assert sorted((s.step, s.position) for s in of_mesh if s.row == row) == [
                (step, position) for step in range(STEPS) for position in listed
            ]


COMPLETES = ("RECV", "BROADCAST", "ALLGATHER", "RESHARD", "COPY")


def test_times_are_in_order(program: Program, spans: tuple[Span, ...]) -> None:
    assert all(0 <= s.start_seconds <= s.ready_seconds <= s.end_seconds for s in spans)
    sends = {(s.step, s.tag): s for s in spans if s.row == "send"}
    recvs = {(s.step, s.tag): s for s in spans if s.row == "receive" and s.tag is not None}
    assert sends.keys() == recvs.keys() and len(sends) == 9 * STEPS
    for key, send in sends.items():
        assert send.ready_seconds <= recvs[key].end_seconds, "received after it was there"
        assert send.bytes == recvs[key].bytes > 0
    for part in program.meshes:
        computed = sorted(
            (s.ready_seconds, s.end_seconds)
            for s in spans
            if (s.worker, s.row) == (part.mesh.name, "compute")
        )
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(computed))


def test_tasks_have_times(spans: tuple[Span, ...]) -> None:
    times = task_times(spans, STEPS - 1)
    expected = [
        f"{stage}{kind}{i}" for stage, kind in ((0, "F"), (0, "B"), (1, "F")) for i in range(4)
    ]
    assert sorted(map(str, times)) == sorted([*expected, "0U", "1U"])
    # The threads that note the ends may come late, but hardly in every step.
    assert any(_is_ordered(task_times(spans, step)) for step in range(STEPS))


def _is_ordered(times: Mapping[Task, tuple[float, float]]) -> bool:
    first, second, back = (times[Task.parse(text)] for text in ("0F0", "1F0", "0B0"))
    return first[0] < second[1] <= back[1]


def test_labels_name_tasks() -> None:
    for text, label in (
        ("0F3", "fwd stage 0 microbatch 3"),
        ("2W0", "bwd_weight stage 2 microbatch 0"),
    ):
        task = Task.parse(text)
        assert (
            task_of(label) == task
            and label_of(label.split()[0], task.stage, task.microbatch) == label
        )
    assert task_of("update stage 1") == Task.parse("1U")
    assert [
        task_of(label)
        for label in ("prologue stage 0", "fwd stage 0", "update stage 0 microbatch 1", "")
    ] == [None] * 4


def test_chrome_trace(program: Program, spans: tuple[Span, ...]) -> None:
    events = run_trace(program, spans)["traceEvents"]
    by_phase = {phase: [event for event in events if event["ph"] == phase] for phase in "MXsfC"}
    assert {event["args"]["name"] for event in by_phase["M"]} == {
        *("mesh m0", "mesh m1", "compute", "send", "receive", "worker")
    }
    assert len(by_phase["X"]) == len(spans) and all(event["dur"] >= 0 for event in by_phase["X"])
    ids = [[event["id"] for event in by_phase[phase]] for phase in "sf"]
    assert ids[0] == ids[1] == list(range(9 * STEPS)), "an arrow for each message"
    assert all(
        start["ts"] <= end["ts"] for start, end in zip(by_phase["s"], by_phase["f"], strict=True)
    )
    assert {event["args"]["bytes"] for event in by_phase["C"]} >= {
        mesh_memory(part).after[0] for part in program.meshes
    }


def test_predicted_memory_is_what_lives_after_every_instruction(program: Program, run: Run) -> None:
    live = run.live_bytes()
    for part in program.meshes:
        # Still on the host.
        landed = {k for k, each in enumerate(part.instructions[1:]) if isinstance(each, Broadcast)}
        pairs = enumerate(
            zip(
                mesh_memory(part).after, live[part.mesh.name][: len(part.instructions)], strict=True
            )
        )
        assert [k for k, (predicted, measured) in pairs if predicted != measured] == sorted(landed)


def test_a_limit_of_memory_is_kept(program: Program, run: Run) -> None:
    part = program.meshes[0]
    peak, temporaries = mesh_memory(part).peak, run.temporary_bytes()
    assert peak < mesh_memory(part, temporaries["m0"]).peak, "stage0_bwd has temporaries"
    assert over_limit(program, peak) == ()
    (fault,) = over_limit(program, peak - 1)
    assert re.match(
        r"mesh m0, instruction \d+ \(.*\): a device would hold \d+ bytes, the limit is \d+ bytes; "
        r"the large",
        fault,
    )
    assert f"%1 f32[16, 8] [{{}}, {{}}] ({16 * 8 * 4} bytes)" in fault
    with pytest.raises(UserError, match="a device would hold"):
        open_run(program, memory_limit_bytes=100)
    with pytest.raises(UserError, match=r"instruction \d+ \(RUN @stage0_bwd"):
        open_run(program, quick_compile=True, memory_limit_bytes=peak)


def test_bytes_of_a_route_count_each_piece_once(program: Program) -> None:
    assert [route_bytes(route) for route in program.routes] == [128, 128, 4]


# What a step took


class _Token:
    """Of an execution that ends at a moment of the clock."""

    def __init__(self, clock: list[int], end: int) -> None:
        self._clock, self._end = clock, end

    def block_until_ready(self) -> None:
        self._clock[0] = max(self._clock[0], self._end)


def test_a_mesh_is_busy_while_executions_run(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two dispatched together count once each, and what one waits for before it is dispatched does
    not count; a later step begins with nothing."""
    clock = [0]
    monkeypatch.setattr(recorder, "perf_counter_ns", lambda: clock[0])
    part = program.meshes[0]
    labels = {
        k: each.label
        for k, each in enumerate(part.instructions)
        if isinstance(each, RunInstruction)
    }
    positions = [k for k, label in labels.items() if label.startswith("fwd")]
    (update,) = (k for k, label in labels.items() if label.startswith("update"))
    in_flight: list[tuple[int, _Token]] = []
    observer = recorder.Recorder(SimpleNamespace(program=part, in_flight=in_flight))  # type: ignore[arg-type]

    def run(position: int, begin: int, end: int, waits_until: int = 0) -> None:
        clock[0] = begin
        observer.begin(position)
        if waits_until:
            clock[0] = waits_until
            observer.waited()
        in_flight.append((position, _Token(clock, end)))
        observer.end(position)
        observer.computing_seconds()  # behind the thread that awaits it

    observer.begin_step(0)
    run(positions[0], 100, 1100)
    run(positions[1], 200, 1600)  # dispatched while the first one runs
    run(positions[2], 2000, 3400, waits_until=3000)
    assert observer.computing_seconds()[0] == pytest.approx(1.9e-6)
    observer.begin_step(1)
    assert observer.computing_seconds()[0] == 0
    run(positions[0], 5000, 5070)
    run(update, 5100, 5103)
    assert observer.computing_seconds() == pytest.approx((7.3e-8, 7e-8))
    observer.close()


def test_shares_of_a_mesh_are_the_mean_of_its_hosts() -> None:
    usage = {
        name: Usage(busy, busy / 2, 1, 2) for name, busy in (("a/0", 1.0), ("a/1", 2.0), ("b", 0.5))
    }
    assert busy_shares(usage, 4.0) == {"a": 0.375, "b": 0.125}
    assert task_seconds(usage) == {"a": 0.75, "b": 0.25}


def test_memory_of_the_process_is_what_it_has() -> None:
    before = process_bytes()
    kept = np.ones(1 << 26, np.uint8)
    assert process_bytes() - before > 60 << 20
    del kept


# Where workers stand


def test_a_worker_that_waits_is_reported_and_not_ended(program: Program) -> None:
    """m1 takes a while to begin: m0 waits for its message, and says so."""
    reports: list[str] = []
    with open_run(program, quick_compile=True) as run:
        run.load(random_inputs(program, 0))
        expected = np.array(run.step()[2])
        worker = run._backend._workers["m1"]  # type: ignore[attr-defined]
        blocked, original = threading.Event(), worker._actions[0]
        worker._actions[0] = lambda: (blocked.wait(10), original())
        watchdog = Watchdog(0.1, run._backend.where, reports.append)
        step = threading.Thread(target=run.step)
        with watchdog.step():
            step.start()
            deadline = time.monotonic() + 10
            while len(reports) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            here = run.where()
            blocked.set()
            step.join()
        watchdog.close()
        assert expected.shape == () and run.steps_done == 2
    first = reports[0].splitlines()
    assert re.fullmatch(r"no progress for \d+ s:", first[0])
    recv = next(
        k for k, each in enumerate(program.meshes[0].instructions) if isinstance(each, Recv)
    )
    for line in (first[1], here.splitlines()[0]):
        assert line.startswith(
            f"mesh 'm0', host 0: step 1, instruction {recv} (%8 = RECV #2 from m1 route 1) for "
        )
        assert "waits for message #2 from mesh 'm1'" in line
    assert first[2].startswith("mesh 'm1', host 0: step 1, instruction 0 (")


def test_standings_as_text() -> None:
    assert status_text("m0/1", None) == "mesh 'm0', host 1: does not answer"
    idle = {"busy": False, "seconds": 1.25, "step": 4}
    assert status_text("m0", idle) == "mesh 'm0', host 0: idle for 1.2 s, 4 steps done"


def test_times_are_kept_only_where_asked_for(program: Program) -> None:
    with open_run(program, quick_compile=True) as run:
        run.load(random_inputs(program, 0))
        run.step()
        assert not any(
            isinstance(each, Free) for part in program.meshes for each in part.instructions[:1]
        )
        with pytest.raises(Exception, match="times are kept only in runs that were opened for it"):
            run.usage()
