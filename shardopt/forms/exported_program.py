"""An exported module as plain values: what `read_exported` returns and the runtime turns into
instructions.

Nothing here knows MLIR, so these values can be sent to processes that never import it. Values of a
function are numbered in program order: first its arguments, then the results of its operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardopt.dialect.dtypes import mlir_name
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.mesh.parts import Part, Slice
from shardopt.schedule.schedules import ScheduleText

# Where a device's tile lies: in its own memory, or in that of its host.
Memory = Literal["device", "host"]


@dataclass(frozen=True)
class TensorSpec:
    """A distributed tensor on a given mesh: global shape, numpy dtype name, how the mesh splits it,
    and in which memory the tiles of its devices lie."""

    shape: tuple[int, ...]
    dtype: str
    sharding: Sharding
    memory: Memory = "device"

    def __str__(self) -> str:
        text = f"{mlir_name(self.dtype)}{list(self.shape)} {self.sharding}"
        return text if self.memory == "device" else f"{text} on {self.memory}"


@dataclass(frozen=True)
class MeshValue:
    """A value of `@main` or of the microbatch body: on which mesh it lives, and how."""

    mesh: str
    spec: TensorSpec


@dataclass(frozen=True)
class Argument:
    """An argument of `@main`. `alias` is the number of the result that replaces it in the next
    step, if it is state, as one that lies on the host is. One that is an older version of argument
    `version_of` is no argument of the model: it begins as that, and nobody sees it or its
    result. With `part` it is rows of one, and has its name."""

    name: str
    value: MeshValue
    alias: int | None
    version_of: int | None = None
    part: Part | None = None

    @property
    def label(self) -> str:
        """The name, and which rows of it."""
        return self.name if self.part is None else f"{self.name}{self.part}"


@dataclass(frozen=True)
class ProgramResult:
    """A result of `@main`, or rows of one."""

    name: str
    value: MeshValue
    part: Part | None = None

    @property
    def label(self) -> str:
        """The name, and which rows of it."""
        return self.name if self.part is None else f"{self.name}{self.part}"


@dataclass(frozen=True)
class ReshardStep:
    """Global device `source` gives the global `slice` to `target`: across meshes in phase 0, inside
    the target after."""

    phase: int
    source: int
    target: int
    slice: Slice


@dataclass(frozen=True)
class Call:
    """A fragment call: `function` runs on `mesh`; `kind` and `stage` say which task of the schedule
    it belongs to."""

    mesh: str
    function: str
    kind: str
    stage: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Transfer:
    """Moves a value to another mesh or sharding; no steps where nothing needs to move."""

    input: int
    output: int
    steps: tuple[ReshardStep, ...]


@dataclass(frozen=True)
class LoopArgument:
    """What an argument of the microbatch body is: a value of `@main`, carried value `number`, or
    the index."""

    kind: Literal["captured", "carried", "index"]
    number: int = 0


@dataclass(frozen=True)
class Body:
    """A function of calls and transfers. `values[v]` describes value v; arguments come first."""

    values: tuple[MeshValue, ...]
    ops: tuple[Call | Transfer | Loop, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """Microbatch loop: carried value k starts as `initial[k]`, becomes body result `yields[k]`,
    ends in `outputs[k]`.

    `yields[k]` is None where the body hands the carried value on unchanged. `schedule` is None
    without that attribute. `waiting` are values of the body that lie on hosts between the calls
    that make and read them."""

    iterations: int
    schedule: ScheduleText | None
    body: Body
    arguments: tuple[LoopArgument, ...]
    initial: tuple[int, ...]
    yields: tuple[int | None, ...]
    outputs: tuple[int, ...]
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True)
class StageFunction:
    """A callee, compiled once per mesh that calls it: MLIR bytecode of a module with a public
    `@main`.

    `donates` are the argument numbers whose buffers the function consumes.
    """

    name: str
    bytecode: bytes
    arguments: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    donates: tuple[int, ...]


@dataclass(frozen=True)
class ExportedProgram:
    """A whole exported module. `functions` are in order of their first call."""

    meshes: tuple[Mesh, ...]
    arguments: tuple[Argument, ...]
    results: tuple[ProgramResult, ...]
    main: Body
    functions: tuple[StageFunction, ...]
