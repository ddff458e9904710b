"""The driver's side of state: checkpoints, and values that are made where they live. No array is
ever whole here unless it is asked for whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from shardopt.forms.exported_program import Slice
from shardopt.forms.reshard_steps import format_slice, tiles_by_device
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.signature import Home
from shardopt.runtime.state.checkpoint_folder import (
    NotWritten,
    abandon,
    begin,
    check_new,
    commit,
    file_name,
    find_checkpoint,
)
from shardopt.runtime.state.init_functions import split_init_function
from shardopt.runtime.state.initializers import Initializer
from shardopt.runtime.state.manifest import Manifest, StoredArray, StoredShard
from shardopt.runtime.state.ownership import state_arguments, state_keys
from shardopt.runtime.state.places import Place
from shardopt.support.errors import UserError

# Calls a method of `WorkerState` on some workers at once: (method, arguments by worker) -> answers
# by worker.
Call = Callable[[str, Mapping[str, tuple[Any, ...]]], dict[str, Any]]
# Gives the elements of a global slice, as slices of the whole array.
ShardMaker = Callable[[tuple[slice, ...]], np.ndarray]


class RunState:
    """`workers` are the names of each mesh's workers, one a host."""

    def __init__(self, program: Program, workers: Mapping[str, Sequence[str]], call: Call) -> None:
        self._program = program
        self._arguments = program.signature.arguments
        self._workers = workers
        self._call = call
        self._keys = state_keys(self._arguments)

    def start_saving(
        self, folder: Place, *, background: bool = False, finite: bool = False
    ) -> None:
        """Have all workers write their shards of the state to `folder`, of what it is now; in the
        background, the next step need not wait for that. With `finite`, numbers that are not
        finite count as not written.

        Raises UserError when there is no state, MeshError.
        """
        keys = {
            home.number: self._keys[number]
            for number in state_arguments(self._program)
            for home in self._arguments[number].homes
        }
        if not keys:
            raise UserError("there is no state to save: no argument of the program is donated")
        places = {
            worker: (
                str(folder),
                file_name(folder, worker),
                {number: keys[number] for number in numbers if number in keys},
                background,
                finite,
            )
            for mesh, numbers in self._numbers().items()
            for worker in self._workers[mesh]
        }
        self._call("start_saving", places)

    def saved(self, step: int, *, wait: bool = True) -> Manifest | None:
        """What the manifest is to say of what `start_saving` began at `step`; None while workers
        are at it and need not be waited for. Raises NotWritten, MeshError."""
        state = state_arguments(self._program)
        everyone = [worker for workers in self._workers.values() for worker in workers]
        answers = self._call("saved", dict.fromkeys(everyone, (wait,)))
        if any(answer is None for answer in answers.values()):
            return None
        shards_of: dict[int, list[StoredShard]] = {number: [] for number in state}
        homes = self._by_number(state)
        for answer in answers.values():
            if isinstance(answer, str):
                raise NotWritten(f"cannot write the checkpoint of step {step}: {answer}")
            for number, shards in answer.items():
                whole, home = homes[number]
                shards_of[whole] += [_stored_shard(home, *fields) for fields in shards]
        arrays = tuple(self._stored_array(number, shards_of[number]) for number in state)
        return Manifest(step, arrays, self._program.model)

    def nonfinite(self) -> tuple[str, ...]:
        """The names of state that has numbers which are not finite. Raises MeshError."""
        state = state_arguments(self._program)
        homes = self._by_number(state)
        calls = {
            worker: (tuple(number for number in numbers if number in homes),)
            for mesh, numbers in self._numbers().items()
            for worker in self._workers[mesh]
        }
        answers = self._call("nonfinite", calls).values()
        found = {homes[number][0] for each in answers for number in each}
        return tuple(self._keys[number] for number in state if number in found)

    def save(self, path: Place, step: int) -> None:
        """Write one checkpoint to the folder `path`, which must not exist. Raises UserError,
        MeshError."""
        check_new(path)
        writing = begin(path)
        try:
            self.start_saving(writing)
            manifest = self.saved(step)
            assert manifest is not None, "waited for"
        except BaseException:
            abandon(writing)
            raise
        commit(writing, path, manifest)

    def restore(self, path: Place, numbers: Sequence[int] | None = None) -> int:
        """Read arguments, by default the state, from a checkpoint or the newest one in a folder;
        its step.

        The checkpoint may be of another plan, and hold more; state that another model has written
        is a RuntimeWarning. Raises UserError when an array is not
        in it, or is of another shape or type; nothing has changed then."""
        folder, manifest = find_checkpoint(path)
        chosen = state_arguments(self._program) if numbers is None else tuple(numbers)
        stored = {array.name: array for array in manifest.arrays}
        names = {number: self._stored_name(stored, number) for number in chosen}
        for number, name in names.items():
            self._check_stored(folder, number, stored.get(name))
        self._to_homes("restore", {k: (name,) for k, name in names.items()}, (str(folder),))
        if numbers is None:
            self._compare_models(folder, manifest.model)
        return manifest.step

    def _compare_models(self, folder: Place, model: str) -> None:
        """A changed learning rate is another model, too: no error."""
        if model and self._program.model and model != self._program.model:
            warnings.warn(
                f"checkpoint '{folder}' is of another model, {model}; this run is of "
                f"{self._program.model}, whose state has the same names, shapes and types",
                RuntimeWarning,
                stacklevel=4,
            )

    def fill(self, initializers: Mapping[int, Initializer]) -> None:
        """Have the workers compute arguments. Raises MeshError."""
        self._to_homes(
            "fill",
            {number: (self._keys[number], *astuple(each)) for number, each in initializers.items()},
        )

    def initialize(
        self, module: ir.Module, numbers: Sequence[int], arguments: Sequence[np.ndarray]
    ) -> None:
        """Run a module's `@main(*arguments)` on the workers; result k becomes argument
        `numbers[k]`.

        Raises UserError when the results do not fit, MeshError.
        """
        parts = split_init_function(module, self._program, numbers)
        calls = {
            worker: (part.function, tuple(arguments), part.numbers)
            for part in parts
            for worker in self._workers[part.mesh]
        }
        self._call("initialize", calls)

    def make(self, makers: Mapping[int, ShardMaker]) -> None:
        """Ask each maker for every tile of its argument once a mesh, and send it to the workers
        that hold it."""
        # One array at a time: its tiles are all that is held here.
        meshes = {part.mesh.name: part.mesh for part in self._program.meshes}
        for number, maker in makers.items():
            for home in self._arguments[number].homes:
                mesh = meshes[home.value.mesh]
                slices = dict.fromkeys(tiles_by_device(mesh, home.value.spec).values())
                tiles = tuple(
                    (slice_, home.cut(self._made(number, maker, home.outer(slice_))))
                    for slice_ in slices
                )
                calls = {worker: ({home.number: tiles},) for worker in self._workers[mesh.name]}
                self._call("put", calls)

    def read(self, number: int, slice_: Slice | None = None) -> np.ndarray:
        """An argument's elements, by default all of them, put together from what the workers
        hold."""
        argument = self._arguments[number]
        slice_ = argument.elements if slice_ is None else slice_
        if len(slice_) != len(argument.shape) or any(
            not 0 <= start <= limit <= extent
            for (start, limit), extent in zip(slice_, argument.shape, strict=False)
        ):
            raise UserError(
                f"argument {number} has shape {list(argument.shape)}, found slice "
                f"{format_slice(slice_)}"
            )
        elements = np.empty([limit - start for start, limit in slice_], argument.numpy_dtype)
        wanted: dict[str, dict[int, Slice]] = {}
        for home in argument.homes:
            inner = home.inner(slice_)
            if inner is not None:
                for worker in self._workers[home.value.mesh]:
                    wanted.setdefault(worker, {})[home.number] = inner
        answers = self._call("pieces", {worker: (each,) for worker, each in wanted.items()})
        homes = self._by_number([number])
        for answer in answers.values():
            for number, pieces in answer.items():
                for part, piece in pieces:
                    there = homes[number][1].outer(_as_slice(part))
                    into = tuple(
                        slice(low - start, high - start)
                        for (low, high), (start, _) in zip(there, slice_, strict=True)
                    )
                    elements[into] = piece.reshape([high - low for low, high in there])
        return elements

    def _by_number(self, arguments: Sequence[int]) -> dict[int, tuple[int, Home]]:
        """Where these arguments live, by the numbers of the program, with their own."""
        return {
            home.number: (number, home)
            for number in arguments
            for home in self._arguments[number].homes
        }

    def _numbers(self) -> dict[str, tuple[int, ...]]:
        """The arguments of the program on each mesh."""
        return {
            part.mesh.name: tuple(number for number, _ in part.arguments)
            for part in self._program.meshes
        }

    def _to_homes(
        self, method: str, values: Mapping[int, tuple[Any, ...]], before: tuple[Any, ...] = ()
    ) -> None:
        """Give each worker the values of the arguments that live on its mesh, behind them which
        part of one that is."""
        calls: dict[str, tuple[Any, ...]] = {}
        homes = self._by_number(tuple(values))
        for mesh, numbers in self._numbers().items():
            of_mesh = {
                number: (*values[homes[number][0]], homes[number][1].fields)
                for number in numbers
                if number in homes
            }
            calls |= dict.fromkeys(self._workers[mesh], (*before, of_mesh)) if of_mesh else {}
        self._call(method, calls)

    def _stored_array(self, number: int, shards: Sequence[StoredShard]) -> StoredArray:
        argument = self._arguments[number]
        return StoredArray(
            self._keys[number],
            argument.shape,
            argument.dtype,
            tuple(sorted(shards, key=lambda each: each.slice)),
        )

    def _stored_name(self, stored: Container[str], number: int) -> str:
        """In a checkpoint of a module without names, arguments are called by their numbers."""
        numbered = f"arg{number}"
        is_numbered = numbered in stored and self._keys[number] not in stored
        return numbered if is_numbered else self._keys[number]

    def _check_stored(self, folder: Place, number: int, stored: StoredArray | None) -> None:
        argument, key = self._arguments[number], self._keys[number]
        if stored is None:
            raise UserError(
                f"checkpoint '{folder}' has no array '{key}', which argument {number} needs"
            )
        if (stored.shape, stored.dtype) != (argument.shape, argument.dtype):
            raise UserError(
                f"checkpoint '{folder}': expected {argument.dtype}{list(argument.shape)} for "
                f"'{key}', "
                f"found {stored.dtype}{list(stored.shape)}"
            )

    def _made(self, number: int, maker: ShardMaker, slice_: Slice) -> np.ndarray:
        argument = self._arguments[number]
        tile = np.asarray(maker(tuple(slice(start, limit) for start, limit in slice_)))
        shape = tuple(limit - start for start, limit in slice_)
        dtype = argument.numpy_dtype
        if (tile.shape, tile.dtype) != (shape, dtype):
            raise UserError(
                f"callback of argument {number} '{argument.name}': expected {dtype}{list(shape)} "
                "for "
                f"{format_slice(slice_)}, found {tile.dtype}{list(tile.shape)}"
            )
        return tile


def _stored_shard(
    home: Home, slice_: Any, file: str, offset: int, checksums: Sequence[int]
) -> StoredShard:
    return StoredShard(home.outer(_as_slice(slice_)), file, offset, tuple(checksums))


def _as_slice(slice_: Sequence[Sequence[int]]) -> Slice:
    """A slice that may have become lists on its way."""
    return tuple((start, limit) for start, limit in slice_)
