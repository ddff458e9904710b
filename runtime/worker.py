"""A worker owns one mesh, or the part of it on one host: its executables, its buffers, and the
instruction list it runs in every step.

Everything that can be prepared is: each instruction becomes a closure once (`runtime/actions`), so
a step is a loop over calls. RUN only dispatches; reading results for SEND happens on a thread of
its own, which waits for them there."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import numpy as np

from shardopt.caching.store import default_store
from shardopt.runtime.actions.context import Context
from shardopt.runtime.actions.direct import connect
from shardopt.runtime.actions.observers import LiveBytesObserver, Observer
from shardopt.runtime.actions.sender import Sender
from shardopt.runtime.actions.table import make_actions
from shardopt.runtime.devices.clients import (
    World,
    threads_of_worker,
    unshared_devices,
    with_threads,
)
from shardopt.runtime.devices.gpus import devices_of
from shardopt.runtime.devices.xla import DeviceArray, XlaMesh
from shardopt.runtime.errors import Cancelled, MeshError
from shardopt.runtime.faults import FaultyTransport, injections
from shardopt.runtime.options import WorkerOptions
from shardopt.runtime.program.hosts import Host, Hosts
from shardopt.runtime.program.instructions import MeshProgram, Route
from shardopt.runtime.program.json_form import program_from_json
from shardopt.runtime.state.worker_state import WorkerState
from shardopt.runtime.tracing.recorder import Recorder
from shardopt.runtime.tracing.usage import process_bytes
from shardopt.runtime.tracing.where import WorkerStatus, worker_status
from shardopt.runtime.transports.mailbox import Transport

Parts = Sequence[np.ndarray]  # a host's tiles of a value, replicas once
# Of one integer: the step, and behind it the instruction.
Position = MutableSequence[int] | memoryview
_POSITION_BITS = 32


@dataclass(frozen=True)
class Site:
    """Where a worker runs and how it reaches the others. `position` is one integer of memory, maybe
    shared with another process, in which the worker notes where it stands (`unpack_position`)."""

    host: Host
    hosts: Hosts
    transport: Transport
    position: Position = field(default_factory=lambda: [0])


def start_worker(
    program: MeshProgram,
    routes: Sequence[Route],
    site: Site,
    options: WorkerOptions,
    world: World | None = None,
) -> Worker:
    """A worker on devices that the options name. With a `world`, the mesh has more hosts."""
    mesh, here = program.mesh, site.host
    beside = 0 if options.platform == "gpu" else options.devices_beside
    threads = threads_of_worker(mesh.size, len(here.shards), beside)
    with with_threads(threads):
        devices = devices_of(
            mesh,
            here,
            world,
            options.platform,
            gpus_from_zero=options.gpus_from_zero,
            share_gpus=options.share_gpus,
        ) or unshared_devices(mesh.size)
    if threads is not None:
        devices = replace(devices, threads=str(threads))
    return Worker(program, routes, site, XlaMesh(program.mesh, devices), options)


class Worker:
    """Compiles what the program's list needs and runs the list, on the devices of one host."""

    def __init__(
        self,
        program: MeshProgram,
        routes: Sequence[Route],
        site: Site,
        devices: XlaMesh,
        options: WorkerOptions,
    ) -> None:
        self.program = program
        self._site, self._options = site, options
        self._attached: dict[str, tuple[Worker, tuple[tuple[int, int], ...]]] = {}
        # What runs of those attached to it, and its name there.
        self._active: tuple[str, Worker] | None = None
        self._position = site.position
        self._busy, self._since = False, monotonic()
        faulty = FaultyTransport(site.transport) if options.faults else None
        self._transport = faulty or site.transport
        self._context = Context(
            program,
            site.host,
            site.hosts,
            routes,
            self._transport,
            devices=devices,
            executables={},
            sender=Sender(site.host.name),
            # What is under way belongs to the transport then, not to this mesh.
            copy_pieces=options.track_bytes,
        )
        store = default_store() if options.compile_cache else None
        self._context.executables = devices.compile_all(
            program.functions, quick=options.quick_compile, store=store
        )
        self._state = WorkerState(self._context)
        self._outputs: dict[int, DeviceArray] = {}
        kept = program.kept_buffers
        # Buffers of results that no later step needs.
        self._passing = tuple(buffer for _, buffer in program.results if buffer not in kept)
        self._num_begun = 0  # steps
        self._live_bytes = LiveBytesObserver(self._context) if options.track_bytes else None
        self._recorder = self._context.recorder = Recorder(self._context) if options.trace else None
        self._observers: list[Observer] = [
            each for each in (self._live_bytes, self._recorder) if each is not None
        ]
        if faulty:
            host = site.host
            self._observers += injections(options.faults, host.mesh, host.number, faulty)
        # Before the actions are made: they use the links.
        if options.direct:
            connect(self._context)
        # The end of a step is two more actions: failures and observers find it by position as well.
        self._actions = [*make_actions(self._context), self._drain, self._finish]
        for microbatch, buffer in program.indices:
            self._set(buffer, [np.array(microbatch, self._context.tiling(buffer).dtype)])

    def load(self, values: Mapping[int, Parts]) -> None:
        """Put the given arguments, by number, on the devices: this host's parts
        (`Tiling.parts`)."""
        buffers = dict(self.program.arguments)
        for number, parts in values.items():
            self._set(buffers[number], parts)
            self._context.renew_versions(number)

    def step(self, values: Mapping[int, Parts], step: int) -> None:
        """Run the list once, with some arguments replaced first. The number of the step is the same
        for all workers; a step may run a second time, and some never do. Raises MeshError, or
        Cancelled."""
        self.load(values)
        # Before the list runs, so that old results do not live beside the new ones.
        self._outputs.clear()
        self._context.step, self._busy = step, True
        self._context.checking = self._num_begun < self._options.checked_steps
        self._num_begun += 1
        for observer in self._observers:
            observer.begin_step(step)
        # One integer for both, of which no reader in another process sees half.
        here, first = self._position, step << _POSITION_BITS
        for position, action in enumerate(self._actions):
            here[0], self._since = first + position, monotonic()
            try:
                for observer in self._observers:
                    observer.begin(position)
                action()
            except (Cancelled, MeshError):
                raise
            except Exception as error:
                raise self._context.error(position, error) from error
            for observer in self._observers:
                observer.end(position)
        self._busy, self._since = False, monotonic()

    def live_bytes(self) -> tuple[int, ...]:
        """Bytes that a device of the mesh held after each instruction of the last step, and at its
        end."""
        if self._live_bytes is None:
            raise MeshError(
                self._context.host.name,
                "",
                "live bytes are counted only in runs that were opened for it",
            )
        return tuple(self._live_bytes.bytes)

    def where(self) -> WorkerStatus:
        """Where the worker stands; may be called from any thread."""
        # Read once: the worker's own thread writes it.
        if (active := self._active) is not None:
            return {**active[1].where(), "program": active[0]}
        return worker_status(
            self._context, unpack_position(self._position[0])[1], self._since, self._busy
        )

    def trace(self) -> dict[str, Any]:
        """What `Recorder.trace` gives; may be called from any thread."""
        if self._recorder is None:
            raise self._no_times()
        return self._recorder.trace()

    def usage(self) -> dict[str, Any]:
        """The fields of `Usage`, between steps."""
        if self._recorder is None:
            raise self._no_times()
        busy, of_tasks = self._recorder.computing_seconds()
        return {
            "busy_seconds": busy,
            "task_seconds": of_tasks,
            "device_bytes": self._context.devices.live_bytes(),
            "process_bytes": process_bytes(),
        }

    def temporary_bytes(self) -> dict[str, int]:
        """By function, what a device holds beside arguments and results while it runs."""
        return {
            name: executable.temporary_bytes
            for name, executable in self._context.executables.items()
        }

    def fetch(self, *numbers: int) -> dict[int, list[np.ndarray]]:
        """The parts of results of the last step that are for this host to give
        (`Tiling.owned`)."""
        buffers, found = dict(self.program.results), {}
        for number in numbers:
            if number not in self._outputs:
                raise MeshError(
                    self._context.host.name,
                    "",
                    f"result {number} does not exist before the first step",
                )
            tiling = self._context.tiling(buffers[number])
            found[number] = tiling.owned(self._context.devices.shards(self._outputs[number]))
        return found

    def attach(
        self, name: str, program: str, shares: Mapping[int, int], options: Mapping[str, Any]
    ) -> None:
        """Get another program (JSON) ready on the same devices, which shares arguments with this
        one: its -> ours."""
        read = program_from_json(program)
        (part,) = read.meshes
        numbers, context = dict(self.program.arguments), self._context
        buffers = tuple(
            (buffer, numbers[shares[number]])
            for number, buffer in part.arguments
            if number in shares
        )
        worker = Worker(
            part,
            read.routes,
            replace(self._site, transport=self._transport),
            context.devices,
            WorkerOptions(direct=self._options.direct, **options),
        )
        self._attached[name] = worker, buffers

    def on_attached(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of an attached worker, which sees what the shared arguments are now."""
        worker, buffers = self._attached[name]
        for target, source in buffers:
            worker._context.buffers[target] = self._context.buffers[source]
        self._active = name, worker
        try:
            return getattr(worker, method)(*arguments)
        finally:
            self._active = None
            for target, _ in buffers:  # the next step of this worker may consume them
                worker._context.buffers[target] = None

    def on_state(self, method: str, *arguments: Any) -> Any:
        """Call a method of `WorkerState`, between steps."""
        return getattr(self._state, method)(*arguments)

    def cancel(self, reason: str) -> None:
        """Wake the worker out of a RECV; may be called from any thread."""
        self._transport.mailbox.cancel(Cancelled(reason))

    def close(self) -> None:
        for worker, _ in self._attached.values():
            worker._context.sender.close()
            worker._actions.clear()
        self._transport.close()  # first: it ends a SEND that is stuck
        self._context.sender.close()
        if self._context.links is not None:
            self._context.links.close()
        if self._recorder is not None:
            self._recorder.close()
        # Two of them are methods of this worker: with these it would outlive whoever drops it.
        self._actions.clear()

    def _no_times(self) -> MeshError:
        return MeshError(
            self._context.host.name, "", "times are kept only in runs that were opened for it"
        )

    def _set(self, buffer: int, parts: Parts) -> None:
        shards = self._context.tiling(buffer).spread(parts)
        self._context.buffers[buffer] = self._context.devices.put(
            self.program.buffers[buffer], shards
        )

    def _drain(self) -> None:
        # Executions first: sends fail with what these raise.
        while self._context.in_flight:
            self._context.await_run()
        self._context.await_stores()
        self._context.sender.drain()

    def _finish(self) -> None:
        buffers = self._context.buffers
        for number, buffer in self.program.results:
            self._outputs[number] = buffers[buffer]
        # Read before results are cleared, as one of them may be state, too.
        state = [(target, buffers[buffer]) for buffer, target in self.program.feedback]
        for buffer in self._passing:
            buffers[buffer] = None
        for target, array in state:
            buffers[target] = array
        self._context.step += 1


def unpack_position(packed: int) -> tuple[int, int]:
    """(step, instruction)."""
    return packed >> _POSITION_BITS, packed & ((1 << _POSITION_BITS) - 1)
