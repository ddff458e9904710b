"""The runtime's program: for every mesh a static list of instructions over numbered buffers, made once before the run.

A worker executes its list from top to bottom in every step. SEND never waits; RECV waits for the SEND of the same tag.
Buffers hold distributed arrays; each id is defined once per step, by an argument, an index constant, or an instruction.
Nothing here knows MLIR, JAX or Ray, so a program can be sent anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from shardopt.cost.mesh import Mesh
from shardopt.dialect.exported_program import Argument, Box, Result, StageFunction, TensorSpec


@dataclass(frozen=True)
class Piece:
    """A box inside the tile of shard `shard` (position in the source mesh): one contiguous message part."""

    shard: int
    box: Box


@dataclass(frozen=True)
class Placement:
    """Piece number `piece` lands in `box` of the tile of shard `shard` of the target."""

    piece: int
    shard: int
    box: Box


@dataclass(frozen=True)
class Exchange:
    """Inside the target, after all pieces have landed: box of one shard's tile to box of another's, in list order."""

    source_shard: int
    source_box: Box
    target_shard: int
    target_box: Box


@dataclass(frozen=True)
class Route:
    """How one transfer moves: only `pieces` travel, each once, even if several target devices need it."""

    source: TensorSpec
    target: TensorSpec
    pieces: tuple[Piece, ...]
    placements: tuple[Placement, ...]
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True)
class Run:
    """Execute a stage function. The buffers in `donated`, a subset of `inputs`, are gone afterwards."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    donated: tuple[int, ...]
    label: str  # what it is in the plan, for people: "prologue", "fwd stage 0 microbatch 3"


@dataclass(frozen=True)
class Send:
    tag: int
    buffer: int
    target: str
    route: int


@dataclass(frozen=True)
class Recv:
    tag: int
    buffer: int
    source: str
    route: int


@dataclass(frozen=True)
class Reshard:
    """A transfer that stays on the mesh and changes the sharding."""

    input: int
    output: int
    route: int


@dataclass(frozen=True)
class Copy:
    """A second copy of a buffer that one user consumes while another still needs it."""

    input: int
    output: int


@dataclass(frozen=True)
class Free:
    buffers: tuple[int, ...]


Instruction: TypeAlias = Run | Send | Recv | Reshard | Copy | Free


def reads(instruction: Instruction) -> tuple[int, ...]:
    """The buffers an instruction reads (donated ones included); FREE reads none."""
    match instruction:
        case Run(inputs=inputs):
            return inputs
        case Send(buffer=buffer):
            return (buffer,)
        case Reshard(input=buffer) | Copy(input=buffer):
            return (buffer,)
    return ()


def writes(instruction: Instruction) -> tuple[int, ...]:
    """The buffers an instruction defines."""
    match instruction:
        case Run(outputs=outputs):
            return outputs
        case Recv(buffer=buffer):
            return (buffer,)
        case Reshard(output=buffer) | Copy(output=buffer):
            return (buffer,)
    return ()


@dataclass(frozen=True)
class MeshProgram:
    """What one worker needs. `buffers[b]` describes buffer b.

    arguments:  (argument number of the program, buffer)
    indices:    (microbatch, buffer): constants, loaded once
    results:    (result number of the program, buffer)
    feedback:   (buffer, argument's buffer): state for the next step, moved when a step ends, all at once
    """

    mesh: Mesh
    buffers: tuple[TensorSpec, ...]
    arguments: tuple[tuple[int, int], ...]
    indices: tuple[tuple[int, int], ...]
    instructions: tuple[Instruction, ...]
    results: tuple[tuple[int, int], ...]
    feedback: tuple[tuple[int, int], ...]
    functions: tuple[StageFunction, ...]

    @property
    def state_buffers(self) -> frozenset[int]:
        """Buffers of arguments that a step consumes and replaces."""
        return frozenset(target for _, target in self.feedback)

    @property
    def kept_buffers(self) -> frozenset[int]:
        """Buffers that stay valid from step to step: the other arguments, and the index constants."""
        arguments = frozenset(buffer for _, buffer in self.arguments)
        return (arguments - self.state_buffers) | frozenset(buffer for _, buffer in self.indices)


@dataclass(frozen=True)
class Program:
    """A whole step: one list per mesh, in the order of the topology, and the routes they share."""

    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    routes: tuple[Route, ...]
    meshes: tuple[MeshProgram, ...]
