"""A long run in which something goes wrong again and again: is its state that of a run in which
nothing did, and does the driver stay as large as it was?

    python -m benchmarks.runtime.endurance [--steps 20000] [--fault-every 200]
        [--checkpoint-every 20] [--backend process] [--seed 0]

The MLP of `benchmarks.runtime.faults`, with a new batch for every step. Every so many steps a fault
of a random kind happens at a random instruction of a random worker, and the run starts again from
its newest checkpoint with fresh workers. Its state is compared bit for bit with that of an
undisturbed run: at every restart and in the end. Memory, threads and descriptors are those of the
driver when new workers have started. The limits for silence, for a message and for progress are 5,
5 and 10 seconds; their defaults are longer. An error before the step of the fault counts as
unprovoked."""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import random
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.runtime.faults import _BACKENDS, _PLACE, drawn, feed, program, state
from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import MeshError
from shardopt.runtime.faults import KINDS, OF_PROCESSES, Fault
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.restart import Recovery, run_steps
from shardopt.runtime.run import Run
from shardopt.runtime.state.periodic import CheckpointOptions

_MIB = 1 << 20
_LIMITS = Limits(silence_seconds=5, message_seconds=5, progress_seconds=10)
# A machine with other work may stop a worker for longer than a limit.
_SPARE_RESTARTS = 20


def undisturbed(backend: str, steps: int, every: int) -> dict[int, str]:
    """A digest of the state after each `every` steps, and after all."""
    with open_run(program(), **_BACKENDS[backend], limits=_LIMITS) as run:
        run.load(random_inputs(program(), 0))
        digests = {0: _digest(run)}
        for step in range(steps):
            run.step(feed(step))
            if (step + 1) % every == 0 or step + 1 == steps:
                digests[step + 1] = _digest(run)
        return digests


def _digest(run: Run) -> str:
    return hashlib.sha256(state(run)).hexdigest()


class Endurance:
    """One run. `differs` are the steps at which its state was another."""

    def __init__(self, args: argparse.Namespace, expected: dict[int, str], folder: Path) -> None:
        self._args, self._expected, self._folder = args, expected, folder
        generator = random.Random(args.seed)
        kinds = [k for k in KINDS if args.backend != "local" or k not in OF_PROCESSES]
        self._faults = [
            self._fault(generator.choice(kinds), number, generator)
            for number in range(args.steps // args.fault_every)
        ]
        self.errors: dict[str, list[float]] = {}
        self.unprovoked: list[MeshError] = []
        self.differs: list[int] = []
        self.sizes: list[tuple[int, int, int]] = []
        self._run: Run | None = None

    def _fault(self, kind: str, number: int, generator: random.Random) -> Fault:
        """In the turn that its number names; not in the first steps of it, of which some have been
        done before, nor in the last one, which must see what was lost."""
        one = drawn(kind, self._args.backend, generator)
        first = number * self._args.fault_every
        step = first + generator.randrange(self._args.checkpoint_every, self._args.fault_every - 1)
        return Fault(one.kind, one.mesh, one.host, step, one.position)

    def run(self) -> float:
        begin = perf_counter()
        run_steps(
            self._start,
            lambda run: run.load(random_inputs(program(), 0)),
            self._args.steps,
            feed=self._feed,
            finish=self._compare,
            recovery=Recovery(
                self._folder,
                restarts=len(self._faults) + _SPARE_RESTARTS,
                notice=self._notice,
            ),
        )
        return perf_counter() - begin

    def _start(self, attempt: int) -> Run:
        self._run = open_run(
            program(),
            **_BACKENDS[self._args.backend],
            limits=_LIMITS,
            faults=tuple(self._faults[:1]),
            checkpoints=CheckpointOptions(self._folder, every=self._args.checkpoint_every),
        )
        gc.collect()
        self.sizes.append(_size())
        self._begun = False
        return self._run

    def _feed(self, step: int) -> dict[int, object]:
        if not self._begun:
            assert self._run is not None
            self._begun = True
            self._compare(self._run)
        return feed(step)

    def _compare(self, run: Run) -> None:
        if _digest(run) != self._expected[run.steps_done]:
            self.differs.append(run.steps_done)

    def _notice(self, error: MeshError, step: int) -> None:
        assert self._run is not None
        place = _PLACE.fullmatch(error.where)
        if not self._faults or place is None or int(place[1]) < self._faults[0].step:
            self.unprovoked.append(error)
            print(f"unprovoked: {error}", flush=True)
            return
        fault = self._faults.pop(0)
        self.errors.setdefault(fault.kind, []).append(self._run.step_seconds)
        print(f"{fault}: {error}", flush=True)


def _size() -> tuple[int, int, int]:
    """Resident bytes, threads and descriptors of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return (
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--fault-every", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--backend", choices=tuple(_BACKENDS), default="process")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begin = perf_counter()
    expected = undisturbed(args.backend, args.steps, args.checkpoint_every)
    print(f"undisturbed: {args.steps} steps in {perf_counter() - begin:.0f} s")
    with tempfile.TemporaryDirectory() as folder:
        trial = Endurance(args, expected, Path(folder))
        seconds = trial.run()
    print(f"disturbed: {args.steps} steps in {seconds:.0f} s")
    for kind, each in sorted(trial.errors.items()):
        print(f"{kind}: {len(each)}, seen after {median(each):.2f} s, at most {max(each):.2f}")
    count = sum(map(len, trial.errors.values()))
    print(f"{count} faults, {len(trial.unprovoked)} errors unprovoked")
    print(f"{len(trial.sizes) - 1} restarts, state differs at {trial.differs or 'none of them'}")
    for name, values in zip(
        ("MiB", "threads", "descriptors"), zip(*trial.sizes, strict=True), strict=True
    ):
        unit = _MIB if name == "MiB" else 1
        points = [values[0], values[len(values) // 4], values[len(values) // 2], values[-1]]
        print(f"{name} at the start, after a quarter, half, and all: {[p // unit for p in points]}")


if __name__ == "__main__":
    main()
