"""Checkpoints in stores that have no renames and no locks: complete or not there, whatever dies and
whatever the store refuses."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardopt.runtime.driver import open_run
from shardopt.runtime.reference import compare
from shardopt.runtime.run import Run
from shardopt.runtime.state.checkpoint_folder import checkpoints
from shardopt.runtime.state.manifest import MANIFEST_NAME, read_manifest
from shardopt.runtime.state.periodic import CheckpointOptions
from shardopt.runtime.state.places import RemotePath, place
from shardopt.support.errors import UserError
from shardopt.tools.shardopt import main
from tests.e2e import wide_model
from tests.e2e.exported_model import example, inputs, load

MODULE = Path(__file__).parent / "exported_example.mlir"


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemotePath:
    """A folder of one's own that is not there yet."""
    name = f"/{secrets.token_hex(4)}" if request.param == "memory" else str(tmp_path / "store")
    return RemotePath(f"{request.param}://{name}")


def start(folder: RemotePath | None = None, **options: Any) -> Run:
    saved = None if folder is None else CheckpointOptions(folder, **options)
    return open_run(example(), quick_compile=True, checkpoints=saved)


def steps_in(folder: RemotePath) -> list[int]:
    return [step for step, _ in checkpoints(folder)]


def state_of(run: Run) -> list[bytes]:
    return [run.argument(number).tobytes() for number in (0, 1)]


def test_a_run_goes_on_from_a_store(store: RemotePath) -> None:
    with start() as run:
        run.load(inputs())
        states = []
        for step in range(6):
            run.step({2: inputs(step)[2]})
            states.append(state_of(run))
    with start(store, every=1, keep=2) as run:
        run.load(inputs())
        for step in range(4):
            run.step({2: inputs(step)[2]})
    assert steps_in(store) == [3, 4]
    assert len(store.names()) == 2, "older ones are gone, with all their files"
    with start(store, every=1) as run:
        run.load(inputs())
        run.restore(store)
        assert run.steps_done == 4 and state_of(run) == states[3]
        for step in (4, 5):
            run.step({2: inputs(step)[2]})
        assert state_of(run) == states[5]
    with start() as run:
        run.load(inputs())
        run.restore(str(store / "step-000000000004"))
        assert run.steps_done == 4 and state_of(run) == states[3]
        run.save(store / "alone")
        with pytest.raises(UserError, match="alone' exists already: checkpoints are never overwri"):
            run.save(store / "alone")
    assert read_manifest(store / "alone").step == 4, "what stood there stands"


