"""The plan of a cross-mesh resharding as a value, what it moves, and its form as one integer array.

A plan has two phases. In the first, source devices send boxes of their tiles to destination devices; in the second,
destination devices exchange boxes among themselves. Afterwards each destination device holds its whole tile and has
received every element of it exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

_SEND_PHASE, _GATHER_PHASE = 0, 1
_HEADER_COLUMNS = 3  # phase, source device, destination device


@dataclass(frozen=True, slots=True)
class TileSend:
    """One message: the box `[start, limit)` of the whole tensor, in elements per dimension, between global device ids.

    Equal devices mean a copy inside the device.
    """

    src_device: int
    dst_device: int
    start: tuple[int, ...]
    limit: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(limit - start for start, limit in zip(self.start, self.limit, strict=True))

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_local(self) -> bool:
        return self.src_device == self.dst_device

    def __str__(self) -> str:
        box = ", ".join(f"{start}:{limit}" for start, limit in zip(self.start, self.limit, strict=True))
        return f"{self.src_device}->{self.dst_device} [{box}]"


@dataclass(frozen=True)
class ReshardingPlan:
    """All `sends` (any order, source mesh to destination mesh), then all `gathers` (any order, inside the destination).

    A gather only passes on boxes that its source device received in the first phase.
    """

    strategy: str
    rank: int
    itemsize: int
    sends: tuple[TileSend, ...]
    gathers: tuple[TileSend, ...] = ()

    def to_array(self) -> np.ndarray:
        """The messages as int64 `[messages, 3 + 2 * rank]`: phase (0 send, 1 gather), src, dst, starts, limits."""
        rows = [
            (phase, send.src_device, send.dst_device, *send.start, *send.limit)
            for phase, sends in ((_SEND_PHASE, self.sends), (_GATHER_PHASE, self.gathers))
            for send in sends
        ]
        return np.array(rows, dtype=np.int64).reshape(len(rows), _HEADER_COLUMNS + 2 * self.rank)

    @staticmethod
    def from_array(array: np.ndarray, strategy: str, itemsize: int) -> ReshardingPlan:
        """The inverse of `to_array`; raises ValueError for an array that is no plan."""
        columns = array.shape[1] if array.ndim == 2 else 0
        if columns < _HEADER_COLUMNS or (columns - _HEADER_COLUMNS) % 2 or array.dtype.kind not in "iu":
            raise ValueError(
                f"a resharding plan is an integer array [n, 3 + 2 * rank], found {array.dtype}{array.shape}"
            )
        unknown = set(array[:, 0].tolist()) - {_SEND_PHASE, _GATHER_PHASE}
        if unknown:
            raise ValueError(f"resharding plan: unknown phase {min(unknown)}, expected 0 (send) or 1 (gather)")
        rank = (columns - _HEADER_COLUMNS) // 2
        phases: tuple[list[TileSend], list[TileSend]] = ([], [])
        for phase, src, dst, *box in array.tolist():
            phases[phase].append(TileSend(src, dst, tuple(box[:rank]), tuple(box[rank:])))
        return ReshardingPlan(strategy, rank, itemsize, tuple(phases[0]), tuple(phases[1]))


def elements_on_wire(plan: ReshardingPlan) -> int:
    """Elements that the sends move between different devices; copies inside a device and gathers do not count."""
    return _moved_elements(plan.sends)


def elements_gathered(plan: ReshardingPlan) -> int:
    """Elements that destination devices pass to each other in the second phase."""
    return _moved_elements(plan.gathers)


def bytes_on_wire(plan: ReshardingPlan) -> int:
    return elements_on_wire(plan) * plan.itemsize


def messages(plan: ReshardingPlan) -> int:
    """Number of sends between different devices."""
    return sum(not send.is_local for send in plan.sends)


def _moved_elements(sends: Iterable[TileSend]) -> int:
    return sum(send.elements for send in sends if not send.is_local)
