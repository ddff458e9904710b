"""The backend of processes on this machine: one for each host of a mesh, fresh ones, so that
nothing of XLA is forked.

Commands go over a socket pair that a worker inherits, so there is nothing to connect to; messages
between workers over sockets of the loopback address that ask for the run's token. A worker notes
where it stands in memory that it shares with the driver, which can read it when the worker is
stuck, or dead."""

from __future__ import annotations

import itertools
import mmap
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardopt.runtime.backends.frames import receive_frame, send_frame
from shardopt.runtime.backends.remote import RemoteBackend
from shardopt.runtime.devices.gpu_drivers import gpu_kind, worker_environment
from shardopt.runtime.errors import FailureKind, MeshError
from shardopt.runtime.health.limits import DEFAULT_LIMITS, Limits
from shardopt.runtime.options import WorkerOptions
from shardopt.runtime.program.hosts import Host, Hosts
from shardopt.runtime.program.instructions import MeshProgram, Program
from shardopt.runtime.program.text import place
from shardopt.runtime.worker import unpack_position

_LOOPBACK = "127.0.0.1"
_EXIT_SECONDS = 5.0  # of a process whose connection has ended
# The `timeval` of SO_SNDTIMEO: a worker that takes nothing of a command for so many seconds is
# stuck.
_SEND_TIMEOUT = struct.pack("ll", 60, 0)
_LAST_WORDS = 2000  # bytes of its log that are looked at when a worker has died


class ProcessBackend(RemoteBackend):
    """`devices_per_host` and the program say which meshes have several hosts; all of them are on
    this machine."""

    def __init__(
        self,
        program: Program,
        hosts: Hosts,
        options: WorkerOptions,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(program, hosts, limits)
        self._folder = tempfile.TemporaryDirectory(prefix="shardopt-")  # for its owner only
        self._processes: dict[str, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._closing = False
        parts = {part.mesh.name: part for part in program.meshes}
        if options.platform == "gpu":
            options = replace(options, gpus_from_zero=True)
        try:
            for number, host in enumerate(self._all_hosts()):
                part = parts[host.mesh]
                log = Path(self._folder.name) / f"{number}.log"
                process = WorkerProcess(host, part, log, _environment(host, part, options.platform))
                self._processes[host.name] = process
                self._selector.register(process.connection, selectors.EVENT_READ, process)
            self._reader = threading.Thread(target=self._read, name="answers", daemon=True)
            self._reader.start()
            self.start_workers(options)
        except BaseException:
            self.close()
            raise

    def submit(self, worker: str, method: str, *arguments: Any) -> Future[Any]:
        return self._processes[worker].send(False, method, arguments)

    def control(self, worker: str, method: str, *arguments: Any) -> Future[Any]:
        return self._processes[worker].send(True, method, arguments)

    def position(self, worker: str) -> tuple[int, int]:
        return self._processes[worker].position

    def own_address(self, worker: Host) -> str:
        return _LOOPBACK

    def service_address(self, mesh: str) -> str:
        """A Unix socket in a folder of this user's only."""
        return f"unix:{self._folder.name}/{len(self._services)}"

    def close(self) -> None:
        self._closing = True
        for process in self._processes.values():
            process.kill()
        if self._processes and hasattr(self, "_reader"):
            # It ends with the last connection; closed before, its selector would watch a foreign
            # file.
            self._reader.join()
        self._selector.close()
        for process in self._processes.values():
            process.connection.close()
        self._processes = {}
        self.close_services()
        self._folder.cleanup()

    def _read(self) -> None:
        """Hand out answers until all processes are gone."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                process: WorkerProcess = key.data
                try:
                    process.receive()
                except (OSError, EOFError):
                    self._selector.unregister(process.connection)
                    process.ended()


class WorkerProcess:
    """A process, the driver's end of its connection, and the commands that it has not answered."""

    def __init__(
        self,
        host: Host,
        part: MeshProgram,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name, self._part, self._log = host.name, part, log
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._end: MeshError | None = None
        self._lock = threading.Lock()
        self.connection, theirs = socket.socketpair()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        with theirs, tempfile.TemporaryFile() as memory, log.open("wb") as output:
            memory.truncate(mmap.PAGESIZE)
            self._position = mmap.mmap(memory.fileno(), mmap.PAGESIZE)
            files = (theirs.fileno(), memory.fileno())
            self._process = subprocess.Popen(
                _command(files),
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    @property
    def position(self) -> tuple[int, int]:
        """Where the worker stands, or stood when it died: (step, instruction)."""
        return unpack_position(int.from_bytes(self._position[:8], sys.byteorder))

    def send(self, urgent: bool, method: str, arguments: Sequence[Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._end is not None:
                future.set_exception(self._end)
                return future
            number = next(self._numbers)
            # Before the command is sent, as the answer may be there before this thread goes on.
            self._waiting[number] = future
            try:
                send_frame(self.connection, (number, urgent, method, tuple(arguments)))
            except OSError:
                # It is gone, or does not read: the reading side tells the future when it is dead.
                self._process.kill()
        return future

    def receive(self) -> None:
        """Read one answer. Raises EOFError or OSError when the process has ended."""
        number, went_well, answer = receive_frame(self.connection)
        future = self._waiting.pop(number)
        if went_well:
            future.set_result(answer)
        else:
            future.set_exception(answer)

    def ended(self) -> None:
        """Fail all that waits for an answer."""
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        kind = FailureKind.ABORTED if code == -signal.SIGABRT else FailureKind.DIED
        error = MeshError(
            self._name,
            place(self._part, *self.position),
            f"its process ended {_why(code)}{self._last_words()}",
            kind,
        )
        with self._lock:
            self._end = error
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(error)

    def kill(self) -> None:
        self._process.kill()

    def _last_words(self) -> str:
        """The last line that the process wrote."""
        lines = self._log.read_bytes()[-_LAST_WORDS:].decode(errors="replace").strip().splitlines()
        # Lines of Gloo tell that all is well.
        lines = [line for line in lines if not line.startswith("[Gloo]")]
        return f"; it last said: {lines[-1]}" if lines else ""


def _environment(host: Host, part: MeshProgram, platform: str) -> dict[str, str] | None:
    """Of a worker with GPUs: it sees, and so takes memory of, no others than its own."""
    if platform != "gpu":
        return None
    gpus = [part.mesh.devices[shard] for shard in host.shards]
    return {**os.environ, **worker_environment(gpus, os.environ, gpu_kind() or "cuda")}


def _command(files: Sequence[int]) -> list[str]:
    return [sys.executable, "-m", "shardopt.runtime.backends.worker_process", *map(str, files)]


def _why(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    if code == -signal.SIGKILL:
        return "by signal SIGKILL, as the kernel sends it when memory runs out"
    try:
        return f"by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
