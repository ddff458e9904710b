"""`shardopt schedule`: what it prints and writes for names, CSV files and planned modules, and how
it refuses."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from shardopt.schedule.csv_format import read_csv
from shardopt.schedule.schedules import SCHEDULES
from shardopt.tools.shardopt import main

MODULE = Path(__file__).parents[2] / "lit" / "passes" / "Inputs" / "two-stages.mlir"


def run(*args: str) -> int:
    return main(["schedule", *args])


def test_a_name_prints_makespan_bubble_and_meshes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("1f1b", "--activations", "1GiB") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("1f1b: 4 stages, 8 microbatches, 33 s, bubble 27.3%\n")
    rows = [line.replace("│", " ").split() for line in printed.splitlines() if "%" in line][1:]
    assert [(row[0], row[3], row[4]) for row in rows] == [
        (str(m), str(4 - m), str(4 - m)) for m in range(4)
    ]


def test_all_names_every_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("all", "--meshes", "3") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in SCHEDULES)
    assert "needs a multiple of 2 meshes, got 3" in printed


@pytest.mark.parametrize("name", [*SCHEDULES, "auto"])
def test_tasks_trace_and_picture(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "tasks.csv", tmp_path / "trace.json", tmp_path / "picture.svg"]
    assert (
        run(
            name,
            "--csv",
            str(files[0]),
            "--trace",
            str(files[1]),
            "--svg",
            str(files[2]),
            "--send",
            "0.1",
        )
        == 0
    )
    schedule = read_csv(files[0].read_text()).schedule
    trace = json.loads(files[1].read_text())
    listed = [str(task) for tasks in schedule.tasks for task in tasks if task.kind.value != "A"]
    assert sorted(event["name"] for event in trace["traceEvents"] if event["ph"] == "X") == sorted(
        listed
    )
    ElementTree.parse(files[2])
    if name not in ("chimera", "terapipe"):  # whose tasks do not form one chain
        capsys.readouterr()
        assert run(str(files[0]), "--send", "0.1") == 0
        read = capsys.readouterr().out
        assert f"{trace['otherData']['makespan_seconds']:.4g} s" in read


def test_a_planned_module_has_its_own_durations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(MODULE), "--csv", str(tmp_path / "tasks.csv")) == 0
    assert "1f1b: 2 stages, 2 microbatches, 13.5 s, bubble 48.1%" in capsys.readouterr().out
    assert (tmp_path / "tasks.csv").read_text() == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_slices_of_tokens_follow_from_their_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two units of tokens on two meshes: cut, 1.5 + 1.6 and the longest again, 4.7 s; in one piece
    twice 3."""
    table = tmp_path / "seconds.csv"
    table.write_text("1.5,1.6\n3.0,\n")
    assert (
        run("terapipe", "--meshes", "2", "--microbatches", "1", "--slice-seconds", str(table)) == 0
    )
    assert "terapipe: 4 stages, 1 microbatch, 4.7 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("1f2b",), "unknown schedule: '1f2b'; did you mean '1f1b'?"),
        (("chimera", "--meshes", "3"), "schedule 'chimera' needs a multiple of 2 meshes, got 3"),
        (
            ("chimera", "--microbatches", "3"),
            "schedule 'chimera' needs a multiple of 2 microbatches, got 3",
        ),
        (("none.csv",), "cannot read 'none.csv': No such file or directory"),
        (("all", "--csv", "x.csv"), "one file holds one schedule"),
        (("1f1b", "--activations", "many"), "--activations: expected bytes such as"),
        (("1f1b", "--svg", "none/x.svg"), "cannot write 'none/x.svg': No such file or directory"),
        ((str(MODULE.parents[2] / "unit" / "none.mlir"),), "No such file"),
    ],
)
def test_errors_end_with_exit_code_1(
    args: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*args) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_bad_cell_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text("0F0,0B0\n1F0,1X0\n")
    assert run(str(path)) == 1
    assert "schedule 'tasks', line 2, column 2: '1X0' is not a task" in capsys.readouterr().err
    path.write_text("0F0,0B0\n1B0,1F0\n")
    assert run(str(path)) == 1
    assert (
        "schedule 'tasks': mesh 1 runs 1B0 (task 1 of 2) before 1F0, which it needs"
        in capsys.readouterr().err
    )
