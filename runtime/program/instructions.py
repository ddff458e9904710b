"""The runtime's program: for every mesh a static list of instructions over numbered buffers, made
once before the run.

A worker executes its list from top to bottom in every step. SEND never waits; RECV waits for the
SEND of the same tag. Where the plan of a transfer has steps inside its destination, RECV (or
RESHARD) only lands pieces in the shards, and one ALLGATHER or BROADCAST completes them; until then
nothing else may touch the buffer. Buffers hold distributed arrays; each id is defined once per
step, by an argument, an index constant, or an instruction. Nothing here knows MLIR, JAX or Ray, so
a program can be sent anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from shardopt.forms.exported_program import (
    Argument,
    ProgramResult,
    Slice,
    StageFunction,
    TensorSpec,
)
from shardopt.mesh.mesh import Mesh
from shardopt.runtime.program.signature import Signature, signature_of


@dataclass(frozen=True)
class Piece:
    """A slice inside the tile of shard `shard` (position in the source mesh): one contiguous
    message part."""

    shard: int
    slice: Slice


@dataclass(frozen=True)
class Placement:
    """Piece number `piece` lands in `slice_` of the tile of shard `shard` of the target."""

    piece: int
    shard: int
    slice: Slice


@dataclass(frozen=True)
class Exchange:
    """Inside the target, after all pieces have landed: slice of one shard's tile to slice of
    another's, in list order.

    A slice may be passed on by a shard that received it earlier in the list.
    """

    source_shard: int
    source_slice: Slice
    target_shard: int
    target_slice: Slice


@dataclass(frozen=True)
class Route:
    """How one transfer moves: only `pieces` travel, each once, even if several target devices need
    it."""

    source: TensorSpec
    target: TensorSpec
    pieces: tuple[Piece, ...]
    placements: tuple[Placement, ...]
    exchanges: tuple[Exchange, ...]

    @property
    def completion(self) -> type[Allgather | Broadcast] | None:
        """What must follow RECV or RESHARD: nothing; BROADCAST if all shards that exchange with
        each other get what they miss from one of them, directly or in a chain; else ALLGATHER."""
        if not self.exchanges:
            return None
        return Broadcast if _has_one_giver_each(self.exchanges) else Allgather


def _has_one_giver_each(exchanges: tuple[Exchange, ...]) -> bool:
    """Shards that are linked by exchanges form a group; a giver is one that hands out what nobody
    gave it before."""
    leader: dict[int, int] = {}

    def group(shard: int) -> int:
        while leader.setdefault(shard, shard) != shard:
            shard = leader[shard]
        return shard

    sent: dict[int, set[Slice]] = {}
    givers: set[int] = set()
    for move in exchanges:
        leader[group(move.source_shard)] = group(move.target_shard)
        if not any(
            _within(move.source_slice, slice_) for slice_ in sent.get(move.source_shard, ())
        ):
            givers.add(move.source_shard)
        sent.setdefault(move.target_shard, set()).add(move.target_slice)
    return len({group(shard) for shard in givers}) == len(givers)


def _within(slice_: Slice, other: Slice) -> bool:
    pairs = zip(slice_, other, strict=False)
    return len(slice_) == len(other) and all(
        low <= start and limit <= high for (start, limit), (low, high) in pairs
    )


@dataclass(frozen=True)
class Run:
    """Execute a stage function. The buffers in `donated`, a subset of `inputs`, are gone
    afterwards."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    donated: tuple[int, ...]
    label: str  # what it is in the plan, for people: "prologue", "fwd stage 0 microbatch 3"


@dataclass(frozen=True)
class Send:
    """One message with the pieces of all `buffers`, in order; buffer k travels by `routes[k]`."""

    tag: int
    buffers: tuple[int, ...]
    target: str
    routes: tuple[int, ...]


@dataclass(frozen=True)
class Recv:
    """Takes the message of SEND `tag` and lands its pieces in new `buffers`."""

    tag: int
    buffers: tuple[int, ...]
    source: str
    routes: tuple[int, ...]


@dataclass(frozen=True)
class Allgather:
    """Completes a buffer that has landed: shards exchange what each of them got. `tag` is no
    message between meshes, it names what travels between the hosts of this one."""

    tag: int
    buffer: int
    route: int


