"""A run as the failure detector sees it, on a simulated clock: workers with a device, a thread for
each receiver, links with buffers, and a driver that looks at answers. What judges is the detector
itself (`Watch` and `Monitor`); what it is told is made by rules that are those of the runtime:

* a RUN is only dispatched, two at a time; a SEND waits for it on a thread of its own;
* a message is handed over when the sender's system has taken all of it, and acknowledged when the
  receiver's system has; the receiver reads it, and then copies it, before it counts as there;
* who is paused does nothing, answers nothing, and tells afterwards what was true before;
* who has not begun a step stands at the end of the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from shardopt.mesh.mesh import Mesh
from shardopt.runtime.errors import MeshError
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.health.watch import Watch
from shardopt.runtime.program.hosts import Host
from shardopt.runtime.program.instructions import (
    Instruction,
    MeshProgram,
    Program,
    Recv,
    Run,
    Send,
)

TICK_SECONDS = 0.125
_LOOK_TICKS = 2  # between two looks of the driver
_IN_FLIGHT = 2
_FOREVER = 10_000.0  # seconds, in which any run has ended

Interval = tuple[float, float]  # seconds from, to


@dataclass(frozen=True)
class Conditions:
    """`run_seconds` of every stage, `units` of a message, `rate` in units a second and `buffer` in
    units of every link, `copy_seconds` a message, seconds before a worker begins each step; when
    workers, links and the driver stand still. Names are those of workers, or (from, to)."""

    stages: int
    microbatches: int
    run_seconds: Sequence[float]
    units: float
    rate: float
    buffer: float
    copy_seconds: float
    begin_seconds: Mapping[str, float] = field(default_factory=dict)
    paused: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    stalled: Mapping[tuple[str, str], Sequence[Interval]] = field(default_factory=dict)
    driver_paused: Sequence[Interval] = ()


@dataclass(frozen=True)
class SimulatedFault:
    """Of kind "stop", "sleep" or "drop" (the next message from there on), when a worker comes to
    an instruction, or "block": from then on, nothing gets through the link of its next message."""

    kind: str
    worker: str
    step: int
    position: int


def pipeline(stages: int, microbatches: int) -> Program:
    """Forward through all stages for every microbatch, then backward."""
    lists: list[list[Instruction]] = [[] for _ in range(stages)]
    tag = 0

    def move(source: int, target: int) -> None:
        nonlocal tag
        lists[source].append(Send(tag, (0,), f"m{target}", (0,)))
        lists[target].append(Recv(tag, (0,), f"m{source}", (0,)))
        tag += 1

    for order, step in ((range(stages), 1), (range(stages - 1, -1, -1), -1)):
        for microbatch in range(microbatches):
            for stage in order:
                lists[stage].append(Run("f", (0,), (0,), (), f"microbatch {microbatch}"))
                if 0 <= stage + step < stages:
                    move(stage, stage + step)
    parts = tuple(
        MeshProgram(Mesh(f"m{number}", (("x", 1),), (number,)), (), (), (), tuple(each), (), (), ())
        for number, each in enumerate(lists)
    )
    return Program((), (), (), parts)


@dataclass
class _Message:
    step: int
    tag: int
    needs: int  # RUNs that must have ended
    unsent: float  # units that the sender's system has not taken
    unread: float  # that the receiver has not read
    copying: float  # seconds
    is_lost: bool = False


class _Link:
    """From one worker to another. The units move from the sender to its system (`sending`), to the
    receiver's system (`arrived`), and to the receiver."""

    def __init__(self, conditions: Conditions, ends: tuple[str, str]) -> None:
        self.conditions = conditions
        self.stalls = [*conditions.stalled.get(ends, ())]
        self.waiting: deque[_Message] = deque()  # for their RUN, or for room
        self.under_way: deque[_Message] = deque()
        self.sending = self.arrived = self.received = 0.0

    def tick_sender(self, runs_done: int) -> None:
        while self.waiting and runs_done >= self.waiting[0].needs:
            message = self.waiting[0]
            if message.is_lost:
                self.waiting.popleft()
                continue
            if message not in self.under_way:
                self.under_way.append(message)
            units = min(message.unsent, self.conditions.buffer - self.sending)
            self.sending += units
            message.unsent -= units
            if message.unsent > 0:
                return
            self.waiting.popleft()

    def tick_wire(self, now: float) -> None:
        if any(begin <= now < end for begin, end in self.stalls):
            return
        units = min(
            self.sending,
            self.conditions.rate * TICK_SECONDS,
            self.conditions.buffer - self.arrived,
        )
        self.sending, self.arrived = self.sending - units, self.arrived + units

    def tick_receiver(self) -> list[_Message]:
        """Messages that are complete now."""
        if not self.under_way:
            return []
        message = self.under_way[0]
        units = min(message.unread, self.arrived)
        self.arrived -= units
        message.unread -= units
        self.received += units
        if message.unread > 1e-9:
            return []
        message.copying -= TICK_SECONDS
        if message.copying > 0:
            return []
        self.arrived = max(0.0, self.arrived)
        return [self.under_way.popleft()]

    @property
    def is_between(self) -> bool:
        """The receiver waits for the first unit of the next message."""
        first = self.under_way[0] if self.under_way else None
        return first is None or (first.unread == self.conditions.units and self.arrived < 1e-9)


