"""Runs that go on with a plan for fewer hosts, and with the first one when these are back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardopt.frontend.planning.for_hosts import cluster_of_plan, plan_for_hosts
from shardopt.frontend.planning.optimize import optimize
from shardopt.frontend.plans.plan import Plan
from shardopt.runtime import driver
from shardopt.runtime.backends import ray_actors
from shardopt.runtime.driver import open_run
from shardopt.runtime.faults import Fault
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.restart import Recovery, run_steps
from shardopt.runtime.run import Outputs, Run
from shardopt.runtime.state.periodic import CheckpointOptions
from shardopt.support.errors import UserError
from shardopt.tools.run.replan import Replanning
from shardopt.tools.shardopt import main

MODEL = Path(__file__).parents[2] / "docs" / "tutorial" / "mlp.mlir"
STEPS = 6


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """As `shardopt run` reads it."""
    folder = tmp_path_factory.mktemp("plan")
    optimize(MODEL, "cpu-test:2x2", microbatches=2, stages=2).save(folder / "plan")
    return Plan.load(folder / "plan")


def test_a_run_goes_on_with_the_hosts_that_are_there(plan: Plan, tmp_path: Path) -> None:
    """Two hosts, then one, then five: losses are those of a run that nothing disturbed."""
    first = plan.program()
    inputs = random_inputs(first, 0)
    hosts = iter((1, 5))
    replanning = Replanning(plan, first, lambda devices: next(hosts))
    losses: dict[int, float] = {}
    devices = []

    def start(attempt: int) -> Run:
        if attempt:
            assert replanning.look()
        program = replanning.program
        devices.append(sum(part.mesh.size for part in program.meshes))
        mesh = program.meshes[0].mesh.name
        return open_run(
            program,
            quick_compile=True,
            checkpoints=CheckpointOptions(tmp_path / "state", 1),
            faults=[Fault("raise", mesh, 0, 2 * (attempt + 1), 1)] if attempt < 2 else (),
        )

    def after(run: Run, step: int, outputs: Outputs) -> None:
        losses[step] = float(np.asarray(outputs[-1]).ravel()[0])

    recovery = Recovery(checkpoints=tmp_path / "state", restarts=2)
    run_steps(start, lambda run: run.load(inputs), STEPS, after=after, recovery=recovery)
    assert devices == [4, 2, 4] and replanning.plan is plan
    with open_run(first, quick_compile=True) as run:
        run.load(inputs)
        expected = [float(np.asarray(run.step()[-1]).ravel()[0]) for _ in range(STEPS)]
    np.testing.assert_allclose([losses[step] for step in range(STEPS)], expected, rtol=1e-5)


def test_what_cannot_be_planned_is_an_error(plan: Plan) -> None:
    replanning = Replanning(plan, plan.program(), lambda devices: 0)
    with pytest.raises(UserError, match="no host with 2 devices is left"):
        replanning.look()


@pytest.mark.parametrize(
    ("cluster", "asked", "note", "kept"),
    [
        ("cpu-test:2x2", {"stages": 2}, "", {"stages": 2}),
        pytest.param(
            "cpu-test:2x1",
            {"stages": 2},
            "without --stages 2: cannot make 2 stages",
            {},
            marks=pytest.mark.slow,
        ),
        # One stage can be where there is no such submesh any more.
        (
            "cpu-test:2x2",
            {"stages": 1, "submesh": "2x2"},
            "without --submesh 2x2: ",
            {"stages": 1},
        ),
        (
            "cpu-test:2x1",
            {"stages": 2, "schedule": "interleaved:1"},
            "without --stages 2: ",
            {"schedule": "interleaved:1"},
        ),
    ],
)
def test_options_that_ask_for_lost_devices_are_given_up(
    cluster: str, asked: dict[str, Any], note: str, kept: dict[str, Any]
) -> None:
    plan = optimize(MODEL, cluster, microbatches=2, **asked)
    smaller, said = plan_for_hosts(plan, cluster_of_plan(plan), 1)
    assert said.startswith(note) and bool(said) == bool(note)
    for name in ("stages", "submesh", "schedule"):
        default = "auto" if name == "schedule" else None
        assert getattr(smaller.options, name) == kept.get(name, default)


def test_the_command_follows_the_new_plan(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the place of actors there are threads, and a cluster that has lost a host."""
    devices: list[int] = []

    def start(program: Program, backend: str, **options: Any) -> Run:
        devices.append(sum(part.mesh.size for part in program.meshes))
        mesh = program.meshes[0].mesh.name
        faults = [Fault("raise", mesh, 0, 1, 1)] if len(devices) == 1 else ()
        return open_run(program, "local", faults=faults, **options)

    monkeypatch.setattr(driver, "open_run", start)
    monkeypatch.setattr(ray_actors, "count_hosts", lambda address, count, *, gpus: 1)
    plan.save(tmp_path / "plan")
    command = f"run {tmp_path / 'plan'} --backend ray --restarts 1 --replan --steps 3"
    views = f"--quick-compile --timeline --metrics {tmp_path / 'metrics'}"
    state = f"--checkpoint-dir {tmp_path / 'state'}"
    assert main(f"{command} {views} {state}".split()) == 0
    assert devices == [4, 2]
    assert "note: planning for 1 of 2 hosts" in capsys.readouterr().err
    lines = (tmp_path / "metrics").read_text().splitlines()
    assert {json.loads(line)["step"] for line in lines} == {0, 1, 2}


def test_options_that_replanning_needs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    optimize(MODEL, "cpu-test:1x2", microbatches=1, stages=1).save(tmp_path / "plan")
    assert main(["run", str(tmp_path / "plan"), "--replan", "--restarts", "1"]) == 1
    assert "--replan goes with a plan, --backend ray and --restarts" in capsys.readouterr().err
