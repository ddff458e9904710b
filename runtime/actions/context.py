"""What the closures of one worker share: its buffers and executables, and how it reaches the other
meshes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from shardopt.runtime.actions.sender import Sender
from shardopt.runtime.devices.cuda import Cuda
from shardopt.runtime.devices.tiles import Tiling
from shardopt.runtime.devices.xla import DeviceArray, Executable, Token, XlaMesh
from shardopt.runtime.errors import FailureKind, MeshError, kind_of, mesh_error
from shardopt.runtime.program.hosts import Host, Hosts
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    MeshProgram,
    Reshard,
    Route,
    Run,
    Send,
)
from shardopt.runtime.program.text import place
from shardopt.runtime.transports.mailbox import Transport
from shardopt.runtime.transports.nccl import NcclLinks

if TYPE_CHECKING:
    from shardopt.runtime.tracing.recorder import Recorder

Action = Callable[[], None]


@dataclass
class Context:
    """`buffers[b]` is the array of buffer b (shards on the host while it waits to be completed),
    None where there is none. `step` is the number of the step that runs, or that runs next if none
    is repeated or left out; `checking` is on while the inputs of every RUN are compared with what
    is expected. With `copy_pieces`, what is sent is copied first, so that a message under way keeps
    no array of the mesh alive."""

    program: MeshProgram
    host: Host  # the one this worker is; shards are those of its devices
    hosts: Hosts  # of all meshes that messages go to or come from, and of its own
    routes: Sequence[Route]
    transport: Transport
    devices: XlaMesh
    executables: Mapping[str, Executable]
    sender: Sender
    copy_pieces: bool = False
    links: NcclLinks | None = None  # where messages go from GPU to GPU, between
    cudas: Mapping[int, Cuda] = field(default_factory=dict)  # these, by shard
    step: int = 0
    checking: bool = False
    awaits: int | None = None  # the tag of the message that the worker waits for
    buffers: list[DeviceArray | None] = field(default_factory=list)
    recorder: Recorder | None = None
    # (position of the RUN, what tells when it is done)
    in_flight: deque[tuple[int, Token]] = field(default_factory=deque)
    storing: list[DeviceArray] = field(default_factory=list)  # on their way to the host

    def __post_init__(self) -> None:
        self.buffers = [None] * len(self.program.buffers)

    @cached_property
    def sent(self) -> frozenset[int]:
        """Buffers that the thread of the sender reads."""
        sent: set[int] = set()
        for each in self.program.instructions:
            match each:
                case Send(buffers=buffers):
                    sent.update(buffers)
                case Reshard(input=buffer) | Allgather(buffer=buffer) | Broadcast(buffer=buffer):
                    sent.add(buffer)  # between the hosts of the mesh
        return frozenset(sent)

    @cached_property
    def overwritten(self) -> frozenset[int]:
        """Buffers of which some RUN takes the memory for its results, in this step or, as state, in
        the next."""
        donated = {
            buffer
            for each in self.program.instructions
            if isinstance(each, Run)
            for buffer in each.donated
        }
        return frozenset(donated.union(buffer for buffer, _ in self.program.feedback))

    def renew_versions(self, number: int) -> None:
        """Let the older versions of an argument, which was given a value, begin as that."""
        source = self.buffers[dict(self.program.arguments)[number]]
        for version_of, buffer in self.program.versions:
            if version_of == number:
                # A step may consume one of them and keep the other.
                self.buffers[buffer] = self.devices.copy(source)

    def tiling(self, buffer: int) -> Tiling:
        """Of the argument or result in a buffer."""
        return Tiling(self.program.mesh, self.program.array(buffer), self.host)

    def error(self, position: int, error: BaseException) -> MeshError:
        """What is raised when the instruction at `position`, or the end of the step behind the last
        one, fails."""
        if kind_of(error) is FailureKind.FAILED:
            position = self._culprit(position)
        return mesh_error(self.host.name, place(self.program, self.step, position), error)

    def await_run(self) -> None:
        """Wait for the oldest RUN under way. Raises MeshError when it has failed."""
        position, token = self.in_flight.popleft()
        try:
            token.block_until_ready()
        except Exception as error:
            raise mesh_error(
                self.host.name, place(self.program, self.step, position), error
            ) from error

    def await_stores(self) -> None:
        """Wait until the devices have the memory again of what went to their host."""
        for array in self.storing:
            array.block_until_ready()
        self.storing.clear()

    def _culprit(self, position: int) -> int:
        """The RUN under way that has failed, if there is one: whoever reads its results sees its
        error."""
        # A copy, as threads of the sender ask, too, while the worker goes on.
        for earlier, token in self.in_flight.copy():
            try:
                token.block_until_ready()
            except Exception:
                return earlier
        return position
