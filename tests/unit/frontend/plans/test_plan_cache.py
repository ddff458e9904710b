"""Whole plans in the cache: the same plan and messages as without it, found again only for the same
question."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shardopt.caching.store import CACHE_VARIABLE
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.frontend.plans.plan_cache import plan_key
from shardopt.ir.diagnostics import Diagnostic

MODEL = b"""
func.func public @main(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x4xf32>)
    -> (tensor<4x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0]
      : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %new = stablehlo.subtract %w, %g : tensor<4x4xf32>
  %sum = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %new, %sum : tensor<4x4xf32>, tensor<f32>
}
"""

CLUSTER = """
name: pair
hosts: 1
devices_per_host: 2
device: {name: d, peak_flops: {f32: 1e+9}, memory_bytes: 1073741824, memory_bandwidth: 1e+10}
intra_host: {latency_seconds: 1e-6, bandwidth_bytes_per_second: 1e+9}
inter_host: {latency_seconds: 1e-5, bandwidth_bytes_per_second: 1e+8}
dispatch_seconds: 1e-5
"""


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanOptions:
    """Of a small plan, with a cache of its own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "pair.yaml").write_text(CLUSTER)
    return PlanOptions(str(tmp_path / "pair.yaml"), microbatches=2, layers=1, submesh="1x2")


def planned(
    options: PlanOptions, source: bytes = MODEL, *, cache: bool = True
) -> tuple[Plan, list[Diagnostic], bool]:
    """The plan, what was said but for remarks about the cache, and whether the plan was found
    there."""
    diagnostics: list[Diagnostic] = []
    phases: list[str] = []
    plan = make_plan(
        source, options, cache=cache, on_phase=phases.append, handler=diagnostics.append
    )
    was_cached = any(diagnostic.kind == "cached-plan" for diagnostic in diagnostics)
    assert was_cached == (not phases)
    return (
        plan,
        [
            diagnostic
            for diagnostic in diagnostics
            if diagnostic.kind not in ("cached-plan", "cache")
        ],
        was_cached,
    )


def test_a_plan_is_is_cached_now_with_all_that_was_said(options: PlanOptions) -> None:
    cold, diagnostics, was_cached = planned(options)
    warm, same_diagnostics, is_cached_now = planned(options)
    assert (was_cached, is_cached_now) == (False, True)
    assert warm == cold and warm.phases == cold.phases
    assert same_diagnostics == diagnostics and any(
        diagnostic.severity == "remark" for diagnostic in diagnostics
    )
    plain, plain_diagnostics, was_cached = planned(options, cache=False)
    assert not was_cached and plain == cold and plain_diagnostics == diagnostics


def test_another_question_is_planned_anew(options: PlanOptions, tmp_path: Path) -> None:
    planned(options)
    assert not planned(replace(options, microbatches=4))[2]
    assert not planned(options, MODEL.replace(b"subtract", b"add"))[2]
    cluster = tmp_path / "pair.yaml"
    cluster.write_text(CLUSTER.replace("1e-6", "2e-6"))
    assert not planned(options)[2]
    cluster.write_text(CLUSTER)
    assert planned(options)[2]


@pytest.mark.parametrize(
    ("field", "value", "file"),
    [
        ("constraints", "demands.yaml", "demands.yaml"),
        ("profile", "measured.json", "measured.json"),
        ("schedule", "order.csv", "order.csv"),
        ("plan", "given.json", "given.json"),
        ("plan", "earlier", "earlier/plan.json"),
    ],
)
def test_every_file_that_an_option_names_counts(
    options: PlanOptions, tmp_path: Path, field: str, value: str, file: str
) -> None:
    named = replace(options, **{field: str(tmp_path / value)})  # type: ignore[arg-type]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    keys = {plan_key(MODEL, "m", named)}
    for text in ("one", "two"):
        (tmp_path / file).write_text(text)
        keys.add(plan_key(MODEL, "m", named))
    assert len(keys) == 3 and None not in keys


def test_a_damaged_entry_is_planned_anew_with_a_remark(
    options: PlanOptions, tmp_path: Path
) -> None:
    cold = planned(options)[0]
    [entry] = (tmp_path / "cache" / "plans").rglob("*/*")
    entry.write_bytes(entry.read_bytes()[:-1])
    diagnostics: list[Diagnostic] = []
    assert make_plan(MODEL, options, handler=diagnostics.append) == cold
    assert [str(d.message).count("is damaged") for d in diagnostics if d.kind == "cache"] == [1]
    assert planned(options)[2]


LIGHT = """
import sys
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.frontend.planning.make_plan import make_plan
make_plan(sys.stdin.buffer.read(), PlanOptions(sys.argv[1], microbatches=2, layers=1, submesh="1x2"))
print(*sorted({"jax", "ortools", "numba", "ray"} & set(sys.modules)))
"""


def test_processes_plan_at_once_and_a_found_plan_loads_no_solver(
    options: PlanOptions, tmp_path: Path
) -> None:
    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", LIGHT, options.cluster]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    writers = [start(), start()]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(MODEL)
        writer.stdin.close()
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert len([path for path in (tmp_path / "cache" / "plans").rglob("*") if path.is_file()]) == 1
    assert start().communicate(MODEL, timeout=60)[0].split() == []
    assert planned(options)[2]
