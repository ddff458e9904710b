"""Which task of a simulation ends next: of tasks that take what they take, or of tasks that slow
each other down."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import Protocol

from shardopt.hardware.sharing import Sharing


class Clock(Protocol):
    """Tasks are entered with the time at which they start, which is never before the end that `pop`
    gave last."""

    def push(self, node: int, mesh: int, start: float, seconds: float) -> None: ...

    def pop(self) -> tuple[float, int] | None:
        """(end, node) of the task that ends next, or None when none is left."""


class FixedClock:
    """Tasks that do not disturb each other."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []

    def push(self, node: int, mesh: int, start: float, seconds: float) -> None:
        heapq.heappush(self._ends, (start + seconds, node))

    def pop(self) -> tuple[float, int] | None:
        return heapq.heappop(self._ends) if self._ends else None


@dataclass(slots=True)
class _Running:
    """A task at work: what was left of it at `since`, its speed from then on, and how often that
    has changed."""

    node: int
    left: float
    since: float
    speed: float = 0.0
    version: int = 0


class SharedClock:
    """Tasks of meshes that share hosts: each advances at the speed that the meshes at work leave
    it.

    The seconds of a task are those beside a host that is all at work. A mesh runs one task at a
    time. When one begins or ends, only tasks on the hosts of its mesh change their speed, and get
    another projected end."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        meshes_of: dict[int, list[int]] = {}
        for mesh, shares in enumerate(sharing.hosts):
            for host, _ in shares:
                meshes_of.setdefault(host, []).append(mesh)
        self._beside = [
            tuple(sorted({other for host, _ in shares for other in meshes_of[host]}))
            for shares in sharing.hosts
        ]
        self._load: Counter[int] = Counter()
        self._starts: list[tuple[float, int, int, float]] = []  # start, node, mesh, seconds
        self._running: dict[int, _Running] = {}  # by mesh
        self._ends: list[tuple[float, int, int, int]] = []  # end, node, mesh, version

    def push(self, node: int, mesh: int, start: float, seconds: float) -> None:
        heapq.heappush(self._starts, (start, node, mesh, seconds))

    def pop(self) -> tuple[float, int] | None:
        while self._starts or self._running:
            end, node, mesh = self._next_end()
            if self._starts and self._starts[0][0] <= end:
                start, node, mesh, seconds = heapq.heappop(self._starts)
                self._running[mesh] = _Running(node, seconds, start)
                self._load.update(dict(self._sharing.hosts[mesh]))
                self._change_speeds(mesh, start)
                continue
            heapq.heappop(self._ends)
            del self._running[mesh]
            self._load.subtract(dict(self._sharing.hosts[mesh]))
            self._change_speeds(mesh, end)
            return end, node
        return None

    def _next_end(self) -> tuple[float, int, int]:
        """The first of the projected ends that still hold."""
        while self._ends:
            end, node, mesh, version = self._ends[0]
            task = self._running.get(mesh)
            if task is not None and (task.node, task.version) == (node, version):
                return end, node, mesh
            heapq.heappop(self._ends)
        return inf, -1, -1

    def _change_speeds(self, mesh: int, now: float) -> None:
        for other in self._beside[mesh]:
            task = self._running.get(other)
            if task is None:
                continue
            speed = self._sharing.speed(other, self._load)
            # No new entry: the heap stays small, and rounding does not add up.
            if speed == task.speed:
                continue
            task.left = max(0.0, task.left - (now - task.since) * task.speed)
            task.since, task.speed, task.version = now, speed, task.version + 1
            heapq.heappush(self._ends, (now + task.left / speed, task.node, other, task.version))
