"""What a run does when something goes wrong: each fault, at a random instruction, in many trials.

    python -m benchmarks.runtime.faults [--trials 10] [--seed 0] [--backends
        local,process,hosts,ray] [--kinds kill,stop] [--failures failed.txt]

A small MLP with momentum runs on two meshes of two devices, with a checkpoint after each step. In
one of the first steps of every attempt a fault of one kind happens when one worker comes to one
instruction, all drawn at random. Seconds are counted from the beginning of the call of the step
that ends in the error. The error must name a mesh, a host, and an instruction of their list (or the
end of the step), and, where the fault is one that is seen on the worker that it happens to, those
of the fault. Then the run starts again, with fresh workers, from its last checkpoint. The state
that it has then, and in the end, is compared bit for bit with that of a run without faults after as
many steps.

`hosts` are processes, two for each mesh, so that collectives cross processes. The limits for
silence, for a message and for progress are 2, 2 and 4 seconds here, for the time of the trials;
their defaults are longer."""

from __future__ import annotations

import argparse
import random
import re
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.runtime.state_programs import mlp
from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import MeshError
from shardopt.runtime.faults import KINDS, OF_PROCESSES, Fault
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.program.hosts import hosts_of, one_host_each
from shardopt.runtime.program.instructions import Program, Send
from shardopt.runtime.restart import Recovery, run_steps
from shardopt.runtime.run import Outputs, Run
from shardopt.runtime.state.checkpoint_folder import checkpoints
from shardopt.runtime.state.periodic import CheckpointOptions

_LIMITS = Limits(silence_seconds=2, message_seconds=2, progress_seconds=4)
_STEPS = 4  # an attempt is over then
_ELSEWHERE = ("cut", "drop")  # seen by whoever waits for what does not come
_PLACE = re.compile(r"step (\d+), (?:instruction (\d+) \(.+\)|end of step)")
_BACKENDS: dict[str, dict[str, Any]] = {
    "local": {"backend": "local"},
    "process": {"backend": "process"},
    "hosts": {"backend": "process", "devices_per_host": 1},
    "ray": {"backend": "ray"},
}


@dataclass(frozen=True)
class Trial:
    """`why` is empty if everything was as it should be."""

    seconds: float
    why: str


def program() -> Program:
    return mlp(width=32, stages=2, devices=2)


def start(backend: str, faults: tuple[Fault, ...], folder: str) -> Run:
    saving = CheckpointOptions(Path(folder), every=1)
    return open_run(
        program(), **_BACKENDS[backend], checkpoints=saving, limits=_LIMITS, faults=faults
    )


def feed(step: int) -> dict[int, Any]:
    """A new batch for every step: the arguments that are no state."""
    arguments = program().arguments
    return {
        number: a
        for number, a in enumerate(random_inputs(program(), step))
        if arguments[number].alias is None
    }


def state(run: Run) -> bytes:
    arguments = program().arguments
    return b"".join(
        run.argument(number).tobytes() for number, a in enumerate(arguments) if a.alias is not None
    )


@cache
def undisturbed(backend: str, steps: int) -> list[bytes]:
    """The state after 0, 1, … steps."""
    with open_run(program(), **_BACKENDS[backend], limits=_LIMITS) as run:
        run.load(random_inputs(program(), 0))
        states = [state(run)]
        for step in range(steps):
            run.step(feed(step))
            states.append(state(run))
        return states


def drawn(kind: str, backend: str, generator: random.Random) -> Fault:
    """A fault of a kind. Connections and messages are hit where there is a message left to miss."""
    hosts = hosts_of(program(), 1) if backend == "hosts" else one_host_each(program())
    sends = {
        part.mesh.name: [k for k, each in enumerate(part.instructions) if isinstance(each, Send)]
        for part in program().meshes
    }
    part = generator.choice(
        [part for part in program().meshes if kind not in _ELSEWHERE or sends[part.mesh.name]]
    )
    host = generator.choice(hosts[part.mesh.name])
    last = sends[part.mesh.name][-1] if kind in _ELSEWHERE else len(part.instructions) - 1
    # So that somebody sees it.
    step = generator.randrange(1, _STEPS - 1 if kind in _ELSEWHERE else _STEPS)
    return Fault(kind, part.mesh.name, host.number, step, generator.randint(0, last))


