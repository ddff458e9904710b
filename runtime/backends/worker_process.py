"""The program that a worker of the backend `process` is: `python -m
shardopt.runtime.backends.worker_process`.

It is given two open files: a connection to its driver, and a few bytes of shared memory for the
position. Commands arrive as frames (number, urgent, method, arguments) and are answered by (number,
whether it went well, answer); urgent ones at once, by the thread that reads, the others one after
the other on the main thread. A connection that ends is the end of the process: no worker outlives
its driver."""

from __future__ import annotations

import mmap
import os
import queue
import signal
import socket
import sys
import threading
from typing import Any

from shardopt.runtime.backends.frames import receive_frame, send_frame
from shardopt.runtime.backends.remote_worker import RemoteWorker
from shardopt.runtime.errors import MeshError


class _Server:
    def __init__(self, connection: socket.socket, worker: RemoteWorker) -> None:
        self._connection = connection
        self._worker = worker
        self._commands: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._writing = threading.Lock()

    def run(self) -> None:
        """Until the driver closes the connection, which ends the process wherever it is."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        while True:
            self._answer(*self._commands.get())

    def _read(self) -> None:
        try:
            while True:
                number, urgent, method, arguments = receive_frame(self._connection)
                if urgent:
                    self._answer(number, method, arguments)
                else:
                    self._commands.put((number, method, arguments))
        finally:
            os._exit(0)  # the main thread may be anywhere

    def _answer(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer = (number, True, self._worker.call(method, arguments))
        except Exception as error:  # whatever `call` raises can be sent
            answer = (number, False, error)
        with self._writing:
            try:
                send_frame(self._connection, answer)
            except TypeError as error:  # nothing of it has been sent
                send_frame(
                    self._connection,
                    (number, False, MeshError(self._worker.name, "", f"{method}: {error}")),
                )


def main(arguments: list[str]) -> None:
    # Ctrl-C in a terminal goes to every process there: it is for the driver to end a run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection, memory = (int(each) for each in arguments)
    position = memoryview(mmap.mmap(memory, mmap.PAGESIZE)).cast("q")
    _Server(socket.socket(fileno=connection), RemoteWorker(position)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