@dataclass(frozen=True)
class Broadcast:
    """Completes a buffer that has landed: one shard's part goes to all others that need it; `tag`
    as in ALLGATHER."""

    tag: int
    buffer: int
    route: int


@dataclass(frozen=True)
class Reshard:
    """A transfer that stays on the mesh and changes the sharding; `tag` as in ALLGATHER."""

    tag: int
    input: int
    output: int
    route: int


@dataclass(frozen=True)
class Copy:
    """A second copy of a buffer that one user consumes while another still needs it."""

    input: int
    output: int


@dataclass(frozen=True)
class Move:
    """The same value in the other memory, of the device or of its host (`TensorSpec.memory`)."""

    input: int
    output: int


@dataclass(frozen=True)
class Free:
    buffers: tuple[int, ...]


Instruction: TypeAlias = Run | Send | Recv | Allgather | Broadcast | Reshard | Copy | Move | Free


def reads(instruction: Instruction) -> tuple[int, ...]:
    """The buffers an instruction reads (donated ones and completed ones included); FREE reads
    none."""
    match instruction:
        case Run(inputs=buffers) | Send(buffers=buffers):
            return buffers
        case (
            Allgather(buffer=buffer)
            | Broadcast(buffer=buffer)
            | Reshard(input=buffer)
            | Copy(input=buffer)
            | Move(input=buffer)
        ):
            return (buffer,)
    return ()


def writes(instruction: Instruction) -> tuple[int, ...]:
    """The buffers an instruction defines."""
    match instruction:
        case Run(outputs=buffers) | Recv(buffers=buffers):
            return buffers
        case Reshard(output=buffer) | Copy(output=buffer) | Move(output=buffer):
            return (buffer,)
    return ()


@dataclass(frozen=True)
class MeshProgram:
    """What one worker needs. `buffers[b]` describes buffer b.

    arguments:  (argument number of the program, buffer)
    indices:    (microbatch, buffer): constants, loaded once
    results:    (result number of the program, buffer)
    feedback:   (buffer, argument's buffer): state for the next step, all moved when a step ends
    versions:   (argument number of the program, buffer): state that is no argument, and begins as
                what the argument is given
    shapes:     (buffer, shape): what arguments and results are without the padding that their
                buffers have behind uneven tiles
    """

    mesh: Mesh
    buffers: tuple[TensorSpec, ...]
    arguments: tuple[tuple[int, int], ...]
    indices: tuple[tuple[int, int], ...]
    instructions: tuple[Instruction, ...]
    results: tuple[tuple[int, int], ...]
    feedback: tuple[tuple[int, int], ...]
    functions: tuple[StageFunction, ...]
    versions: tuple[tuple[int, int], ...] = ()
    shapes: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def array(self, buffer: int) -> TensorSpec:
        """What the caller has of an argument or result that lies in `buffer`: the tiles are the
        same."""
        spec = self.buffers[buffer]
        return replace(spec, shape=dict(self.shapes).get(buffer, spec.shape))

    @property
    def initial_buffers(self) -> frozenset[int]:
        """Buffers that hold something when a step begins."""
        return frozenset(buffer for _, buffer in (*self.arguments, *self.versions, *self.indices))

    @property
    def state_buffers(self) -> frozenset[int]:
        """Buffers of arguments that a step consumes and replaces."""
        return frozenset(target for _, target in self.feedback)

    @property
    def kept_buffers(self) -> frozenset[int]:
        """Buffers that stay valid from step to step: the other arguments, and the index
        constants."""
        arguments = frozenset(buffer for _, buffer in self.arguments)
        return (arguments - self.state_buffers) | frozenset(buffer for _, buffer in self.indices)


@dataclass(frozen=True)
class Program:
    """A whole step: one list per mesh, in the order of the topology, and the routes they share.

    `hosts` are the devices that share a host, where that is known: a mesh has a worker on each of
    its hosts. Devices that are not listed share one.

    `model` is the fingerprint of what was planned, the same for every plan of it; "" where that is
    not known. Checkpoints keep it."""

    arguments: tuple[Argument, ...]
    results: tuple[ProgramResult, ...]
    routes: tuple[Route, ...]
    meshes: tuple[MeshProgram, ...]
    hosts: tuple[tuple[int, ...], ...] = ()
    model: str = ""

    @cached_property
    def signature(self) -> Signature:
        """What callers give and get."""
        return signature_of(self.arguments, self.results)
