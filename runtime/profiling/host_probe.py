"""What the hosts of a cluster tell of themselves, and how fast the links are between their devices
and between them: functions that run on a host, called from elsewhere.

Between hosts a message goes over one connection, there and back, as those of a run do."""

from __future__ import annotations

import hmac
import platform as machine
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any

import numpy as np

from shardopt import __version__
from shardopt.cost.collectives import PERMUTE
from shardopt.hardware.cluster import Link
from shardopt.runtime.devices.clients import unshared_devices
from shardopt.runtime.devices.replicas import Replicas, accelerators
from shardopt.runtime.profiling.collective_chains import collective
from shardopt.runtime.profiling.slopes import Effort, measure_chain
from shardopt.runtime.transports.vectors import receive_arrays, receive_exactly, send_arrays
from shardopt.support.errors import UserError

LIBRARIES = ("jax", "jaxlib", "numpy")
_SMALL, _LARGE = 1 << 10, 1 << 22  # bytes of messages between devices
_MESSAGES = (8, 1 << 20, 1 << 24)  # and between hosts
_ROUNDS = 12
_ATTEMPTS = 3
_SIZE = struct.Struct("!Q")
_TOKEN_BYTES = 32
_SECONDS = 30.0  # until a host that does not answer is given up


@dataclass(frozen=True)
class HostFacts:
    """`versions` by name; `memory_bytes` of a device, where its platform tells."""

    name: str
    versions: dict[str, str]
    platform: str
    device_kind: str
    devices: int
    memory_bytes: int | None


def own_versions() -> dict[str, str]:
    """Of what has to be the same everywhere: workers get plans, and executables, from others."""
    versions = {"Python": machine.python_version(), "shardopt": __version__}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = "none"
    return versions


def facts(platform: str, devices: int) -> HostFacts:
    """Of this host, asked for so many devices; there may be fewer GPUs."""
    found = _devices(platform, devices)
    first = found[0]
    memory = first.memory_stats() if first.platform != "cpu" else None
    return HostFacts(
        socket.gethostname(),
        own_versions(),
        str(first.platform),
        str(first.device_kind),
        len(found),
        None if memory is None else int(memory["bytes_limit"]),
    )


def link_inside(platform: str, devices: int) -> Link | None:
    """Of a device to its neighbour, while all send to theirs; None where there is one device, or
    where no slope could be measured."""
    found = _devices(platform, devices)
    if len(found) < 2:
        return None
    replicas, effort = Replicas(found), Effort(fewest=5, most=20, seconds=0.2)
    chains = [
        collective(PERMUTE, size, len(found), len(found), scatters=False)
        for size in (_SMALL, _LARGE)
    ]
    # A slope is the difference of two programs, which other work on the host may turn around.
    for _ in range(_ATTEMPTS):
        small, large = (measure_chain(chain, replicas, effort).seconds for chain in chains)
        if 0 < small < large:
            return Link(small, (_LARGE - _SMALL) / (large - small))
    return None


def _devices(platform: str, count: int) -> list[Any]:
    """Raises UserError where there is none."""
    found = [] if platform == "cpu" else accelerators()
    if platform == "gpu" and not found:
        raise UserError(f"no GPU on host '{socket.gethostname()}'")
    return found[:count] or unshared_devices(count).local


class Echo:
    """Sends back what those send who know the token, until `close`."""

    def __init__(self, address: str, token: bytes) -> None:
        self._token = token
        self._server = socket.create_server((address, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._serve, name="echo", daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(_SECONDS)
                    self._answer(connection)
                except (OSError, EOFError):
                    continue

    def _answer(self, connection: socket.socket) -> None:
        if not hmac.compare_digest(receive_exactly(connection, _TOKEN_BYTES), self._token):
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = np.empty(max(_MESSAGES), np.uint8)
        while True:
            (size,) = _SIZE.unpack(receive_exactly(connection, _SIZE.size))
            message = buffer[: min(size, buffer.nbytes)]
            receive_arrays(connection, [message])
            send_arrays(connection, b"", [message])


_ECHOES: list[Echo] = []


def open_echo(address: str, token: bytes) -> int:
    """Its port. It ends with the process, or with the next one."""
    while _ECHOES:
        _ECHOES.pop().close()
    _ECHOES.append(Echo(address, token))
    return _ECHOES[-1].port


def link_to(address: str, port: int, token: bytes) -> Link:
    """From this host to another's echo. Raises OSError, EOFError."""
    seconds = []
    with socket.create_connection((address, port), timeout=_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token)
        for size in _MESSAGES:
            seconds.append(_one_way(connection, np.zeros(size, np.uint8)))
    return _through(_MESSAGES, seconds)


def _one_way(connection: socket.socket, message: np.ndarray) -> float:
    """The shortest of some turns, half of it."""
    back, turns = np.empty_like(message), []
    for _ in range(_ROUNDS):
        begin = perf_counter()
        send_arrays(connection, _SIZE.pack(message.nbytes), [message])
        receive_arrays(connection, [back])
        turns.append(perf_counter() - begin)
    return min(turns) / 2


def _through(sizes: Sequence[int], seconds: Sequence[float]) -> Link:
    """The first message is all latency, and the last two tell the bandwidth; where the clock says
    that the longer one is no slower, it and the first do."""
    (_, middle, last), (first, short, long) = sizes, seconds
    slope = (long - short) / (last - middle) if long > short else long / last
    return Link(first, 1 / slope)
