"""Monotone piecewise-linear curves: seconds by size, from measured points or from a formula."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

Amount = TypeVar("Amount", float, np.ndarray)


@dataclass(frozen=True)
class Curve:
    """Straight pieces: from size `starts[k]` on it is `seconds[k]` and `slopes[k]` more for each
    unit of size.

    `starts[0]` is 0 and the last piece has no end.
    """

    starts: tuple[float, ...]
    seconds: tuple[float, ...]
    slopes: tuple[float, ...]

    @staticmethod
    def affine(seconds: float, per_unit: float) -> Curve:
        """`seconds + per_unit * size`."""
        return Curve((0.0,), (seconds,), (per_unit,))

    @staticmethod
    def through(sizes: Sequence[float], seconds: Sequence[float]) -> Curve:
        """Lines through measured points: sizes rise, seconds do not fall.

        Beyond the last point the last slope goes on. Below the first point the first slope does,
        down to size 0 but never below zero seconds; a single point stands for a line through the
        origin. Raises ValueError for others."""
        x, y = tuple(map(float, sizes)), tuple(map(float, seconds))
        _check_points(x, y)
        # One point says nothing of a latency.
        if len(x) == 1:
            return Curve((0.0,), (0.0,), (y[0] / x[0],))
        slopes = tuple((d - c) / (b - a) for a, b, c, d in zip(x, x[1:], y, y[1:], strict=False))
        if x[0] == 0:
            return Curve(x[:-1], y[:-1], slopes)
        start = max(0.0, y[0] - slopes[0] * x[0])
        return Curve((0.0, *x[:-1]), (start, *y[:-1]), ((y[0] - start) / x[0], *slopes))

    def at(self, size: Amount) -> Amount:
        """Seconds for a size, or for an array of sizes."""
        starts, seconds, slopes = self.starts, self.seconds, self.slopes
        if isinstance(size, np.ndarray):
            piece = np.maximum(np.searchsorted(starts, size, side="left") - 1, 0)
            return np.take(seconds, piece) + (size - np.take(starts, piece)) * np.take(
                slopes, piece
            )
        k = max(bisect_left(starts, size) - 1, 0)
        return seconds[k] + (size - starts[k]) * slopes[k]


class CurveTable:
    """Many curves at once: row r is evaluated at a size of its own."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        width = max((len(curve.starts) for curve in curves), default=1)
        pieces = np.zeros((3, len(curves), width))
        pieces[0] = np.inf  # pieces that a curve does not have start nowhere
        for row, curve in enumerate(curves):
            pieces[:, row, : len(curve.starts)] = curve.starts, curve.seconds, curve.slopes
        self._starts, self._seconds, self._slopes = pieces

    def at(self, sizes: np.ndarray) -> np.ndarray:
        """Seconds `[rows]` of the sizes `[rows]`."""
        rows = np.arange(len(sizes))
        piece = np.maximum((self._starts < sizes[:, None]).sum(axis=1) - 1, 0)
        return (
            self._seconds[rows, piece]
            + (sizes - self._starts[rows, piece]) * self._slopes[rows, piece]
        )


def _check_points(x: tuple[float, ...], y: tuple[float, ...]) -> None:
    if not x or len(x) != len(y):
        raise ValueError(f"expected as many seconds as sizes, found {len(y)} for {len(x)}")
    if not all(math.isfinite(value) and value >= 0 for value in (*x, *y)):
        raise ValueError("expected sizes and seconds to be numbers of at least 0")
    if any(a >= b for a, b in pairwise(x)):
        raise ValueError(f"expected rising sizes, found {list(x)}")
    if any(a > b for a, b in pairwise(y)):
        raise ValueError(f"expected seconds that do not fall with size, found {list(y)}")
    if x == (0.0,):
        raise ValueError("expected a point beyond size 0")


def rising(seconds: Sequence[float]) -> tuple[float, ...]:
    """The least-squares fit to measured seconds that never falls (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []  # mean, number of points
    for value in seconds:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] > mean:
            before, number = blocks.pop()
            mean, count = (before * number + mean * count) / (number + count), number + count
        blocks.append((mean, count))
    return tuple(mean for mean, count in blocks for _ in range(count))
