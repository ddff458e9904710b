"""A run: what the driver's user holds while workers execute a program, step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, overload

import numpy as np
from jaxlib.mlir import ir

from shardopt.forms.exported_program import Slice, TensorSpec
from shardopt.runtime.attached import (
    AttachedBackend,
    shared_by_name,
    shared_homes,
    with_own_tags,
)
from shardopt.runtime.devices.tiles import Tiling
from shardopt.runtime.health.watch import Watch
from shardopt.runtime.program.hosts import Host, Hosts
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.signature import Whole
from shardopt.runtime.state.initializers import Initializer
from shardopt.runtime.state.ownership import state_arguments
from shardopt.runtime.state.periodic import PeriodicCheckpoints
from shardopt.runtime.state.places import Where, place
from shardopt.runtime.state.run_state import RunState, ShardMaker
from shardopt.runtime.tracing.spans import Span, spans_of
from shardopt.runtime.tracing.usage import Usage, usage_of
from shardopt.runtime.tracing.watchdog import Watchdog, report
from shardopt.runtime.tracing.where import WorkerStatus
from shardopt.support.errors import UserError

# For workers of a run that has failed, which may be gone, or stuck.
_TRACE_SECONDS = 5.0


class Backend(Protocol):
    """Workers, one a host of a mesh, wherever they are; they are called by the names of their
    hosts."""

    hosts: Hosts
    watch: Watch

    def where(self) -> Mapping[str, WorkerStatus | None]:
        """Where every worker stands, by name, while another call runs; None for one that does not
        answer."""

    def ask(self, method: str, seconds: float) -> Mapping[str, Any]:
        """Call a `Worker` method that any thread may call, on all workers, whatever they are doing,
        and wait so long; by worker, None for one that does not answer."""

    def call(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call a `Worker` method on some workers at once; their answers by worker. Raises
        MeshError."""

    def close(self) -> None: ...


