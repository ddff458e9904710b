"""Faults in real processes: one error that names mesh, host and instruction, soon; and what a
restart makes of it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import FailureKind, MeshError
from shardopt.runtime.faults import Fault
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.restart import Recovery, run_steps
from shardopt.runtime.run import Outputs, Run
from shardopt.runtime.state.periodic import CheckpointOptions
from shardopt.support.errors import UserError
from tests.e2e.exported_model import TEXT, example, expected_step, inputs, load

LIMITS = Limits(silence_seconds=2, message_seconds=1, progress_seconds=3)
SOON = 60.0  # seconds: anything but a hang; how soon it is, benchmarks/runtime/faults.py measures
BACKWARD = 7  # of m0: a RUN, with a RECV before it


def start(
    faults: Sequence[Fault],
    backend: str = "process",
    checkpoints: CheckpointOptions | None = None,
    program: Program | None = None,
    trace: bool = False,
) -> Run:
    return open_run(
        program or example(),
        backend,
        quick_compile=True,
        trace=trace,
        faults=faults,
        limits=LIMITS,
        checkpoints=checkpoints,
    )


def error_of(run: Run, steps: int = 2) -> tuple[MeshError, float]:
    """What the run of some steps ends in, and after how many seconds of its last step."""
    run.load(inputs())
    with pytest.raises(MeshError) as caught:
        for _ in range(steps):
            begin = time.monotonic()
            run.step()
    return caught.value, time.monotonic() - begin


FAULTS = {
    "raise": (FailureKind.FAILED, "RuntimeError: injected fault"),
    "kill": (FailureKind.DIED, "its process ended by signal SIGKILL"),
    "stop": (FailureKind.STUCK, "no sign of life for"),
    "cut": (FailureKind.CUT, "PeerGone: the connection"),
    "drop": (FailureKind.LOST, "it was lost"),
    "memory": (FailureKind.FAILED, "out of memory (MemoryError"),
    "sleep": (FailureKind.STUCK, "no worker got on for 3 s"),
}


@pytest.mark.slow
# Threads do the others, too.
@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind not in ("raise", "sleep")])
def test_every_fault_of_a_process_is_one_error_with_its_place(kind: str) -> None:
    expected, words = FAULTS[kind]
    with start([Fault(kind, "m0", 0, 1, BACKWARD)]) as run:
        error, seconds = error_of(run)
        assert error.kind is expected and words in str(error), str(error)
        assert error.where.startswith("step 1, instruction ") and seconds < SOON
        if kind not in ("cut", "drop"):  # which are seen by whoever sends or waits next
            assert str(error).startswith(f"mesh 'm0', host 0, step 1, instruction {BACKWARD} (")
        with pytest.raises(RuntimeError, match="can only be closed"):
            run.step()


@pytest.mark.parametrize("kind", ["raise", "sleep", "drop"])
def test_threads_that_fail_or_hang_are_noticed_and_left_behind(kind: str) -> None:
    begin = time.monotonic()
    with start([Fault(kind, "m1", 0, 1, 2)], "local") as run:
        error, _ = error_of(run)
    expected, words = FAULTS[kind]
    assert error.kind is expected and words in str(error) and time.monotonic() - begin < SOON


def test_faults_that_would_hit_the_driver_are_refused() -> None:
    with pytest.raises(
        UserError,
        match="fault 'kill' needs workers that are processes, backend 'local' has threads",
    ):
        start([Fault("kill", "m0", 0, 0, 0)], "local")
    with pytest.raises(UserError, match="unknown fault 'burn': known are kill, stop, cut"):
        Fault("burn", "m0", 0, 0, 0)


@pytest.mark.slow
def test_a_mesh_of_two_hosts_fails_as_one() -> None:
    """The other host fails or aborts in a collective; the one that was killed is named."""
    with open_run(
        example(),
        "process",
        quick_compile=True,
        devices_per_host=1,
        faults=[Fault("kill", "m1", 1, 1, 3)],
        limits=Limits(silence_seconds=20, message_seconds=20, progress_seconds=30),
    ) as run:
        error, seconds = error_of(run)
    assert str(error).startswith("mesh 'm1', host 1, step 1, instruction 3 ("), str(error)
    assert "SIGKILL" in str(error) and seconds < SOON + 10


def test_running_out_of_memory_on_a_device_names_the_function_that_did() -> None:
    """The error comes out of an executable, after its RUN has returned."""
    huge = TEXT.replace(
        "    %h = stablehlo.tanh %z",
        "    %big = stablehlo.broadcast_in_dim %z, dims = [1, 2] {mhlo.sharding = "
        '"{devices=[1,2,1]<=[2]}"}'
        " : (tensor<4x8xf32>) -> tensor<4000000000000x4x8xf32>\n"
        '    %bigger = stablehlo.sine %big {mhlo.sharding = "{devices=[1,2,1]<=[2]}"} : '
        "tensor<4000000000000x4x8xf32>\n"
        "    %flipped = stablehlo.reverse %bigger, dims = [0] {mhlo.sharding = "
        '"{devices=[1,2,1]<=[2]}"}'
        " : tensor<4000000000000x4x8xf32>\n"
        '    %sorted = "stablehlo.sort"(%flipped) ({\n    ^bb0(%l: tensor<f32>, %r: tensor<f32>):\n'
        "      %lt = stablehlo.compare LT, %l, %r : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        "      stablehlo.return %lt : tensor<i1>\n"
        '    }) {dimension = 0 : i64, mhlo.sharding = "{devices=[1,2,1]<=[2]}"}'
        " : (tensor<4000000000000x4x8xf32>) -> tensor<4000000000000x4x8xf32>\n"
        "    %cut = stablehlo.slice %sorted [0:1, 0:4, 0:8] {mhlo.sharding = "
        '"{devices=[1,2,1]<=[2]}"}'
        " : (tensor<4000000000000x4x8xf32>) -> tensor<1x4x8xf32>\n"
        '    %flat = stablehlo.reshape %cut {mhlo.sharding = "{devices=[2,1]<=[2]}"}'
        " : (tensor<1x4x8xf32>) -> tensor<4x8xf32>\n"
        "    %h = stablehlo.tanh %flat",
    )
    with start([], "local", program=load(huge)) as run:
        error, _ = error_of(run, steps=1)
    assert "RUN @stage0_fwd" in error.where and "out of memory" in error.cause, str(error)


def states(run: Run) -> list[bytes]:
    return [run.argument(number).tobytes() for number in (0, 1)]


def undisturbed(steps: int) -> list[bytes]:
    with start([], "local") as run:
        run.load(inputs())
        for step in range(steps):
            run.step({2: inputs(step)[2]})
        return states(run)


@pytest.mark.slow
def test_a_restarted_run_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Killed in step 3, which comes after a checkpoint of step 2: the state is the same, bit for
    bit."""
    faults = ([Fault("kill", "m1", 0, 3, 4)], [])
    told: list[tuple[str, int]] = []
    seen: list[int] = []
    ends: list[list[bytes]] = []

    def after(run: Run, step: int, outputs: Outputs) -> None:
        seen.append(step)

    run_steps(
        lambda attempt: start(
            faults[attempt], checkpoints=CheckpointOptions(tmp_path, every=2, background=False)
        ),
        lambda run: run.load(inputs()),
        5,
        feed=lambda step: {2: inputs(step)[2]},
        after=after,
        finish=lambda run: ends.append(states(run)),
        recovery=Recovery(
            tmp_path, restarts=1, notice=lambda error, step: told.append((error.mesh, step))
        ),
    )
    assert told == [("m1", 2)] and seen == [0, 1, 2, 2, 3, 4]
    assert ends == [undisturbed(5)]


