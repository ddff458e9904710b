"""Checkpoints as those of Orbax, and back.

Ours are lists of arrays with the names of arguments; those of Orbax are trees. So both ways need
the trees of the state, `params=params, opt_state=opt_state`, of arrays or shapes: under names of
one's choice, in the order of the function's arguments. The whole state passes through the memory of
this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.state.checkpoint_folder import (
    abandon,
    begin,
    check_new,
    commit,
    file_name,
    find_checkpoint,
)
from shardopt.runtime.state.manifest import Manifest, StoredArray
from shardopt.runtime.state.ownership import state_arguments, state_keys
from shardopt.runtime.state.places import Where, place
from shardopt.runtime.state.shard_files import ShardWriter, read_slice
from shardopt.support.errors import UserError

Tree = Mapping[str, Any]


def export_orbax(source: Where, target: str | os.PathLike[str], /, **like: Any) -> None:
    """Write a checkpoint, or the newest in a folder, as one of Orbax to the new folder `target`, a
    dictionary of trees. Raises UserError, also where the two do not fit."""
    checkpointer = _checkpointer()
    folder, manifest = find_checkpoint(place(source))
    path = Path(target).absolute()
    if path.exists():
        raise UserError(f"'{path}' exists already: checkpoints are never overwritten")
    known = [(array.name, array.shape, array.dtype) for array in manifest.arrays]
    _check(f"checkpoint '{folder}'", known, like)
    arrays = (
        read_slice(folder, array, tuple((0, extent) for extent in array.shape))
        for array in manifest.arrays
    )
    with checkpointer:
        try:
            checkpointer.save(path, _with_leaves(like, arrays))
        except (OSError, ValueError) as error:
            raise UserError(f"cannot write '{path}': {error}") from error


def import_orbax(
    source: str | os.PathLike[str], target: Where, program: Program, step: int, /, **like: Any
) -> None:
    """Write a checkpoint of the state of `program` to the new folder `target`, out of one of Orbax:
    the folder of an item, such as `…/<step>/default` of a CheckpointManager. `step` says how many
    steps were done. Raises UserError, also where the three do not fit."""
    checkpointer = _checkpointer()
    path, folder = Path(source).absolute(), place(target)
    check_new(folder)
    names, numbers = state_keys(program.signature.arguments), state_arguments(program)
    specs = [program.signature.arguments[number] for number in numbers]
    _check(
        "the state of the program",
        [(names[k], spec.shape, spec.dtype) for k, spec in zip(numbers, specs, strict=True)],
        like,
    )
    with checkpointer:
        try:
            tree = checkpointer.restore(path, item=like, restore_args=_as_numpy(like))
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"cannot read '{path}' as such a tree: {error}") from error
    leaves = _leaves({name: tree[name] for name in like})
    writing, stored = begin(folder), []
    try:
        with ShardWriter(writing, file_name(writing, "orbax")) as writer:
            for (key, leaf), number, spec in zip(leaves, numbers, specs, strict=True):
                array = np.asarray(leaf)
                if (array.shape, array.dtype) != (spec.shape, numpy_dtype(spec.dtype)):
                    raise UserError(
                        f"'{path}': expected {spec.dtype}{list(spec.shape)} for {key}, found "
                        f"{array.dtype}{list(array.shape)}"
                    )
                shards = (writer.add(spec.elements, array),)
                stored.append(StoredArray(names[number], spec.shape, spec.dtype, shards))
    except OSError as error:
        abandon(writing)
        raise UserError(f"cannot write '{folder}': {error.strerror or error}") from error
    except BaseException:
        abandon(writing)
        raise
    commit(writing, folder, Manifest(step, tuple(stored)))


def _checkpointer() -> Any:
    try:
        import orbax.checkpoint
    except ImportError:
        raise UserError(
            "checkpoints of Orbax need its library: pip install 'shardopt[orbax]'"
        ) from None
    return orbax.checkpoint.PyTreeCheckpointer()


def _as_numpy(like: Tree) -> Any:
    import orbax.checkpoint

    return jax.tree.map(lambda _: orbax.checkpoint.RestoreArgs(restore_type=np.ndarray), like)


def _leaves(tree: Tree) -> list[tuple[str, Any]]:
    """Paths and leaves in the order of the arguments: JAX sorts the keys of a dictionary."""
    return [
        (name + jax.tree_util.keystr(path), leaf)
        for name, branch in tree.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(branch)[0]
    ]


def _with_leaves(like: Tree, leaves: Any) -> dict[str, Any]:
    return {
        name: jax.tree.map(lambda _: np.asarray(next(leaves)), branch)
        for name, branch in like.items()
    }


def _check(what: str, known: Sequence[tuple[str, tuple[int, ...], str]], like: Tree) -> None:
    leaves = _leaves(like)
    if len(leaves) != len(known):
        raise UserError(f"{what} has {len(known)} arrays, the tree {len(leaves)} leaves")
    for (key, leaf), (name, shape, dtype) in zip(leaves, known, strict=True):
        if (tuple(np.shape(leaf)), np.dtype(leaf.dtype)) != (shape, numpy_dtype(dtype)):
            raise UserError(
                f"{what} has {dtype}{list(shape)} as '{name}', the tree "
                f"{leaf.dtype}{list(np.shape(leaf))} at {key}"
            )
