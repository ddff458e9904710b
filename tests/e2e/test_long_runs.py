"""Runs that are left alone: stopped and gone on with, fed from files, and with losses that are no
numbers."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.runtime import driver
from shardopt.runtime.driver import open_run
from shardopt.runtime.faults import Fault
from shardopt.runtime.program.instructions import Run as RunInstruction
from shardopt.runtime.program.memory import mesh_memory
from shardopt.runtime.restart import LeaveOut, Recovery, run_steps
from shardopt.runtime.run import Outputs, Run
from shardopt.runtime.state import shard_files
from shardopt.runtime.state.checkpoint_folder import checkpoints
from shardopt.runtime.state.periodic import CheckpointOptions
from shardopt.runtime.tracing.usage import Usage
from shardopt.support.errors import UserError
from shardopt.tools.run import records
from shardopt.tools.run.data import open_data
from shardopt.tools.run.metrics import tokens_per_step
from shardopt.tools.run.stopping import Stopping
from shardopt.tools.shardopt import main
from tests.e2e.exported_model import example, inputs
from tests.e2e.models import MODELS, batch_args

MODULE = Path(__file__).parent / "exported_example.mlir"


def steps_of(out: str) -> dict[int, str]:
    """What was printed of every step, by its number."""
    lines = [line.split(": ", 1) for line in out.splitlines() if line.startswith("step ")]
    return {int(head.removeprefix("step ")): rest.split("scalars")[1] for head, rest in lines}


def start(folder: Path | None = None, **options: object) -> Run:
    checkpoints_ = None if folder is None else CheckpointOptions(folder, **options)  # type: ignore[arg-type]
    return open_run(example(), checked_steps=100, quick_compile=True, checkpoints=checkpoints_)


def state_of(run: Run) -> list[bytes]:
    return [run.argument(number).tobytes() for number in (0, 1)]


def write_rows(folder: Path, counts: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Files of `x` and `t` with so many rows; all rows of x."""
    generator = np.random.default_rng(seed)
    folder.mkdir()
    parts = []
    for number, rows in enumerate(counts):
        x = generator.random((rows, 8)).astype(np.float32)
        np.savez(folder / f"{number}.npz", x=x, t=generator.random((rows, 4)).astype(np.float32))
        parts.append(x)
    return np.concatenate(parts)


# ---- data ----


