"""Whether meshes that send to each other reach the ends of their lists, however sends are carried out.

A mesh works through its steps in order. What it sends goes out beside that, one message at a time, in the order of the
SEND steps (a thread, or a stream of a device). Two ways of sending are told apart:

* eager: the message is on its way at once, and the receiver finds it when it comes to the RECV;
* rendezvous: the message waits until its receiver has come to the RECV, and those behind it wait, too.

Without cycles in the dataflow nothing blocks for ever under eager sends; under rendezvous the order of sends matters:
mesh 0 may hold back what mesh 1 waits for behind a message that mesh 1 only takes later. `in_order_of_receipt` puts the
sends of every mesh into the order in which an eager run receives them. That never blocks: of all messages not received
yet, take the first of that run; all before it are through, so its receiver is at the RECV and nothing is ahead of it.
"""

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
    """SEND and RECV name a message; SENT waits until the first so many sends of the mesh are through (0: for none)."""

    SEND = 0
    RECV = 1
    SENT = 2


Step = tuple[Do, int]
Steps = tuple[tuple[Step, ...], ...]  # by mesh


@dataclass(frozen=True)
class Outcome:
    """`stopped` is the step at which a mesh stopped for ever, for those that did; `received` the order of messages."""

    stopped: dict[int, int]
    received: tuple[int, ...]
    holding: dict[int, int]  # mesh -> the message that its sends wait with

    @property
    def blocks(self) -> bool:
        return bool(self.stopped)


def run_exchange(steps: Steps, rendezvous: bool) -> Outcome:
    """Run the meshes against each other, in O(steps)."""
    return _Run(steps, rendezvous).outcome()


class _Run:
    def __init__(self, steps: Steps, rendezvous: bool) -> None:
        self.steps, self.rendezvous = steps, rendezvous
        self.sender = {value: mesh for mesh, own in enumerate(steps) for do, value in own if do is Do.SEND}
        self.position = [0] * len(steps)
        self.queue: list[list[int]] = [[] for _ in steps]  # messages of each mesh in the order of its sends
        self.through = [0] * len(steps)  # how many of them have arrived
        self.sent: set[int] = set()
        self.waiting: dict[int, int] = {}  # message -> the mesh that stands at its RECV
        self.received: list[int] = []
        self.runnable = deque(range(len(steps)))

    def outcome(self) -> Outcome:
        while self.runnable:
            self._advance(self.runnable.popleft())
        stopped = {mesh: at for mesh, at in enumerate(self.position) if at < len(self.steps[mesh])}
        holding = {
            mesh: queue[self.through[mesh]]
            for mesh, queue in enumerate(self.queue)
            if self.rendezvous and self.through[mesh] < len(queue)
        }
        return Outcome(stopped, tuple(self.received), holding)

    def _advance(self, mesh: int) -> None:
        own = self.steps[mesh]
        while self.position[mesh] < len(own):
            do, value = own[self.position[mesh]]
            if do is Do.SEND:
                self._send(mesh, value)
            elif do is Do.RECV:
                if not self._receive(value):
                    self.waiting[value] = mesh
                    return
            elif self.rendezvous and self.through[mesh] < value:
                return  # woken when a send is through
            self.position[mesh] += 1

    def _send(self, mesh: int, message: int) -> None:
        self.queue[mesh].append(message)
        self.sent.add(message)
        if not self.rendezvous or len(self.queue[mesh]) == self.through[mesh] + 1:
            self._wake(message)

    def _receive(self, message: int) -> bool:
        if message not in self.sent:
            return False
        source = self.sender[message]
        queue = self.queue[source]
        if self.rendezvous:
            if queue[self.through[source]] != message:
                return False
            self.through[source] += 1
            self.runnable.append(source)
            if self.through[source] < len(queue):
                self._wake(queue[self.through[source]])
        self.received.append(message)
        return True

    def _wake(self, message: int) -> None:
        if message in self.waiting:
            self.runnable.append(self.waiting.pop(message))


def in_order_of_receipt(steps: Steps) -> Steps:
    """The same steps with every SEND as late as the messages need that are received before its own.

    Steps that block under eager sends are returned as they are.
    """
    eager = run_exchange(steps, rendezvous=False)
    if eager.blocks:
        return steps
    rank = {message: number for number, message in enumerate(eager.received)}
    return tuple(tuple(_postponed(own, rank)) for own in steps)