def test_the_last_error_is_raised_when_no_restarts_are_left() -> None:
    with pytest.raises(MeshError, match="injected fault"):
        run_steps(
            lambda attempt: start([Fault("raise", "m0", 0, 0, 3)], "local"),
            lambda run: run.load(inputs()),
            1,
            recovery=Recovery(restarts=1),
        )


def test_steps_keep_their_numbers_when_a_run_goes_on(tmp_path: Path) -> None:
    with start([], "local") as run:
        run.load(inputs())
        run.steps_done = 40
        run.save(tmp_path / "saved")
    fault = Fault("raise", "m0", 0, 41, 3)
    with start([fault], "local", trace=True) as run:
        run.load(inputs())
        run.restore(tmp_path / "saved")
        run.step()
        assert {span.step for span in run.spans()} == {40}
        run.restore(tmp_path / "saved")
        run.step()
        with pytest.raises(MeshError, match="injected fault") as raised:
            run.step()
    assert raised.value.where.startswith("step 41, instruction 3 (")


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_that_is_gone_is_one_error_soon_and_the_next_run_does_without_it() -> None:
    pytest.importorskip("ray")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.e2e.lost_node"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=root)
    lines = [line for line in result.stdout.splitlines() if " mesh 'm" in line]
    assert len(lines) == 1, result.stdout + result.stderr
    seconds, error = lines[0].split(" ", 1)
    assert re.match(r"mesh 'm\d', host 0, step \d+, (instruction \d+ \(|end of step)", error), error
    assert "its actor died" in error and float(seconds) < 60
    loss = float(result.stdout.splitlines()[-1])
    assert loss == pytest.approx(float(expected_step(*inputs())[2]), rel=1e-5)
