"""What a worker does with state between steps: make it, write it, read it back, show parts of it.

Whatever crosses to the driver is plain: numbers, strings, arrays, and tuples of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shardopt.forms.exported_program import Slice, StageFunction
from shardopt.forms.reshard_steps import intersect
from shardopt.mesh.parts import Part
from shardopt.runtime.actions.context import Context
from shardopt.runtime.devices.tiles import filled
from shardopt.runtime.program.instructions import Run
from shardopt.runtime.state.initializers import Initializer, fill
from shardopt.runtime.state.manifest import read_manifest
from shardopt.runtime.state.ownership import owned_slices
from shardopt.runtime.state.places import Place, place
from shardopt.runtime.state.shard_files import ShardWriter, read_slice

Shards = tuple[tuple[Slice, str, int, tuple[int, ...]], ...]  # fields of StoredShard
# What was written, by argument, or why nothing counts.
Written = dict[int, Shards] | str
PartFields = tuple[int, int, int, int, int]  # of Part


class WorkerState:
    """The arguments of one worker, by their numbers in the program."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._buffers = dict(context.program.arguments)
        # The position in a step from which a buffer's memory may have other contents.
        instructions = context.program.instructions
        self._overwritten = dict.fromkeys(self._buffers.values(), len(instructions)) | {
            buffer: position
            for position, each in reversed(list(enumerate(instructions)))
            if isinstance(each, Run)
            for buffer in each.donated
        }
        self._saving: Future[Written] = Future()

    def start_saving(
        self, folder: str, file: str, keys: Mapping[int, str], background: bool, finite: bool
    ) -> None:
        """Write the shards that this worker owns, of arguments by their names, to a new file; with
        `finite`, only if all their numbers are. In the background steps may go on: a step that
        writes over a shard which is not yet on the disk finds it looked at, and leaves it as it is,
        with its result in new memory (`XlaMesh.shards`). So what a step overwrites first is written
        first."""
        numbers = sorted(keys, key=lambda number: self._overwritten[self._buffers[number]])
        shards = deque(
            (number, slice_, shard) for number in numbers for slice_, shard in self._owned(number)
        )
        self._saving = Future()
        write = partial(_write_shards, place(folder), file, keys, shards, finite)
        if background:
            # A disk that never answers must not keep the process alive.
            threading.Thread(
                target=_fulfil, args=(self._saving, write), name="checkpoint", daemon=True
            ).start()
        else:
            _fulfil(self._saving, write)

    def saved(self, wait: bool) -> Written | None:
        """What `start_saving` has written; None while it is at it, unless told to wait."""
        return self._saving.result() if wait or self._saving.done() else None

    def nonfinite(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """The arguments that have values here which are not finite."""
        return tuple(
            number
            for number in numbers
            if not all(_is_finite(shard) for _, shard in self._owned(number))
        )

    def restore(self, folder: str, keys: Mapping[int, tuple[str, PartFields | None]]) -> None:
        """Read this worker's shards of arguments, by their names in the checkpoint and which part
        of such an array each is. Raises UserError for damage."""
        stored = {array.name: array for array in read_manifest(place(folder)).arrays}
        for number, (key, part) in keys.items():
            self._make(number, _of_part(part, partial(read_slice, place(folder), stored[key])))

    def fill(
        self,
        initializers: Mapping[int, tuple[str, str, float, float, int, PartFields | None]],
    ) -> None:
        """Compute this worker's shards of arguments from a name, the fields of a `Initializer`, and
        which part of such an array each is."""
        for number, (name, kind, a, b, seed, fields) in initializers.items():
            spec = self._context.program.array(self._buffers[number])
            if fields is not None:
                spec = replace(spec, shape=Part(*fields).whole_shape(spec.shape))
            whole = partial(fill, Initializer(kind, a, b, seed), name, spec)
            self._make(number, _of_part(fields, whole))

    def put(self, tiles: Mapping[int, Sequence[tuple[Slice, np.ndarray]]]) -> None:
        """Take this worker's shards from the tiles given, each slice once."""
        for number, slices in tiles.items():
            known = {_as_slice(slice_): tile for slice_, tile in slices}
            self._make(number, known.__getitem__)

    def initialize(
        self, function: StageFunction, arguments: Sequence[np.ndarray], numbers: Sequence[int]
    ) -> None:
        """Compile and run a function whose results become arguments of the program."""
        devices = self._context.devices
        executable = devices.compile(function)
        inputs = [
            devices.put(spec, [np.array(value, order="C") for _ in self._context.host.shards])
            for spec, value in zip(function.arguments, arguments, strict=True)
        ]
        outputs, token = executable(inputs)
        # An error of the function is told here, and not by the first step.
        token.block_until_ready()
        for number, array in zip(numbers, outputs, strict=True):
            self._context.buffers[self._buffers[number]] = array
            self._context.renew_versions(number)

    def pieces(
        self, slices: Mapping[int, Slice]
    ) -> dict[int, tuple[tuple[Slice, np.ndarray], ...]]:
        """The parts of global slices of arguments that this worker owns, in memory of their
        own."""
        return {number: self._pieces(number, slice_) for number, slice_ in slices.items()}

    def _pieces(self, number: int, slice_: Slice) -> tuple[tuple[Slice, np.ndarray], ...]:
        parts = []
        for tile, shard in self._owned(number):
            common = intersect(tile, _as_slice(slice_))
            if common is not None:
                bounds = zip(common, tile, strict=True)
                cut: Any = (
                    ...,
                    *(slice(low - start, high - start) for (low, high), (start, _) in bounds),
                )
                parts.append((common, shard[cut].copy()))  # the ellipsis keeps a scalar an array
        return tuple(parts)

    def _owned(self, number: int) -> list[tuple[Slice, np.ndarray]]:
        """(slice, view of the shard) for the tiles that this worker writes; drop the views before
        the next step."""
        buffer = self._buffers[number]
        array = self._context.buffers[buffer]
        if array is None:
            raise ValueError(f"argument {number} has no value yet")
        mesh, spec = self._context.program.mesh, self._context.program.array(buffer)
        shards = dict(
            zip(self._context.host.shards, self._context.devices.shards(array), strict=True)
        )
        owned = ((place, slice_) for place, slice_ in owned_slices(mesh, spec, number))
        return [
            (slice_, filled(shards[place], slice_)) for place, slice_ in owned if place in shards
        ]

    def _make(self, number: int, tile: Callable[[Slice], np.ndarray]) -> None:
        """Each distinct tile is made once, and copied for every device that holds it."""
        buffer = self._buffers[number]
        tiling = self._context.tiling(buffer)
        # Devices take the memory over.
        shards = tiling.spread([tile(slice_) for slice_ in tiling.tiles])
        self._context.buffers[buffer] = self._context.devices.put(
            self._context.program.buffers[buffer], shards
        )
        self._context.renew_versions(number)


def _write_shards(
    folder: Place,
    file: str,
    keys: Mapping[int, str],
    shards: deque[tuple[int, Slice, np.ndarray]],
    finite: bool,
) -> Written:
    """Empties `shards`: what is written need not be held."""
    written: dict[int, Shards] = dict.fromkeys(keys, ())
    try:
        with ShardWriter(folder, file) as writer:
            while shards:
                number, slice_, shard = shards.popleft()
                if finite and not _is_finite(shard):
                    return f"'{keys[number]}' has values that are not finite"
                added = writer.add(slice_, shard)
                fields = (added.slice, added.file, added.offset, added.checksums)
                written[number] = (*written[number], fields)
                del shard  # before the next wait for the disk
    except OSError as error:
        return f"{error.strerror or error} ('{folder / file}')"
    return written


def _is_finite(shard: np.ndarray) -> bool:
    # By name, as ml_dtypes has integers that numpy knows nothing of.
    return shard.dtype.name.startswith(("int", "uint", "bool")) or bool(np.isfinite(shard).all())


def _fulfil(future: Future[Written], work: Callable[[], Written]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


def _of_part(
    fields: PartFields | None, whole: Callable[[Slice], np.ndarray]
) -> Callable[[Slice], np.ndarray]:
    """What gives tiles of a part, of what gives those of the whole."""
    if fields is None:
        return whole
    part = Part(*fields)

    def tile(slice_: Slice) -> np.ndarray:
        made = whole(part.outer(slice_))
        return made.squeeze(part.dim) if part.is_row else made

    return tile


def _as_slice(slice_: Sequence[Sequence[int]]) -> Slice:
    """A slice that may have become lists on its way."""
    return tuple((start, limit) for start, limit in slice_)