class Chain:
    """One run in which a fault of the kind happens in every attempt but the last, `trials` in
    all."""

    def __init__(self, kind: str, backend: str, trials: int, generator: random.Random) -> None:
        self._backend = backend
        self._faults = [drawn(kind, backend, generator) for _ in range(trials)]
        self._steps = 1 + trials * _STEPS
        self._expected = undisturbed(backend, self._steps)
        self._run: Run | None = None
        self._begun_at = 0
        self.trials: list[Trial] = []

    def run(self) -> list[Trial]:
        with tempfile.TemporaryDirectory() as folder:
            run_steps(
                lambda attempt: self._start(attempt, folder),
                self._begin,
                self._steps,
                feed=self._feed,
                after=self._after,
                finish=self._compare,
                recovery=Recovery(Path(folder), restarts=len(self._faults), notice=self._notice),
            )
        return self.trials

    def _start(self, attempt: int, folder: str) -> Run:
        """Steps have the numbers of the whole training, so those of a fault count from where its
        attempt begins."""
        if attempt == len(self._faults):
            return start(self._backend, (), folder)
        fault, saved = self._faults[attempt], checkpoints(Path(folder))
        first = saved[-1][0] if saved else 0
        self._faults[attempt] = fault = replace(fault, step=first + fault.step)
        return start(self._backend, (fault,), folder)

    def _begin(self, run: Run) -> None:
        self._run, self._begun_at = run, -1
        run.load(random_inputs(program(), 0))

    def _feed(self, step: int) -> dict[int, Any]:
        if self._begun_at < 0:
            assert self._run is not None
            self._begun_at = step
            self._compare(self._run)
        return feed(step)

    def _after(self, run: Run, step: int, outputs: Outputs) -> None:
        if len(self.trials) < len(self._faults) and step - self._begun_at >= _STEPS - 1:
            raise MeshError("none", "", "nothing was noticed")

    def _compare(self, run: Run) -> None:
        """The state that this attempt starts with, which the one before left, or that the last
        attempt ends with."""
        if self.trials and state(run) != self._expected[run.steps_done]:
            last = self.trials[-1]
            self.trials[-1] = Trial(last.seconds, f"{last.why} the state after the restart differs")

    def _notice(self, error: MeshError, step: int) -> None:
        assert self._run is not None
        fault = self._faults[len(self.trials)]
        problems = "; ".join(_problems(error, fault))
        self.trials.append(
            Trial(self._run.step_seconds, f"{fault}: {problems}: {error}" if problems else "")
        )


def _problems(error: MeshError, fault: Fault) -> Iterator[str]:
    place = _PLACE.fullmatch(error.where)
    lists = {part.mesh.name: part.instructions for part in program().meshes}
    if error.mesh not in lists or place is None:
        yield "no mesh, host and instruction are named"
    elif place[2] is not None and int(place[2]) >= len(lists[error.mesh]):
        yield "there is no such instruction"
    elif fault.kind not in _ELSEWHERE and (error.mesh, error.host) != (fault.mesh, fault.host):
        yield "another worker is named"
    elif fault.kind not in _ELSEWHERE and (int(place[1]), int(place[2] or -1)) != (
        fault.step,
        fault.position,
    ):
        yield "another instruction is named"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10, help="of each kind on each backend")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backends", default=",".join(_BACKENDS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--failures", type=Path, help="write there what was not as it should be")
    args = parser.parse_args()
    table = Table(
        "backend",
        "fault",
        "trials",
        "median s",
        "max s",
        "named as it should be, same state",
        box=None,
    )
    failures: list[str] = []
    for backend in args.backends.split(","):
        with _cluster(backend):
            for kind in args.kinds.split(","):
                if backend == "local" and kind in OF_PROCESSES:
                    continue
                generator = random.Random(f"{args.seed} {backend} {kind}")
                trials = Chain(kind, backend, args.trials, generator).run()
                seconds = [trial.seconds for trial in trials]
                bad = [f"{backend} {trial.why}" for trial in trials if trial.why]
                failures += bad
                good = f"{len(trials) - len(bad)} of {len(trials)}"
                row = (
                    backend,
                    kind,
                    str(len(trials)),
                    f"{statistics.median(seconds):.2f}",
                    f"{max(seconds):.2f}",
                    good,
                )
                print(*row, sep="\t", flush=True)
                table.add_row(*row)
    Console(width=120).print(table)
    for failure in failures:
        print(failure)
    if args.failures is not None:
        args.failures.write_text("".join(f"{failure}\n" for failure in failures))


class _cluster:
    """One Ray cluster for all trials."""

    def __init__(self, backend: str) -> None:
        self._needed = backend == "ray"

    def __enter__(self) -> None:
        if self._needed:
            import ray

            ray.init(address="local", include_dashboard=False, log_to_driver=False)

    def __exit__(self, *_: object) -> None:
        if self._needed:
            import ray

            ray.shutdown()


if __name__ == "__main__":
    main()
