"""Whether meshes that send to each other reach the ends of their lists, however sends are carried
out.

A mesh works through its steps in order. What it sends goes out beside that, one message at a time,
in the order of the SEND steps (a thread, or a stream of a device); or, with a lane for each
receiver, one at a time to each of them. Two ways of sending are told apart:

* eager: the message is on its way at once, and the receiver finds it when it comes to the RECV;
* rendezvous: the message waits until its receiver has come to the RECV, and those behind it wait,
  too.

Without cycles in the dataflow nothing blocks for ever under eager sends; under rendezvous the order
of sends matters: mesh 0 may hold back what mesh 1 waits for behind a message that mesh 1 only takes
later. `in_order_of_receipt` puts the sends of every mesh into the order in which an eager run
receives them. That never blocks: of all messages not received yet, take the first of that run; all
before it are through, so its receiver is at the RECV and nothing is ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from shardopt.schedule.graph import StageGraph
from shardopt.schedule.tasks import Schedule
from shardopt.schedule.validate import LinkedSchedule, ScheduleError, link

_MOST_SHOWN = 4  # waits of a circle


class Do(IntEnum):
    """SEND and RECV name a message; SENT waits until the first so many sends of the mesh are
    through (0: for none)."""

    SEND = 0
    RECV = 1
    SENT = 2


Step = tuple[Do, int]
Steps = tuple[tuple[Step, ...], ...]  # by mesh


@dataclass(frozen=True)
class ExchangeOutcome:
    """`stopped` is the step at which a mesh stopped for ever, for those that did; `received` the
    order of messages."""

    stopped: dict[int, int]
    received: tuple[int, ...]
    holding: dict[int, int]  # mesh -> the first of its messages that has not arrived
    ahead: dict[int, int]  # a message that is sent and waits -> the one that its lane waits with

    @property
    def blocks(self) -> bool:
        return bool(self.stopped)


def run_exchange(steps: Steps, rendezvous: bool, lanes: bool = False) -> ExchangeOutcome:
    """Run the meshes against each other, in O(steps). With `lanes`, a message waits only behind
    others for its receiver."""
    exchange = _Exchange(steps, rendezvous, lanes)
    exchange.run()
    return exchange.outcome()


class _Exchange:
    """Meshes with their positions, and lanes with the messages in them."""

    def __init__(self, steps: Steps, rendezvous: bool, lanes: bool) -> None:
        self.steps, self.rendezvous, self.lanes = steps, rendezvous, lanes
        self.sender = {
            value: mesh for mesh, row in enumerate(steps) for do, value in row if do is Do.SEND
        }
        self.lane = _lanes(steps, self.sender) if lanes else self.sender
        count = max(self.lane.values(), default=0) + 1 if lanes else len(steps)
        self.position = [0] * len(steps)
        # Messages of each lane in the order of their sends, and how many of them have arrived.
        self.queues: list[list[int]] = [[] for _ in range(count)]
        self.through = [0] * count
        # The same of each mesh, and how many have arrived before the first that has not.
        self.made = [[] for _ in steps] if lanes else self.queues
        self.first_left = [0] * len(steps) if lanes else self.through
        self.sent: set[int] = set()
        self.arrived: set[int] = set()
        self.waiting: dict[int, int] = {}  # message -> the mesh that stands at its RECV
        self.settling: set[int] = set()  # meshes that stand at a SENT
        self.received: list[int] = []
        self.runnable = deque(range(len(steps)))

    def run(self) -> None:
        while self.runnable:
            mesh = self.runnable.popleft()
            row, at = self.steps[mesh], self.position[mesh]
            while at < len(row):
                do, value = row[at]
                if do is Do.SEND:
                    self._send(mesh, value)
                elif do is Do.RECV:
                    if not self._receive(mesh, value):
                        break
                # A SENT; eager sends are through at once.
                elif self.rendezvous and self.first_left[mesh] < value:
                    self.settling.add(mesh)
                    break
                at += 1
            self.position[mesh] = at

    def _send(self, mesh: int, message: int) -> None:
        lane = self.lane[message]
        self.queues[lane].append(message)
        if self.lanes:
            self.made[mesh].append(message)
        self.sent.add(message)
        if message in self.waiting and (not self.rendezvous or self._front(lane) == message):
            self.runnable.append(self.waiting.pop(message))

    def _receive(self, mesh: int, message: int) -> bool:
        """Whether the mesh has it now; it waits otherwise."""
        lane = self.lane[message]
        if message not in self.sent or (self.rendezvous and self._front(lane) != message):
            self.waiting[message] = mesh
            return False
        self.through[lane] += 1
        self.received.append(message)
        if self.rendezvous:
            self._settle(message)
            following = self._front(lane)
            if following in self.waiting:
                self.runnable.append(self.waiting.pop(following))
        return True

    def _front(self, lane: int) -> int:
        """The message of a lane that goes out next, or -1."""
        queue, through = self.queues[lane], self.through[lane]
        return queue[through] if through < len(queue) else -1

    def _settle(self, message: int) -> None:
        """A message has arrived: its sender may stand at a SENT."""
        mesh = self.sender[message]
        if self.lanes:
            self.arrived.add(message)
            made = self.made[mesh]
            while self.first_left[mesh] < len(made) and made[self.first_left[mesh]] in self.arrived:
                self.first_left[mesh] += 1
        if mesh in self.settling:
            self.settling.remove(mesh)
            self.runnable.append(mesh)

    def outcome(self) -> ExchangeOutcome:
        stopped = {mesh: at for mesh, at in enumerate(self.position) if at < len(self.steps[mesh])}
        if not self.rendezvous:
            return ExchangeOutcome(stopped, tuple(self.received), {}, {})
        left = zip(self.made, self.first_left, strict=True)
        holding = {mesh: made[at] for mesh, (made, at) in enumerate(left) if at < len(made)}
        ahead = {
            message: queue[through]
            for queue, through in zip(self.queues, self.through, strict=True)
            for message in queue[through:]
        }
        return ExchangeOutcome(stopped, tuple(self.received), holding, ahead)


def _lanes(steps: Steps, sender: dict[int, int]) -> dict[int, int]:
    """A number for each sender and receiver; what nobody receives has the lane of its sender
    alone."""
    receiver = {value: mesh for mesh, row in enumerate(steps) for do, value in row if do is Do.RECV}
    numbers: dict[tuple[int, int], int] = {}
    return {
        value: numbers.setdefault((mesh, receiver.get(value, -1)), len(numbers))
        for value, mesh in sender.items()
    }


def in_order_of_receipt(steps: Steps) -> Steps:
    """The same steps with every SEND as late as the messages need that are received before its own.

    Steps that block under eager sends are returned as they are.
    """
    eager = run_exchange(steps, rendezvous=False)
    if eager.blocks:
        return steps
    rank = {message: number for number, message in enumerate(eager.received)}
    return tuple(tuple(_postponed(row, rank)) for row in steps)


def _postponed(row: tuple[Step, ...], rank: dict[int, int]) -> Sequence[Step]:
    sends = [value for do, value in row if do is Do.SEND]
    by_receipt = sorted(sends, key=rank.__getitem__)
    if by_receipt == sends:
        return row
    made: set[int] = set()
    postponed: list[Step] = []
    following = 0
    for do, value in row:
        if do is Do.SEND:
            made.add(value)
        else:
            postponed.append((do, value))
        while following < len(by_receipt) and by_receipt[following] in made:
            postponed.append((Do.SEND, by_receipt[following]))
            following += 1
    return postponed


@dataclass(frozen=True)
class Messages:
    """The steps of a schedule: before a task what it needs from other meshes, after it what other
    meshes need of it, both in the order of the graph's edges. Message k is from node `sources[k]`
    for node `targets[k]`."""

    steps: Steps
    sources: tuple[int, ...]
    targets: tuple[int, ...]

    def names(self, linked: LinkedSchedule) -> Callable[[int], str]:
        """What a message is for people: `0F3 for 1F3`."""

        def name(message: int) -> str:
            return (
                f"{linked.nodes[self.sources[message]]} for {linked.nodes[self.targets[message]]}"
            )

        return name


def messages_of(linked: LinkedSchedule) -> Messages:
    homes, edges = linked.schedule.stage_to_mesh, linked.graph.edges
    crosses = [homes[edge.src.stage] != homes[edge.dst.stage] for edge in edges]
    sources_of: list[int] = []  # by message
    targets_of: list[int] = []
    leaving: dict[int, list[tuple[int, int]]] = {}  # (edge, message) by node
    for node, sources in enumerate(linked.predecessors):
        for source, edge in sources:
            if crosses[edge]:
                if source in leaving:
                    leaving[source].append((edge, len(targets_of)))
                else:
                    leaving[source] = [(edge, len(targets_of))]
                sources_of.append(source)
                targets_of.append(node)
    steps: list[list[Step]] = [[] for _ in linked.schedule.tasks]
    send, recv, message, count = Do.SEND, Do.RECV, 0, len(targets_of)
    for node, mesh in enumerate(linked.mesh_of):
        while message < count and targets_of[message] == node:
            steps[mesh].append((recv, message))
            message += 1
        for _, outgoing in sorted(leaving.get(node, ())):
            steps[mesh].append((send, outgoing))
    return Messages(tuple(map(tuple, steps)), tuple(sources_of), tuple(targets_of))


def describe(
    steps: Steps,
    outcome: ExchangeOutcome,
    mesh_name: Callable[[int, int], str],
    name: Callable[[int], str],
) -> str:
    """The circle of waits of an outcome that blocks. `mesh_name(mesh, step)` says who stopped
    where, `name(message)` what a message is."""
    receiver = {value: mesh for mesh, row in enumerate(steps) for do, value in row if do is Do.RECV}
    sender = {value: mesh for mesh, row in enumerate(steps) for do, value in row if do is Do.SEND}

    def wait(mesh: int) -> tuple[str, int]:
        """What a mesh waits for, and the mesh that it waits for."""
        at = outcome.stopped[mesh]
        do, value = steps[mesh][at]
        if do is Do.SENT:
            held = outcome.holding[mesh]
            return f"{mesh_name(mesh, at)} waits until {name(held)} is sent", receiver[held]
        source, text = sender[value], f"{mesh_name(mesh, at)} waits for {name(value)}"
        if value in outcome.ahead:
            return f"{text}, sent behind {name(outcome.ahead[value])}", receiver[
                outcome.ahead[value]
            ]
        return text, source

    waits: dict[int, tuple[str, int]] = {}
    mesh = min(outcome.stopped)
    while mesh not in waits:
        waits[mesh] = wait(mesh)
        mesh = waits[mesh][1]
    circle = list(waits)[list(waits).index(mesh) :]
    more = f", and {len(circle) - _MOST_SHOWN} more" if len(circle) > _MOST_SHOWN else ""
    return "; ".join(waits[member][0] for member in circle[:_MOST_SHOWN]) + more


def check_exchange(linked: LinkedSchedule) -> str:
    """Why the sends of a schedule that runs under eager sends need the order of receipt under
    rendezvous; empty if they can go out as their tasks end. Raises ScheduleError if they block in
    either order."""
    messages = messages_of(linked)
    outcome = run_exchange(messages.steps, rendezvous=True)
    if not outcome.blocks:
        return ""
    mesh, name = "mesh {}".format, messages.names(linked)  # a message names the task that it stops
    ordered = in_order_of_receipt(messages.steps)
    postponed = run_exchange(ordered, rendezvous=True)
    if postponed.blocks:
        raise ScheduleError(
            f"schedule '{linked.schedule.name}': deadlock: "
            f"{describe(ordered, postponed, mesh, name)}"
        )
    return describe(messages.steps, outcome, mesh, name)


def validate(schedule: Schedule, graph: StageGraph) -> str:
    """Raise ScheduleError, naming the tasks, unless `schedule` runs every task of `graph` without
    deadlock, whether sends wait for their receivers or not; returns what `check_exchange` says."""
    return check_exchange(link(schedule, graph))
