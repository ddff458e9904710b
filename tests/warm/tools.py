"""The tools as commands for tests that start many of them: in forks of one process that has
imported them (`server.py`), since most runs take less time than the imports."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("shardopt", "shardopt-opt")


@contextmanager
def warm_server() -> Iterator[str]:
    """The socket of a server, which ends with the block."""
    with tempfile.TemporaryDirectory() as folder:  # paths of sockets must be short
        socket = str(Path(folder) / "tools")
        command = [sys.executable, str(ROOT / "tests" / "warm" / "server.py"), socket]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as server:
            assert server.stdin is not None and server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield socket
            server.stdin.close()


def client_command(socket: str, tool: str) -> list[str]:
    """What runs a tool in the server of `socket`; arguments follow."""
    return [sys.executable, "-S", "-I", str(ROOT / "tests" / "warm" / "client.py"), socket, tool]


def write_commands(folder: Path, socket: str) -> None:
    """Make `folder` one for the PATH of a shell: it holds a command for each tool."""
    for tool in TOOLS:
        path = folder / tool
        path.write_text(f'#!/bin/sh\nexec {shlex.join(client_command(socket, tool))} "$@"\n')
        path.chmod(0o755)
