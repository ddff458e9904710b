"""Compiling the functions of a planned GPT: one after the other, on all cores, and from the
disk."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time, sleep

from benchmarks.cost.predicted_steps import gpt_step
from examples.gpt import Config
from shardopt.caching.store import Store
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.devices.xla import XlaMesh
from shardopt.runtime.driver import prepare
from shardopt.runtime.program.instructions import Program

_TICK_SECONDS = 1e-3


def compile_seconds(config: Config, batch: int) -> list[dict[str, object]]:
    """Wall and processor seconds of all meshes' functions; and the longest time for which another
    Python thread, which wakes up every millisecond, was held up."""
    model, _ = gpt_step(config, batch)
    plan = make_plan(
        model,
        PlanOptions("cpu-test:1x4", stages=2, submesh="1x2", microbatches=2, recompute="none"),
    )
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    meshes = [(XlaMesh(part.mesh), part.functions) for part in program.meshes]

    def alone() -> None:
        for mesh, functions in meshes:
            for function in functions:
                mesh.compile(function)

    def together(store: Store | None = None) -> None:
        threads = [
            threading.Thread(target=mesh.compile_all, args=(functions,), kwargs={"store": store})
            for mesh, functions in meshes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        methods: dict[str, Callable[[], None]] = {
            "one after the other": alone,
            f"on {os.cpu_count()} threads": together,
            "the same, and kept": lambda: together(store),
            "from the disk": lambda: together(store),
        }
        rows = [
            {"how": how, "functions": _count(program), **_measured(compile_all)}
            for how, compile_all in methods.items()
        ]
        kept = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
        rows[-1]["kept_bytes"] = rows[-2]["kept_bytes"] = kept
        rows[0]["kept_bytes"] = rows[1]["kept_bytes"] = 0
    return rows


def _count(program: Program) -> int:
    return sum(len(part.functions) for part in program.meshes)


def _measured(compile_all: Callable[[], None]) -> dict[str, object]:
    done, gaps = threading.Event(), [0.0]

    def tick() -> None:
        last = perf_counter()
        while not done.is_set():
            sleep(_TICK_SECONDS)
            gaps.append(perf_counter() - last)
            last = perf_counter()

    watcher = threading.Thread(target=tick)
    watcher.start()
    wall, cpu = perf_counter(), process_time()
    compile_all()
    times = {"seconds": perf_counter() - wall, "processor_seconds": process_time() - cpu}
    done.set()
    watcher.join()
    return {**times, "longest_held_up": max(gaps)}
