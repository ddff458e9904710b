"""The folder of a run's checkpoints: one subfolder each, complete or not there.

    checkpoints/
      .lock                     held by the run that writes here
      .writing-…                being written, or left by a run that died: never read, and removed
                                by the next writer
      step-000000000012/        m0.bin, m1.0.bin, …, manifest.json

A checkpoint is written under another name; when all files are on the disk the manifest follows, and
then the rename that makes it one. What was a checkpoint is never changed: it is only removed, when
`keep` newer ones stand, and then it is renamed first.

A store behind an address has no renames that one could count on, and no locks. There files are
written where they stay, under names that no other attempt takes, and the manifest, one request,
makes the folder a checkpoint; whoever removes one removes the manifest first. What a run that died
has left there has no manifest, and goes when the checkpoint of that step goes."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from io import BufferedWriter
from operator import itemgetter
from pathlib import Path

from shardopt.runtime.state.manifest import (
    MANIFEST_NAME,
    Manifest,
    StoredArray,
    manifest_text,
    read_manifest,
    shard_bytes,
)
from shardopt.runtime.state.places import Place, RemotePath, file_size, names, parent
from shardopt.support.errors import UserError

_STEP_NAME = re.compile(r"step-(\d{12,})")
_WRITING, _REMOVING = ".writing-", ".removing-"


class NotWritten(UserError):
    """A checkpoint that is not there, for a reason that may pass: a full disk, say. What was there
    before is still there."""


def checkpoints(folder: Place) -> list[tuple[int, Place]]:
    """(steps done, folder) of every complete checkpoint, oldest first. No folder: no
    checkpoints."""
    try:
        found = _named_like_checkpoints(folder)
        return sorted(
            ((step, path) for step, path in found if is_checkpoint(path)), key=itemgetter(0)
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"cannot read checkpoints in '{folder}': {error.strerror or error}"
        ) from error


def _named_like_checkpoints(folder: Place) -> list[tuple[int, Place]]:
    matches = filter(None, map(_STEP_NAME.fullmatch, sorted(names(folder))))
    return [(int(match[1]), folder / match[0]) for match in matches]


def is_checkpoint(path: Place) -> bool:
    """Raises OSError where a store does not answer."""
    return (path / MANIFEST_NAME).is_file()


def newest(folder: Place) -> Place | None:
    complete = checkpoints(folder)
    return complete[-1][1] if complete else None


def find_checkpoint(path: Place) -> tuple[Place, Manifest]:
    """The checkpoint at `path`, or the newest in it, with its manifest. Raises UserError when there
    is none."""
    try:
        checkpoint = path if is_checkpoint(path) else newest(path)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or error}") from error
    if checkpoint is None:
        raise UserError(f"'{path}' holds no complete checkpoint")
    return checkpoint, read_manifest(checkpoint)


class CheckpointFolder:
    """Write access to the checkpoints of one run, until `close`. Raises UserError if another run
    has it; in a store, nobody can tell."""

    def __init__(self, folder: Place, keep: int) -> None:
        if keep < 1:
            raise UserError(f"expected to keep at least one checkpoint, found {keep}")
        self.folder, self._keep = folder, keep
        self._lock: BufferedWriter | None = None
        try:
            if isinstance(folder, RemotePath):
                folder.make_folder()
            else:
                folder.mkdir(parents=True, exist_ok=True)
                self._lock = (folder / ".lock").open("ab")
        except OSError as error:
            raise UserError(
                f"cannot write checkpoints to '{folder}': {error.strerror or error}"
            ) from error
        if self._lock is None or isinstance(folder, RemotePath):
            return
        try:
            # The system lets go of it with the process, however that ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UserError(f"another run writes its checkpoints to '{folder}'") from error
        for name in os.listdir(folder):
            if name.startswith((_WRITING, _REMOVING)):
                shutil.rmtree(folder / name, ignore_errors=True)

    def begin(self, step: int) -> Place:
        """Where the checkpoint of a step is to be written."""
        return begin(self._path(step))

    def incomplete(self) -> list[Place]:
        """Folders that are named like checkpoints and have no manifest: a copy that was broken off
        leaves one and, in a store, a run that died."""
        return [path for _, path in _named_like_checkpoints(self.folder) if not is_checkpoint(path)]

    def commit(self, writing: Place, manifest: Manifest) -> Place:
        """Make what was written a checkpoint, and remove those beyond the number to keep. A folder
        of its name that is no checkpoint is put aside, where that is possible."""
        path = self._path(manifest.step)
        if isinstance(path, Path) and path in self.incomplete():
            path.rename(path.with_name(f"incomplete-{path.name}-{secrets.token_hex(4)}"))
        commit(writing, path, manifest)
        for _, old in checkpoints(self.folder)[: -self._keep]:
            _remove(old)
        return path

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def _path(self, step: int) -> Place:
        return self.folder / f"step-{step:012d}"


def begin(path: Place) -> Place:
    """The folder that the files of a checkpoint are to be written to: in a store that of the
    checkpoint, else a new one beside it, on the same file system. Raises NotWritten."""
    folder = parent(path)
    try:
        if isinstance(path, RemotePath):
            path.make_folder()
            return path
        writing = path.absolute().with_name(f"{_WRITING}{secrets.token_hex(8)}")
        writing.parent.mkdir(parents=True, exist_ok=True)
        writing.mkdir()
        return writing
    except OSError as error:
        raise NotWritten(
            f"cannot write a checkpoint to '{folder}': {error.strerror or error}"
        ) from error


def file_name(folder: Place, worker: str) -> str:
    """Of a worker's shards in a folder that `begin` gave. In a store, what an earlier attempt left
    may lie there, and its workers may write yet."""
    attempt = f".{secrets.token_hex(8)}" if isinstance(folder, RemotePath) else ""
    return f"{worker.replace('/', '.')}{attempt}.bin"


def commit(writing: Place, path: Place, manifest: Manifest) -> None:
    """Check the files, write the manifest, rename `writing` to `path` if it is another. Raises
    UserError, and leaves nothing then."""
    try:
        _check_files(writing, manifest.arrays)
        text = manifest_text(manifest).encode()
        if isinstance(path, RemotePath):
            if is_checkpoint(path):
                raise _exists(path)
            (path / MANIFEST_NAME).write(text)
            return
        assert not isinstance(writing, RemotePath), "it is beside the checkpoint"
        with (writing / MANIFEST_NAME).open("xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # The names of its files are on the disk before it becomes a checkpoint.
        _sync_folder(writing)
        if path.exists():
            raise _exists(path)
        writing.rename(path)
        # A rename is on the disk only when the folder is in which it was made.
        _sync_folder(path.parent)
    except OSError as error:
        abandon(writing)
        raise NotWritten(f"cannot write checkpoint '{path}': {error.strerror or error}") from error
    except BaseException:
        abandon(writing)
        raise


def abandon(writing: Place) -> None:
    """Remove what was written, unless it has become a checkpoint."""
    with suppress(OSError):
        if not isinstance(writing, RemotePath):
            shutil.rmtree(writing)
        elif not is_checkpoint(writing):
            writing.remove()


def check_new(path: Place) -> None:
    """Raises UserError where a checkpoint stands already."""
    try:
        there = is_checkpoint(path) if isinstance(path, RemotePath) else path.exists()
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror or error}") from error
    if there:
        raise _exists(path)


def _exists(path: Place) -> UserError:
    return UserError(f"'{path}' exists already: checkpoints are never overwritten")


def _remove(checkpoint: Place) -> None:
    """What is half removed must not pass for a checkpoint."""
    if isinstance(checkpoint, RemotePath):
        (checkpoint / MANIFEST_NAME).remove()
        with suppress(OSError):
            checkpoint.remove()
        return
    removing = checkpoint.with_name(f"{_REMOVING}{checkpoint.name}-{secrets.token_hex(4)}")
    checkpoint.rename(removing)
    shutil.rmtree(removing, ignore_errors=True)


def _check_files(folder: Place, arrays: Sequence[StoredArray]) -> None:
    """Workers on other machines may see another folder under this name."""
    ends: dict[str, int] = {}
    for array in arrays:
        for shard in array.shards:
            end = shard.offset + shard_bytes(shard.slice, array.dtype)
            ends[shard.file] = max(end, ends.get(shard.file, 0))
    for name, end in ends.items():
        path = folder / name
        if not path.is_file() or file_size(path) < end:
            raise UserError(
                f"checkpoint file '{path}' was written by a worker and cannot be seen here: "
                "the folder of checkpoints must be shared by all hosts"
            )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
