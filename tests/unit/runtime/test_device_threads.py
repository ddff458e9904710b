"""Devices and threads: arrays that several threads read, and the threads of devices that nobody
uses."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep
from typing import Any

import numpy as np

from shardopt.forms.exported_program import TensorSpec
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.devices.xla import XlaMesh
from shardopt.runtime.driver import open_run
from shardopt.runtime.state.initializers import full
from tests.unit.runtime.test_runtime_program import build


def test_a_thread_that_lists_the_shards_while_another_does_sees_all_of_them() -> None:
    """A mesh sends one array to two others from two threads. One of them is interrupted where it
    makes an object, at each of them in turn, and the other lists the shards then."""
    devices = XlaMesh(Mesh("m", (("x", 4),), (0, 1, 2, 3)))
    spec = TensorSpec((8,), "float32", Sharding((("x",),)))
    tiles = np.arange(8, dtype=np.float32).reshape(4, 2)
    with ThreadPoolExecutor(1) as other:
        interrupted = 0
        for turn in range(8):
            array = devices.copy(devices.put(spec, [tile.copy() for tile in tiles]))
            with interruption(turn, partial(other.submit, devices.shards, array)) as beside:
                shards = devices.shards(array)
            interrupted += len(beside)
            for each in (shards, *(future.result() for future in beside)):
                np.testing.assert_array_equal(each, tiles)
    assert interrupted


@contextmanager
def interruption(turn: int, begin: Callable[[], Future[Any]]) -> Iterator[list[Future[Any]]]:
    """Collect garbage wherever this thread makes an object, and begin something the `turn`-th time,
    which has a moment to end."""
    here, count, begun = threading.get_ident(), itertools.count(), []

    def interrupt(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and threading.get_ident() == here and next(count) == turn:
            begun.append(begin())
            wait(begun, 0.05)

    threshold = gc.get_threshold()
    gc.callbacks.append(interrupt)
    gc.set_threshold(1)
    try:
        yield begun
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(interrupt)


def test_a_closed_run_gives_back_its_threads() -> None:
    program = build()
    values = {k: full(1.0) for k in range(len(program.arguments))}

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    gc.collect()
    before, deadline = threads(), monotonic() + 10
    while monotonic() < deadline:  # those of clients of other tests end
        sleep(0.2)
        before, last = threads(), before
        if before == last:
            break
    runs = []
    for _ in range(2):
        with open_run(program, "local", quick_compile=True) as run:
            run.create(values)
            run.step()
            assert threads() > before
        # Whoever holds it does not hold its devices.
        runs.append(run)
        assert threads() <= before
