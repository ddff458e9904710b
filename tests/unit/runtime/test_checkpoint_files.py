"""Checkpoint files: any slice of what was written under one sharding comes back, damage is one error,
and nothing that is half written is seen."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.dialect.dtypes import MLIR_NAMES, numpy_dtype
from shardopt.forms.exported_program import Slice, TensorSpec
from shardopt.forms.reshard_steps import tiles_by_device
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.state.checkpoint_folder import CheckpointFolder, checkpoints, find_checkpoint
from shardopt.runtime.state.initializers import Initializer, fill, full, normal, uniform
from shardopt.runtime.state.manifest import (
    MANIFEST_NAME,
    Manifest,
    StoredArray,
    manifest_text,
    read_manifest,
)
from shardopt.runtime.state.ownership import owned_slices
from shardopt.runtime.state.shard_files import ShardWriter, read_slice
from shardopt.support.errors import UserError
from tests.draws import draws

AXES = ("x", "y", "z")


@st.composite
def placements(draw: Any) -> tuple[Mesh, Sharding]:
    """A mesh of up to 8 devices, and a sharding of three dimensions over its axes."""
    sizes = draw(st.sampled_from([(1,), (2,), (4,), (2, 2), (3,), (2, 3), (2, 2, 2), (1, 4)]))
    axes = tuple(zip(AXES, sizes, strict=False))
    dims: list[list[str]] = [[], [], []]
    for name, _ in draw(st.permutations(axes)):
        where = draw(st.integers(0, 3))
        if where < 3:
            dims[where].append(name)
    count = int(np.prod(sizes))
    return Mesh("m", axes, tuple(range(count))), Sharding(tuple(map(tuple, dims)))


def write(
    folder: Path, name: str, whole: np.ndarray, mesh: Mesh, sharding: Sharding, hosts: int = 1
) -> StoredArray:
    """As the workers of `hosts` hosts would write it."""
    spec = TensorSpec(whole.shape, whole.dtype.name, sharding)
    owned, chunks = owned_slices(mesh, spec, turn=3), []
    per_host = max(1, mesh.size // hosts)
    for host in range(0, mesh.size, per_host):
        with ShardWriter(folder, f"{name}.{host}.bin") as writer:
            slices = [slice_ for position, slice_ in owned if host <= position < host + per_host]
            chunks += [writer.add(slice_, whole[_slices(slice_)]) for slice_ in slices]
    return StoredArray(name, whole.shape, whole.dtype.name, tuple(chunks))


def _slices(slice_: Slice) -> tuple[slice, ...]:
    return tuple(slice(*extent) for extent in slice_)


@settings(max_examples=draws(60), deadline=None)
@given(
    placements(),
    placements(),
    st.sampled_from(sorted(MLIR_NAMES)),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_what_one_placement_writes_another_reads(
    tmp_path_factory: pytest.TempPathFactory,
    source: tuple[Mesh, Sharding],
    target: tuple[Mesh, Sharding],
    dtype: str,
    hosts: int,
    seed: int,
) -> None:
    """Bit for bit, through a manifest, with blocks so small that slices begin and end inside
    them."""
    folder = tmp_path_factory.mktemp("checkpoint")
    item = numpy_dtype(dtype)
    bits = np.random.default_rng(seed).integers(
        0, 2 if dtype == "bool" else 256, (12, 24, 12 * item.itemsize), np.uint8
    )
    whole = bits.view(item)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("manifest", "shard_files"):
            patch.setattr(f"shardopt.runtime.state.{module}.BLOCK_BYTES", 100)
        stored = write(folder, "w", whole, *source, hosts)
        (folder / MANIFEST_NAME).write_text(manifest_text(Manifest(5, (stored,))))
        manifest = read_manifest(folder)
        assert manifest == Manifest(5, (stored,))
        for slice_ in tiles_by_device(
            target[0], TensorSpec(whole.shape, dtype, target[1])
        ).values():
            tile = read_slice(folder, manifest.arrays[0], slice_)
            assert (
                tile.dtype == item
                and tile.tobytes() == np.ascontiguousarray(whole[_slices(slice_)]).tobytes()
            )
    written = sum(path.stat().st_size for path in folder.glob("*.bin"))
    assert whole.nbytes <= written < whole.nbytes + 64 * len(stored.shards)  # replicas once


def test_a_slice_reads_only_the_blocks_that_it_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("manifest", "shard_files"):
        monkeypatch.setattr(f"shardopt.runtime.state.{module}.BLOCK_BYTES", 64)
    whole = np.arange(32 * 8, dtype=np.float32).reshape(32, 8)
    stored = write(tmp_path, "w", whole, Mesh("m", (("x", 1),), (0,)), Sharding(((), ())))
    path = tmp_path / stored.shards[0].file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the last block, that of rows 30 and 31
    path.write_bytes(data)
    np.testing.assert_array_equal(read_slice(tmp_path, stored, ((3, 29), (2, 5))), whole[3:29, 2:5])
    with pytest.raises(
        UserError,
        match=r"w\.0\.bin': 'w' is damaged at byte 960: the data do not have their checksum",
    ):
        read_slice(tmp_path, stored, ((3, 31), (2, 5)))
    path.write_bytes(data[:-40])
    with pytest.raises(UserError, match=r"w\.0\.bin': 'w' ends 40 bytes too early"):
        read_slice(tmp_path, stored, ((31, 32), (0, 1)))
    path.unlink()
    with pytest.raises(UserError, match=r"w\.0\.bin': cannot read 'w': No such file"):
        read_slice(tmp_path, stored, ((31, 32), (0, 1)))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)], ids=str)
def test_scalars_and_empty_arrays(tmp_path: Path, shape: tuple[int, ...]) -> None:
    whole = np.full(shape, 7, np.int64)
    mesh = Mesh("m", (("x", 2),), (0, 1))
    stored = write(tmp_path, "s", whole, mesh, Sharding.replicated(len(shape)), hosts=2)
    (tmp_path / MANIFEST_NAME).write_text(manifest_text(Manifest(0, (stored,))))
    slice_ = tuple((0, extent) for extent in shape)
    np.testing.assert_array_equal(
        read_slice(tmp_path, read_manifest(tmp_path).arrays[0], slice_), whole
    )


def test_a_checkpoint_of_version_1_is_read() -> None:
    """One that is kept here, of float32[4,6] by two hosts."""
    folder = Path(__file__).parent / "files" / "checkpoint-version-1"
    assert json.loads((folder / MANIFEST_NAME).read_text())["version"] == 1
    manifest = read_manifest(folder)
    (stored,) = manifest.arrays
    assert manifest.step == 3 and [shard.slice[0] for shard in stored.shards] == [(0, 2), (2, 4)]
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(read_slice(folder, stored, ((1, 3), (0, 6))), whole[1:3])


def test_a_manifest_of_version_2_has_no_model(tmp_path: Path) -> None:
    mesh = Mesh("m", (("x", 2),), (0, 1))
    stored = write(tmp_path, "w", np.arange(6), mesh, Sharding((("x",),)))
    path = tmp_path / MANIFEST_NAME
    path.write_text(manifest_text(Manifest(3, (stored,), "text-sha256:12")))
    assert read_manifest(tmp_path) == Manifest(3, (stored,), "text-sha256:12")
    document = json.loads(path.read_text())
    content = {name: value for name, value in document.items() if name not in ("model", "crc32")}
    content["version"] = 2
    checksum = zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps({**content, "crc32": checksum}))
    assert read_manifest(tmp_path) == Manifest(3, (stored,))


def _mutations(document: Any, draw: Any) -> Any:
    """One value anywhere in the document replaced by one of another type or size, or dropped."""
    paths: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in (
            list(node)
            if isinstance(node, dict)
            else range(len(node))
            if isinstance(node, list)
            else ()
        ):
            paths.append((node, key))
            walk(node[key])

    walk(document)
    node, key = draw(st.sampled_from(paths))
    other = draw(
        st.sampled_from([None, -1, 1 << 70, 1.5, "../x", [], {}, True, [[]], "float32", 0, 1, 2])
    )
    if other == node[key] and type(other) is type(node[key]):
        other = "else"
    if isinstance(node, dict) and draw(st.booleans()):
        del node[key]
    else:
        node[key] = other
    return document


@settings(max_examples=draws(120), deadline=None)
@given(st.data())
def test_damaged_manifests_are_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    mesh = Mesh("m", (("x", 2),), (0, 1))
    stored = write(folder, "w", whole, mesh, Sharding((("x",), ())), hosts=2)
    text = manifest_text(Manifest(3, (stored, replace(stored, name="v"))))
    kind = data.draw(st.sampled_from(["value", "cut", "byte"]))
    if kind == "value":
        damaged = json.dumps(_mutations(json.loads(text), data.draw)).encode()
    elif kind == "cut":
        damaged = text.encode()[: data.draw(st.integers(0, len(text) - 3))]
    else:
        position = data.draw(st.integers(0, len(text) - 2))
        flipped = bytearray(text.encode())
        flipped[position] ^= data.draw(st.integers(1, 255))
        damaged = bytes(flipped)
    (folder / MANIFEST_NAME).write_bytes(damaged)
    try:
        same = read_manifest(folder) == Manifest(3, (stored, replace(stored, name="v")))
    except UserError as error:
        assert str(folder / MANIFEST_NAME) in str(error) and "\n" not in str(error)
    else:  # white space, or another way to write the same
        assert same and kind == "byte"


def _write_step(folder: CheckpointFolder, step: int) -> Path:
    writing = folder.begin(step)
    stored = write(
        writing, "w", np.full(6, step), Mesh("m", (("x", 2),), (0, 1)), Sharding((("x",),))
    )
    return folder.commit(writing, Manifest(step, (stored,)))


def test_the_newest_complete_checkpoint_counts_and_old_ones_go(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "runs" / "a", keep=2)
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        find_checkpoint(folder.folder)
    for step in (2, 4, 6):
        _write_step(folder, step)
    folder.begin(step)  # and die
    half = folder.folder / "step-000000000009"
    half.mkdir()
    assert [step for step, _ in checkpoints(folder.folder)] == [4, 6]
    assert find_checkpoint(folder.folder)[1].step == 6
    assert find_checkpoint(folder.folder / "step-000000000004")[1].step == 4
    with pytest.raises(UserError, match="another run writes its checkpoints to"):
        CheckpointFolder(folder.folder, keep=1)
    folder.close()
    again = CheckpointFolder(folder.folder, keep=2)
    assert not list(folder.folder.glob(".writing-*"))
    with pytest.raises(
        UserError, match=r"step-0+6' exists already: checkpoints are never overwritten"
    ):
        _write_step(again, 6)
    assert not list(folder.folder.glob(".writing-*"))
    again.close()


def test_a_file_that_the_driver_cannot_see_is_named(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    writing = folder.begin(1)
    stored = write(
        writing, "w", np.zeros(6), Mesh("m", (("x", 2),), (0, 1)), Sharding((("x",),)), hosts=2
    )
    (writing / "w.1.bin").unlink()
    with pytest.raises(
        UserError, match=r"w\.1\.bin' was written by a worker and cannot be seen here"
    ):
        folder.commit(writing, Manifest(1, (stored,)))
    assert checkpoints(tmp_path) == [] and not writing.exists()
    folder.close()


@settings(max_examples=draws(40), deadline=None)
@given(
    placements(),
    st.sampled_from(["float32", "bfloat16", "float8_e4m3fn", "int32", "bool"]),
    st.integers(0, 9),
)
def test_filled_values_do_not_depend_on_the_sharding(
    placement: tuple[Mesh, Sharding], dtype: str, seed: int
) -> None:
    spec = TensorSpec((12, 24, 12), dtype, placement[1])
    whole_slice = tuple((0, extent) for extent in spec.shape)
    for initializer in (uniform(0, 2, seed), normal(0.5, 0.1, seed), full(1)):
        whole = fill(initializer, "w", spec, whole_slice)
        assert whole.dtype == numpy_dtype(dtype)
        for slice_ in tiles_by_device(placement[0], spec).values():
            assert (
                fill(initializer, "w", spec, slice_).tobytes() == whole[_slices(slice_)].tobytes()
            )


def test_filled_values_have_the_distribution_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TensorSpec((400, 500), "float64", Sharding.replicated(2))
    slice_ = ((0, 400), (0, 500))
    flat = fill(uniform(-1, 3, 0), "w", spec, slice_)
    assert abs(flat.mean() - 1) < 0.02 and -1 <= flat.min() < -0.999 and 2.999 < flat.max() < 3
    bell = fill(normal(2, 3, 0), "w", spec, slice_)
    assert abs(bell.mean() - 2) < 0.03 and abs(bell.std() - 3) < 0.03
    assert abs(np.mean(np.abs(bell - 2) < 3) - 0.6827) < 0.005
    assert abs(np.corrcoef(bell[:, :-1].ravel(), bell[:, 1:].ravel())[0, 1]) < 0.01
    assert (
        abs(np.corrcoef(bell.ravel(), fill(normal(2, 3, 0), "v", spec, slice_).ravel())[0, 1])
        < 0.01
    )
    monkeypatch.setattr("shardopt.runtime.state.initializers._CHUNK_ELEMENTS", 700)
    np.testing.assert_array_equal(fill(normal(2, 3, 0), "w", spec, slice_), bell)
    scalar = TensorSpec((), "float64", Sharding(()))
    assert 0 <= fill(uniform(0, 1, 0), "s", scalar, ()) < 1
    with pytest.raises(UserError, match="unknown filling 'gamma': known are full, uniform, normal"):
        Initializer("gamma", 1)
