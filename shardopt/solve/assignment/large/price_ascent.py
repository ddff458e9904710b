"""Lower bounds for large problems: prices for memory and messages along edges, improved together.

Prices λ >= 0 a byte at each time turn the memory limit into node costs (Lagrange); for any prices
and any messages a sweep of message passing bounds the priced cost from below, so every iterate
proves a bound:

    bound(λ, messages) - Σ_t λ_t capacity_t <= optimum

1. Sweep forward and backward at the current prices, which improves the messages for them.
2. Choose strategies by the messages; the times where these exceed the capacity say where prices
   should rise.
3. Move the prices along the averaged excess (a Polyak step towards a target, clipped).
4. After some steps without a better bound go back to the best prices *and* messages, and step less:
   messages that fitted other prices recover badly, and without going back the ascent diverges.
"""

from __future__ import annotations

from math import inf

import numpy as np

from shardopt.solve.assignment.large import message_kernels as kernels
from shardopt.solve.assignment.large.flat_problem import Flat

_AVERAGING = 0.5  # weight of the newest excess
_FIRST_STEP, _STEP_GROWTH, _STEP_DECAY = 0.1, 1.15, 0.7
_LARGEST_STEP, _LAST_STEP = 2.0, 1e-5
_PATIENCE = 10  # steps without progress before going back
_PROGRESS = 1e-9  # relative
_CLIP = 0.05  # largest distance to the target that a step believes, relative to the bound
_CHOOSING = 8  # choosing looks at one row of each table, where a sweep looks at all


class PriceAscent:
    """Prices, messages, and the best bound they proved. `target` is an objective to step
    towards."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        sizes = np.diff(flat.first)
        self.messages = np.zeros(int(sizes @ np.diff(flat.half_first)))
        self.prices = np.zeros(len(flat.capacity))
        self.bound = -inf
        self.best_prices, self._best_messages = self.prices.copy(), self.messages.copy()
        self.choice = np.zeros(flat.num_nodes, dtype=np.int64)  # by the last messages
        self.work = 0
        self.converged = False
        self._priced = np.zeros(len(flat.costs))
        self._hat = np.zeros(int(sizes.max(initial=0)))
        self._direction = np.zeros(len(flat.capacity))
        self._best_direction = self._direction.copy()
        self._step, self._failures = _FIRST_STEP, 0

    def settle(self, sweeps: int) -> None:
        """Pass messages at the current prices, until the bound stands still."""
        for _ in range(sweeps):
            before = self.bound
            self._keep(self._sweep())
            if self.bound - before <= _PROGRESS * abs(self.bound):
                return

    def advance(self, target: float) -> None:
        """One sweep, then one step of the prices towards an assignment of cost `target` (or any, if
        inf)."""
        value = self._sweep()
        self.decide()
        excess = (kernels.usage_of(self.flat, self.choice) - self.flat.capacity).astype(np.float64)
        self._direction = (1 - _AVERAGING) * self._direction + _AVERAGING * excess
        if self._keep(value):
            self._step, self._failures = min(self._step * _STEP_GROWTH, _LARGEST_STEP), 0
        else:
            self._failures += 1
            if self._failures == _PATIENCE:
                self._go_back()
        self._move(min(max(target - value, 0.0), _CLIP * abs(value)))

    def decide(self) -> None:
        """Let `choice` be what the messages say at the prices of the last sweep."""
        kernels.decide(self.flat, self._priced, self.messages, self.choice, self._hat)
        self.work += self.flat.sweep_work // _CHOOSING

    def recall(self, prices: np.ndarray | None = None) -> None:
        """Let `choice` be what the best messages say at the best prices, or at others; the ascent
        is left alone."""
        kernels.apply_prices(
            self.flat, self.best_prices if prices is None else prices, self._priced
        )
        messages = self._best_messages
        if prices is not None:
            messages = messages.copy()
            for forward in (True, False):
                kernels.sweep(self.flat, self._priced, messages, forward, self._hat)
            self.work += 2 * self.flat.sweep_work
        kernels.decide(self.flat, self._priced, messages, self.choice, self._hat)
        self.work += self.flat.sweep_work // _CHOOSING

    def _sweep(self) -> float:
        kernels.apply_prices(self.flat, self.prices, self._priced)
        kernels.sweep(self.flat, self._priced, self.messages, True, self._hat)
        bound = kernels.sweep(self.flat, self._priced, self.messages, False, self._hat)
        self.work += 2 * self.flat.sweep_work
        return bound - _inner(self.prices, self.flat.capacity)

    def _keep(self, value: float) -> bool:
        """Remember the point if its bound is better; whether it is noticeably so."""
        noticeable = not value <= self.bound + _PROGRESS * abs(self.bound)
        if value > self.bound:
            self.bound = value
            self.best_prices[:], self._best_messages[:] = self.prices, self.messages
            self._best_direction[:] = self._direction
        return noticeable

    def _go_back(self) -> None:
        self._step, self._failures = self._step * _STEP_DECAY, 0
        self.converged = self._step < _LAST_STEP
        self.prices[:], self.messages[:] = self.best_prices, self._best_messages
        self._direction = self._best_direction.copy()

    def _move(self, distance: float) -> None:
        # A price of 0 cannot fall: such times take no part in the step.
        free = np.where((self.prices > 0) | (self._direction > 0), self._direction, 0.0)
        length = _inner(free, free)
        if length > 0:
            self.prices = np.maximum(self.prices + self._step * distance / length * free, 0.0)


def _inner(first: np.ndarray, second: np.ndarray) -> float:
    """Inner product. Not by BLAS: for vectors this short, waking its threads takes longer than a
    whole sweep."""
    return float((first * second).sum())