def test_batches_come_from_rows_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches of 16 across files of 10, 25 and 18 rows; the fourth step begins again."""
    write_rows(tmp_path / "rows", (10, 25, 18))
    run = ("run", str(MODULE), "--quick-compile", "--data", str(tmp_path / "rows"))
    assert main([*run, "--steps", "4"]) == 0
    whole = steps_of(capsys.readouterr().out)
    folder = ("--checkpoint-dir", str(tmp_path / "saved"))
    assert main([*run, "--steps", "2", *folder]) == 0
    assert main([*run, "--steps", "4", *folder, "--resume"]) == 0
    captured = capsys.readouterr()
    assert steps_of(captured.out) == whole
    assert f"going on from '{tmp_path}/saved/step-000000000002', at step 2" in captured.err


def test_rows_are_those_of_the_files(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows", (10, 25, 18))
    feed = open_data(str(tmp_path / "rows"), example(), inputs())
    for step in (0, 1, 2, 5, 3):
        first = step % 3 * 16
        np.testing.assert_array_equal(feed(step)[2], rows[first : first + 16])


def test_rows_of_parquet_are_those_of_npz(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups of 7 in two files; the fourth batch begins again, and one lies across the files."""
    write_rows(tmp_path / "rows", (25, 28))
    (tmp_path / "parquet").mkdir()
    for file in sorted((tmp_path / "rows").iterdir()):
        arrays = np.load(file)
        columns = {
            "x": pa.FixedShapeTensorArray.from_numpy_ndarray(arrays["x"]),
            "t": pa.array(list(arrays["t"].astype(np.float16))),
        }
        path = tmp_path / "parquet" / f"{file.stem}.parquet"
        parquet.write_table(pa.table(columns), path, row_group_size=7)
    read = {
        kind: open_data(str(tmp_path / kind), example(), inputs()) for kind in ("rows", "parquet")
    }
    for step in (0, 1, 2, 3, 1):
        expected, found = (read[kind](step) for kind in ("rows", "parquet"))
        np.testing.assert_array_equal(expected[2], found[2])
        np.testing.assert_array_equal(expected[3].astype(np.float16), found[3])
        assert found[3].dtype == np.float32
    run = ("run", str(MODULE), "--quick-compile", "--steps", "4", "--data")
    assert main([*run, str(tmp_path / "parquet")]) == 0
    np.savez(tmp_path / "parquet" / "c.npz", x=np.zeros((16, 8)))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    capsys.readouterr()
    for source, message in (
        ("parquet", "expected .npz, .parquet or .array_record files"),
        ("parquet/0.parquet", "needs pyarrow, to read Parquet: pip install 'shardopt[parquet]'"),
    ):
        assert main([*run, str(tmp_path / source)]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1.0, 2.0]] * 15 + [[1.0]]), "expected rows of one length, found [1, 2]"),
        (pa.array([1.0] * 15 + [None]), "column 'x' has rows without a value"),
        (pa.array([[1.0, None]] * 16), "column 'x' has rows without a value"),
        (pa.array(["one"] * 16), "column 'x': expected numbers, found string"),
        (pa.array([1.0] * 16), "input 2 'x': expected float32[16, 8]"),
        (pa.array([], pa.float32()), "has no rows"),
        (None, "cannot read"),
    ],
)
def test_parquet_that_does_not_fit_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: pa.Array | None, message: str
) -> None:
    path = tmp_path / "a.parquet"
    if column is None:
        path.write_bytes(b"PAR1 and no more")
    else:
        parquet.write_table(pa.table({"x": column}), path)
    assert main(["run", str(MODULE), "--quick-compile", "--data", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("error:") == 1 and message in captured.err


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_rows_that_are_damaged_are_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    """What a file says of itself can be read, and the rows cannot."""
    rows, path = np.random.default_rng(0).random((4096, 4), np.float32), tmp_path / f"a.{suffix}"
    if suffix == "npz":
        np.savez_compressed(path, t=rows)
    else:
        parquet.write_table(pa.table({"t": pa.array(list(rows))}), path, write_page_checksum=True)
    damaged = bytearray(path.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 400] = b"\xff" * 400
    path.write_bytes(damaged)
    assert main(["run", str(MODULE), "--quick-compile", "--data", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("error:") == 1 and f"cannot read '{path}'" in captured.err


# ---- records ----


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example_bytes(**features: Any) -> bytes:
    """A tf.train.Example, by the rules of Protocol Buffers: lists of floats, integers or bytes."""
    entries = b""
    for name, values in features.items():
        if isinstance(values, bytes):
            feature = field(1, field(1, values))
        elif values.dtype.kind == "f":
            feature = field(2, field(1, values.astype("<f4").tobytes()))
        else:
            feature = field(3, field(1, b"".join(map(varint, values.tolist()))))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def write_records(path: Path, records: Iterable[bytes]) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def test_rows_of_records_are_those_of_npz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two files, named as sharded ones are, read in parts of 7 records; a batch lies across them.
    One feature is bytes, which nobody asks for."""
    write_rows(tmp_path / "rows", (25, 28))
    (tmp_path / "records").mkdir()
    for number, file in enumerate(sorted((tmp_path / "rows").iterdir())):
        arrays = np.load(file)
        rows = (
            example_bytes(x=x, t=t, text=b"nothing")
            for x, t in zip(arrays["x"], arrays["t"], strict=True)
        )
        write_records(tmp_path / "records" / f"a.array_record-0000{number}-of-00002", rows)
    monkeypatch.setattr(records, "_AT_ONCE", 7)
    read = {
        kind: open_data(str(tmp_path / kind), example(), inputs()) for kind in ("rows", "records")
    }
    for step in (0, 1, 2, 3, 1):
        expected, found = (read[kind](step) for kind in ("rows", "records"))
        assert expected.keys() == found.keys()
        for number, array in expected.items():
            np.testing.assert_array_equal(array, found[number])
    run = ("run", str(MODULE), "--quick-compile", "--steps", "4", "--data")
    assert main([*run, str(tmp_path / "records")]) == 0
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    capsys.readouterr()
    assert main([*run, str(tmp_path / "records")]) == 1
    assert "to read ArrayRecord: pip install 'shardopt[records]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([example_bytes(x=np.ones(8))] * 15 + [example_bytes(x=np.ones(7))], "found 7, 8"),
        ([example_bytes(x=np.ones(8))] * 15 + [example_bytes(t=np.ones(4))], "found 0, 8"),
        ([example_bytes(x=b"no numbers")] * 16, "record 0 has no features of numbers"),
        ([example_bytes(y=np.ones(8))] * 16, "names no argument"),
        ([b"\xff no message"] * 16, "record 0 is no tf.train.Example"),
        ([], "has no records"),
    ],
)
def test_records_that_do_not_fit_are_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[bytes], message: str
) -> None:
    path = tmp_path / "a.array_record"
    write_records(path, rows)
    for source, text in ((path, message), (tmp_path / "b.array_record", "cannot read")):
        assert main(["run", str(MODULE), "--quick-compile", "--data", str(source)]) == 1
        captured = capsys.readouterr()
        assert captured.err.count("error:") == 1 and text in captured.err


def test_integers_become_those_of_the_argument_where_they_fit(tmp_path: Path) -> None:
    """Tokens are 64 bits wide in most files; rows may be flat."""
    program = example()
    arguments = tuple(
        replace(each, value=replace(each.value, spec=replace(each.value.spec, dtype="int32")))
        if each.name == "x"
        else each
        for each in program.arguments
    )
    tokens = np.arange(16 * 8, dtype=np.int64).reshape(16, 8) - 5
    like = [each.astype(np.int32) if k == 2 else each for k, each in enumerate(inputs())]
    feeds = []
    for number, last in enumerate((7, 2**31)):
        tokens[-1, -1] = last
        np.savez(tmp_path / f"{number}.npz", x=tokens)
        source = str(tmp_path / f"{number}.npz")
        feeds.append(open_data(source, replace(program, arguments=arguments), like))
    found = feeds[0](0)[2]
    assert found.dtype == np.int32 and found[0, 0] == -5 and found[-1, -1] == 7
    with pytest.raises(UserError, match="--data: 2147483648 is no int32"):
        feeds[1](0)


def batches(step: int) -> Iterator[dict[str, np.ndarray]]:
    while step < 5:
        x, t = inputs(step)[2:]
        yield {"x": x, "in3": t}
        step += 1


def transposed_batches(step: int) -> Iterator[dict[str, np.ndarray]]:
    yield from ({"x": batch["x"].T} for batch in batches(step))


def test_flat_rows_are_no_transposed_batches(capsys: pytest.CaptureFixture[str]) -> None:
    feed = f"{__name__}:transposed_batches"
    assert main(["run", str(MODULE), "--quick-compile", "--data", feed]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("error:") == 1 and "input 2 'x': expected float32" in captured.err


def test_batches_come_from_a_function(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = ("run", str(MODULE), "--quick-compile", "--data", f"{__name__}:batches")
    assert main([*run, "--steps", "5"]) == 0
    whole = steps_of(capsys.readouterr().out)
    assert main([*run, "--steps", "6", "--checkpoint-dir", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert steps_of(captured.out) == whole
    assert f"'{__name__}:batches' has no batch for step 5" in captured.err


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((16, 8), np.float32), "y": np.zeros((16, 4))}, "names no argument"),
        ({"x": np.zeros((16, 8)), "t": np.zeros((15, 4))}, "of equally many rows"),
        ({"x": np.zeros((9, 8), np.float32)}, "a batch has 16 rows, all files together 9"),
        ({"x": np.zeros((16, 7), np.float32)}, "input 2 'x': expected float32"),
        ({"x": np.zeros((16, 8), np.float32), "w0": np.zeros((16, 8))}, "same leading dimension"),
    ],
)
def test_data_that_do_not_fit_are_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    assert main(["run", str(MODULE), "--quick-compile", "--data", str(tmp_path / "a.npz")]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("error:") == 1 and message in captured.err


@pytest.mark.parametrize(
    "source", ["nowhere:batches", "json:nothing", "missing.npz", "json:__doc__"]
)
def test_sources_that_are_none_are_one_error(
    capsys: pytest.CaptureFixture[str], source: str
) -> None:
    assert main(["run", str(MODULE), "--quick-compile", "--data", source]) == 1
    assert capsys.readouterr().err.count("error:") == 1


# ---- losses that are no numbers ----


def run_guarded(
    folder: Path | None, bad: set[int], steps: int = 8
) -> tuple[list[bytes], list[int]]:
    """A run in which the results of some steps are not to count: its state, and the steps run."""
    seen: list[int] = []
    ends: list[list[bytes]] = []

    def inspect(run: Run, step: int, outputs: Outputs) -> None:
        seen.append(step)
        if step in bad:
            raise LeaveOut("it is bad")

    done = run_steps(
        lambda attempt: start(folder, every=3, background=False) if folder else start(),
        lambda run: run.load(inputs()),
        steps,
        feed=lambda step: {2: inputs(step)[2]},
        inspect=inspect,
        finish=lambda run: ends.append(state_of(run)),
        recovery=Recovery(folder),
    )
    assert done == steps
    return ends[0], seen


def without(bad: set[int], steps: int = 8) -> list[bytes]:
    """The state after all other steps."""
    with start() as run:
        run.load(inputs())
        for step in range(steps):
            if step not in bad:
                run.step({2: inputs(step)[2]})
        return state_of(run)


def test_steps_that_are_left_out_leave_no_trace(tmp_path: Path) -> None:
    state, seen = run_guarded(tmp_path, {4, 5})
    assert state == without({4, 5})
    assert seen == [0, 1, 2, 3, 4, 3, 5, 3, 6, 7]  # back to the checkpoint of three steps
    assert [step for step, _ in checkpoints(tmp_path)] == [3, 6]
    assert run_guarded(None, {0, 2})[0] == without({0, 2})


def test_three_bad_steps_in_a_row_are_an_error() -> None:
    with pytest.raises(UserError, match=r"steps 4 to 6 would all be left out.*damaged already"):
        run_guarded(None, {4, 5, 6})


def test_what_is_not_finite_is_reported_or_ends_the_run_or_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.ones((16 * 5, 8), np.float32)
    rows[16 * 2 + 3, 4] = np.inf
    np.savez(tmp_path / "a.npz", x=rows, t=np.ones((16 * 5, 4), np.float32))
    run = ("run", str(MODULE), "--quick-compile", "--steps", "5", "--data", f"{tmp_path}/a.npz")
    assert main([*run]) == 0
    captured = capsys.readouterr()
    assert "nan" in steps_of(captured.out)[4]
    assert captured.err.startswith("warning: step 3: loss is nan\nwarning: step 4: loss is nan\n")
    assert main([*run, "--nonfinite", "stop", "--checkpoint-dir", f"{tmp_path}/a"]) == 1
    captured = capsys.readouterr()
    assert len(steps_of(captured.out)) == 3
    # Step 2 has a good loss and leaves state that is none: no checkpoint is made of that.
    assert captured.err.splitlines() == [
        "warning: cannot write the checkpoint of step 3: 'w0' has values that are not finite; the "
        "run goes on without it",
        "shardopt: error: step 3: loss is nan",
    ]
    assert [step for step, _ in checkpoints(tmp_path / "a")] == [1, 2]
    metrics = tmp_path / "metrics.jsonl"
    skip = ("--nonfinite", "skip", "--checkpoint-dir", f"{tmp_path}/b", "--metrics", str(metrics))
    assert main([*run, *skip]) == 0
    captured = capsys.readouterr()
    assert "nan" not in captured.out
    assert [line for line in captured.err.splitlines() if "is left out" in line] == [
        "warning: step 3 is left out: loss is nan; the steps before it run again",
        "warning: step 2 is left out instead of step 3: it leaves 'w0' with values that are not "
        "finite; the steps before it run again",
    ]
    table = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in table] == [0, 1, 2, 3, 4]
    assert all(row["loss"] > 0 and row["seconds"] > 0 for row in table)


def test_metrics_become_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As TensorBoard reads them; a run that goes on adds to them, and a loss of NaN is left out."""
    rows = np.ones((16 * 5, 8), np.float32)
    rows[16 * 2 + 3, 4] = np.inf
    np.savez(tmp_path / "a.npz", x=rows, t=np.ones((16 * 5, 4), np.float32))
    run = ("run", str(MODULE), "--quick-compile", "--data", f"{tmp_path}/a.npz")
    board = ("--tensorboard", f"{tmp_path}/board", "--checkpoint-dir", f"{tmp_path}/saved")
    metrics = ("--metrics", f"{tmp_path}/metrics.jsonl")
    assert main([*run, *board, *metrics, "--steps", "2"]) == 0
    assert main([*run, *board, *metrics, "--steps", "4", "--resume"]) == 0
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    expected = {}
    for row in lines:
        for group in ("busy", "device_bytes", "process_bytes"):
            row |= {f"{group}/{name}": value for name, value in row.pop(group).items()}
        expected |= {
            (name, row["step"]): pytest.approx(value, rel=1e-5, abs=1e-4)
            for name, value in row.items()
            if name not in ("step", "time") and value is not None
        }
    found = curves(tmp_path / "board")
    assert found == expected
    assert len({key for key in found if key[0] in ("loss", "seconds")}) == 7
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    capsys.readouterr()
    assert main([*run, *board]) == 1
    assert "needs tensorboardX: pip install 'shardopt[tensorboard]'" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["local", pytest.param("process", marks=pytest.mark.slow)])
def test_metrics_are_those_of_the_trace(tmp_path: Path, backend: str) -> None:
    """Shares of a step in which a mesh computed, beside the boxes of the trace; bytes, beside what
    the program says; tokens, by name."""
    trace, metrics = tmp_path / "trace.json", tmp_path / "metrics.jsonl"
    run = ("run", str(MODULE), "--quick-compile", "--steps", "3", "--backend", backend)
    assert main([*run, "--trace", str(trace), "--metrics", str(metrics), "--tokens", "x"]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    named = [each for each in events if each["ph"] == "M"]
    meshes = {
        each["pid"]: each["args"]["name"].removeprefix("mesh ")
        for each in named
        if each["name"] == "process_name"
    }
    rows = {(each["pid"], each.get("tid")): each["args"]["name"] for each in named}
    computed: dict[tuple[str, int], float] = {}
    for each in events:
        if each["ph"] == "X" and rows[each["pid"], each["tid"]] == "compute":
            key = meshes[each["pid"]], each["args"]["step"]
            computed[key] = computed.get(key, 0.0) + each["dur"] * 1e-6
    table = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in table] == [0, 1, 2]
    bytes_at_end = {part.mesh.name: mesh_memory(part).after[-1] for part in example().meshes}
    for row in table:
        assert row["tokens_per_second"] == pytest.approx(16 * 8 / row["seconds"], rel=1e-4)
        for mesh, share in row["busy"].items():
            assert 0 < share <= 1
            busy = min(computed[mesh, row["step"]], row["seconds"])
            assert share * row["seconds"] == pytest.approx(busy, rel=1e-3, abs=1e-4)
        assert row["device_bytes"] == bytes_at_end
        workers = {"m0", "m1"} if backend == "process" else set()
        assert row["process_bytes"].keys() == {"driver"} | workers
        assert min(row["process_bytes"].values()) > 1 << 24


def test_tokens_are_counted_or_named(capsys: pytest.CaptureFixture[str]) -> None:
    program = example()
    assert tokens_per_step(program, None) is None  # x and t are floats
    assert tokens_per_step(program, "4096") == 4096
    assert tokens_per_step(program, "t") == 16 * 4 and tokens_per_step(program, "in2") == 16 * 8
    types = {"w1": "int32", "x": "int32", "t": "int64"}  # w1 is state
    arguments = tuple(
        replace(each, value=replace(each.value, spec=replace(each.value.spec, dtype=dtype)))
        if (dtype := types.get(each.name))
        else each
        for each in program.arguments
    )
    assert tokens_per_step(replace(program, arguments=arguments), None) == 16 * 8
    assert main(["run", str(MODULE), "--quick-compile", "--tokens", "nothing"]) == 1
    assert "--tokens: expected a number of tokens a step, or" in capsys.readouterr().err


@pytest.mark.slow
def test_a_mesh_that_is_slower_than_planned_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of two meshes of a small GPT, of which one seems to take 100 times as long as it does.
    Its tokens are counted without a word."""
    artifact, values = MODELS["gpt"]()
    options = {"microbatches": 2, "stages": 2, "batch_args": batch_args("gpt")}
    plan = make_plan(artifact, PlanOptions("cpu-test:1x2", **options))
    plan.save(tmp_path / "plan")
    usage_of_run = Run.usage

    def usage(run: Run) -> dict[str, Usage]:
        slow = run.program.meshes[1].mesh.name
        return {
            worker: replace(each, task_seconds=each.task_seconds * (100 if worker == slow else 1))
            for worker, each in usage_of_run(run).items()
        }

    monkeypatch.setattr(Run, "usage", usage)
    run = ("run", str(tmp_path / "plan"), "--quick-compile", "--steps", "20")
    assert main([*run, "--metrics", str(tmp_path / "metrics.jsonl")]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "as predicted" in line]
    assert len(warnings) == 1 and re.match(r"warning: step 15: mesh '\w+' computes ", warnings[0])
    tokens = max(each.size for each in values if each.dtype == np.int32 and each.ndim == 2)
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["tokens_per_second"] == pytest.approx(tokens / row["seconds"], rel=1e-4)


def curves(folder: Path) -> dict[tuple[str, int], float]:
    """By name and step; each event is a record of its length, a checksum, itself, and another."""
    from tensorboardX.proto.event_pb2 import Event

    values = {}
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:
            end = 12 + int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12:end])
            values |= {(each.tag, event.step): each.simple_value for each in event.summary.value}
            data = data[end + 4 :]
    return values


def test_state_that_is_not_finite_becomes_no_checkpoint(tmp_path: Path) -> None:
    notices: list[str] = []
    with start(tmp_path, every=1, finite=True, notice=notices.append) as run:
        run.load(inputs())
        run.step()
        run.step({3: np.full((16, 4), np.nan, np.float32)})
    assert [step for step, _ in checkpoints(tmp_path)] == [1]
    assert len(notices) == 1 and "step 2: 'w" in notices[0] and "not finite" in notices[0]


# ---- runs that fail ----


@pytest.mark.parametrize(
    ("backend", "kind", "left"),
    [
        ("local", "raise", {"m0", "m1"}),
        pytest.param("process", "raise", {"m0", "m1"}, marks=pytest.mark.slow),
        pytest.param("process", "kill", {"m0"}, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_fails_leaves_its_trace(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    kind: str,
    left: set[str],
) -> None:
    """Of the workers that are left, with the instructions before the one that failed."""
    program = example()
    (position,) = (
        k
        for k, each in enumerate(program.meshes[1].instructions)
        if isinstance(each, RunInstruction) and each.label.startswith("update")
    )
    fault = Fault(kind, "m1", host=0, step=2, position=position)
    monkeypatch.setattr(driver, "open_run", partial(open_run, faults=[fault]))
    trace = tmp_path / "trace.json"
    run = ("run", str(MODULE), "--quick-compile", "--steps", "4", "--backend", backend)
    assert main([*run, "--trace", str(trace)]) == 3
    captured = capsys.readouterr()
    assert captured.err.count("error:") == 1 and "step 2" in captured.err
    assert len(steps_of(captured.out)) == 2
    boxes = [each for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "X"]
    named = {
        each["pid"]: each["args"]["name"].removeprefix("mesh ")
        for each in json.loads(trace.read_text())["traceEvents"]
        if each["name"] == "process_name"
    }
    assert set(named.values()) == left
    reached = {(named[each["pid"]], each["args"]["step"]) for each in boxes}
    assert reached == {(mesh, step) for mesh in left for step in range(3)}
    last = [
        each["args"]["instruction"]
        for each in boxes
        if (named[each["pid"]], each["args"]["step"]) == ("m1", 2)
    ]
    assert not last or max(last) == position - 1


def test_what_cannot_be_shown_of_a_failed_run_hides_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault("raise", "m1", host=0, step=0, position=0)
    monkeypatch.setattr(driver, "open_run", partial(open_run, faults=[fault]))
    monkeypatch.setattr(Run, "spans", lambda self: 1 / 0)
    run = ("run", str(MODULE), "--quick-compile", "--trace", str(tmp_path / "trace.json"))
    assert main([*run]) == 3
    warning, error = capsys.readouterr().err.splitlines()
    assert warning == "warning: the failed run cannot be shown: division by zero"
    assert error.startswith("shardopt: error: mesh 'm1'") and "injected fault" in error


# ---- checkpoints beside steps ----


def test_a_checkpoint_in_the_background_has_the_state_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow: steps go on meanwhile, and what is written is what was when it began."""
    add = shard_files.ShardWriter.add

    def slow(self: shard_files.ShardWriter, *arguments: object) -> object:
        time.sleep(0.3)
        return add(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shard_files.ShardWriter, "add", slow)
    states: dict[int, list[bytes]] = {}
    complete: list[int] = []
    with start(tmp_path, every=4, keep=9) as run:
        run.load(inputs())
        for step in range(1, 7):
            run.step({2: inputs(step)[2]})
            states[step] = state_of(run)
            complete.append(len(checkpoints(tmp_path)))
    assert complete == [0] * 6
    with start() as run:
        run.load(inputs())
        run.restore(tmp_path)
        assert run.steps_done == 4 and state_of(run) == states[4]


def test_a_full_disk_costs_a_checkpoint_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    full = [False]
    add = shard_files.ShardWriter.add

    def maybe(self: shard_files.ShardWriter, *arguments: object) -> object:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return add(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shard_files.ShardWriter, "add", maybe)
    with start(tmp_path, every=1, background=False, notice=notices.append) as run:
        run.load(inputs())
        for step in range(4):
            full[0] = step in (1, 2)
            run.step()
        full[0] = True
        with pytest.raises(UserError, match="No space left on device"):
            run.save(tmp_path / "alone")
        run.step({2: inputs(1)[2]})  # no harm done
    assert [step for step, _ in checkpoints(tmp_path)] == [1, 4]
    assert len(notices) == 3 and "No space left on device" in notices[0]
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".lock"]


def test_a_folder_without_manifest_is_named_and_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "step-000000000002").mkdir()
    (tmp_path / "step-000000000002" / "m0.bin").write_bytes(b"half")
    notices: list[str] = []
    with start(tmp_path, every=1, notice=notices.append) as run:
        run.load(inputs())
        for _ in range(3):
            run.step()
    assert [step for step, _ in checkpoints(tmp_path)] == [1, 2, 3]
    assert notices == [
        f"'{tmp_path}/step-000000000002' has no manifest: it is no checkpoint, and left out"
    ]
    [aside] = tmp_path.glob("incomplete-*")
    assert (aside / "m0.bin").read_bytes() == b"half"


# ---- stopping ----


def test_a_limit_of_time_saves_and_has_an_exit_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("run", str(MODULE), "--quick-compile", "--steps", "100000", "--max-seconds", "0.001")
    assert main([*run, "--checkpoint-dir", str(tmp_path), "--checkpoint-every", "100000"]) == 4
    captured = capsys.readouterr()
    assert (
        "note: stopped after 0 of 100000 steps (0.001 s are over); its state is saved"
        in captured.err
    )
    [(step, _)] = checkpoints(tmp_path)
    assert step == len(steps_of(captured.out))
    assert main([*run, "--checkpoint-dir", str(tmp_path), "--resume"]) == 4
    assert f"stopped after {step} of" in capsys.readouterr().err
    assert [step for step, _ in checkpoints(tmp_path)] == [step]


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_lets_the_step_end_and_saves(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    code: int,
) -> None:
    step = Run.step

    def signalled(self: Run, *arguments: object, **keywords: object) -> Outputs:
        if self.steps_done == 2:
            os.kill(os.getpid(), signal.Signals[name])
        return step(self, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(Run, "step", signalled)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run = ("run", str(MODULE), "--quick-compile", "--steps", "9", "--checkpoint-dir", str(tmp_path))
    assert main([*run, "--checkpoint-every", "9"]) == code
    captured = capsys.readouterr()
    assert sorted(steps_of(captured.out)) == [0, 1, 2]
    assert f"stopped after 3 of 9 steps ({name}); its state is saved" in captured.err
    assert [step for step, _ in checkpoints(tmp_path)] == [3]
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_a_second_interruption_ends_the_run_at_once() -> None:
    stopping = Stopping(None)
    with stopping.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.asked() and stopping.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)


def test_an_older_checkpoint_can_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("run", str(MODULE), "--quick-compile", "--steps", "4")
    assert main([*run, "--checkpoint-dir", str(tmp_path / "a"), "--keep-checkpoints", "9"]) == 0
    whole = steps_of(capsys.readouterr().out)
    source = ("--resume-from", str(tmp_path / "a" / "step-000000000002"))
    assert main([*run, *source, "--checkpoint-dir", str(tmp_path / "b")]) == 0
    assert steps_of(capsys.readouterr().out) == {step: whole[step] for step in (2, 3)}
    assert main([*run, *source, "--resume", "--checkpoint-dir", str(tmp_path / "b")]) == 1
    assert "leave one of them out" in capsys.readouterr().err


assert sys.modules[__name__].batches is batches  # `--data` imports this module by its name
