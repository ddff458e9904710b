"""Files that somebody else may have laid: what is read, and whose it is."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path) -> bytes:
    """The content of a file. Raises OSError, also for what is no file with an end: reading a pipe
    or a device may never come back, or never stop."""
    # Without O_NONBLOCK, opening a pipe that nobody writes to waits for somebody.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with open(number, "rb") as file:
        try:
            return file.read()
        except MemoryError:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path)) from None


def stranger_may_change(path: Path) -> Path | None:
    """The first part of a path, itself or a folder that it stands in, that another user than this
    one and root owns or may write to; None if there is none. What does not exist yet is not looked
    at. In a folder like /tmp others may add files, but not replace ours (its sticky bit)."""
    for part in (path.absolute(), *_folders_of(path)):
        try:
            status = part.stat()
        except OSError:
            continue
        is_shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_shared
        if status.st_uid not in (0, os.geteuid()) or by_others:
            return part
    return None


def _folders_of(path: Path) -> tuple[Path, ...]:
    """Where it stands, and where the folder that links lead to stands."""
    return (*path.absolute().parents, *path.resolve().parents)
