"""A thread that does one thing after the other and does not keep the process alive when one of them
never ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class WorkerThread:
    """`concurrent.futures` has executors whose threads are joined when the interpreter exits; this
    one's is not."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((future, lambda: function(*arguments, **options)))
        return future

    def close(self, seconds: float) -> bool:
        """Wait until all tasks are done, or so long; whether they are done."""
        self._tasks.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function = task
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            del task, future, function  # nothing of it may live on while the next one is awaited
