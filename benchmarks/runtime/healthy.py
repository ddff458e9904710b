"""Runs in which nothing is wrong but everything is slow: none may be ended.

    python -m benchmarks.runtime.healthy [--runs 100] [--seed 0] [--backend process]

An MLP on two meshes of one device, one microbatch, so that each stage waits for all of the other.
Limits are ten times as short as the defaults (silence 2 s, a message 1 s), and what happens is that
much shorter than what would be usual: stages that take longer than the limits, messages of 33 MB,
and again and again a worker, or the driver, that is stopped for most of the time that it may be
silent, which also stalls the links that it reads. The state in the end must be that of an
undisturbed run, bit for bit."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from statistics import median
from time import perf_counter
from typing import Any

from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import MeshError
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.run import Run

_LIMITS = Limits(silence_seconds=2, message_seconds=1, progress_seconds=60)
_PAUSE_SECONDS = 1.6
_STEPS = 2
# Rows and width: RUNs of seconds, and messages of 33 MB.
_LONG, _BIG = (4096, 1024), (65536, 128)


@cache
def program(rows: int, width: int) -> Program:
    import jax
    import jax.numpy as jnp

    from shardopt.frontend.planning.make_plan import make_plan
    from shardopt.frontend.plans.plan import PlanOptions

    def loss(params: Any, x: Any, y: Any) -> Any:
        for weight in params:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    weights = tuple(jax.ShapeDtypeStruct((width, width), jnp.float32) for _ in range(4))
    batch = jax.ShapeDtypeStruct((rows, width), jnp.float32)
    exported = jax.export.export(jax.jit(step, donate_argnums=0))(weights, batch, batch)
    options = PlanOptions("cpu-test:1x2", stages=2, recompute="none", schedule="1f1b")
    return make_plan(bytes(exported.mlir_module_serialized), options).program()


@contextmanager
def nothing(run: Run, generator: random.Random) -> Iterator[None]:
    yield


@contextmanager
def stopped_workers(run: Run, generator: random.Random) -> Iterator[None]:
    """One after the other, at random moments."""
    over = threading.Event()

    def disturb() -> None:
        while not over.wait(generator.uniform(0.1, 1.5)):
            worker = generator.choice(children())
            _pause(worker, over)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def stopped_driver(run: Run, generator: random.Random) -> Iterator[None]:
    """By a shell beside it."""
    me, wait = os.getpid(), f"{generator.uniform(0.1, 1.5):.2f}"
    loop = f"while sleep {wait}; do kill -STOP {me}; sleep {_PAUSE_SECONDS}; kill -CONT {me}; done"
    with subprocess.Popen(["sh", "-c", loop]) as shell:
        try:
            yield
        finally:
            shell.kill()
            os.kill(me, signal.SIGCONT)


def children() -> list[int]:
    """The workers: children of this process, but for shells."""
    found = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True
    ).stdout
    rows = (line.split(None, 1) for line in found.splitlines())
    return [int(pid) for pid, name in rows if name.startswith("python")]


def _pause(process: int, over: threading.Event) -> None:
    try:
        os.kill(process, signal.SIGSTOP)
        over.wait(_PAUSE_SECONDS)
        os.kill(process, signal.SIGCONT)
    except ProcessLookupError:
        return


CASES: dict[str, tuple[tuple[int, int], Callable[..., Any]]] = {
    "long stages": (_LONG, nothing),
    "big messages": (_BIG, nothing),
    "long stages, workers stopped": (_LONG, stopped_workers),
    "big messages, workers stopped": (_BIG, stopped_workers),
    "long stages, driver stopped": (_LONG, stopped_driver),
}


def trial(size: tuple[int, int], disturbance: Callable[..., Any], backend: Any, seed: int) -> str:
    """Why the run is not as it should be, "" if it is."""
    try:
        with open_run(program(*size), backend, limits=_LIMITS, quick_compile=True) as run:
            run.load(random_inputs(program(*size), 0))
            with disturbance(run, random.Random(seed)):
                for _ in range(_STEPS):
                    run.step()
            return "" if state(run) == undisturbed(size) else "another state"
    except MeshError as error:
        return str(error)


def state(run: Run) -> bytes:
    arguments = run.program.signature.arguments
    return b"".join(
        run.argument(number).tobytes() for number, a in enumerate(arguments) if a.alias is not None
    )


@cache
def undisturbed(size: tuple[int, int]) -> bytes:
    with open_run(program(*size), "process", quick_compile=True) as run:
        run.load(random_inputs(program(*size), 0))
        for _ in range(_STEPS):
            run.step()
        return state(run)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("process", "ray"), default="process")
    args = parser.parse_args(argv)
    for size in {size for size, _ in CASES.values()}:
        undisturbed(size)
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    wrong: Counter[str] = Counter()
    for number in range(args.runs):
        name = list(CASES)[number % len(CASES)]
        begin = perf_counter()
        why = partial(trial, *CASES[name])(args.backend, args.seed + number)
        seconds[name].append(perf_counter() - begin)
        if why:
            wrong[name] += 1
            print(f"{name}: {why}", flush=True)
    for name, of_case in seconds.items():
        if of_case:
            ended = f"{wrong[name]} not as they should be"
            print(f"{name:32} {len(of_case)} runs, {median(of_case):.1f} s each, {ended}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
