"""Where checkpoints lie: in a folder here, a `pathlib.Path`, or in a store that fsspec knows.

A store has an address, `s3://bucket/run`. It may be one without renames, without locks, and
without folders that exist by themselves, so of these nothing is asked there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from shardopt.support.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.", re.IGNORECASE)


def _with_system_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Stores raise what their libraries have; whoever writes or reads a file knows OSError."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (OSError, UserError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error

    return call


@dataclass(frozen=True)
class RemotePath:
    """A file or folder of a store: what checkpoints need of a `pathlib.Path`. Raises OSError for
    what the store refuses, UserError where its library is missing."""

    address: str

    def __str__(self) -> str:
        return self.address

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.address.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        return self.address.rstrip("/").rpartition("/")[2]

    @_with_system_errors
    def is_file(self) -> bool:
        store, path = self._store()
        return bool(store.isfile(path))

    @_with_system_errors
    def names(self) -> list[str]:
        """What is in the folder. Raises FileNotFoundError."""
        store, path = self._store()
        store.invalidate_cache(path)  # others write there, too
        return [RemotePath(each).name for each in store.ls(path, detail=False)]

    @_with_system_errors
    def size(self) -> int:
        store, path = self._store()
        return int(store.info(path)["size"])

    @_with_system_errors
    def make_folder(self) -> None:
        store, path = self._store()
        store.makedirs(path, exist_ok=True)

    @_with_system_errors
    def create(self) -> RemoteFile:
        """A new file, which is there when it is closed."""
        store, path = self._store()
        return RemoteFile(store.open(path, "wb"))

    @_with_system_errors
    def write(self, data: bytes) -> None:
        """A new file, in one request."""
        store, path = self._store()
        store.pipe_file(path, data)

    @_with_system_errors
    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        store, path = self._store()
        return bytes(store.cat_file(path, start=begin, end=end))

    @_with_system_errors
    def remove(self) -> None:
        """The file, or the folder with all that is in it."""
        store, path = self._store()
        store.rm(path, recursive=True)

    def _store(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError:
            raise UserError(
                f"'{self}' is the address of a store, which needs fsspec: "
                "pip install 'shardopt[remote]'"
            ) from None
        try:
            # fsspec itself keeps what it has connected to.
            store, path = fsspec.core.url_to_fs(self.address)
        except (ImportError, ValueError) as error:
            raise UserError(f"'{self}': {error}") from error
        return store, path


class RemoteFile:
    """A file that is being written; a context manager. Raises OSError."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def tell(self) -> int:
        return int(self._file.tell())

    @_with_system_errors
    def write(self, data: bytes | memoryview) -> int:
        return int(self._file.write(data))

    def __enter__(self) -> RemoteFile:
        return self

    @_with_system_errors
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


Place: TypeAlias = Path | RemotePath
Where: TypeAlias = str | os.PathLike[str] | RemotePath  # as users say it


def place(where: Where) -> Place:
    """`scheme://…` is an address, also of scheme `file`; all else is a path here."""
    if isinstance(where, RemotePath):
        return where
    text = os.fspath(where)
    return RemotePath(text) if _ADDRESS.match(text) else Path(text)


def parent(path: Place) -> Place:
    if isinstance(path, RemotePath):
        return RemotePath(path.address.rstrip("/").rpartition("/")[0])
    return path.absolute().parent


def names(folder: Place) -> list[str]:
    """Raises OSError."""
    return folder.names() if isinstance(folder, RemotePath) else os.listdir(folder)


def file_size(path: Place) -> int:
    """Raises OSError."""
    return path.size() if isinstance(path, RemotePath) else path.stat().st_size


def create_file(path: Place) -> RemoteFile | BufferedWriter:
    """A new file to write to. Raises OSError."""
    return path.create() if isinstance(path, RemotePath) else path.open("xb")


def read_text(path: Place) -> str:
    """Raises OSError, ValueError for what is no text."""
    return path.read().decode() if isinstance(path, RemotePath) else path.read_text("utf-8")


def read_range(path: Place, begin: int, end: int) -> memoryview:
    """Bytes of a file, fewer where it ends before. Raises OSError."""
    if isinstance(path, RemotePath):
        return memoryview(path.read(begin, end)[: end - begin])
    view = memoryview(bytearray(end - begin))
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        filled = 0
        while filled < len(view) and (count := file.readinto(view[filled:])):
            filled += count
    return view[:filled]
