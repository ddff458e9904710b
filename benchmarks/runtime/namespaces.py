"""Hosts on one machine: network namespaces, joined by a switch with links of limited rate in both
directions, with a node of Ray in each.

Needs root, `ip` and `tc` of iproute2, and a kernel that lets both work; `why_not` says what is
missing."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import TracebackType

BYTES_PER_SECOND = 125e6  # 1 Gbit/s
_NETWORK = "10.77.0"
_PORT = 6388
_SHAPE = ("root", "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
_START_SECONDS = 120


def why_not() -> str | None:
    """Why there can be no such hosts here, None if there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need the command '{missing[0]}'"
    if find_spec("ray") is None:
        return "the hosts are nodes of Ray, which is not installed"
    name = f"shardopt-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


class LinkedHosts:
    """A context manager. `address` is that of the Ray cluster; `run` runs a command on the first
    host."""

    def __init__(self, count: int = 2) -> None:
        self.names = tuple(f"shardopt-{os.getpid()}-{number}" for number in range(count))
        self._switch = f"shardopt-{os.getpid()}-switch"
        self._addresses = tuple(f"{_NETWORK}.{number + 1}" for number in range(count))
        self.address = f"{self._addresses[0]}:{_PORT}"
        # Ray has Unix sockets in it, whose paths must be short.
        self._folder = tempfile.mkdtemp(prefix="so-")
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        self.environment: Mapping[str, str] = {**os.environ, **token, "TF_CPP_MIN_LOG_LEVEL": "2"}

    def __enter__(self) -> LinkedHosts:
        try:
            self._connect()
            for number in range(len(self.names)):
                self.join(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
        """On the first host, with what both streams said."""
        inside = ("ip", "netns", "exec", self.names[0], *command)
        return subprocess.run(
            inside, env=self.environment, capture_output=True, text=True, timeout=timeout
        )

    def join(self, number: int) -> None:
        """Start the node of a host; the first one is the head of the cluster."""
        head = (
            "--head",
            f"--port={_PORT}",
            "--include-dashboard=false",
            f"--temp-dir={self._folder}",
        )
        role = (f"--address={self.address}",) if number else head
        where = f"--node-ip-address={self._addresses[number]}"
        self._ray(number, ("start", *role, where, "--num-cpus=2", "--disable-usage-stats"))

    def processes(self, name: str) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        return [int(process) for process in listed.stdout.split()]

    def kill(self, name: str) -> None:
        """End all that runs in a namespace, which is what was started there and nothing else."""
        for process in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        for name in (*self.names, self._switch):
            self.kill(name)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self) -> None:
        for name in (self._switch, *self.names):
            _ip("netns", "add", name)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for number, name in enumerate(self.names):
            port, peer = f"so{number}", ("peer", "name", "so", "netns", name)
            _ip("link", "add", port, "netns", self._switch, "type", "veth", *peer)
            _ip("-n", self._switch, "link", "set", port, "master", "switch")
            _ip("-n", name, "addr", "add", f"{self._addresses[number]}/24", "dev", "so")
            for namespace, device in ((self._switch, port), (name, "lo"), (name, "so")):
                _ip("-n", namespace, "link", "set", device, "up")
            # What the host sends is held back at its end, what it receives at the switch's.
            for namespace, device in ((name, "so"), (self._switch, port)):
                command = ("tc", "-n", namespace, "qdisc", "add", "dev", device, *_SHAPE)
                subprocess.run(command, check=True)

    def _ray(self, host: int, arguments: Sequence[str]) -> None:
        command = (
            "ip",
            "netns",
            "exec",
            self.names[host],
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            *arguments,
        )
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=_START_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"no node of Ray on host {host}: {done.stdout}{done.stderr}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
