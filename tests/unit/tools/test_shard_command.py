"""`shardopt shard` as a user runs it: tables, JSON, files, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shardopt.tools.shardopt import main

MODEL = """
module @step {
  func.func public @main(
      %w: tensor<64x64xf32> {tf.aliasing_output = 0 : i32} loc("w"), %x: tensor<256x64xf32> loc("x")
  ) -> (tensor<64x64xf32>, tensor<256x64xf32>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<256x64xf32>, tensor<64x64xf32>) -> tensor<256x64xf32>
    %1 = stablehlo.tanh %0 : tensor<256x64xf32>
    %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0]
      : (tensor<256x64xf32>, tensor<256x64xf32>) -> tensor<64x64xf32>
    %3 = stablehlo.subtract %w, %2 : tensor<64x64xf32>
    return %3, %1 : tensor<64x64xf32>, tensor<256x64xf32>
  }
}
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "step.mlir"
    path.write_text(MODEL)
    return str(path)


def shard(*arguments: str) -> int:
    return main(["shard", *arguments, "--cluster", "cpu-test:1x4"])


def test_tables_show_where_arguments_lie_and_what_is_exchanged(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shard(model, "--mesh", "4", "--intra-op", "data", "--batch-args", "1") == 0
    rows = [
        [cell.strip() for cell in line.split("│")] for line in capsys.readouterr().out.splitlines()
    ]
    assert ["", "w (donated)", "64x64xf32", "[{}, {}]", "1", "16 KiB", ""] in rows
    assert ["", "x", "256x64xf32", '[{"x"}, {}]', "1", "16 KiB", ""] in rows
    assert ["", "all-reduce", "x", "1", "16 KiB", ""] in rows


def test_json_holds_the_same(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shard(model, "--mesh", "4x1", "--intra-op", "data", "--batch-args", "1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["mesh"] == {"x": 4, "y": 1}
    assert [row["name"] for row in document["arguments"]] == ["w", "x"]
    assert [row["sharding"] for row in document["arguments"]] == ["[{}, {}]", '[{"x"}, {}]']
    assert document["arguments"][1]["local_bytes"] == 256 * 64 * 4 // 4
    assert document["cost"]["traffic"] == [
        {"kind": "all_reduce", "axes": ["x"], "tensors": 1, "bytes": 64 * 64 * 4}
    ]


def test_a_frontier_is_a_table_a_document_and_a_picture(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "frontier.svg"
    assert shard(model, "--mesh", "4", "--frontier", "--frontier-svg", str(picture)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[lines.index(next(x for x in lines if "fastest plan" in x)) :])) <= 80
    rows = [[cell.strip() for cell in line.split("│")] for line in lines]
    printed = [row for row in rows if len(row) == 8 and row[4] in ("optimal", "feasible")]
    root = ElementTree.parse(picture).getroot()
    assert len(root.findall(".//{*}circle")) == len(printed) > 1
    assert printed[-1][5] == "any budget"

    assert shard(model, "--mesh", "4", "--frontier", "8", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    points = document["frontier"]["points"]
    # The solver charges a copy to each of its readers, which share it in the plan.
    assert points[-1]["seconds"] >= document["cost"]["seconds"] * (1 - 1e-9)
    assert points[-1]["peak_bytes"] == document["cost"]["peak_bytes"]
    assert points[0]["peak_bytes"] < points[-1]["peak_bytes"]
    assert points[0]["peak_bytes"] >= document["frontier"]["least_bound_bytes"]


def test_each_point_of_a_frontier_is_the_plan_within_its_bytes(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shard(model, "--mesh", "4", "--frontier", "--json") == 0
    for point in json.loads(capsys.readouterr().out)["frontier"]["points"]:
        budget = ("--memory-budget", str(point["peak_bytes"]))
        assert shard(model, "--mesh", "4", "--json", *budget) == 0
        cost = json.loads(capsys.readouterr().out)["cost"]
        assert cost["peak_bytes"] <= point["peak_bytes"]
        assert cost["seconds"] <= point["seconds"] * (1 + 1e-3)


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc"])
def test_the_written_module_is_the_sharded_one(model: str, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"out{suffix}"
    assert shard(model, "--mesh", "4", "-o", str(target)) == 0
    assert target.read_bytes().startswith(b"ML\xefR") == (suffix == ".mlirbc")
    assert (
        b"devices=[4,1]<=[4]" in target.read_bytes() or b"devices=[1,4]<=[4]" in target.read_bytes()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mesh", "2x"), "expected the shape of a mesh"),
        (("--mesh", "4x4"), "needs 16 devices, cluster cpu-test:1x4 has 4"),
        (
            ("--mesh", "4", "--intra-op", "best"),
            "option 'intra-op' of shardopt-rotate-keys expects",
        ),
        (("--mesh", "4", "--gap", "-1"), "gap must not be negative, found -1"),
        (("--mesh", "4", "--frontier", "many"), "'frontier' of shardopt-choose-shardings expects"),
        (("--mesh", "4", "--frontier-svg", "no/such/x.svg"), "its folder does not exist"),
        (("--mesh", "4", "-o", "no/such/folder/out.mlir"), "its folder does not exist"),
    ],
)
def test_errors_are_one_message_and_nothing_is_written(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    before = sorted(tmp_path.iterdir())
    assert shard(model, *arguments) == 1
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("error:") == 1 and captured.out == ""
    assert sorted(tmp_path.iterdir()) == before