def test_the_manifest_is_written_last_and_removed_first(
    store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    for name in ("create", "write", "remove"):
        original: Callable[..., object] = vars(RemotePath)[name]

        def noted(
            path: RemotePath,
            *arguments: object,
            name: str = name,
            method: Callable[..., object] = original,
        ) -> object:
            done.append((name, path.name))
            return method(path, *arguments)

        monkeypatch.setattr(RemotePath, name, noted)
    with start(store, every=1, keep=1) as run:
        run.load(inputs())
        for _ in range(2):
            run.step()
    written = [("create", "m"), ("create", "m"), ("write", MANIFEST_NAME)]
    removed = [("remove", MANIFEST_NAME), ("remove", "step-000000000001")]
    assert [(what, name[:1] if name.endswith(".bin") else name) for what, name in done] == [
        *written,
        *written,
        *removed,
    ]


@pytest.mark.parametrize("store", ["memory", "file"], indirect=True)
def test_what_a_dead_run_has_left_is_no_checkpoint_and_goes_with_the_next(
    store: RemotePath,
) -> None:
    left = store / "step-000000000002"
    left.make_folder()
    (left / "m0.0123.bin").write(b"half")
    notices: list[str] = []
    with start(store, every=1, keep=1, notice=notices.append) as run:
        run.load(inputs())
        run.step()
        run.step()
        state = state_of(run)
        run.settle_checkpoints()
        assert (left / "m0.0123.bin").is_file(), "a worker of the dead run may still write to it"
        assert steps_in(store) == [2]
        run.step()
    assert notices == [f"'{left}' has no manifest: it is no checkpoint, and left out"]
    assert store.names() == ["step-000000000003"] and state


def test_a_store_that_refuses_costs_a_checkpoint_and_no_run(
    store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries of stores have errors of their own kinds."""
    notices: list[str] = []
    refused = [""]
    store_of = RemotePath._store

    class Refusing:
        def __init__(self, store: object) -> None:
            self._store = store

        def __getattr__(self, name: str) -> object:
            if name == refused[0]:
                raise RuntimeError("SlowDown")
            return getattr(self._store, name)

    def refusing(path: RemotePath) -> tuple[object, str]:
        known, name = store_of(path)
        return Refusing(known), name

    monkeypatch.setattr(RemotePath, "_store", refusing)
    with start(store, every=1, keep=9, background=False, notice=notices.append) as run:
        run.load(inputs())
        for refused[0] in ("", "open", "pipe_file", "makedirs", ""):
            run.step()
    assert steps_in(store) == [1, 5]
    assert len(notices) == 3 and all("RuntimeError: SlowDown" in notice for notice in notices)
    assert not (store / "step-000000000002").is_file()


def test_damage_and_lack_are_one_error(store: RemotePath) -> None:
    with start() as run:
        run.load(inputs())
        run.save(store / "a")
        with pytest.raises(UserError, match=r"b' holds no complete checkpoint"):
            run.restore(store / "b")
        file = store / "a" / read_manifest(store / "a").arrays[0].shards[0].file
        content = file.read()
        file.write(content[:8] + bytes([content[8] ^ 1]) + content[9:])
    for damage, message in ((content[:40], "too early"), (None, "cannot read 'w0'")):
        with start() as run, pytest.raises(Exception, match=message):
            if damage is None:
                file.remove()
            else:
                file.write(damage)
            run.restore(store / "a")


@pytest.mark.slow
def test_hosts_write_to_one_store(tmp_path: Path) -> None:
    program, (w, k) = load(wide_model.TEXT), wide_model.inputs()
    store = RemotePath(f"file://{tmp_path}/store")
    saved = CheckpointOptions(store, every=1)
    options: dict[str, Any] = {
        "devices_per_host": wide_model.DEVICES_PER_HOST,
        "quick_compile": True,
    }
    with open_run(program, "process", checkpoints=saved, **options) as run:
        run.load([w, k])
        run.step()
    files = {
        shard.file[:6]
        for array in read_manifest(store / "step-000000000001").arrays
        for shard in array.shards
    }
    assert files == {"wide.0", "wide.1"}
    with open_run(program, "local", quick_compile=True) as run:
        run.load([w, k])
        run.restore(store)
        w = wide_model.expected_step(w, k)[0]
        assert all(row.within(1e-5) for row in compare(run.step(), wide_model.expected_step(w, k)))
    memory = CheckpointOptions(f"memory://{secrets.token_hex(4)}", every=1, background=False)
    with (
        open_run(program, "process", checkpoints=memory, **options) as run,
        pytest.raises(UserError, match="must be shared by all hosts"),
    ):
        run.load([w, k])
        run.step()


def test_the_tool_takes_addresses(
    store: RemotePath, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("run", str(MODULE), "--quick-compile", "--checkpoint-dir", str(store))
    assert main([*run, "--steps", "2"]) == 0
    assert main([*run, "--steps", "3", "--resume"]) == 0
    assert f"note: going on from '{store}/step-000000000002', at step 2" in capsys.readouterr().err
    assert steps_in(store) == [1, 2, 3]
    assert main(["run", str(MODULE), "--checkpoint-dir", "nosuch://a"]) == 1
    assert "error: 'nosuch://a': Protocol not known: nosuch" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main([*run]) == 1
    assert "needs fsspec: pip install 'shardopt[remote]'" in capsys.readouterr().err


def test_addresses_and_paths_are_told_apart() -> None:
    assert place("a/b") == Path("a/b") and place(Path("a")) == Path("a")
    assert place("s3://a/b") == RemotePath("s3://a/b") and place("c:/a") == Path("c:/a")
    assert (place("s3://a/b") / "c").name == "c"
