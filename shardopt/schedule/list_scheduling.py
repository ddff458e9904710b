"""A schedule built from durations: whenever a mesh is free it takes the most urgent task that can
run.

What is urgent is a *rule*: the order of the kinds and how many microbatches a stage may run ahead,
or the longest path that is left to the end of the step. A patient rule leaves a mesh idle for
something more urgent that is about to arrive. A rule may also build the schedule from its end, as
the drain is harder than the fill where backwards are split. No rule wins everywhere, so several are
tried and the simulator decides; the best named schedule takes part as well. Tasks of one kind and
stage run in ascending microbatches, as in every schedule here, so sums have the same order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardopt.schedule.bounds import longest_paths
from shardopt.schedule.graph import StageEdge, StageGraph
from shardopt.schedule.tasks import ONCE, Schedule, Task, TaskKind
from shardopt.schedule.workload import Workload

_FORWARD = TaskKind.FORWARD
_INPUT = TaskKind.BACKWARD_INPUT
_WEIGHT = TaskKind.BACKWARD_WEIGHT
_BACKWARD = TaskKind.BACKWARD


@dataclass(frozen=True)
class PriorityRule:
    """`kinds`: the most urgent kind first; kinds that are missing come last. `ahead`: how many
    microbatches stage s may have in flight, `base + slope · (stages behind s)`, at least 1; None
    for any number. `deepest_first`: among stages of one mesh the one that is furthest along the
    pipeline. `by_tail`: instead of all this, the longest path to the end of the step. `patience`:
    the share of a task's seconds that a mesh waits for a more urgent one instead. `from_end`: the
    order is built backwards, without regard to memory."""

    kinds: tuple[TaskKind, ...]
    base: float = 1.0
    slope: float | None = 1.0
    deepest_first: bool = True
    by_tail: bool = False
    patience: float = 0.0
    from_end: bool = False

    def __str__(self) -> str:
        patient = f" patience {self.patience:g}" if self.patience else ""
        if self.by_tail:
            return f"longest path {'from the start' if self.from_end else 'to the end'}{patient}"
        ahead = "any" if self.slope is None else f"{self.base:g}+{self.slope:g}s"
        return (
            f"{''.join(self.kinds)} ahead "
            f"{ahead}{'' if self.deepest_first else ' first stage first'}{patient}"
        )

    def limit(self, stages_behind: int) -> float:
        return (
            float("inf") if self.slope is None else max(1.0, self.base + self.slope * stages_behind)
        )


def rules(several_stages: bool = True) -> Iterator[PriorityRule]:
    """The rules worth trying, in a fixed order; which stage of a mesh goes first matters only where
    it has several."""
    # The order of 1F1B, that of GPipe, and weight halves before new forwards. With base 1 a slope
    # of 1 lets a stage run as far ahead as 1F1B does, 2 as its eager form, None as GPipe.
    backward_first = (_BACKWARD, _INPUT, _FORWARD, _WEIGHT)
    forward_first = (_FORWARD, _BACKWARD, _INPUT, _WEIGHT)
    weights_early = (_BACKWARD, _INPUT, _WEIGHT, _FORWARD)
    for kinds in (backward_first, forward_first, weights_early):
        for slope in (1.0, 1.5, 2.0, 3.0, None):
            for deepest_first in (True, False) if several_stages else (True,):
                yield PriorityRule(kinds, 1.0, slope, deepest_first)
    yield PriorityRule(backward_first, slope=None, patience=0.6)
    for patience in (0.0, 0.3):
        yield PriorityRule(backward_first, slope=None, by_tail=True, patience=patience)
    for patience in (0.3, 0.6):
        yield PriorityRule(
            backward_first, slope=None, by_tail=True, patience=patience, from_end=True
        )


def list_schedule(work: Workload, rule: PriorityRule, name: str = "auto") -> Schedule | None:
    """The schedule that `rule` makes, or None if it runs into a dead end (all memory taken by what
    cannot proceed)."""
    if not rule.from_end:
        return _Run(work, rule).schedule(name)
    reversed_schedule = _Run(_reversed(work), rule).schedule(name)
    return None if reversed_schedule is None else _read_backwards(reversed_schedule, work)


def _reversed(work: Workload) -> Workload:
    """The loop with every edge turned round, without a memory limit."""
    looped = {task for task in work.graph.tasks if not task.kind.runs_once}
    kept = [
        (StageEdge(edge.dst, edge.src), seconds)
        for edge, seconds in zip(work.graph.edges, work.transfer_seconds, strict=True)
        if edge.src in looped and edge.dst in looped
    ]
    tasks = tuple(task for task in reversed(work.graph.tasks) if task in looped)
    graph = StageGraph(tasks, tuple(edge for edge, _ in kept))
    return replace(
        work, graph=graph, transfer_seconds=tuple(seconds for _, seconds in kept), memory_bytes=None
    )


def _read_backwards(schedule: Schedule, work: Workload) -> Schedule:
    """The last task comes first, and the last microbatch too; updates behind everything else."""
    last = schedule.num_microbatches - 1
    rows = [
        [Task(task.kind, task.stage, last - task.microbatch) for task in row[::-1]]
        for row in schedule.tasks
    ]
    for task in work.graph.tasks:
        if task.kind.runs_once:
            rows[work.stage_to_mesh[task.stage]].append(Task(task.kind, task.stage, ONCE))
    return replace(schedule, tasks=tuple(map(tuple, rows)))


class _Run:
    """One event-driven run over numbers: task k of `tasks` for microbatch i."""

    def __init__(self, work: Workload, rule: PriorityRule) -> None:
        self.work, self.rule = work, rule
        self.tasks = tuple(task for task in work.graph.tasks if not task.kind.runs_once)
        number = {task: k for k, task in enumerate(self.tasks)}
        self.seconds = [work.task_seconds[task] for task in self.tasks]
        self.home = [work.stage_to_mesh[task.stage] for task in self.tasks]
        self.bytes = [work.activation_bytes.get(task, 0) for task in self.tasks]
        self.limit = work.memory_bytes
        self.successors: list[list[tuple[int, float]]] = [[] for _ in self.tasks]
        self.readers: list[int] = [0] * len(self.tasks)
        self.frees: list[list[int]] = [[] for _ in self.tasks]
        waits = [0] * len(self.tasks)
        for edge, delay in zip(work.graph.edges, work.transfer_seconds, strict=True):
            if edge.src in number and edge.dst in number:
                source, target = number[edge.src], number[edge.dst]
                self.successors[source].append((target, delay))
                waits[target] += 1
                if edge.src.stage == edge.dst.stage:
                    self.readers[source] += 1
                    self.frees[target].append(source)
        count = work.num_microbatches
        self.waits = [[wait] * count for wait in waits]
        self.ready = [[0.0] * count for _ in self.tasks]
        self.unread = [[reads] * count for reads in self.readers]
        self.next = [0] * len(self.tasks)
        self.order = self._orders(rule)
        last_stage = max((task.stage for task in self.tasks), default=0)
        self.most = [rule.limit(last_stage - task.stage) for task in self.tasks]
        self.last_of_stage = self._last_tasks()
        # When what waits for one running task alone can start.
        self.expected: dict[tuple[int, int], float] = {}
        self.tails = self._tails() if rule.by_tail else []

    def _orders(self, rule: PriorityRule) -> list[list[int]]:
        """For each mesh its tasks by urgency."""
        urgency = {kind: rank for rank, kind in enumerate(rule.kinds)}
        sign = -1 if rule.deepest_first else 1
        orders: list[list[int]] = [[] for _ in range(self.work.num_meshes)]
        for k, home in enumerate(self.home):
            orders[home].append(k)
        for order in orders:
            order.sort(
                key=lambda k: (
                    urgency.get(self.tasks[k].kind, len(urgency)),
                    sign * self.tasks[k].stage,
                    k,
                )
            )
        return orders

    def _tails(self) -> list[list[float]]:
        """For each task and microbatch the longest path to the end of the step, behind the
        microbatches after it."""
        paths, count = longest_paths(self.work), self.work.num_microbatches
        return [
            [paths.tail[task] + (count - 1 - i) * paths.behind[task] for i in range(count)]
            for task in self.tasks
        ]

    def _last_tasks(self) -> list[int]:
        """For each task the one of its stage that ends a microbatch there: what it counts as in
        flight until then."""
        rank = {_FORWARD: 0, _BACKWARD: 1, _INPUT: 1, _WEIGHT: 2}
        last: dict[int, int] = {}
        for k, task in enumerate(self.tasks):
            if task.stage not in last or rank[task.kind] > rank[self.tasks[last[task.stage]].kind]:
                last[task.stage] = k
        return [last[task.stage] for task in self.tasks]

    def schedule(self, name: str) -> Schedule | None:
        meshes = range(self.work.num_meshes)
        rows: list[list[Task]] = [[] for _ in meshes]
        held, idle = [0] * len(meshes), [True] * len(meshes)
        # (time, 0 = a task ends / 1 = a mesh looks for work, mesh, task, microbatch): all that ends
        # at a time has ended before a mesh looks, so that it sees everything that is ready.
        events: list[tuple[float, int, int, int, int]] = [(0.0, 1, mesh, -1, -1) for mesh in meshes]
        heapq.heapify(events)
        while events:
            now, kind, mesh, k, i = heapq.heappop(events)
            if kind == 0:
                idle[mesh] = True
                self._finish(now, k, i, held, events)
                heapq.heappush(events, (now, 1, mesh, -1, -1))
                continue
            # Woken by a value that arrived while it works: it looks for work once more when its
            # task ends.
            if not idle[mesh]:
                continue
            chosen = self._choose(mesh, now, held[mesh])
            if chosen is None:
                continue
            k, i = chosen, self.next[chosen]
            self.next[k] += 1
            held[mesh] += self.bytes[k]
            idle[mesh] = False
            rows[mesh].append(Task(self.tasks[k].kind, self.tasks[k].stage, i))
            heapq.heappush(events, (now + self.seconds[k], 0, mesh, k, i))
        if any(done < self.work.num_microbatches for done in self.next):
            return None
        once = [
            Task(task.kind, task.stage, ONCE)
            for task in self.work.graph.tasks
            if task.kind.runs_once
        ]
        for task in once:
            rows[self.work.stage_to_mesh[task.stage]].append(task)
        return Schedule(
            name, self.work.num_microbatches, self.work.stage_to_mesh, tuple(map(tuple, rows))
        )

    def _choose(self, mesh: int, now: float, held: int) -> int | None:
        """The most urgent task that can run, or None to wait."""
        best, best_urgency = -1, 0.0
        coming: list[tuple[float, float]] = []  # urgency and time of what is about to be ready
        for rank, k in enumerate(self.order[mesh]):
            i = self.next[k]
            if i == self.work.num_microbatches:
                continue
            urgency = -self.tails[k][i] if self.tails else float(rank)
            if self.waits[k][i] or self.ready[k][i] > now:
                if self.rule.patience:
                    coming.append((urgency, self.expected.get((k, i), 0.0)))
            elif (best < 0 or urgency < best_urgency) and self._may_run(k, i, mesh, held):
                best, best_urgency = k, urgency
        if best < 0:
            return None
        limit = now + self.rule.patience * self.seconds[best]
        # Its arrival is an event that wakes the mesh, so waiting needs no other.
        if any(urgency < best_urgency and now < time < limit for urgency, time in coming):
            return None
        if self.rule.patience:
            self._expect(best, now)
        return best

    def _may_run(self, k: int, i: int, mesh: int, held: int) -> bool:
        if self.limit is not None and self.bytes[k] and held + self.bytes[k] > self.limit[mesh]:
            return False
        return (
            self.tasks[k].kind is not _FORWARD
            or i - self.next[self.last_of_stage[k]] < self.most[k]
        )

    def _expect(self, k: int, now: float) -> None:
        """Note what can start when task k, which starts now, is through."""
        i, end = self.next[k], now + self.seconds[k]
        for target, delay in self.successors[k]:
            if self.waits[target][i] == 1:
                self.expected[target, i] = max(self.ready[target][i], end + delay)

    def _finish(
        self,
        now: float,
        k: int,
        i: int,
        held: list[int],
        events: list[tuple[float, int, int, int, int]],
    ) -> None:
        for source in self.frees[k]:
            self.unread[source][i] -= 1
            if not self.unread[source][i]:
                held[self.home[source]] -= self.bytes[source]
        # What nobody on its mesh reads is gone with the task.
        if not self.readers[k]:
            held[self.home[k]] -= self.bytes[k]
        for target, delay in self.successors[k]:
            self.waits[target][i] -= 1
            self.ready[target][i] = max(self.ready[target][i], now + delay)
            if not self.waits[target][i]:
                heapq.heappush(events, (self.ready[target][i], 1, self.home[target], -1, -1))
