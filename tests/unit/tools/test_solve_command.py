"""`shardopt solve`: what it prints, and how it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.solve.iopddl import evaluate
from shardopt.tools.shardopt import main

# Five tensors in a chain and a shortcut: node 2 is cheap whole, but whole it does not fit beside
# node 3.
INSTANCE: dict[str, Any] = {
    "problem": {
        "name": "five",
        "nodes": {
            "intervals": [[0, 3], [1, 4], [2, 6], [4, 7], [6, 8]],
            "costs": [[4, 9], [6, 5, 8], [1, 3, 9], [2, 7], [5]],
            "usages": [[20, 10], [16, 8, 8], [40, 20, 10], [30, 15], [10]],
        },
        "edges": {
            "nodes": [[0, 1], [1, 2], [2, 3], [0, 2], [3, 4]],
            "costs": [
                [0, 4, 7, 3, 0, 10**18],
                [0, 8, 9, 6, 0, 2, 5, 4, 0],
                [0, 11, 6, 0, 9, 2],
                [0, 5, 5, 7, 0, 1],
                [3, 0],
            ],
        },
        "usage_limit": 50,
    }
}


def write(path: Path, document: Any) -> Path:
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def cheapest(document: Any) -> int:
    """By trying everything, with the benchmark's evaluator, which shares nothing with the
    solver."""
    from itertools import product

    sizes = [len(costs) for costs in document["problem"]["nodes"]["costs"]]
    objectives = (evaluate(document, list(choice))[0] for choice in product(*map(range, sizes)))
    return min(cost for cost in objectives if cost is not None)


@pytest.mark.parametrize("name", ["five.json", "five.json.gz"])
def test_the_assignment_is_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = write(tmp_path / name, INSTANCE)
    assert main(["solve", str(path), "--time-limit", "20", "--cross-check", "cp-sat"]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    cost, _ = evaluate(INSTANCE, json.loads(lines[-1]))
    assert cost == cheapest(INSTANCE)
    assert "optimal" in output.out
    assert any(line.startswith(f"cp-sat: optimal, cost {cost}") for line in lines)
    assert output.err == ""  # progress is for terminals


def test_output_is_the_same_every_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "five.json", INSTANCE)
    lines = set()
    for _ in range(2):
        assert main(["solve", str(path)]) == 0
        lines.add(capsys.readouterr().out.splitlines()[-1])
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "five.json: "),
        (b"[1, 2]", "expected an object with the field 'problem'"),
        (b"\xff\xfe\x00", "five.json: "),
        (
            b'{"problem": {"nodes": {}, "edges": {}}}',
            "expected an object with the field 'intervals'",
        ),
    ],
)
def test_bad_files_are_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    path = tmp_path / "five.json"
    path.write_bytes(content)
    assert main(["solve", str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert output.err.count("error:") == 1


def test_an_impossible_limit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(json.dumps(INSTANCE))
    document["problem"]["usage_limit"] = 12
    assert main(["solve", str(write(tmp_path / "five.json", document))]) == 1
    error = capsys.readouterr().err
    assert "infeasible" in error
    assert "12 bytes" in error


@pytest.mark.parametrize("limit", ["0", "-3", "soon", "inf"])
def test_time_limits_are_positive(tmp_path: Path, limit: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["solve", "five.json", f"--time-limit={limit}"])
    assert caught.value.code == 1


def test_the_evaluator_of_the_benchmark_sees_each_fault() -> None:
    assert evaluate(INSTANCE, [0, 0]) == (None, "2 choices for 5 nodes")
    assert evaluate(INSTANCE, [1, 2, 0, 0, 0]) == (None, "a forbidden entry is used")
    cost, reason = evaluate(INSTANCE, [0, 0, 0, 0, 0])
    assert cost is None
    assert reason == "76 bytes at once, the limit is 50"
