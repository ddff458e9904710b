"""Executables on disk: what is found again, what is made again, and functions that are compiled
once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from shardopt.caching.store import Store
from shardopt.runtime.devices import executables
from shardopt.runtime.devices.tiles import Tiling
from shardopt.runtime.devices.xla import Executable, XlaMesh
from tests.unit.runtime.test_runtime_program import build

PART = build().meshes[1]
UPDATE = next(each for each in PART.functions if each.name == "update_w1")


def updated(devices: XlaMesh, executable: Executable) -> np.ndarray:
    """w - 0.01 g of the example's update, by the executable."""
    values = [np.full(spec.shape, k + 1, np.float32) for k, spec in enumerate(UPDATE.arguments)]
    pairs = zip(values, UPDATE.arguments, strict=True)
    arrays = [devices.put(spec, Tiling(PART.mesh, spec).split(value)) for value, spec in pairs]
    outputs, token = executable(arrays)
    token.block_until_ready()
    return Tiling(PART.mesh, UPDATE.results[0]).join(devices.shards(outputs[0]))


def compile_update(store: Store | None, quick: bool = True) -> np.ndarray:
    devices = XlaMesh(PART.mesh)
    return updated(devices, devices.compile_all([UPDATE], quick=quick, store=store)["update_w1"])


def entries(store: Store) -> list[Path]:
    return sorted(path for path in store.folder.rglob("*") if path.is_file())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def test_what_was_compiled_is_found_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_update(store)
    (entry,) = entries(store)
    content = entry.read_bytes()
    monkeypatch.setattr(Store, "put", lambda *_: pytest.fail("compiled again"))
    again = compile_update(store)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first, 0.98, rtol=1e-6)
    assert entry.read_bytes() == content


@pytest.mark.parametrize("open_part", ["cache", "cache/executables"])
def test_machine_code_is_neither_read_nor_kept_where_others_may_write(
    store: Store, open_part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_update(store)
    assert all(path.stat().st_mode & 0o077 == 0 for path in store.folder.rglob("*"))
    executables._is_private.cache_clear()
    (store.folder.parent / open_part).chmod(0o777)
    monkeypatch.setattr(Store, "get", lambda *_: pytest.fail("read"))
    monkeypatch.setattr(Store, "put", lambda *_: pytest.fail("kept"))
    with pytest.warns(RuntimeWarning, match=f"not kept in .* may change '.*/{open_part}'"):
        np.testing.assert_allclose(compile_update(store), 0.98, rtol=1e-6)


def test_other_options_are_another_entry(store: Store) -> None:
    compile_update(store)
    # Tests run without most optimizations anyway, which in jaxlib 0.11 and later is all of quick.
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        compile_update(store, quick=False)
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
    assert len(entries(store)) == 2


@pytest.mark.parametrize("damage", ["checksum", "foreign", "empty"])
def test_damaged_and_foreign_entries_are_made_again(
    store: Store, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_update(store)
    (entry,) = entries(store)
    content, key = entry.read_bytes(), entry.name
    if damage == "foreign":
        store.put(executables.KIND, key, b"no executable at all")
    else:
        entry.write_bytes(b"" if damage == "empty" else content[:-5] + b"wrong")
    np.testing.assert_allclose(compile_update(store), 0.98, rtol=1e-6)
    monkeypatch.setattr(Store, "put", lambda *_: pytest.fail("made once more"))
    np.testing.assert_allclose(compile_update(store), 0.98, rtol=1e-6)


def test_without_a_store_nothing_is_kept_and_a_small_one_is_trimmed(store: Store) -> None:
    compile_update(None)
    assert entries(store) == []
    compile_update(replace(store, limit_bytes=10))
    assert entries(store) == []


def test_equal_functions_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    original = executables.load_or_compile

    def count(devices: list[Any], bytecode: bytes, *rest: Any) -> Any:
        made.append(bytecode)
        return original(devices, bytecode, *rest)

    monkeypatch.setattr("shardopt.runtime.devices.xla.load_or_compile", count)
    twin = replace(UPDATE, name="twin")
    compiled = XlaMesh(PART.mesh).compile_all([UPDATE, twin], quick=True)
    assert list(compiled) == ["update_w1", "twin"] and len(made) == 1


def test_the_first_failure_is_raised() -> None:
    def work(number: int) -> int:
        if number % 2:
            raise ValueError(f"{number}")
        return number

    assert executables.compiled_in_parallel(work, [0, 2, 4]) == [0, 2, 4]
    with pytest.raises(ValueError, match="1"):
        executables.compiled_in_parallel(work, [0, 1, 2, 3])
