"""Which task of a simulation ends next: of tasks that take what they take, or of tasks that slow each other down."""

from __future__ import annotations

import heapq
from math import inf
from typing import Protocol

from shardopt.cost.sharing import Sharing


class Clock(Protocol):
    """Tasks are entered with the time at which they start, which is never before the end that `pop` gave last."""

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


class SharedClock:
    """Tasks of meshes that share hosts: each advances at the speed that the meshes at work leave it.

    The seconds of a task are those beside a host that is all at work. A mesh runs one task at a time.
    """

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._now = 0.0
        self._starts: list[tuple[float, int, int, float]] = []  # start, node, mesh, seconds
        self._left: dict[int, float] = {}  # of the tasks at work, by node
        self._mesh: dict[int, int] = {}
        self._speed: dict[int, float] = {}  # by mesh

    def push(self, node: int, mesh: int, start: float, seconds: float) -> None:
        heapq.heappush(self._starts, (start, node, mesh, seconds))

    def pop(self) -> tuple[float, int] | None:
        while self._starts or self._left:
            end, node = min(
                ((self._now + left / self._speed[self._mesh[node]], node) for node, left in self._left.items()),
                default=(inf, -1),
            )
            if self._starts and self._starts[0][0] <= end:
                start, started, mesh, seconds = heapq.heappop(self._starts)
                self._advance(start)
                self._left[started], self._mesh[started] = seconds, mesh
            else:
                self._advance(end)
                del self._left[node], self._mesh[node]
                self._speed = self._sharing.speeds(self._mesh.values())
                return end, node
            self._speed = self._sharing.speeds(self._mesh.values())
        return None

    def _advance(self, time: float) -> None:
        passed = time - self._now
        for node in self._left:
            self._left[node] = max(0.0, self._left[node] - passed * self._speed[self._mesh[node]])
        self._now = time