class _Worker:
    def __init__(self, run: SimulatedRun, name: str, part: MeshProgram, seconds: float) -> None:
        self.run, self.name, self.part, self.run_seconds = run, name, part, seconds
        self.pauses = [*run.conditions.paused.get(name, ())]
        self.step, self.position, self.busy = 0, len(part.instructions), False
        self.begins = _FOREVER
        self.finished = True
        self.device: deque[float] = deque()
        self.dispatched = self.done = 0
        self.mailbox: set[tuple[int, int]] = set()
        self.awaits: int | None = None
        self.sleeps = False

    def command_step(self, now: float) -> None:
        self.finished = False
        self.begins = now + self.run.conditions.begin_seconds.get(self.name, 0.0)

    def is_paused(self, now: float) -> bool:
        return any(begin <= now < end for begin, end in self.pauses)

    def tick(self, now: float) -> None:
        self._tick_device()
        for link in self.run.links_from(self.name).values():
            link.tick_sender(self.done)
        for link in self.run.links_to(self.name).values():
            self.mailbox.update((each.step, each.tag) for each in link.tick_receiver())
        if not self.finished and now >= self.begins:
            if not self.busy:
                self.busy, self.position = True, 0
                self.run.arrive(self, now)
            while self._advance(now):
                pass

    def _tick_device(self) -> None:
        if self.device:
            self.device[0] -= TICK_SECONDS
            if self.device[0] <= 0:
                self.device.popleft()
                self.done += 1

    def _advance(self, now: float) -> bool:
        """Whether the worker gets to its next instruction."""
        if self.sleeps or self.is_paused(now):
            return False
        if self.position == len(self.part.instructions):
            if not self.device and not any(
                link.waiting for link in self.run.links_from(self.name).values()
            ):
                self.busy, self.finished = False, True
                self.step += 1
            return False
        match self.part.instructions[self.position]:
            case Run():
                if len(self.device) == _IN_FLIGHT:
                    return False
                self.device.append(self.run_seconds)
                self.dispatched += 1
            case Send(tag=tag, target=target):
                self.run.send(self, target, tag, now)
            case Recv(tag=tag):
                self.awaits = tag
                if (self.step, tag) not in self.mailbox:
                    return False
                self.mailbox.remove((self.step, tag))
                self.awaits = None
        self.position += 1
        self.run.arrive(self, now)
        return True

    def where(self) -> dict[str, Any]:
        outgoing, incoming = self.run.links_from(self.name), self.run.links_to(self.name)
        missing = []
        if self.awaits is not None and (self.step, self.awaits) not in self.mailbox:
            source = self.part.instructions[self.position].source  # type: ignore[union-attr]
            missing = [source] if incoming[source].is_between else []
        return {
            "program": "",
            "busy": self.busy,
            "step": self.step,
            "position": self.position,
            "waiting": self.awaits is not None,
            "missing": missing,
            "sending": sorted(
                name for name, link in outgoing.items() if link.waiting or link.sending > 1e-9
            ),
            "received": int(sum(link.received for link in incoming.values())),
        }


