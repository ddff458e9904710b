"""A train step of a GPT on two meshes, against the times of its stage functions run one after the
other by themselves.

With one microbatch the stages wait for each other, so a step takes what its functions take, and
what the runtime adds. Run on one core: two stages must not share more of the machine than one has
to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter, process_time

import numpy as np

from benchmarks.cost.predicted_steps import gpt_step
from benchmarks.runtime.samples import workers_cpu_seconds
from examples.gpt import Config
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.backends.local import LocalBackend
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.program.instructions import Program, Recv
from shardopt.runtime.program.instructions import Run as RunFunction
from shardopt.runtime.run import Run
from shardopt.runtime.worker import Worker


def step_overheads(
    config: Config, batch: int, backends: tuple[str, ...], steps: int
) -> list[dict[str, object]]:
    """Medians of seconds, for each backend: of a step, of its functions alone, and of their ratio
    turn by turn."""
    model, inputs = gpt_step(config, batch)
    plan = make_plan(
        model,
        PlanOptions("cpu-test:1x2", stages=2, submesh="1x1", microbatches=1, recompute="none"),
    )
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    return [_overhead(program, inputs, name, steps) for name in backends]


def _overhead(
    program: Program, inputs: list[np.ndarray], backend: str, steps: int
) -> dict[str, object]:
    """One backend at a time: the CPU time of all processes is that of its own ones."""
    samples = []
    with ExitStack() as runs:
        opened = {
            name: runs.enter_context(open_run(program, name))
            for name in dict.fromkeys(("local", backend))
        }
        for run in opened.values():
            run.load(inputs)
            run.step()
        with alone(opened["local"]) as functions:
            for _ in range(steps):
                # Each of the two as it goes on: the second of a row, on caches that the first has
                # filled.
                opened[backend].step()
                step = _step(opened[backend])
                functions()
                samples.append((step, functions()))
    return _row(backend, samples)


Timed = tuple[float, float]  # seconds, and of CPU time


def _step(run: Run) -> Timed:
    others = workers_cpu_seconds()
    begin, busy = perf_counter(), process_time()
    run.step()
    taken, of_driver = perf_counter() - begin, process_time() - busy
    return taken, of_driver + workers_cpu_seconds() - others


def _row(name: str, samples: list[tuple[Timed, Timed]]) -> dict[str, object]:
    """CPU time, of all processes together, is the steadier figure where other programs run."""
    step, functions = zip(*samples, strict=True)
    return {
        "backend": name,
        "step_seconds": median(taken for taken, _ in step),
        "functions_seconds": median(taken for taken, _ in functions),
        "overhead": median(one[0] / other[0] for one, other in samples) - 1,
        "overhead_of_best": min(taken for taken, _ in step) / min(taken for taken, _ in functions)
        - 1,
        "overhead_in_CPU_time": median(one[1] / other[1] for one, other in samples) - 1,
        "turns": len(samples),
    }


@contextmanager
def alone(run: Run) -> Iterator[Callable[[], Timed]]:
    """What times all RUNs of a step, each of them waited for before anything else happens."""
    assert isinstance(run._backend, LocalBackend)
    workers = list(run._backend._workers.values())

    def functions() -> Timed:
        taken, busy = zip(*_in_turns(workers), strict=True)
        return sum(taken), sum(busy)

    yield functions


def _in_turns(workers: list[Worker]) -> Iterator[Timed]:
    """One list and the other, as far as each comes, on this thread."""
    done = [0] * len(workers)
    while any(at < len(worker._actions) for at, worker in zip(done, workers, strict=True)):
        for number, worker in enumerate(workers):
            while done[number] < len(worker._actions) and _can_go_on(worker, done[number]):
                yield _timed(worker, done[number])
                done[number] += 1


def _can_go_on(worker: Worker, at: int) -> bool:
    if at >= len(worker.program.instructions):
        return True
    instruction = worker.program.instructions[at]
    context = worker._context
    return (
        not isinstance(instruction, Recv)
        or (context.step, instruction.tag) in context.transport.mailbox._messages
    )


def _timed(worker: Worker, at: int) -> Timed:
    begin, busy = perf_counter(), process_time()
    worker._actions[at]()
    if at >= len(worker.program.instructions):
        return 0.0, 0.0
    instruction = worker.program.instructions[at]
    if not isinstance(instruction, RunFunction):
        worker._context.sender.flush()
        return 0.0, 0.0
    for buffer in instruction.outputs:
        worker._context.buffers[buffer].block_until_ready()
    return perf_counter() - begin, process_time() - busy
