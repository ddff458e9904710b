"""Runs the tools for lit, and for other tests of commands, in forks of one process that has
imported them: most tests take less time than the imports.

    python server.py SOCKET     # until standard input ends; `client.py` asks for the runs

A fork gets the folder, the environment, the arguments and the open streams of its client, and
answers with its exit code."""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys

from shardopt.passes.registry import PASSES, pass_class

TOOLS = {"shardopt-opt": "shardopt.tools.opt", "shardopt": "shardopt.tools.shardopt"}
# What runs import late, beside the passes. A fork pays for the size of its parent, some milliseconds,
# but half of what runs took was to import these.
LATE = (
    "numpy",
    "shardopt.ir.context",
    "shardopt.pipeline.manager",
    "shardopt.tools.opt.driver",
    "shardopt.frontend.planning.make_plan",
    "shardopt.forms.attribute_types",
    "shardopt.forms.exported_form",
    "shardopt.forms.exported_program",
    "shardopt.runtime.restart",
    "shardopt.solve.stages.dp.kernels",
)


def main() -> int:
    for name in (*TOOLS.values(), *LATE):
        importlib.import_module(name)
    for name in PASSES:
        pass_class(name)
    # With its first function numba reads its registries, and scipy: 300 ms of every run that plans.
    importlib.import_module("numba").njit("int64()")(lambda: 0)
    gc.collect()
    gc.freeze()  # a fork that looks for garbage would copy all pages of what was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen(16)
        print("ready", flush=True)
        while server in select.select([server, 0], [], [])[0]:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _serve(client)
            client.close()
    return 0


def _serve(client: socket.socket) -> None:
    """In the fork: become the client, run the tool, answer."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, streams, *_ = socket.recv_fds(client, 8, 3)
    left, parts = int.from_bytes(header, "big"), []
    while left:
        parts.append(client.recv(left))
        left -= len(parts[-1])
    tool, folder, count, *rest = b"".join(parts).decode(errors="surrogateescape").split("\0")
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    arguments, environment = rest[: int(count)], rest[int(count) :]
    os.environ.clear()
    os.environ.update(pair.split("=", 1) for pair in environment)
    sys.argv = [tool, *arguments]
    try:
        code = importlib.import_module(TOOLS[tool]).main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    client.sendall(bytes([code]))
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
