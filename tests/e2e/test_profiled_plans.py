"""Plans with a measured profile: all phases price with it, and the same file gives the same
plan."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shardopt.dialect.cluster import read_cluster
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.hardware.cluster_file import load_cluster
from shardopt.hardware.profile import COLLECTIVE_KINDS, DISPATCH, SEND, Measurement, Profile
from shardopt.hardware.profile_file import load_profile, profile_text
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module

MODEL = Path(__file__).parents[2] / "docs" / "tutorial" / "mlp.mlir"
PIPELINE = PlanOptions("cpu-test:1x4", microbatches=4, layers=2, stages=2, schedule="1f1b")
ONE_MESH = replace(PIPELINE, stages=1, logical_shape="1x4", intra_op="data")


def profile(slow: tuple[str, ...] = (), factor: float = 1e4) -> Profile:
    """About what the formulas of `cpu-test` say, and some kinds of work slower than that."""

    def line(
        kind: str, seconds: float, per_unit: float, dtype: str = "", devices: int = 1
    ) -> Measurement:
        times = factor if kind in slow else 1.0
        points = tuple(times * (seconds + per_unit * size) for size in (1e3, 1e6, 1e9))
        return Measurement(kind, (1e3, 1e6, 1e9), points, dtype, devices)

    compute = [line("matmul", 1e-6, 3e-11, "f32"), line("elementwise", 1e-6, 1e-10, "f32")]
    groups = [
        line(kind, 5e-5, 5e-10, devices=count) for kind in COLLECTIVE_KINDS for count in (2, 4)
    ]
    calls = [line(DISPATCH, 2e-5, 0.0, devices=count) for count in (1, 2, 4)]
    return Profile("cpu", 4, (*compute, *groups, *calls, line(SEND, 5e-5, 5e-10)), (1.0,) * 4)


def write(folder: Path, *slow: str) -> str:
    path = folder / f"{'-'.join(('profile', *slow))}.json"
    path.write_text(profile_text(profile(slow)))
    return str(path)


def planned(options: PlanOptions, path: str) -> Plan:
    return make_plan(MODEL, replace(options, profile=path))


@pytest.mark.parametrize(
    ("options", "kind", "slower"),
    [
        (PIPELINE, "matmul", True),
        pytest.param(PIPELINE, SEND, True, marks=pytest.mark.slow),
        pytest.param(PIPELINE, DISPATCH, True, marks=pytest.mark.slow),
        (ONE_MESH, "all_reduce", True),
        (ONE_MESH, SEND, False),  # nothing is sent
        pytest.param(ONE_MESH, "all_to_all", False, marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_work_costs_what_was_measured(
    tmp_path: Path, options: PlanOptions, kind: str, slower: bool
) -> None:
    plain, slow = (
        planned(options, write(tmp_path, *kinds)).summary.step_seconds for kinds in ((), (kind,))
    )
    if slower:
        assert slow > 10 * plain
    else:
        assert slow == plain


def test_later_phases_read_the_profile_from_the_module(tmp_path: Path) -> None:
    path = write(tmp_path)
    plan = planned(PIPELINE, path)
    with make_context() as context:
        cluster = read_cluster(load_module(plan.module, context))
    (group,) = cluster.groups
    assert group.device.profile == load_profile(path)
    assert replace(group.device, profile=None) == load_cluster("cpu-test").groups[0].device


def test_a_slow_collective_is_avoided(tmp_path: Path) -> None:
    """The solver sees the measured price, too: with dear sums it does not sum over devices."""
    options = replace(ONE_MESH, intra_op="ilp")
    kinds = {item.kind for item in planned(options, write(tmp_path)).summary.stages[0].collectives}
    assert kinds
    slow = planned(options, write(tmp_path, *COLLECTIVE_KINDS)).summary.stages[0].collectives
    assert slow == ()


def test_the_same_profile_gives_the_same_plan(tmp_path: Path) -> None:
    path = write(tmp_path)
    code = (
        "import sys\nfrom shardopt.frontend.plans.plan import PlanOptions\nfrom "
        "shardopt.frontend.planning.make_plan import make_plan\n"
        f"options = PlanOptions('cpu-test:1x4', microbatches=4, stages=2, profile={path!r})\n"
        f"sys.stdout.buffer.write(make_plan({str(MODEL)!r}, options).module)"
    )
    command = [sys.executable, "-c", code]
    modules = [
        subprocess.run(
            command, check=True, capture_output=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    assert modules[0] == modules[1] != b""
