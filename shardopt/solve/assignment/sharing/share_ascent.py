"""A bound for problems with shared edges: messages and shares, improved together.

For given shares a problem with shared edges is one of pairs, which messages bound from below, as
those of `shardopt.solve.assignment.large.price_ascent` do. A round is

1. some sweeps of messages forward and backward at these shares, which cost a fraction of the rest;
2. how much each reader uses each arc: not in one assignment, but averaged over all ways over its
   edge by what they cost beyond the least (Boltzmann's weights). At good shares many assignments
   cost the same, and any one of them says little about the others;
3. a step of Polyak's length along the averaged use, each arc weighted by its cost, and a projection
   back to shares that add up to 1 (`price_splitting`).

After some rounds without a better bound, shares and messages go back to the best, and steps become
shorter. A round touches each table once; a solve of the problem of pairs takes hundreds of times as
long. Importing this module loads numba."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic

import numpy as np

from shardopt.solve.assignment.sharing import share_kernels as kernels
from shardopt.solve.assignment.sharing.class_problem import (
    ClassProblem,
    class_problem,
    shared_groups,
)
from shardopt.solve.assignment.sharing.flat_groups import joined
from shardopt.solve.assignment.sharing.shared_edges import Sharing, TiedSharing

# What may not be costs so many times what is known to suffice.
_FORBIDDEN = 2.0
_AVERAGING = 0.5  # weight of the newest use
_HEAT = 0.1  # of the mean cost of a node
_FIRST_STEP, _STEP_GROWTH, _STEP_DECAY = 0.5, 1.05, 0.7
_LARGEST_STEP, _LAST_STEP = 2.0, 1e-3
_PATIENCE = 2  # rounds without progress before going back
_PROGRESS = 1e-9  # relative
_CLIP = 0.05  # largest distance to the target that a step believes, relative
# Of the target to the bound: more, and steps overshoot where the bound is nearly the optimum; where
# it is far below, each target that is reached makes place for the next.
_EXCESS = 1.02
# What counts as close is no more than this share.
_MOST_CLOSE = 0.5
# Sweeps before the first step, as long as they raise the bound by this share.
_SETTLING, _SETTLED = 60, 1e-4
# The bound stands still where so many rounds raise it by less than this part of what is close.
_STANDING, _LITTLE = 12, 0.2
# Sweeps forward and backward of a round: with one, rounds are half as long and gain a fifth.
_SWEEPS = 4
# Shares that add up to less are none.
_LEAST_TOTAL = 1e-300
# How often a round touches every entry: sweeps both ways, uses and prices.
_PASSES = 2 * _SWEEPS + 3


class Messages:
    """Messages of a problem at tables that stay as they are, and the best bound that they proved.
    `target` is the true cost of an assignment."""

    def __init__(self, problem: ClassProblem, target: float, readers: int = 0) -> None:
        """For groups of at most so many readers."""
        self.target, self.bound = target, -inf
        self._problem, self._scratch = problem, problem.scratch(readers)
        self._messages = np.zeros(int(problem.flat.classes.sum()))

    def settle(self, close: float) -> None:
        """Sweeps until the bound is within the share `close` of the target or stands still."""
        for _ in range(_SETTLING):
            before = self.bound
            self._sweep()
            if self.bound <= before + _SETTLED * abs(before) or self._is_close(close):
                return

    def _is_close(self, close: float) -> bool:
        return self.bound >= (1 - close) * self.target

    def _sweep(self) -> None:
        flat, tables = self._problem.flat, self._problem.tables
        kernels.sweep(flat, tables, self._messages, True, self._scratch)
        self._last = kernels.sweep(flat, tables, self._messages, False, self._scratch)
        if self._last > self.bound:
            self.bound = self._last
            self._keep()

    def _keep(self) -> None:
        """The bound is the best so far."""


class SpreadMessages(Messages):
    """For the problem that `tied` stands for, at the best shares of `few`: it begins with the best
    messages of `few`, spread over all that is equal. Tables that are equal so are one."""

    def __init__(self, few: ShareAscent, tied: TiedSharing, target: float) -> None:
        self._few, self._tied = few, tied
        tables = tied.spread_tables(few.shares)
        super().__init__(class_problem(tied.whole, _FORBIDDEN * target, tables), target)
        tied_halves, halves = few._problem.halves, self._problem.halves
        place, turned = tied.edges.T
        of = np.full(len(self._problem.flat.edge), -1, dtype=np.int64)
        for side in (0, 1):
            there = np.where(place >= 0, tied_halves[place, side ^ turned], -1)
            is_edge = halves[:, side] >= 0
            of[halves[is_edge, side]] = there[is_edge]
        best = few._problem.flat, few._best[0]
        kernels.spread(*best, self._problem.flat, of, self._messages)

    def settle(self, close: float) -> None:
        """As `Messages.settle`; where what was spread is not close, with no messages to begin with,
        too: layers that are equal may stand between others that are not."""
        super().settle(close)
        if self._is_close(close):
            return
        bound, messages = self.bound, self._messages.copy()
        self._messages[:], self.bound = 0.0, -inf
        super().settle(close)
        if self.bound < bound:
            self.bound = bound
            np.copyto(self._messages, messages)

    def freed(self) -> ShareAscent:
        """The same messages where shares move."""
        shares = self._tied.spread_shares(self._few.shares)
        ascent = ShareAscent(self._tied.whole, shares, self.target)
        np.copyto(ascent._messages, self._messages)
        return ascent


class ShareAscent(Messages):
    """Shares, messages and the best bound that they proved. `_now` and `_best` are messages, shares
    and direction; `_moved` says whether the latter two have changed since the best."""

    def __init__(self, sharing: Sharing, shares: Sequence[np.ndarray], target: float) -> None:
        problem = class_problem(sharing, _FORBIDDEN * target)
        self._groups = shared_groups(sharing, problem)
        readers = int(np.diff(self._groups.edge_first).max(initial=0))
        super().__init__(problem, target, readers)
        self.sharing, self._known = sharing, target
        self.rounds = 0
        self._step, self._failures = _FIRST_STEP, 0
        self._shares = self._in_seconds(shares)
        self._hats = np.zeros(len(self._problem.flat.costs))
        self._use = np.zeros(len(self._shares))
        self._direction = np.zeros(len(self._shares))
        self._now = self._messages, self._shares, self._direction
        # Two of them are zeros yet, whose pages nobody has touched.
        best = np.zeros(len(self._messages)), self._shares.copy(), np.zeros(len(self._direction))
        self._best, self._moved = best, False
        self._price(np.arange(len(self._groups.edge_first) - 1))

    @property
    def shares(self) -> list[np.ndarray]:
        """The best shares, for each of the batches."""
        flat = self.sharing.flat
        seconds = flat.seconds[flat.arc]
        shares = flat.equal(flat.usable)
        np.divide(self._best[1], seconds, out=shares, where=seconds > 0)
        return self.sharing.split(shares)

    @property
    def round_work(self) -> int:
        """Entries that a round touches."""
        flat = self._problem.flat
        sizes = np.diff(flat.first)
        owner = np.repeat(np.arange(flat.num_nodes), np.diff(flat.half_first))
        pairs = int(flat.classes @ flat.classes[flat.reverse]) // 2
        return _PASSES * (pairs + int(sizes[owner].sum()))

    def run(self, most_rounds: int, close: float, deadline: float | None) -> bool:
        """Rounds until the bound is within the share `close` of the target or stands still; whether
        the `deadline` (seconds of `monotonic`) ended them."""
        self.settle(close)
        bounds = [self.bound]
        for _ in range(most_rounds):
            is_over = self._step < _LAST_STEP or _stands(bounds, _LITTLE * close)
            if is_over or self._is_close(close):
                return False
            if deadline is not None and monotonic() >= deadline:
                return True
            self._round()
            bounds.append(self.bound)
        return False

    def aim(self) -> None:
        """Where the target is far above the bound, climb towards what messages decide, or towards
        what that usually costs; higher when that is reached (`run`)."""
        self.settle(0.0)
        self._aim(0.0)

    def _aim(self, close: float) -> None:
        """A target that the bound is not close to, unless an assignment is known that is."""
        self._known = min(self._known, self.sharing.seconds(self.decide()))
        self.target = min(self._known, _EXCESS * self.bound / (1 - min(close, _MOST_CLOSE)))

    def _is_close(self, close: float) -> bool:
        """Whether the bound is within that share of the target, which is no guess any more."""
        if self.bound >= (1 - close) * self.target and self.target < self._known:
            self._aim(close)
        return self.bound >= (1 - close) * self.target

    def decide(self) -> tuple[int, ...]:
        """An assignment by the last messages."""
        problem = self._problem
        choice = np.zeros(problem.flat.num_nodes, dtype=np.int64)
        arrays = problem.flat, problem.tables, self._messages
        kernels.decide(*arrays, choice, self._scratch.hat)
        return tuple(choice.tolist())

    def _in_seconds(self, shares: Sequence[np.ndarray]) -> np.ndarray:
        """Shares of those who can pay alone, which add up to 1 for each arc that somebody can use,
        times its seconds."""
        flat, usable = self.sharing.flat, self._groups.usable
        paid = np.where(usable, joined(shares, np.float64), 0.0)
        is_paid = flat.count(paid != 0.0) > 0
        paid = np.where(is_paid[flat.arc], paid, usable)
        total = np.bincount(flat.arc, weights=paid, minlength=len(flat.seconds))
        return paid / np.maximum(total, _LEAST_TOTAL)[flat.arc] * flat.seconds[flat.arc]

    def _round(self) -> None:
        problem, groups = self._problem, self._groups
        heat = _HEAT * self.target / problem.flat.num_nodes
        kernels.gather_all(problem.flat, self._messages, self._hats)
        arrays = problem.flat, groups, problem.tables, self._messages, self._hats
        kernels.usage(*arrays, heat, self._scratch, self._use)
        self._direction += _AVERAGING * (self._use - self._direction)
        self._moved = True
        length = kernels.slope(groups, self._direction)
        if length > 0.0:
            distance = min(max(self.target - self._last, 0.0), _CLIP * self.target)
            step = self._step * distance / length
            kernels.move(groups, self._direction, step, self._shares, self._scratch)
            self._price(groups.several)
        before = self.bound
        for _ in range(_SWEEPS):
            self._sweep()
        self.rounds += 1
        if self.bound > before + _PROGRESS * abs(before):
            self._step, self._failures = min(self._step * _STEP_GROWTH, _LARGEST_STEP), 0
            return
        self._failures += 1
        if self._failures == _PATIENCE:
            self._go_back()

    def _keep(self) -> None:
        # Sweeps change messages only.
        count = len(self._now) if self._moved else 1
        for best, now in zip(self._best[:count], self._now[:count], strict=True):
            np.copyto(best, now)
        self._moved = False

    def _go_back(self) -> None:
        self._step, self._failures = self._step * _STEP_DECAY, 0
        for best, now in zip(self._best, self._now, strict=True):
            np.copyto(now, best)
        self._moved = False
        self._last = self.bound
        self._price(self._groups.several)

    def _price(self, groups: np.ndarray) -> None:
        """Tables of groups whose shares have changed."""
        problem = self._problem
        arrays = problem.flat, self._groups, groups, self._shares
        kernels.price(*arrays, problem.forbidden, problem.tables)


def _stands(bounds: Sequence[float], share: float) -> bool:
    if len(bounds) <= _STANDING:
        return False
    return bounds[-1] - bounds[-1 - _STANDING] <= share * abs(bounds[-1])
