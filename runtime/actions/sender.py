"""The thread of a worker on which results are awaited, read and sent while the worker itself goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor


class Sender:
    """Sends run one after the other, in the order in which they are given."""

    def __init__(self, mesh: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"send-{mesh}")
        self._sends: list[tuple[frozenset[int], Future[None]]] = []  # buffers, and what reads them

    def submit(self, buffers: Iterable[int], send: Callable[[], None]) -> None:
        self._sends.append((frozenset(buffers), self._thread.submit(send)))

    def wait_for(self, buffers: frozenset[int]) -> None:
        """A buffer must have been read before an executable may write over it. Raises what a send of one raised."""
        for read, future in self._sends:
            if not buffers.isdisjoint(read):
                future.result()

    def drain(self) -> None:
        """Wait for all sends. Raises what the first one raised."""
        for _, future in self._sends:
            future.result()
        self._sends.clear()

    def flush(self) -> None:
        """Wait until the thread has come through all that it was given, whatever became of it."""
        self._thread.submit(int).result()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
