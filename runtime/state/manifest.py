"""The manifest of a checkpoint: which arrays, in which slices, in which bytes of which files, with
which checksums.

    {"format": "shardopt-checkpoint", "version": 3, "step": 12, "block_bytes": 1048576,
     "model": "text-sha256:9f2c…",
     "arrays": [{"name": "params['w']", "shape": [8, 4], "dtype": "bfloat16",
                 "shards": [{"slice": [[0, 4], [0, 4]], "file": "m0.bin", "offset": 0, "crc32":
                 [2774130291]}, …]}, …],
     "crc32": 1234567890}

A file holds shards one after the other: little-endian elements in row-major order. A checksum
covers each block of `block_bytes` of a shard, so that a reader of a part checks what it reads; the
last entry covers the manifest itself."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from shardopt.dialect.dtypes import MLIR_NAMES, numpy_dtype
from shardopt.forms.exported_program import Slice
from shardopt.runtime.state.places import Place, read_text
from shardopt.support.errors import UserError

MANIFEST_NAME = "manifest.json"
# A reader of a small slice reads at most two of these too much; checksums stay one in a million.
BLOCK_BYTES = 1 << 20
# Version 2 has no model; version 1, besides, calls the slice of a shard its box.
_FORMAT, _VERSION, _VERSIONS = "shardopt-checkpoint", 3, (1, 2, 3)
_FIELDS = ("format", "version", "step", "block_bytes", "arrays", "crc32")


@dataclass(frozen=True)
class StoredShard:
    """A slice of the array: from `offset` on in `file`, with a checksum for each block."""

    slice: Slice
    file: str
    offset: int
    checksums: tuple[int, ...]


@dataclass(frozen=True)
class StoredArray:
    name: str
    shape: tuple[int, ...]
    dtype: str
    shards: tuple[StoredShard, ...]


@dataclass(frozen=True)
class Manifest:
    """`step` is the number of steps that were done when the state was written, `model` the
    fingerprint of the model whose state it is, or ""."""

    step: int
    arrays: tuple[StoredArray, ...]
    model: str = ""

    def array(self, name: str) -> StoredArray | None:
        return next((array for array in self.arrays if array.name == name), None)


def shard_bytes(slice_: Slice, dtype: str) -> int:
    return prod(limit - start for start, limit in slice_) * numpy_dtype(dtype).itemsize


def block_count(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def manifest_text(manifest: Manifest) -> str:
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "step": manifest.step,
        "block_bytes": BLOCK_BYTES,
        "model": manifest.model,
        "arrays": [_array_json(array) for array in manifest.arrays],
    }
    return json.dumps({**content, "crc32": _checksum(content)}) + "\n"


def read_manifest(folder: Place) -> Manifest:
    """The manifest of a checkpoint, fully checked. Raises UserError that names the file and what is
    wrong with it."""
    path = folder / MANIFEST_NAME
    try:
        return _parse(json.loads(read_text(path)))
    except OSError as error:
        raise UserError(f"cannot read checkpoint '{path}': {error.strerror or error}") from error
    except RecursionError as error:
        raise UserError(
            f"checkpoint '{path}': expected a manifest, found deeply nested JSON"
        ) from error
    except ValueError as error:  # also of JSON and UTF-8
        raise UserError(f"checkpoint '{path}': {error}") from error


def _array_json(array: StoredArray) -> dict[str, Any]:
    shards = [
        {"slice": [list(extent) for extent in each.slice], "file": each.file, "offset": each.offset}
        | {"crc32": list(each.checksums)}
        for each in array.shards
    ]
    return {"name": array.name, "shape": list(array.shape), "dtype": array.dtype, "shards": shards}


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _parse(document: Any) -> Manifest:
    version = document.get("version") if isinstance(document, dict) else None
    has_model = version not in (1, 2)
    fields = _fields(document, "manifest", (*_FIELDS, "model") if has_model else _FIELDS)
    for name, known in (("format", _FORMAT), ("block_bytes", BLOCK_BYTES)):
        if fields[name] != known or type(fields[name]) is not type(known):
            raise ValueError(f"expected {name} {known!r}, found {fields[name]!r}")
    if type(version) is not int or version not in _VERSIONS:
        raise ValueError(f"expected version {_VERSION}, 2 or 1, found {version!r}")
    model = fields["model"] if has_model else ""
    if not isinstance(model, str):
        raise ValueError(f"expected a model's fingerprint, found {model!r}")
    listed = _list(fields["arrays"], "arrays")
    arrays = tuple(map(_array, _of_version_1(listed) if version == 1 else listed))
    names = [array.name for array in arrays]
    if len(set(names)) != len(names):
        raise ValueError("two arrays have one name")
    checksum = _natural(fields["crc32"], "crc32")
    expected = _checksum({name: value for name, value in fields.items() if name != "crc32"})
    if checksum != expected:
        raise ValueError(
            f"its checksum is {checksum}, its contents give {expected}: it was damaged or edited"
        )
    return Manifest(_natural(fields["step"], "step"), arrays, model)


def _of_version_1(arrays: list[Any]) -> list[Any]:
    """Arrays of version 1 with the names of version 2; what is none stays as it is."""
    return [
        {**array, "shards": list(map(_shard_of_version_1, array["shards"]))}
        if isinstance(array, dict) and isinstance(array.get("shards"), list)
        else array
        for array in arrays
    ]


def _shard_of_version_1(shard: Any) -> Any:
    if not isinstance(shard, dict):
        return shard
    return {"slice" if name == "box" else name: value for name, value in shard.items()}


def _array(value: Any) -> StoredArray:
    fields = _fields(value, "array", ("name", "shape", "dtype", "shards"))
    name, dtype = fields["name"], fields["dtype"]
    if not isinstance(name, str):
        raise ValueError(f"expected an array's name, found {name!r}")
    where = f"array '{name}'"
    if not isinstance(dtype, str) or dtype not in MLIR_NAMES:
        raise ValueError(f"{where}: unknown dtype {dtype!r}")
    shape = tuple(
        _natural(extent, f"{where}: extent") for extent in _list(fields["shape"], f"{where}: shape")
    )
    shards = tuple(
        _shard(each, shape, dtype, where) for each in _list(fields["shards"], f"{where}: shards")
    )
    _check_cover(shards, shape, where)
    return StoredArray(name, shape, dtype, shards)


def _shard(value: Any, shape: tuple[int, ...], dtype: str, where: str) -> StoredShard:
    fields = _fields(value, f"{where}: shard", ("slice", "file", "offset", "crc32"))
    extents = [
        _list(extent, f"{where}: slice") for extent in _list(fields["slice"], f"{where}: slice")
    ]
    if len(extents) != len(shape) or any(len(extent) != 2 for extent in extents):
        raise ValueError(
            f"{where}: expected a slice of {len(shape)} pairs, found {fields['slice']!r}"
        )
    slice_ = tuple(
        (_natural(start, f"{where}: slice"), _natural(limit, f"{where}: slice"))
        for start, limit in extents
    )
    if any(
        not start <= limit <= extent for (start, limit), extent in zip(slice_, shape, strict=True)
    ):
        raise ValueError(f"{where}: slice {fields['slice']!r} is outside of shape {list(shape)}")
    file = fields["file"]
    if (
        not isinstance(file, str)
        or not file
        or file.startswith(".")
        or "/" in file
        or "\\" in file
        or "\0" in file
    ):
        raise ValueError(
            f"{where}: expected the name of a file in the checkpoint's folder, found {file!r}"
        )
    checksums = tuple(
        _natural(each, f"{where}: crc32") for each in _list(fields["crc32"], f"{where}: crc32")
    )
    expected = block_count(shard_bytes(slice_, dtype))
    if len(checksums) != expected:
        raise ValueError(
            f"{where}: expected {expected} checksums for slice {fields['slice']!r}, found "
            f"{len(checksums)}"
        )
    return StoredShard(slice_, file, _natural(fields["offset"], f"{where}: offset"), checksums)


def _check_cover(shards: tuple[StoredShard, ...], shape: tuple[int, ...], where: str) -> None:
    """Every element in exactly one shard: the volumes add up, and no two slices meet."""
    volume = sum(prod(limit - start for start, limit in shard.slice) for shard in shards)
    if volume != prod(shape):
        raise ValueError(
            f"{where}: its shards hold {volume} elements, its shape {list(shape)} has {prod(shape)}"
        )
    bounds = np.array([shard.slice for shard in shards], np.int64).reshape(
        len(shards), len(shape), 2
    )
    for number in range(1, len(bounds)):
        low = np.maximum(bounds[number, :, 0], bounds[:number, :, 0])
        high = np.minimum(bounds[number, :, 1], bounds[:number, :, 1])
        if np.any(np.all(low < high, axis=1)):
            raise ValueError(f"{where}: two of its shards overlap")


def _fields(value: Any, what: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        fields = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"expected a {what} with {', '.join(names)}, found {fields}")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list for {what}, found {value!r}")
    return value


def _natural(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"expected a number for {what}, found {value!r}")
    return value
