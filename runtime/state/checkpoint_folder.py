"""The folder of a run's checkpoints: one subfolder each, complete or not there.

    checkpoints/
      .lock                     held by the run that writes here
      .writing-…                being written, or left by a run that died: never read, and removed
                                by the next writer
      step-000000000012/        m0.bin, m1.0.bin, …, manifest.json

A checkpoint is written under another name; when all files are on the disk the manifest follows, and
then the rename that makes it one. What was a checkpoint is never changed: it is only removed, when
`keep` newer ones stand, and then it is renamed first."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shardopt.runtime.state.manifest import (
    MANIFEST_NAME,
    Manifest,
    StoredArray,
    manifest_text,
    read_manifest,
    shard_bytes,
)
from shardopt.support.errors import UserError

_STEP_NAME = re.compile(r"step-(\d{12,})")
_WRITING, _REMOVING = ".writing-", ".removing-"


class NotWritten(UserError):
    """A checkpoint that is not there, for a reason that may pass: a full disk, say. What was there
    before is still there."""


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(steps done, folder) of every complete checkpoint, oldest first. No folder: no
    checkpoints."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"cannot read checkpoints in '{folder}': {error.strerror or error}"
        ) from error
    matches = [match for match in map(_STEP_NAME.fullmatch, names) if match is not None]
    numbered = [(int(match[1]), folder / match[0]) for match in matches]
    return sorted((step, path) for step, path in numbered if (path / MANIFEST_NAME).is_file())


def newest(folder: Path) -> Path | None:
    complete = checkpoints(folder)
    return complete[-1][1] if complete else None


def find_checkpoint(path: Path) -> tuple[Path, Manifest]:
    """The checkpoint at `path`, or the newest in it, with its manifest. Raises UserError when there
    is none."""
    checkpoint = path if (path / MANIFEST_NAME).is_file() else newest(path)
    if checkpoint is None:
        raise UserError(f"'{path}' holds no complete checkpoint")
    return checkpoint, read_manifest(checkpoint)


class CheckpointFolder:
    """Write access to the checkpoints of one run, until `close`. Raises UserError if another run
    has it."""

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise UserError(f"expected to keep at least one checkpoint, found {keep}")
        self.folder, self._keep = folder, keep
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / ".lock").open("ab")
        except OSError as error:
            raise UserError(
                f"cannot write checkpoints to '{folder}': {error.strerror or error}"
            ) from error
        try:
            # The system lets go of it with the process, however that ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UserError(f"another run writes its checkpoints to '{folder}'") from error
        self._remove_leftovers()

    def begin(self) -> Path:
        return begin(self.folder)

    def incomplete(self) -> list[Path]:
        """Folders that are named like checkpoints and have no manifest: no run of ours leaves any,
        a copy that was broken off does."""
        names = sorted(filter(_STEP_NAME.fullmatch, os.listdir(self.folder)))
        return [self.folder / n for n in names if not (self.folder / n / MANIFEST_NAME).is_file()]

    def commit(self, writing: Path, manifest: Manifest) -> Path:
        """Make what was written a checkpoint, and remove those beyond the number to keep. A folder
        of its name that is no checkpoint is put aside."""
        path = self.folder / f"step-{manifest.step:012d}"
        if path in self.incomplete():
            path.rename(self.folder / f"incomplete-{path.name}-{secrets.token_hex(4)}")
        commit(writing, path, manifest)
        for _, old in checkpoints(self.folder)[: -self._keep]:
            removing = self.folder / f"{_REMOVING}{old.name}-{secrets.token_hex(4)}"
            # A folder that is half removed must not pass for a checkpoint.
            old.rename(removing)
            shutil.rmtree(removing, ignore_errors=True)
        return path

    def close(self) -> None:
        self._lock.close()

    def _remove_leftovers(self) -> None:
        for name in os.listdir(self.folder):
            if name.startswith((_WRITING, _REMOVING)):
                shutil.rmtree(self.folder / name, ignore_errors=True)


def begin(parent: Path) -> Path:
    """A new folder beside the checkpoint to be, on the same file system. Raises UserError."""
    path = parent / f"{_WRITING}{secrets.token_hex(8)}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except OSError as error:
        raise NotWritten(
            f"cannot write a checkpoint to '{parent}': {error.strerror or error}"
        ) from error
    return path


def commit(writing: Path, path: Path, manifest: Manifest) -> None:
    """Check the files, write the manifest, rename `writing` to `path`. Raises UserError, and leaves
    nothing then."""
    try:
        _check_files(writing, manifest.arrays)
        with (writing / MANIFEST_NAME).open("x", encoding="utf-8") as file:
            file.write(manifest_text(manifest))
            file.flush()
            os.fsync(file.fileno())
        # The names of its files are on the disk before it becomes a checkpoint.
        _sync_folder(writing)
        if path.exists():
            raise UserError(f"'{path}' exists already: checkpoints are never overwritten")
        writing.rename(path)
        # A rename is on the disk only when the folder is in which it was made.
        _sync_folder(path.parent)
    except OSError as error:
        abandon(writing)
        raise NotWritten(f"cannot write checkpoint '{path}': {error.strerror or error}") from error
    except BaseException:
        abandon(writing)
        raise


def abandon(writing: Path) -> None:
    with suppress(OSError):
        shutil.rmtree(writing)


def _check_files(folder: Path, arrays: Sequence[StoredArray]) -> None:
    """Workers on other machines may see another folder under this name."""
    ends: dict[str, int] = {}
    for array in arrays:
        for shard in array.shards:
            end = shard.offset + shard_bytes(shard.slice, array.dtype)
            ends[shard.file] = max(end, ends.get(shard.file, 0))
    for name, end in ends.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size < end:
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
