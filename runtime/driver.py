"""The driver: from an exported module to a running distributed program.

    program = prepare(module)                          # verify, read, build, check; no device needed
    with open_run(program, backend="local") as run:
        run.load(inputs)                               # one numpy array per argument of @main
        outputs = run.step()                           # arrays are fetched when looked at
        loss = outputs[-1]

Arguments that a result replaces (donated ones) are state: they stay on the workers and are fed back from step to step.
The others keep their value until `step({number: array})` gives a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, overload

import numpy as np
from jaxlib.mlir import ir

from shardopt.cost.errors import UserError
from shardopt.dialect.dtypes import numpy_dtype
from shardopt.dialect.exported_form import read_exported
from shardopt.dialect.exported_verify import verify_exported
from shardopt.ir.diagnostics import DiagnosedError, diagnostic
from shardopt.runtime.program.build import build_program
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.instructions import Program

BACKENDS = ("local", "ray")


class Backend(Protocol):
    """Workers, one a mesh, wherever they are."""

    def call(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call a `Worker` method on some meshes at once; their answers by mesh. Raises MeshError."""

    def close(self) -> None: ...


def prepare(module: ir.Module) -> Program:
    """The program of an exported module. Raises UserError with the places of all faults in the module."""
    faults = verify_exported(module)
    if faults:
        raise DiagnosedError(*(diagnostic("error", where, message) for where, message in faults))
    program = build_program(read_exported(module))
    problems = check_program(program)
    if problems:
        raise UserError("the module cannot be executed: " + "; ".join(problems))
    return program


def open_run(
    program: Program,
    backend: str = "local",
    *,
    checked_steps: int = 1,
    quick_compile: bool = False,
    track_bytes: bool = False,
) -> Run:
    """Start the workers and compile. `local` is threads of this process, `ray` is actors, one a mesh.

    `checked_steps` first steps verify every executable's inputs. `quick_compile` trades speed of the code for less
    compile time. `track_bytes` counts live arrays after every instruction (`Run.live_bytes`), which makes steps slow.
    Raises UserError for an unknown backend, MeshError if a mesh cannot start.
    """
    if backend not in BACKENDS:
        raise UserError(f"unknown backend '{backend}': known backends are {', '.join(BACKENDS)}")
    options = {"checked_steps": checked_steps, "quick_compile": quick_compile, "track_bytes": track_bytes}
    if backend == "ray":
        from shardopt.runtime.backends.ray_actors import RayBackend

        return Run(program, RayBackend(program, **options))
    from shardopt.runtime.backends.local import LocalBackend

    return Run(program, LocalBackend(program, **options))


class Run:
    """A running program; a context manager. After any MeshError only `close` makes sense."""

    def __init__(self, program: Program, backend: Backend) -> None:
        self.program = program
        self._backend = backend
        self._argument_home = {number: part.mesh.name for part in program.meshes for number, _ in part.arguments}
        self._result_home = {number: part.mesh.name for part in program.meshes for number, _ in part.results}
        self._loaded = False
        self._failure: BaseException | None = None
        self.steps_done = 0

    def load(self, inputs: Sequence[np.ndarray]) -> None:
        """Put all arguments on the workers. Raises UserError when number, shape or dtype is wrong."""
        if len(inputs) != len(self.program.arguments):
            raise UserError(f"expected {len(self.program.arguments)} inputs, found {len(inputs)}")
        self._call("load", self._by_mesh(dict(enumerate(inputs))))
        self._loaded = True

    def step(self, inputs: Mapping[int, np.ndarray] | None = None) -> Outputs:
        """Run one step and wait for it; `inputs` replaces arguments by number first. Raises UserError, MeshError."""
        if not self._loaded:
            raise UserError("expected load() with all inputs before the first step")
        self._call("step", self._by_mesh(inputs or {}))
        self.steps_done += 1
        return Outputs(self)

    def fetch(self, number: int) -> np.ndarray:
        """Result `number` of the last step. State results stay readable until the next step."""
        if self.steps_done == 0 or number not in self._result_home:
            raise UserError(
                f"result {number} does not exist: {len(self._result_home)} results, {self.steps_done} steps"
            )
        home = self._result_home[number]
        return self._call("fetch", {home: (number,)})[home]

    def live_bytes(self) -> dict[str, tuple[int, ...]]:
        """By mesh, the bytes that a device held after each instruction of the last step. Needs `track_bytes`."""
        return self._call("live_bytes", {part.mesh.name: () for part in self.program.meshes})

    def close(self) -> None:
        self._backend.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _by_mesh(self, values: Mapping[int, np.ndarray]) -> dict[str, tuple[Any, ...]]:
        """One dictionary per mesh, empty ones included: every worker gets one message."""
        parts: dict[str, dict[int, np.ndarray]] = {part.mesh.name: {} for part in self.program.meshes}
        for number, value in values.items():
            home = self._home(number)
            parts[home][number] = self._checked(number, np.asarray(value))
        return {name: (part,) for name, part in parts.items()}

    def _home(self, number: int) -> str:
        if number not in self._argument_home:
            raise UserError(f"argument {number} does not exist: the program has {len(self._argument_home)}")
        return self._argument_home[number]

    def _checked(self, number: int, value: np.ndarray) -> np.ndarray:
        argument = self.program.arguments[number]
        shape, dtype = argument.value.spec.shape, numpy_dtype(argument.value.spec.dtype)
        if (value.shape, value.dtype) != (shape, dtype):
            raise UserError(
                f"input {number} '{argument.name}': expected {dtype}{list(shape)}, "
                f"found {value.dtype}{list(value.shape)}"
            )
        return value

    def _call(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        if self._failure is not None:
            raise RuntimeError("the run has failed before and can only be closed") from self._failure
        try:
            return self._backend.call(method, arguments)
        except BaseException as error:
            self._failure = error
            raise


class Outputs(Sequence[np.ndarray]):
    """The results of one step, fetched and remembered when looked at; unseen ones are gone after the next step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step = run.steps_done
        self._fetched: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._run.program.results)

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
                raise RuntimeError(f"result {number} of step {self._step} was not fetched before the next step")
            self._fetched[number] = self._run.fetch(number)
        return self._fetched[number]
