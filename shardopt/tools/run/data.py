"""`shardopt run --data`: what a step is given, by the number of the step.

Two sources: files with rows one after the other, arrays in .npz, columns in Parquet or features in
ArrayRecord, and a Python function that gives an iterator. Both can begin anywhere, so a run that
starts again is given what it was given before."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shardopt.support.errors import UserError
from shardopt.tools.run.inputs import as_dtype, numbers_by_name
from shardopt.tools.run.records import holds_records, record_parts

if TYPE_CHECKING:
    import numpy as np

    from shardopt.runtime.program.instructions import Program

_PARQUET = ".parquet"

Feed = Callable[[int], Mapping[int, "np.ndarray"]]


def open_data(source: str, program: Program, inputs: Sequence[np.ndarray]) -> Feed:
    """`module:function`, or a file or folder of .npz, .parquet or .array_record; `inputs` are
    arrays of the arguments' types. Raises UserError."""
    module, colon, function = source.partition(":")
    if colon and not Path(source).exists():
        return IteratorFeed(source, _function(module, function), program, inputs)
    path = Path(source)
    if not path.is_dir():
        return RowsFeed(_parts(path), program, inputs)
    files = sorted(each for each in path.iterdir() if _format(each) is not None)
    if len({_format(file) for file in files}) != 1:
        raise UserError(f"folder '{source}': expected .npz, .parquet or .array_record files")
    return RowsFeed([part for file in files for part in _parts(file)], program, inputs)


class IteratorFeed:
    """`function(step)` gives an iterator of batches from that step on. A batch is a mapping from
    names of arguments, or `in<k>`, to arrays."""

    def __init__(
        self,
        source: str,
        function: Callable[[int], Iterator[Any]],
        program: Program,
        inputs: Sequence[np.ndarray],
    ) -> None:
        self._source, self._function = source, function
        self._program, self._inputs = program, inputs
        self._next = -1
        self._batches: Iterator[Any] = iter(())

    def __call__(self, step: int) -> Mapping[int, np.ndarray]:
        if step != self._next:
            self._batches = iter(self._function(step))
        try:
            batch = next(self._batches)
        except StopIteration:
            raise UserError(f"--data: '{self._source}' has no batch for step {step}") from None
        self._next = step + 1
        if not isinstance(batch, Mapping):
            raise UserError(
                f"--data: expected a mapping from names of arguments to arrays from "
                f"'{self._source}', found {type(batch).__name__}"
            )
        numbers = argument_numbers([str(name) for name in batch], self._program, self._source)
        arrays = zip(numbers, batch.values(), strict=True)
        return {number: _fitting(array, self._inputs[number]) for number, array in arrays}


