"""The `shardopt` command: what users type wrong gives one line, exit code 1 and no output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from shardopt.tools.shardopt import main
from tests.warm.tools import client_command

Shardopt = Callable[..., subprocess.CompletedProcess[str]]

MODEL = """
func.func public @main(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x4xf32>)
    -> (tensor<4x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %rate = stablehlo.constant dense<1.0e-02> : tensor<4x4xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %z = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %g = stablehlo.dot_general %x, %z, contracting_dims = [0] x [0]
      : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.multiply %g, %rate : tensor<4x4xf32>
  %new = stablehlo.subtract %w, %s : tensor<4x4xf32>
  %sum = stablehlo.reduce(%z init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %new, %sum : tensor<4x4xf32>, tensor<f32>
}
"""

CLUSTER = {
    "name": "pair",
    "hosts": 1,
    "devices_per_host": 2,
    "device": {
        "name": "d",
        "peak_flops": {"f32": 1e9},
        "memory_bytes": 1 << 30,
        "memory_bandwidth": 1e10,
    },
    "intra_host": {"latency_seconds": 1e-6, "bandwidth_bytes_per_second": 1e9},
    "inter_host": {"latency_seconds": 1e-5, "bandwidth_bytes_per_second": 1e8},
    "dispatch_seconds": 1e-5,
}


def _run(command: Sequence[str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "160"},
    )


@pytest.fixture
def shardopt(warm_socket: str) -> Shardopt:
    """The command, in a process that has imported it."""
    return partial(_run, client_command(warm_socket, "shardopt"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.mlir"
    path.write_text(MODEL)
    return path


def assert_refused(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert all(part in result.stderr for part in parts), result.stderr


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--cluster", "cpu-tset"), ("cpu-tset", "cpu-test")),
        (("--cluster", "cpu-test:0x4"), ("cpu-test:0x4",)),
        (("--cluster", "missing.yaml"), ("missing.yaml",)),
        (("--cluster", "cpu-test:1x2", "--stages", "2", "--layers", "1"), ("2 stages", "1 layers")),
        (("--cluster", "cpu-test:1x2", "--submesh", "1x8"), ("1x8",)),
        (("--cluster", "cpu-test:1x2", "--microbatches", "3"), ("3", "divisors")),
        (("--cluster", "cpu-test:1x2", "--batch-args", "9"), ("9",)),
        (("--cluster", "cpu-test:1x2", "--schedule", "1f2b"), ("1f2b", "1f1b")),
        (("--cluster", "cpu-test:1x2", "--intra-op", "qwertz"), ("qwertz", "ilp")),
        (("--cluster", "cpu-test:1x2", "--inter-op", "magic"), ("magic", "dp")),
        (("--cluster", "cpu-test:1x2", "--microbatches", "0"), ("--microbatches", "'0'")),
        (("--cluster", "cpu-test:1x2", "--layers", "99"), ("99",)),
        ((), ("--cluster",)),
    ],
    ids=lambda value: " ".join(value) or "none",
)
def test_wrong_options_give_one_line_and_no_output(
    shardopt: Shardopt,
    model: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    parts: tuple[str, ...],
) -> None:
    result = shardopt("plan", model, "-o", tmp_path / "plan", *options)
    assert_refused(result, *parts)
    assert result.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.mlir"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("func.func @main(", ("model.mlir:1:",)),
        ("func.func @main() -> tensor<f32> {\n  return %x : tensor<f32>\n}", ("model.mlir:2:",)),
        ("func.func @other() {\n  return\n}", ("main",)),
        (
            "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n  return %x : tensor<?xf32>\n}",
            ("tensor<?xf32>",),
        ),
        ("", ("model.mlir",)),
    ],
    ids=["unfinished", "undefined value", "no main", "dynamic shape", "empty"],
)
def test_wrong_modules_give_a_location_and_no_output(
    shardopt: Shardopt, tmp_path: Path, text: str, parts: tuple[str, ...]
) -> None:
    (tmp_path / "model.mlir").write_text(text)
    result = shardopt(
        "plan", tmp_path / "model.mlir", "--cluster", "cpu-test:1x2", "-o", tmp_path / "plan"
    )
    assert_refused(result, *parts)
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize("field", ["hosts", "device.memory_bytes", "inter_host.latency_seconds"])
def test_a_cluster_file_with_a_missing_field_names_it(
    shardopt: Shardopt, model: Path, tmp_path: Path, field: str
) -> None:
    described = json.loads(json.dumps(CLUSTER))
    parent, _, leaf = field.rpartition(".")
    del (described[parent] if parent else described)[leaf]
    (tmp_path / "cluster.json").write_text(json.dumps(described))
    result = shardopt(
        "plan", model, "--cluster", tmp_path / "cluster.json", "-o", tmp_path / "plan"
    )
    assert_refused(result, "cluster.json", field)
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "plan").exists()


def test_a_file_that_crashes_the_reader_is_refused(shardopt: Shardopt, tmp_path: Path) -> None:
    damaged = Path(__file__).parents[2] / "lit" / "tools" / "Inputs" / "aborting.mlirbc"
    result = shardopt("plan", damaged, "--cluster", "cpu-test:1x2", "-o", tmp_path / "plan")
    assert_refused(result, "aborting.mlirbc", "error:")
    assert not (tmp_path / "plan").exists()


def test_a_foreign_folder_is_not_overwritten(
    shardopt: Shardopt, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    result = shardopt("plan", model, "--cluster", "cpu-test:1x2", "-o", tmp_path / "out")
    assert_refused(result, "not a plan directory")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


def test_run_refuses_what_is_not_a_plan(shardopt: Shardopt, tmp_path: Path) -> None:
    assert_refused(shardopt("run", tmp_path / "nowhere"), "plan.json")
    (tmp_path / "plan.json").write_text('{"version": 99}')
    assert_refused(shardopt("run", tmp_path), "version", "99")
    (tmp_path / "plan.json").write_text("{")
    assert_refused(shardopt("run", tmp_path), "plan.json:1:")


def test_plan_run_and_check(shardopt: Shardopt, model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps(CLUSTER))
    planned = shardopt(
        "plan", model, "--cluster", cluster, "--microbatches", "2", "--stages", "2", "-o", plan
    )
    assert planned.returncode == 0, planned.stderr
    assert "pair:1x2" in planned.stdout
    assert {path.name for path in plan.iterdir()} == {
        "files.sha256", "ir", "module.mlirbc", "original.mlirbc", "plan.json", "stages", "timeline.svg",
    }  # fmt: skip
    lines = [line for path in (plan / "ir").iterdir() for line in path.read_text().splitlines()]
    assert max(map(len, lines)) < 200  # lists stand one element a line
    np.savez(tmp_path / "inputs.npz", in1=np.ones((8, 4), np.float32))
    checked = shardopt("run", plan, "--check", "--steps", "2", "--inputs", tmp_path / "inputs.npz")
    assert checked.returncode == 0, checked.stderr
    assert "check passed: 2 of 2 outputs" in checked.stdout and "step 1" in checked.stdout
    assert "1 of 2 inputs" in checked.stderr


def test_a_difference_fails_the_check(shardopt: Shardopt, model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    assert shardopt("plan", model, "--cluster", "cpu-test:1x2", "-o", plan).returncode == 0
    other = tmp_path / "other"
    model.write_text(MODEL.replace("dense<1.0e-02>", "dense<2.0e-02>"))
    assert shardopt("plan", model, "--cluster", "cpu-test:1x2", "-o", other).returncode == 0
    (plan / "original.mlirbc").write_bytes((other / "original.mlirbc").read_bytes())
    assert_refused(shardopt("run", plan, "--check"), "original.mlirbc", "checksum differs")
    (plan / "files.sha256").unlink()
    checked = shardopt("run", plan, "--check")
    assert_refused(checked, "1 of 2 outputs differ", "result0")
    assert "DIFFERS" in checked.stdout


def test_json_is_the_plan(shardopt: Shardopt, model: Path) -> None:
    result = shardopt("plan", model, "--cluster", "cpu-test:1x2", "--json")
    assert result.returncode == 0, result.stderr
    described = json.loads(result.stdout)
    assert described["version"] == 3 and described["cluster"]["devices_per_host"] == 2
    assert sorted(d for stage in described["stages"] for d in stage["devices"]) == [0, 1]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_loads_nothing_heavy(option: str) -> None:
    code = (
        "import sys\nfrom shardopt.tools.shardopt import main\n"
        f"try:\n    main(['{option}'])\nexcept SystemExit:\n    pass\n"
        "loaded = {'jax', 'jaxlib', 'ortools', 'ray', 'numpy'} & sys.modules.keys()\nassert not "
        "loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


CANCELLATION = """
func.func public @main(%x: tensor<64xf32>, %n: tensor<2xi32>) -> (tensor<64xf32>, tensor<64xf32>, tensor<2xi32>) {
  %one = stablehlo.constant dense<1.0> : tensor<64xf32>
  %noise = stablehlo.subtract %x, %one : tensor<64xf32>
  %twice = stablehlo.add %x, %x : tensor<64xf32>
  return %noise, %twice, %n : tensor<64xf32>, tensor<64xf32>, tensor<2xi32>
}
"""


def test_conditioning_tells_rounding_from_error() -> None:
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.runtime.reference import OutputDifference, Reference, conditioning
    from shardopt.tools.run.check import _verdict

    inputs = [np.ones(64, np.float32), np.array([1, 2], np.int32)]
    with make_context() as context:
        function = Reference(load_module(CANCELLATION.encode(), context))
    noise, twice, exact = conditioning(function, inputs, function(inputs))
    assert noise > 1 and 0 < twice < 1e-6 and exact == 0

    def verdict(max_rel: float, unmatched: int, floor: float) -> str:
        return _verdict(
            OutputDifference("x", (2,), "float32", 1.0, max_rel, unmatched), floor, 1e-4
        )

    assert verdict(1e-5, 0, 0.0) == "ok"
    assert verdict(1e-3, 0, 1e-3) == "ill-conditioned"
    assert verdict(1e-3, 0, 1e-5) == "DIFFERS"  # well conditioned: an error of ours
    assert verdict(1e-1, 0, 1e-3) == "DIFFERS"  # far beyond what rounding does
    assert verdict(0.0, 1, 1e-5) == "DIFFERS"


@pytest.mark.parametrize(("words", "message"), [
    (("plann", "m.mlir"), "argument COMMAND: invalid choice: 'plann'; did you mean 'plan'?"),
    (("plan", "m.mlir", "--stges=2"), "unknown option: '--stges'; did you mean '--stages'?"),
    (("plan", "m.mlir", "--annotations=requir"), "'requir'; did you mean 'require'?"),
])  # fmt: skip
def test_what_was_meant_is_named(
    words: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["shardopt.tools.shardopt", "shardopt.tools.opt"])
def test_a_reader_that_leaves_sees_no_traceback(tool: str) -> None:
    for option in ("--help", "--version"):
        reading, writing = os.pipe()
        os.close(reading)
        run = subprocess.run(
            [sys.executable, "-m", tool, option], stdout=writing, stderr=subprocess.PIPE, text=True
        )
        os.close(writing)
        assert (run.returncode, run.stderr) == (0, "")


def test_reduce_has_a_command_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (Path(__file__).parents[3] / "pyproject.toml").open("rb") as file:
        module, _, name = tomllib.load(file)["project"]["scripts"]["shardopt-reduce"].partition(":")
    monkeypatch.setattr(sys, "argv", ["shardopt-reduce", "--help"])
    with pytest.raises(SystemExit):
        getattr(import_module(module), name)()
    assert "usage: shardopt reduce" in capsys.readouterr().out
