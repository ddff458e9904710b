"""Results on disk under the hash of all that they depend on: whole plans, costs of stages.

    with using(default_store(remark)):       # whoever starts the work says where, if anywhere
        …
        store = active_store()               # whoever has something to keep asks for it
        key = key_of("cost", problem_bytes)
        data = store.get("costs", key) if store else None

A key holds everything that decides about the result (`key_of` adds the versions), so that entries
never expire. Each stands in a file of its own with a checksum, written beside its place and then
moved there: several processes may share a folder, and a reader sees the whole of an entry or none.
An entry that does not read back is dropped with a remark; a folder that cannot be written costs the
saving and nothing else.

FOLDER/<kind>/<first two digits>/<key>    magic, sha256 of the content, content
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from shardopt.caching.versions import fingerprint

CACHE_VARIABLE = "SHARDOPT_CACHE"
# Values of the variable that mean "keep nothing".
OFF = ("0", "off", "none")

# A plan of the largest models takes about 10 MB, a stage cost some hundred bytes.
DEFAULT_LIMIT_BYTES = 2 << 30

_MAGIC = b"shardopt1"
_HEADER = len(_MAGIC) + sha256().digest_size

Remark = Callable[[str], None]


def key_of(*parts: str | bytes) -> str:
    """The key of what follows from `parts` and from the versions of this package and of the
    libraries that decide."""
    digest = sha256(fingerprint())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@dataclass
class Store:
    """A folder of entries. `remark` is told, at most once for each cause, when something is wrong
    with it."""

    folder: Path
    remark: Remark | None = None
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    _remarked: set[str] = field(default_factory=set, repr=False)

    def get(self, kind: str, key: str) -> bytes | None:
        """The content of an entry, or None where there is none or it is damaged."""
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say("unreadable", f"cannot read the cache entry '{path}': {error.strerror}")
            return None
        content = data[_HEADER:]
        if data[:_HEADER] != _header(content):
            self.drop(kind, key, f"the cache entry '{path}' is damaged and is made again")
            return None
        with suppress(OSError):
            os.utime(path)  # what is used stays, see `trim`
        return content

    def put(self, kind: str, key: str, content: bytes) -> None:
        """Keep an entry; the last of several writers wins."""
        path = self._path(kind, key)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            for part in (self.folder, path.parent.parent, path.parent):
                part.mkdir(mode=0o700, exist_ok=True)  # whatever the umask leaves to a group
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_header(content))
                    file.write(content)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            self._say(
                "unwritable", f"cannot write to the cache folder '{self.folder}': {error.strerror}"
            )

    def drop(self, kind: str, key: str, why: str) -> None:
        """Forget an entry whose content is of no use."""
        self._say("damaged", why)
        with suppress(OSError):
            self._path(kind, key).unlink()

    def trim(self) -> None:
        """Remove the entries that were not used for longest until the rest fits into the limit."""
        entries = []
        for path in self.folder.glob("*/*/*"):
            with suppress(OSError):  # another process may have removed it
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in entries) - self.limit_bytes
        for _, size, path in sorted(entries):
            if excess <= 0:
                break
            with suppress(OSError):
                path.unlink()
            excess -= size

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key[:2] / key

    def _say(self, cause: str, message: str) -> None:
        if self.remark is not None and cause not in self._remarked:
            self.remark(message)
        self._remarked.add(cause)


_active: ContextVar[Store | None] = ContextVar("store", default=None)


def active_store() -> Store | None:
    """The store of the work that is going on, or None where nothing is to be kept."""
    return _active.get()


@contextmanager
def using(store: Store | None) -> Iterator[Store | None]:
    """Make `store` the active one; None turns caching off."""
    token = _active.set(store)
    try:
        yield store
    finally:
        _active.reset(token)


def default_store(remark: Remark | None = None) -> Store | None:
    """The store of this user: the folder that SHARDOPT_CACHE names, by default `~/.cache/shardopt`;
    None when the variable says `off`, and for a user without a home."""
    named = os.environ.get(CACHE_VARIABLE, "")
    if named.lower() in OFF:
        return None
    if named:
        return Store(Path(named), remark)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Store((Path(base) if base else Path.home() / ".cache") / "shardopt", remark)
    except RuntimeError:  # of a container, say
        return None


def _header(content: bytes) -> bytes:
    return _MAGIC + sha256(content).digest()
