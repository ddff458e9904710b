"""Compiling on several threads, and executables on disk.

XLA compiles without Python's lock, so that functions are compiled at the same time, as many in a
process as it has cores. What it made is kept in the store (`shardopt.caching`, entries of kind
"executables") under the hash of all that decides: the module's bytecode, the compile options with
the device assignment, flags, versions, and the machine's instruction set. An entry that XLA does
not take back is dropped and made again. Reading an entry runs machine code from it, so nothing is
read from or kept in a folder that another user may write to."""

from __future__ import annotations

import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import jaxlib
from jaxlib import xla_client as xc

from shardopt.caching.store import Store
from shardopt.support.files import stranger_may_change

KIND = "executables"
_CPUINFO = Path("/proc/cpuinfo")

_T = TypeVar("_T")
_R = TypeVar("_R")

_cores = os.cpu_count() or 1
_making: dict[str, threading.Lock] = {}  # by key
_making_guard = threading.Lock()
_slots = threading.BoundedSemaphore(_cores)  # of all meshes of this process together


def compiled_in_parallel(work: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """`work` on every item, in order; raises the first failure in that order."""

    def with_slot(item: _T) -> _R:
        with _slots:
            return work(item)

    with ThreadPoolExecutor(_cores, thread_name_prefix="compile") as threads:
        return list(threads.map(with_slot, items))


def load_or_compile(
    devices: list[Any], bytecode: bytes, options: Any, store: Store | None, threads: str = ""
) -> Any:
    """A loaded executable for `devices`, from the store if it has one. XLA cuts the work of a
    function into parts for as many threads as the client has (`threads`). Where devices are spread
    over processes, each keeps what it made: XLA compiles without the others, and who runs where is
    part of the key."""
    client = devices[0].client
    if store is None or not _is_private(store.folder / KIND):
        # Not for a DeviceList: compiling iterates it, and in jaxlib 0.11.2 threads that did so at
        # the same time ended the process (`PyDeviceList::Iter`, SIGSEGV).
        return client.compile_and_load(bytecode, tuple(devices), options)
    key = _key(devices, bytecode, options, threads)
    with _making_guard:
        making = _making.setdefault(key, threading.Lock())
    with making:  # another mesh may be about to make the same
        return _take_or_make(client, devices, bytecode, options, store, key)


def _take_or_make(
    client: Any, devices: list[Any], bytecode: bytes, options: Any, store: Store, key: str
) -> Any:
    kept = store.get(KIND, key)
    if kept is not None:
        try:
            return client.deserialize_executable(kept, xc.DeviceList(tuple(devices)), options)
        except Exception as error:  # whatever XLA says about it
            store.drop(
                KIND,
                key,
                f"the compiled executable {key[:12]} cannot be loaded and is made again: {error}",
            )
    loaded = client.compile_and_load(bytecode, tuple(devices), options)
    store.put(KIND, key, bytes(client.serialize_executable(loaded)))
    return loaded


def _key(devices: list[Any], bytecode: bytes, options: Any, threads: str) -> str:
    """Of everything that decides about the machine code."""
    client = devices[0].client
    digest = sha256()
    for part in (
        jaxlib.__version__,
        client.platform,
        client.platform_version,
        ",".join(device.device_kind for device in devices),
        f"process {client.process_index()}, devices "
        f"{[(device.process_index, device.id) for device in devices]}",
        _instruction_set(),
        os.environ.get("XLA_FLAGS", ""),
        threads,
        options.SerializeAsString(),
        bytecode,
    ):
        data = part.encode() if isinstance(part, str) else part
        # With lengths, or parts that are cut in different places could have one hash.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@cache
def _is_private(folder: Path) -> bool:
    """Whether only this user can lay machine code there. Warns, once for a folder, if not."""
    part = stranger_may_change(folder)
    if part is not None:
        warnings.warn(
            f"executables are not kept in '{folder.parent}': other users may change '{part}'",
            RuntimeWarning,
            stacklevel=2,
        )
    return part is None


@cache
def _instruction_set() -> str:
    """What the host's processor can do: the CPU compiler uses all of it, and code for another one
    may not run here."""
    known = f"{platform.system()} {platform.machine()} {platform.processor()}"
    if not _CPUINFO.is_file():
        return known
    lines = _CPUINFO.read_text(errors="replace").splitlines()
    told = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return f"{known} {sorted(set(told))}"