class _Part(Protocol):
    """Rows that are read at once: a file, or a piece of one."""

    @property
    def file(self) -> Path: ...

    def rows(self) -> dict[str, int]:
        """The rows of every array, of which nothing else is read. Raises UserError."""

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Raises UserError."""


class RowsFeed:
    """Rows of files, part after part, cut into batches as long as the arguments; from the beginning
    again when no whole batch is left."""

    def __init__(
        self, parts: Sequence[_Part], program: Program, inputs: Sequence[np.ndarray]
    ) -> None:
        self._parts, self._inputs = parts, inputs
        lengths = [part.rows() for part in parts]
        names = list(lengths[0])
        for part, rows in zip(parts, lengths, strict=True):
            if rows.keys() != lengths[0].keys() or len(set(rows.values())) != 1:
                raise UserError(
                    f"'{part.file}': expected arrays {', '.join(names)} of equally many rows, "
                    "found " + ", ".join(f"{name} of {count}" for name, count in rows.items())
                )
        first = str(parts[0].file)
        self._names = dict(zip(argument_numbers(names, program, first), names, strict=True))
        extents = {number: _extent(program, number) for number in self._names}
        if len(set(extents.values())) != 1:
            raise UserError(
                "--data: expected arguments with the same leading dimension, found "
                + ", ".join(f"{self._names[k]} of {extent}" for k, extent in extents.items())
            )
        self._batch = next(iter(extents.values()))
        self._ends = list(accumulate(next(iter(rows.values())) for rows in lengths))
        if self._ends[-1] < self._batch:
            raise UserError(
                f"--data: a batch has {self._batch} rows, all files together {self._ends[-1]}"
            )
        self._loaded: tuple[int, dict[str, np.ndarray]] = (-1, {})

    def __call__(self, step: int) -> Mapping[int, np.ndarray]:
        import numpy as np

        first = step % (self._ends[-1] // self._batch) * self._batch
        parts: dict[int, list[np.ndarray]] = {number: [] for number in self._names}
        row, last = first, first + self._batch
        while row < last:
            index = bisect_right(self._ends, row)
            begin = self._ends[index - 1] if index else 0
            end = min(last, self._ends[index])
            arrays = self._arrays(index)
            for number, name in self._names.items():
                parts[number].append(arrays[name][row - begin : end - begin])
            row = end
        return {
            number: _fitting(np.concatenate(pieces), self._inputs[number])
            for number, pieces in parts.items()
        }

    def _arrays(self, index: int) -> dict[str, np.ndarray]:
        if self._loaded[0] != index:
            self._loaded = index, self._parts[index].read(list(self._names.values()))
        return self._loaded[1]


@dataclass(frozen=True)
class _Npz:
    file: Path

    def rows(self) -> dict[str, int]:
        return _rows(self.file)

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        import numpy as np

        try:
            with np.load(self.file, allow_pickle=False) as stored:
                return {name: stored[name] for name in names}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"cannot read '{self.file}': {error}") from error


@dataclass(frozen=True)
class _RowGroup:
    """Of a Parquet file, which may be longer than memory."""

    file: Path
    number: int
    count: int
    names: tuple[str, ...]

    def rows(self) -> dict[str, int]:
        return dict.fromkeys(self.names, self.count)

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        try:
            with ParquetFile(self.file, page_checksum_verification=True) as opened:
                table = opened.read_row_group(self.number, columns=list(names)).combine_chunks()
        except (OSError, ArrowException) as error:
            raise UserError(f"cannot read '{self.file}': {error}") from error
        return {
            name: _of_column(f"'{self.file}': column '{name}'", table.column(name))
            for name in names
        }


def _format(file: Path) -> str | None:
    """Of the files that there are readers for."""
    if holds_records(file):
        return "records"
    return file.suffix if file.suffix in (".npz", _PARQUET) else None


def _parts(file: Path) -> Sequence[_Part]:
    if holds_records(file):
        return record_parts(file)
    if file.suffix != _PARQUET:
        return [_Npz(file)]
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError(
            f"'{file}' needs pyarrow, to read Parquet: pip install 'shardopt[parquet]'"
        ) from None
    try:
        with ParquetFile(file) as opened:
            names = tuple(opened.schema_arrow.names)
            groups = range(opened.metadata.num_row_groups)
            counts = [opened.metadata.row_group(number).num_rows for number in groups]
    except (OSError, ArrowException) as error:
        raise UserError(f"cannot read '{file}': {error}") from error
    if not names or not any(counts):
        raise UserError(f"'{file}' has no rows")
    return [_RowGroup(file, number, count, names) for number, count in enumerate(counts)]


def _of_column(what: str, column: Any) -> np.ndarray:
    """Numbers, or lists of numbers that are all equally long, in as many levels as there are.
    Raises UserError."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute

    if column.null_count:
        raise UserError(f"{what} has rows without a value")
    kind = column.type
    if isinstance(kind, pa.FixedShapeTensorType):
        rows = column.combine_chunks()
        return np.asarray(rows.to_numpy_ndarray())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        sizes = set(pa.compute.list_value_length(column).unique().to_pylist())
        if len(sizes) != 1:
            raise UserError(f"{what}: expected rows of one length, found {sorted(sizes)[:4]}")
        inner = _of_column(what, pa.compute.list_flatten(column))
        return inner.reshape(len(column), *sizes, *inner.shape[1:])
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise UserError(f"{what}: expected numbers, found {kind}")
    return np.asarray(column.to_numpy())


def argument_numbers(names: Sequence[str], program: Program, source: str) -> list[int]:
    """Arguments by name, or as `in<k>`. Raises UserError."""
    by_name, arguments = numbers_by_name(program), program.signature.arguments
    for name in names:
        if name not in by_name:
            known = ", ".join(each.name for each in arguments[-4:] if each.name)
            raise UserError(
                f"--data: '{source}' has '{name}', which names no argument (in0 to "
                f"in{len(arguments) - 1}, or by name: {known})"
            )
    return [by_name[name] for name in names]


def _function(module: str, name: str) -> Callable[[int], Iterator[Any]]:
    # As `python -m` has it: what lies beside the user can be imported.
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"--data: cannot import '{module}:{name}': {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise UserError(f"--data: '{module}:{name}' is no function")
    return function


def _rows(file: Path) -> dict[str, int]:
    """The rows of every array, of which only the headers are read."""
    import numpy as np

    rows = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.namelist():
                with archive.open(member) as stream:
                    version = np.lib.format.read_magic(stream)
                    read = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape = read(stream)[0]
                rows[member.removesuffix(".npy")] = shape[0] if shape else 0
    except OSError as error:
        raise UserError(f"cannot read '{file}': {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"'{file}' is not an .npz file of plain arrays: {error}") from error
    if not rows:
        raise UserError(f"'{file}' has no arrays")
    return rows


def _extent(program: Program, number: int) -> int:
    shape = program.signature.arguments[number].shape
    if not shape:
        raise UserError(f"--data: argument {number} has no rows: its shape is []")
    return shape[0]


def _fitting(array: Any, like: np.ndarray) -> np.ndarray:
    """As the argument, where its elements say the same there: integers of another width that fit,
    and rows that are flat lists of as many numbers."""
    import numpy as np

    array = as_dtype(np.asarray(array), like.dtype)
    if array.dtype != like.dtype and {array.dtype.kind, like.dtype.kind} <= {"i", "u"}:
        narrow = array.astype(like.dtype)
        if not np.array_equal(narrow, array):
            wrong = array[narrow != array].flat[0]
            raise UserError(f"--data: {wrong} is no {like.dtype}, which the argument takes")
        array = narrow
    if array.ndim == 2 and array.size == like.size and array.shape[:1] == like.shape[:1]:
        array = array.reshape(like.shape)
    return array