class Run:
    """A running program; a context manager. After any MeshError only `close` and `spans` make
    sense."""

    def __init__(
        self,
        program: Program,
        backend: Backend,
        checkpoints: PeriodicCheckpoints | None = None,
        watchdog_seconds: float | None = None,
    ) -> None:
        self.program = program
        self._backend = backend
        self._hosts = backend.hosts
        self._meshes = {part.mesh.name: part.mesh for part in program.meshes}
        self._tilings: dict[tuple[TensorSpec, Host], Tiling] = {}
        self._checkpoints = checkpoints
        self._watchdog = None
        if watchdog_seconds is not None:
            self._watchdog = Watchdog(
                watchdog_seconds, backend.where, partial(print, file=sys.stderr, flush=True)
            )
        workers = {
            mesh: tuple(host.name for host in hosts) for mesh, hosts in backend.hosts.items()
        }
        self._state = RunState(program, workers, self._on_state)
        self._arguments = program.signature.arguments
        self._results = program.signature.results
        self._missing = set(range(len(self._arguments)))  # those that have no value yet
        self._has_results = False
        self._num_attached = 0
        self._failure: BaseException | None = None
        self._is_closed = False
        self.steps_done = 0
        self.step_seconds = 0.0  # of the last step, one that failed too

    def load(self, inputs: Sequence[np.ndarray]) -> None:
        """Put all arguments on the workers. Raises UserError when number, shape or dtype is
        wrong."""
        if len(inputs) != len(self._arguments):
            raise UserError(f"expected {len(self._arguments)} inputs, found {len(inputs)}")
        self._call("load", self._by_worker(dict(enumerate(inputs))))
        self._missing.clear()

    def create(self, values: Mapping[int, Initializer | ShardMaker]) -> None:
        """Make arguments shard by shard, none of them whole: a `Initializer` is computed by the
        workers, a callback gives the elements of a global index, as of
        `jax.make_array_from_callback`. Raises UserError, MeshError."""
        for number in values:
            self._argument(number)
        initializers = {
            number: value for number, value in values.items() if isinstance(value, Initializer)
        }
        self._state.fill(initializers)
        self._state.make(
            {
                number: value
                for number, value in values.items()
                if not isinstance(value, Initializer)
            }
        )
        self._missing -= values.keys()

    def initialize(
        self, module: ir.Module, numbers: Sequence[int], arguments: Sequence[np.ndarray] = ()
    ) -> None:
        """Run `@main(*arguments)` of a StableHLO module on the workers, partitioned by what its
        results become: result k is argument `numbers[k]` of the program. Raises UserError,
        MeshError."""
        for number in numbers:
            self._argument(number)
        self._state.initialize(module, numbers, arguments)
        self._missing -= set(numbers)

    def restore(self, path: Where, numbers: Sequence[int] | None = None) -> None:
        """Go on from a checkpoint, or from the newest in a folder of them, of this plan or another
        one of the model; here, or at the address of a store.

        By default all state is read, and `steps_done` becomes the checkpoint's; `numbers` are only
        read (weights of an evaluation step, say). Raises UserError, with nothing changed unless a
        file is damaged; MeshError."""
        step = self._state.restore(place(path), numbers)
        if numbers is None:
            self.steps_done = step
        self._missing -= set(state_arguments(self.program) if numbers is None else numbers)

    def save(self, path: Where) -> None:
        """Write the state to a new folder, from which `restore` reads. Raises UserError,
        MeshError."""
        self._need_state()
        self._state.save(place(path), self.steps_done)

    def step(
        self,
        inputs: Mapping[int, np.ndarray] | None = None,
        *,
        inspect: Callable[[Outputs], None] = lambda outputs: None,
    ) -> Outputs:
        """Run one step and wait for it; `inputs` replaces arguments by number first. `inspect` sees
        the results before any checkpoint of the step is begun; what it raises prevents that.
        Raises UserError, MeshError."""
        parts = self._by_worker(inputs or {})
        self._missing -= (inputs or {}).keys()
        self._need_arguments()
        if self._checkpoints is not None:
            self._checkpoints.before_step(self.steps_done)
        begin = perf_counter()
        try:
            with nullcontext() if self._watchdog is None else self._watchdog.step():
                step = self.steps_done
                self._call("step", {name: (*values, step) for name, values in parts.items()})
        finally:
            self.step_seconds = perf_counter() - begin
        self.steps_done += 1
        self._has_results = True
        outputs = Outputs(self)
        inspect(outputs)
        if self._checkpoints is not None:
            self._checkpoints.after_step(self.steps_done, self._state)
        return outputs

    def leave_out(self) -> None:
        """Count a step that is not run: the state stays as it is. Raises UserError, MeshError."""
        self._need_state()
        self.steps_done += 1
        if self._checkpoints is not None:
            self._checkpoints.after_step(self.steps_done, self._state)

    def save_checkpoint(self) -> None:
        """Write a checkpoint of now to the folder that the run was opened with, unless the last
        step did; it is there when this returns, and all before it. Raises UserError, MeshError."""
        self._need_state()
        if self._checkpoints is None:
            raise UserError("the run was opened without a folder of checkpoints")
        self._checkpoints.write(self.steps_done, self._state)

    def nonfinite_state(self) -> tuple[str, ...]:
        """The names of state that has numbers which are not finite. Raises MeshError."""
        return self._state.nonfinite()

    def settle_checkpoints(self) -> None:
        """Wait for the checkpoint that is being written, if there is one. Raises UserError,
        MeshError."""
        if self._checkpoints is not None:
            self._checkpoints.settle(self._state)

    def fetch(self, number: int) -> np.ndarray:
        """Result `number` of the last step. State results stay readable until the next step."""
        if not self._has_results or not 0 <= number < len(self._results):
            raise UserError(
                f"result {number} does not exist: {len(self._results)} results, "
                f"{self.steps_done} steps"
            )
        result = self._results[number]
        wanted: dict[str, list[int]] = {}
        for home in result.homes:
            for host in self._hosts[home.value.mesh]:
                wanted.setdefault(host.name, []).append(home.number)
        tiles = self._call("fetch", {name: tuple(numbers) for name, numbers in wanted.items()})
        whole = np.empty(result.shape, result.numpy_dtype)
        for home in result.homes:
            there = whole[home.place()]
            for host in self._hosts[home.value.mesh]:
                self._tiling(home.value.spec, host).paste(tiles[host.name][home.number], there)
        return whole

    def argument(self, number: int, slice_: Slice | None = None) -> np.ndarray:
        """What an argument holds now, or a global slice of it: of state, what the last step made of
        it."""
        self._argument(number)
        if number in self._missing:
            raise UserError(f"argument {number} has no value yet")
        return self._state.read(number, slice_)

    def attach(
        self,
        program: Program,
        shares: Mapping[int, int] | None = None,
        *,
        quick_compile: bool = False,
    ) -> Run:
        """A second program on the same workers, such as an evaluation step, that reads arguments of
        this one where they live: `shares[k]` is the argument of this program that its argument k
        is, by default the state of the same name.

        The run that is returned is stepped like this one, and ends with it. Raises UserError, with
        the first argument that the two do not place alike; MeshError."""
        shares = shared_by_name(self.program, program) if shares is None else shares
        homes = shared_homes(self.program, program, shares)
        self._num_attached += 1
        name, program = f"attached {self._num_attached}", with_own_tags(program, self._num_attached)
        self._backend.watch.add(name, program)
        backend = AttachedBackend(program, name, self._backend, self._call)
        backend.start(program, homes, {"quick_compile": quick_compile})
        attached = Run(program, backend)
        attached._missing -= shares.keys()
        return attached

    def live_bytes(self) -> dict[str, tuple[int, ...]]:
        """By worker, the bytes that a device held after each instruction of the last step. Needs
        `track_bytes`."""
        return self._everywhere("live_bytes")

    def temporary_bytes(self) -> dict[str, dict[str, int]]:
        """By mesh and function, what a device holds beside arguments and results while the function
        runs."""
        return {
            worker.partition("/")[0]: bytes_
            for worker, bytes_ in self._everywhere("temporary_bytes").items()
        }

    def spans(self) -> tuple[Span, ...]:
        """What happened when in the newest steps, on all workers; after a failure, on those that
        still answer, up to where they were. Needs `trace`."""
        if self._failure is None:
            return spans_of(self.program, self._everywhere("trace"))
        traces = self._backend.ask("trace", _TRACE_SECONDS)
        return spans_of(self.program, {name: each for name, each in traces.items() if each})

    def usage(self) -> dict[str, Usage]:
        """What the last step took, by worker. Needs `trace`."""
        return usage_of(self._everywhere("usage"))

    def where(self) -> str:
        """Where every worker stands, a line each; may be called from another thread while a step
        runs."""
        return report(self._backend.where())

    def close(self) -> None:
        try:
            if self._failure is None and not self._is_closed:
                self.settle_checkpoints()
        finally:
            self._is_closed = True
            if self._watchdog is not None:
                self._watchdog.close()
            self._backend.close()
            if self._checkpoints is not None:
                # Behind the workers, which may still be writing to its folder.
                self._checkpoints.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _need_arguments(self) -> None:
        self._need(range(len(self._arguments)), "load() with all inputs before the first step")

    def _need_state(self) -> None:
        """A checkpoint has nothing else."""
        self._need(state_arguments(self.program), "values of all state before it is saved")

    def _need(self, numbers: Iterable[int], expected: str) -> None:
        missing = [number for number in numbers if number in self._missing]
        if missing:
            names = ", ".join(f"{k} '{self._arguments[k].name}'" for k in missing[:3])
            raise UserError(
                f"expected {expected}: {len(missing)} arguments have no value "
                f"({names}{', …' if len(missing) > 3 else ''})"
            )

    def _on_state(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        return self._call(
            "on_state", {name: (method, *values) for name, values in arguments.items()}
        )

    def _by_worker(self, values: Mapping[int, np.ndarray]) -> dict[str, tuple[Any, ...]]:
        """What each worker's devices need, empty ones included: every worker gets one message."""
        parts: dict[str, dict[int, list[np.ndarray]]] = {
            host.name: {} for hosts in self._hosts.values() for host in hosts
        }
        for number, value in values.items():
            whole = self._checked(number, np.asarray(value))
            for home in self._arguments[number].homes:
                part = home.of_whole(whole)
                for host in self._hosts[home.value.mesh]:
                    tiles = self._tiling(home.value.spec, host).parts(part)
                    parts[host.name][home.number] = tiles
        return {name: (part,) for name, part in parts.items()}

    def _tiling(self, spec: TensorSpec, host: Host) -> Tiling:
        if (spec, host) not in self._tilings:
            self._tilings[spec, host] = Tiling(self._meshes[host.mesh], spec, host)
        return self._tilings[spec, host]

    def _argument(self, number: int) -> Whole:
        if not 0 <= number < len(self._arguments):
            raise UserError(
                f"argument {number} does not exist: the program has {len(self._arguments)}"
            )
        return self._arguments[number]

    def _checked(self, number: int, value: np.ndarray) -> np.ndarray:
        argument = self._argument(number)
        shape, dtype = argument.shape, argument.numpy_dtype
        if (value.shape, value.dtype) != (shape, dtype):
            raise UserError(
                f"input {number} '{argument.name}': expected {dtype}{list(shape)}, "
                f"found {value.dtype}{list(value.shape)}"
            )
        return value

    def _everywhere(self, method: str) -> dict[str, Any]:
        return self._call(
            method, {host.name: () for hosts in self._hosts.values() for host in hosts}
        )

    def _call(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        if self._failure is not None:
            raise RuntimeError(
                "the run has failed before and can only be closed"
            ) from self._failure
        if self._is_closed:
            raise UserError("the run is closed; look at results and state before that")
        try:
            return self._backend.call(method, arguments)
        except BaseException as error:
            # An interruption, too: it leaves workers in the middle of something.
            self._failure = error
            raise


class Outputs(Sequence[np.ndarray]):
    """The results of one step, fetched and remembered when looked at; unseen ones are gone after
    the next step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step = run.steps_done
        self._fetched: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._run.program.signature.results)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...
    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        if number not in self._fetched:
            if self._run.steps_done != self._step:
                raise RuntimeError(
                    f"result {number} of step {self._step} was not fetched before the next step"
                )
            self._fetched[number] = self._run.fetch(number)
        return self._fetched[number]