class SimulatedRun:
    """`steps` steps under some conditions, with at most one fault."""

    def __init__(
        self, conditions: Conditions, limits: Limits, fault: SimulatedFault | None = None
    ) -> None:
        self.conditions, self.fault = conditions, fault
        program = pipeline(conditions.stages, conditions.microbatches)
        names = [part.mesh.name for part in program.meshes]
        self.workers = {
            part.mesh.name: _Worker(self, part.mesh.name, part, seconds)
            for part, seconds in zip(program.meshes, conditions.run_seconds, strict=True)
        }
        self._links = {
            (each.name, target): _Link(conditions, (each.name, target))
            for each in self.workers.values()
            for target in {send.target for send in each.part.instructions if isinstance(send, Send)}
        }
        hosts = {name: (Host(name, 0, 1, (0,)),) for name in names}
        self._now = 0.0
        self._questions: list[tuple[str, Future[Any]]] = []
        self._answers: list[tuple[Future[Any], dict[str, Any]]] = []
        self._has_looked = True
        self._watch = Watch(program, hosts, limits, self._ask, lambda name: None, self._clock)
        self._armed: SimulatedFault | None = None
        self.dropped: tuple[str, int, int] | None = None  # (receiver, step, tag)
        self.blocked: tuple[str, str] | None = None

    def steps(self, count: int) -> MeshError | None:
        """What the detector says, None where it lets the run end."""
        for _ in range(count):
            self._watch.begin("step", {})
            for worker in self.workers.values():
                worker.command_step(self._now)
            ticks = 0
            while busy := [name for name, each in self.workers.items() if not each.finished]:
                self._tick()
                ticks += 1
                if not self._driver_is_paused() and ticks % _LOOK_TICKS == 0:
                    error = self._watch.check(busy)
                    self._has_looked = True
                    if error is not None:
                        return error
                assert self._now < _FOREVER, "neither an end nor an error"
        return None

    def links_from(self, name: str) -> dict[str, _Link]:
        return {target: link for (source, target), link in self._links.items() if source == name}

    def links_to(self, name: str) -> dict[str, _Link]:
        return {source: link for (source, target), link in self._links.items() if target == name}

    def send(self, worker: _Worker, target: str, tag: int, now: float) -> None:
        size, seconds = self.conditions.units, self.conditions.copy_seconds
        message = _Message(worker.step, tag, worker.dispatched, size, size, seconds)
        if self._armed is not None and self._armed.worker == worker.name:
            if self._armed.kind == "drop":
                message.is_lost, self.dropped = True, (target, worker.step, tag)
            else:
                self._links[worker.name, target].stalls.append((now, _FOREVER))
                self.blocked = worker.name, target
            self._armed = None
        self._links[worker.name, target].waiting.append(message)

    def arrive(self, worker: _Worker, now: float) -> None:
        """A worker comes to an instruction."""
        fault = self.fault
        here = (worker.name, worker.step, worker.position)
        if fault is None or here != (fault.worker, fault.step, fault.position):
            return
        if fault.kind == "stop":
            worker.pauses.append((now, _FOREVER))
        elif fault.kind == "sleep":
            worker.sleeps = True
        else:
            self._armed = fault

    def _clock(self) -> float:
        return self._now

    def _ask(self, name: str) -> Future[Any]:
        self._questions.append((name, Future()))
        return self._questions[-1][1]

    def _driver_is_paused(self) -> bool:
        return any(begin <= self._now < end for begin, end in self.conditions.driver_paused)

    def _tick(self) -> None:
        self._now += TICK_SECONDS
        # A thread of the driver reads the answers, after a pause only once the driver has looked.
        self._has_looked &= not self._driver_is_paused()
        if self._has_looked:
            for future, answer in self._answers:
                future.set_result(answer)
            self._answers = []
        for link in self._links.values():
            link.tick_wire(self._now)
        for worker in self.workers.values():
            if not worker.is_paused(self._now):
                # Before anything else goes on after a pause.
                mine = [each for each in self._questions if each[0] == worker.name]
                self._answers += [(future, worker.where()) for _, future in mine]
                self._questions = [each for each in self._questions if each[0] != worker.name]
                worker.tick(self._now)