def _postponed(own: Sequence[Step], rank: dict[int, int]) -> list[Step]:
    wanted = sorted((value for do, value in own if do is Do.SEND), key=rank.__getitem__)
    made: set[int] = set()
    found: list[Step] = []
    following = 0
    for do, value in own:
        if do is Do.SEND:
            made.add(value)
        else:
            found.append((do, value))
        while following < len(wanted) and wanted[following] in made:
            found.append((Do.SEND, wanted[following]))
            following += 1
    return found


@dataclass(frozen=True)
class Messages:
    """The steps of a schedule: before a task what it needs from other meshes, after it what other meshes need of it,
    both in the order of the graph's edges. `ends[k]` is (node that sends message k, node that receives it)."""

    steps: Steps
    ends: tuple[tuple[int, int], ...]

    def names(self, linked: LinkedSchedule) -> Callable[[int], str]:
        """What a message is for people: `0F3 for 1F3`."""

        def name(message: int) -> str:
            source, target = self.ends[message]
            return f"{linked.nodes[source]} for {linked.nodes[target]}"

        return name


def messages_of(linked: LinkedSchedule) -> Messages:
    mesh_of = linked.mesh_of
    ends: list[tuple[int, int]] = []
    arriving: list[list[int]] = [[] for _ in mesh_of]
    leaving: list[list[tuple[int, int]]] = [[] for _ in mesh_of]  # (edge, message)
    for node, sources in enumerate(linked.predecessors):
        for source, edge in sources:
            if mesh_of[source] != mesh_of[node]:
                arriving[node].append(len(ends))
                leaving[source].append((edge, len(ends)))
                ends.append((source, node))
    steps: list[list[Step]] = [[] for _ in linked.schedule.tasks]
    for node, mesh in enumerate(mesh_of):
        own = steps[mesh]
        own.extend((Do.RECV, message) for message in arriving[node])
        own.extend((Do.SEND, message) for _, message in sorted(leaving[node]))
    return Messages(tuple(map(tuple, steps)), tuple(ends))


def describe(steps: Steps, outcome: Outcome, mesh_name: Callable[[int, int], str], name: Callable[[int], str]) -> str:
    """The circle of waits of an outcome that blocks. `mesh_name(mesh, step)` says who stopped where, `name(message)`
    what a message is."""
    receiver = {value: mesh for mesh, own in enumerate(steps) for do, value in own if do is Do.RECV}
    sender = {value: mesh for mesh, own in enumerate(steps) for do, value in own if do is Do.SEND}
    said: dict[int, tuple[str, int]] = {}
    for mesh, at in outcome.stopped.items():
        do, value = steps[mesh][at]
        held = outcome.holding.get(mesh if do is Do.SENT else sender[value])
        if do is Do.SENT and held is not None:
            said[mesh] = (f"{mesh_name(mesh, at)} waits until {name(held)} is sent", receiver[held])
            continue
        source, text = sender[value], f"{mesh_name(mesh, at)} waits for {name(value)}"
        sent_before = (Do.SEND, value) in steps[source][: outcome.stopped.get(source, len(steps[source]))]
        if held is not None and sent_before:
            said[mesh] = (f"{text}, sent behind {name(held)}", receiver[held])
        else:
            said[mesh] = (text, source)
    circle = [min(said)]
    while (following := said[circle[-1]][1]) not in circle:
        circle.append(following)
    circle = circle[circle.index(following) :]
    more = f", and {len(circle) - _MOST_SHOWN} more" if len(circle) > _MOST_SHOWN else ""
    return "; ".join(said[mesh][0] for mesh in circle[:_MOST_SHOWN]) + more


def check_exchange(linked: LinkedSchedule) -> str:
    """Why the sends of a schedule that runs under eager sends need the order of receipt under rendezvous; empty if they
    can go out as their tasks end. Raises ScheduleError if they block in either order."""
    messages = messages_of(linked)
    outcome = run_exchange(messages.steps, rendezvous=True)
    if not outcome.blocks:
        return ""
    mesh, name = "mesh {}".format, messages.names(linked)  # a message names the task that it stops
    ordered = in_order_of_receipt(messages.steps)
    again = run_exchange(ordered, rendezvous=True)
    if again.blocks:
        raise ScheduleError(f"schedule '{linked.schedule.name}': deadlock: {describe(ordered, again, mesh, name)}")
    return describe(messages.steps, outcome, mesh, name)


def validate(schedule: Schedule, graph: StageGraph) -> str:
    """Raise ScheduleError, naming the tasks, unless `schedule` runs every task of `graph` without deadlock, whether
    sends wait for their receivers or not; returns what `check_exchange` says."""
    return check_exchange(link(schedule, graph))
