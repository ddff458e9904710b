"""`shardopt run --data`: what a step is given, by the number of the step.

Two sources: .npz files whose arrays have rows one after the other, and a Python function that gives
an iterator. Both can begin anywhere, so a run that starts again is given what it was given
before."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardopt.support.errors import UserError
from shardopt.tools.run.inputs import as_dtype

if TYPE_CHECKING:
    import numpy as np

    from shardopt.runtime.program.instructions import Program

Feed = Callable[[int], Mapping[int, "np.ndarray"]]


def open_data(source: str, program: Program, inputs: Sequence[np.ndarray]) -> Feed:
    """`module:function`, or a file or folder of .npz; `inputs` are arrays of the arguments' types.
    Raises UserError."""
    module, colon, function = source.partition(":")
    if colon and not Path(source).exists():
        return IteratorFeed(source, _function(module, function), program, inputs)
    path = Path(source)
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"folder '{source}' has no .npz files")
    return RowsFeed(files, program, inputs)


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


class RowsFeed:
    """Rows of .npz files, file after file, cut into batches as long as the arguments; from the
    beginning again when no whole batch is left."""

    def __init__(
        self, files: Sequence[Path], program: Program, inputs: Sequence[np.ndarray]
    ) -> None:
        self._files, self._inputs = files, inputs
        lengths = [_rows(file) for file in files]
        names = list(lengths[0])
        for file, rows in zip(files, lengths, strict=True):
            if rows.keys() != lengths[0].keys() or len(set(rows.values())) != 1:
                raise UserError(
                    f"'{file}': expected arrays {', '.join(names)} of equally many rows, found "
                    + ", ".join(f"{name} of {count}" for name, count in rows.items())
                )
        self._names = dict(zip(argument_numbers(names, program, str(files[0])), names, strict=True))
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
            import numpy as np

            with np.load(self._files[index], allow_pickle=False) as stored:
                self._loaded = index, {name: stored[name] for name in self._names.values()}
        return self._loaded[1]


def argument_numbers(names: Sequence[str], program: Program, source: str) -> list[int]:
    """Arguments by name, or as `in<k>`. Raises UserError."""
    uses = Counter(argument.name for argument in program.arguments)
    by_name = {f"in{number}": number for number in range(len(program.arguments))}
    for number, argument in enumerate(program.arguments):
        if uses[argument.name] == 1:
            by_name[argument.name] = number
    for name in names:
        if name not in by_name:
            known = ", ".join(each.name for each in program.arguments[-4:] if each.name)
            raise UserError(
                f"--data: '{source}' has '{name}', which names no argument (in0 to "
                f"in{len(program.arguments) - 1}, or by name: {known})"
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
    shape = program.arguments[number].value.spec.shape
    if not shape:
        raise UserError(f"--data: argument {number} has no rows: its shape is []")
    return shape[0]


def _fitting(array: Any, like: np.ndarray) -> np.ndarray:
    import numpy as np

    return as_dtype(np.asarray(array), like.dtype)
