"""A worker owns one mesh: its executables, its buffers, and the instruction list it runs in every step.

Everything that can be prepared is: each instruction becomes a closure once, so a step is a loop over calls. RUN only
dispatches; reading results for SEND happens on a thread of its own, which waits for them there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from shardopt.runtime.devices.tiles import RouteSource, RouteTarget, Tiling
from shardopt.runtime.devices.xla import DeviceArray, Token, XlaMesh
from shardopt.runtime.errors import MeshError
from shardopt.runtime.program.instructions import Copy, Free, Instruction, MeshProgram, Recv, Reshard, Route, Run, Send
from shardopt.runtime.program.text import format_instruction
from shardopt.runtime.transports.mailbox import Cancelled, Transport

# XLA's CPU collectives deadlock when executions run ahead without bound: the threads of a later one starve an earlier.
MAX_RUNS_IN_FLIGHT = 2


class Worker:
    """`checked_steps` is the number of steps in which every input of every RUN is compared with what is expected. With
    `track_bytes`, what is alive is counted after every instruction."""

    def __init__(
        self,
        program: MeshProgram,
        routes: Sequence[Route],
        transport: Transport,
        *,
        checked_steps: int = 1,
        quick_compile: bool = False,
        track_bytes: bool = False,
    ) -> None:
        self.program = program
        self._live_bytes: list[int] | None = [] if track_bytes else None
        self._routes = routes
        self._transport = transport
        self._checked_steps = checked_steps
        self._checking = False
        self._step = 0
        self._xla = XlaMesh(program.mesh)
        self._executables = {
            function.name: self._xla.compile(function, quick=quick_compile) for function in program.functions
        }
        self._buffers: list[DeviceArray | None] = [None] * len(program.buffers)
        self._in_flight: deque[Token] = deque()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix=f"send-{program.mesh.name}")
        self._sends: list[tuple[int, int, Future[None]]] = []  # position, buffer, and the running SEND
        self._sent = frozenset(each.buffer for each in program.instructions if isinstance(each, Send))
        self._outputs: dict[int, DeviceArray] = {}
        self._actions = [self._action(number, each) for number, each in enumerate(program.instructions)]
        self._actions += [self._drain, self._finish]
        for microbatch, buffer in program.indices:
            self._set(buffer, np.array(microbatch, self._tiling(buffer).dtype))

    def load(self, values: Mapping[int, np.ndarray]) -> None:
        """Put the given arguments, by number, on the devices."""
        buffers = dict(self.program.arguments)
        for number, value in values.items():
            self._set(buffers[number], value)

    def step(self, values: Mapping[int, np.ndarray]) -> None:
        """Run the list once, with some arguments replaced first. Raises MeshError, or Cancelled."""
        self.load(values)
        self._outputs.clear()
        if self._live_bytes is not None:
            self._live_bytes.clear()
        self._checking = self._step < self._checked_steps
        for position, action in enumerate(self._actions):
            try:
                action()
            except (Cancelled, MeshError):
                raise
            except Exception as error:
                raise self._error(position, error) from error
            if self._live_bytes is not None:
                self._sender.submit(int).result()  # behind all that is being sent, whose arrays are gone then
                self._live_bytes.append(self._xla.live_bytes())

    def live_bytes(self) -> tuple[int, ...]:
        """Bytes that a device of the mesh held after each instruction of the last step, and at its end."""
        if self._live_bytes is None:
            raise MeshError(self.program.mesh.name, "", "live bytes are counted only where the run was opened to do so")
        return tuple(self._live_bytes)

    def fetch(self, number: int) -> np.ndarray:
        """A result of the last step as one numpy array."""
        if number not in self._outputs:
            raise MeshError(self.program.mesh.name, "", f"result {number} does not exist before the first step")
        buffer = dict(self.program.results)[number]
        return self._tiling(buffer).join(self._xla.shards(self._outputs[number]))

    def cancel(self, reason: str) -> None:
        """Wake the worker out of a RECV; may be called from any thread."""
        self._transport.mailbox.cancel(Cancelled(reason))

    def close(self) -> None:
        self._transport.close()  # first: it ends a SEND that is stuck
        self._sender.shutdown(wait=True, cancel_futures=True)

    def _tiling(self, buffer: int) -> Tiling:
        return Tiling(self.program.mesh, self.program.buffers[buffer])

    def _set(self, buffer: int, value: np.ndarray) -> None:
        self._buffers[buffer] = self._xla.put(self.program.buffers[buffer], self._tiling(buffer).split(value))

    def _error(self, position: int, error: BaseException) -> MeshError:
        where = "end of step"
        if position < len(self.program.instructions):
            where = f"instruction {position} ({format_instruction(self.program.instructions[position])})"
        return MeshError(self.program.mesh.name, where, f"{type(error).__name__}: {error}")

    def _drain(self) -> None:
        while self._in_flight:
            self._in_flight.popleft().block_until_ready()
        for _, _, future in self._sends:
            future.result()
        self._sends.clear()

    def _finish(self) -> None:
        for number, buffer in self.program.results:
            self._outputs[number] = self._buffers[buffer]
        state = [(target, self._buffers[buffer]) for buffer, target in self.program.feedback]
        for _, buffer in self.program.results:
            if buffer not in self.program.kept_buffers:
                self._buffers[buffer] = None
        for target, array in state:
            self._buffers[target] = array
        self._step += 1

    def _action(self, position: int, instruction: Instruction) -> Callable[[], None]:
        makers: dict[type, Callable[..., Callable[[], None]]] = {
            Run: self._run_action,
            Recv: self._recv_action,
            Reshard: self._reshard_action,
            Copy: self._copy_action,
            Free: self._free_action,
        }
        if isinstance(instruction, Send):
            return self._send_action(position, instruction)
        return makers[type(instruction)](instruction)

    def _copy_action(self, copy: Copy) -> Callable[[], None]:
        def action() -> None:
            self._buffers[copy.output] = self._xla.copy(self._buffers[copy.input])

        return action

    def _free_action(self, free: Free) -> Callable[[], None]:
        def action() -> None:
            for buffer in free.buffers:
                self._buffers[buffer] = None

        return action

    def _run_action(self, run: Run) -> Callable[[], None]:
        executable, buffers, in_flight = self._executables[run.function], self._buffers, self._in_flight
        awaited = self._sent.intersection(run.donated)

        def action() -> None:
            if awaited:
                self._await_sends(awaited)
            inputs = [buffers[buffer] for buffer in run.inputs]
            if self._checking:
                self._check_inputs(run, inputs)
            while len(in_flight) >= MAX_RUNS_IN_FLIGHT:
                in_flight.popleft().block_until_ready()
            outputs, token = executable(inputs)
            in_flight.append(token)
            for buffer in run.donated:
                buffers[buffer] = None
            for buffer, array in zip(run.outputs, outputs, strict=True):
                buffers[buffer] = array

        return action

    def _check_inputs(self, run: Run, inputs: Sequence[DeviceArray | None]) -> None:
        for buffer, array in zip(run.inputs, inputs, strict=True):
            fault = "nothing is there" if array is None else self._xla.fault_of(array, self.program.buffers[buffer])
            if fault is not None:
                raise ValueError(f"input %{buffer}: {fault}")

    def _await_sends(self, buffers: frozenset[int]) -> None:
        """A buffer must have been read before an executable may write over it."""
        for _, buffer, future in self._sends:
            if buffer in buffers:
                future.result()

    def _send_action(self, position: int, send: Send) -> Callable[[], None]:
        source = RouteSource(self._routes[send.route])

        def deliver(array: DeviceArray, step: int) -> None:
            try:
                pieces = source.cut(self._xla.shards(array))
                if self._live_bytes is not None:  # what is under way belongs to the transport, not to this mesh
                    pieces = [piece.copy() for piece in pieces]
                self._transport.send(send.target, step, send.tag, pieces)
            except Exception as error:
                failure = self._error(position, error)
                self._transport.mailbox.cancel(failure)  # what is lost here may be what the next RECV waits for
                raise failure from error

        def action() -> None:
            future = self._sender.submit(deliver, self._buffers[send.buffer], self._step)
            self._sends.append((position, send.buffer, future))

        return action

    def _recv_action(self, recv: Recv) -> Callable[[], None]:
        target = RouteTarget(self._routes[recv.route], self.program.mesh)
        spec = self.program.buffers[recv.buffer]

        def action() -> None:
            payload = self._transport.mailbox.take(self._step, recv.tag)
            pieces = target.decode(payload) if isinstance(payload, bytearray) else payload
            self._buffers[recv.buffer] = self._xla.put(spec, target.assemble(pieces))

        return action

    def _reshard_action(self, reshard: Reshard) -> Callable[[], None]:
        route = self._routes[reshard.route]
        source, target = RouteSource(route), RouteTarget(route, self.program.mesh)
        spec = self.program.buffers[reshard.output]

        def action() -> None:
            pieces = source.cut(self._xla.shards(self._buffers[reshard.input]))
            self._buffers[reshard.output] = self._xla.put(spec, target.assemble(pieces))

        return action
