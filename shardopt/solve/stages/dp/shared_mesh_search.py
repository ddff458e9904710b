"""Cuts of the layers into stages that share meshes: a short step, and a bound of all steps.

The step is sum / v + (v B - 1) · slot, and its slot a mean of two maxima: over what meshes do, and
over stages (`shardopt.solve.stages.stage_problem.evaluate`).

1. A maximum is at least any weighted mean. For fixed weights the step is a sum over stages, and its
   least value, a shortest path through the borders of layers, bounds all steps. The weights rise
   where the path has most (multiplicative weights: Arora, Hazan and Kale, 2012), so that its plans
   become even, and the bound rises.
2. Borders of each path are moved while that makes its step shorter.
3. What the best weights leave is looked at stage by stage, for so many nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardopt.hardware.cluster import Submesh
from shardopt.solve.stages.dp.searches import cheapest_seconds, levels_of
from shardopt.solve.stages.stage_problem import (
    Places,
    StageConfig,
    StageProblem,
    Stages,
    StageSolution,
    evaluate,
    held_copies,
    places_of,
)

if TYPE_CHECKING:
    from shardopt.solve.stages.dp.shared_mesh_kernels import SharedMeshCosts

_ROUNDS = 40  # of weights: further ones raise the bound by less than a hundredth
_FIRST_RATE = 2.0  # by which weights rise in the first round; falls with the root of the rounds
_MOST_NODES = 20_000
_ROUNDING = 1e-9
# Weights of links, and of cuts among the slots, begin so much below those of stages.
_LOW = -6.0


@dataclass(frozen=True, eq=False)
class _Weights:
    """What a second counts: of stages, `[S]`, and of the cut before each; and the bound that these
    have."""

    stages: np.ndarray
    cuts: np.ndarray
    bound: float


@dataclass(eq=False)
class SharedMeshSearch:
    """A search for one number of stages on meshes that may have some `configs` of a problem.

    `bound` is a lower bound of all steps by what is known so far, inf where there is no plan;
    `met` are the borders of plans that were met, each no longer than those around it."""

    problem: StageProblem
    configs: Sequence[int]
    num_stages: int
    bound: float = field(init=False, default=0.0)
    met: list[tuple[int, ...]] = field(init=False, default_factory=list)
    _best: float = field(init=False, default=np.inf)
    _weights: _Weights | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """One round, which says whether there is a plan at all, and roughly how long it is."""
        self._rounds = self._raise_weights()
        next(self._rounds, None)

    def run(self, cutoff: float = np.inf) -> bool:
        """Look further, as long as a plan may be shorter than `cutoff`; whether no other is shorter
        than the best one then, or than that."""
        for _ in self._rounds:
            if self._is_settled(cutoff):
                break
        if not self._is_settled(cutoff) and self._weights is not None and self._branch(cutoff):
            self.bound = min(self._best, cutoff)
        return self._is_settled(cutoff)

    def plans(self) -> list[StageSolution]:
        """Those that were met, and those with one border moved by a layer, the shortest first."""
        around = {
            (*borders[:at], borders[at] + by, *borders[at + 1 :])
            for borders in self.met
            for at in range(1, self.num_stages)
            for by in (-1, 0, 1)
            if borders[at - 1] < borders[at] + by < borders[at + 1]
        }
        found = [self._stages(borders) for borders in sorted({*self.met, *around})]
        plans = [evaluate(self.problem, stages) for stages in found if stages is not None]
        return sorted(plans, key=lambda plan: (plan.seconds, plan.slot_seconds, plan.stages))

    def _is_settled(self, cutoff: float) -> bool:
        return self.bound >= min(self._best, cutoff) * (1 - _ROUNDING)

    # ---- bounds ----

    @cached_property
    def _places(self) -> Places:
        assert self.problem.homes is not None, "stages share meshes"
        return places_of(self.problem.homes(self.num_stages), self.num_stages)

    @cached_property
    def _costs(self) -> SharedMeshCosts:
        from shardopt.solve.stages.dp.shared_mesh_kernels import SharedMeshCosts

        problem, places = self.problem, self._places
        levels, level_of = levels_of(held_copies(problem, self.num_stages)[::-1])
        size_of = np.full(len(problem.configs), -1)
        size_of[list(self.configs)] = 0
        cut_sum, cut_slot = problem.cut_seconds()
        return SharedMeshCosts(
            seconds=_by_ends(cheapest_seconds(problem, levels, size_of, 1)[..., 0]),
            level=level_of,
            cut_sum=cut_sum,
            cut_slot=cut_slot,
            meshes=places.meshes,
            links=places.links,
            loads=1 + int(max(places.meshes.max(), places.links.max())),
            each=problem.stages_per_mesh,
            repeats=problem.stages_per_mesh * problem.num_microbatches - 1,
            longest_share=places.longest_share,
        )

    def _raise_weights(self) -> Iterator[None]:
        from shardopt.solve.stages.dp.shared_mesh_kernels import improve, least_path

        costs, places, count = self._costs, self._places, self.num_stages
        on_load = np.zeros((2, costs.loads, count))  # stages, and the cuts before them
        for meshes, links in zip(places.meshes, places.links, strict=True):
            on_load[0, meshes, np.arange(count)] += 1 / len(places.meshes)
            crossing = np.flatnonzero(links >= 0)
            on_load[1, links[crossing], crossing] += 1 / len(places.meshes)
        crosses = np.any(places.links >= 0, axis=0)
        of_load = np.where(on_load[0].any(axis=1), 0.0, _LOW)
        of_slot = np.stack([np.zeros(count), np.where(crosses, _LOW, -np.inf)])
        best = np.empty((count + 1, costs.seconds.shape[1]))
        ends, loads = np.zeros(best.shape, dtype=np.int64), np.empty(costs.loads)
        share, met = costs.longest_share, set[bytes]()
        in_sum = np.array([[1.0], [0.0]]) / costs.each
        for number in range(_ROUNDS):
            shares = [np.exp(each - each.max()) for each in (of_load, of_slot)]
            of_load_now, of_slot_now = (each / each.sum() for each in shares)
            slots = (1 - share) / costs.each * (of_load_now @ on_load) + share * of_slot_now
            weighted = costs.repeats * slots + in_sum
            cuts = np.where(
                crosses[:, None],
                costs.repeats * slots[1][:, None] * costs.cut_slot
                + np.where(places.links[0] >= 0, 1 / costs.each, 0.0)[:, None] * costs.cut_sum,
                0.0,
            )
            least_path(costs, weighted[0], cuts, best, ends)
            bound = float(best[0, 0])
            if not np.isfinite(bound):
                self.bound = np.inf
                return
            if self._weights is None or bound > self._weights.bound:
                self._weights = _Weights(weighted[0], cuts, bound)
                self.bound = max(self.bound, bound)
            borders = _traced(ends)
            seconds, slot = self._seconds(borders)
            if borders.tobytes() not in met:
                met.add(borders.tobytes())
                self._take(borders, improve(costs, borders, loads))
            yield
            rate = _FIRST_RATE / np.sqrt(number + 1)
            load = on_load[0] @ seconds + on_load[1] @ slot
            of_load = of_load + rate * (load / load.max() - 1)
            longest = np.stack([seconds, slot])
            of_slot = of_slot + rate * (longest / longest.max() - 1)

    def _seconds(self, borders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of every stage, and of the cut before it where that crosses, `[S]`."""
        costs = self._costs
        seconds = costs.seconds[costs.level, borders[:-1], borders[1:]]
        crosses = np.any(costs.links >= 0, axis=0)
        return seconds, np.where(crosses, costs.cut_slot[borders[:-1]], 0.0)

    def _take(self, borders: np.ndarray, seconds: float) -> None:
        plan = tuple(map(int, borders))
        if plan not in self.met:
            self.met.append(plan)
        self._best = min(self._best, seconds)

    def _branch(self, cutoff: float) -> bool:
        """Whether all plans that may be shorter were looked at."""
        from shardopt.solve.stages.dp.shared_mesh_kernels import branch, least_path

        weights = self._weights
        assert weights is not None
        best = np.empty((self.num_stages + 1, self._costs.seconds.shape[1]))
        ends = np.zeros(best.shape, dtype=np.int64)
        least_path(self._costs, weights.stages, weights.cuts, best, ends)
        borders = np.zeros(self.num_stages + 1, dtype=np.int64)
        upper = min(self._best, cutoff)
        seconds, is_done = branch(
            self._costs, weights.stages, weights.cuts, best, upper, _MOST_NODES, borders
        )
        if seconds < upper:
            self._take(borders, seconds)
        return bool(is_done)

    # ---- plans ----

    def _stages(self, borders: Sequence[int]) -> Stages | None:
        """The cheapest config that fits for each stage, the first of equals; None where none
        fits."""
        stages, chosen = [], list(self.configs)
        copies = held_copies(self.problem, self.num_stages)[::-1]
        for start, end, held in zip(borders[:-1], borders[1:], copies, strict=True):
            fits = self.problem.fits(held, start, end)[chosen]
            if not fits.any():
                return None
            seconds = np.where(fits, self.problem.seconds[start, end, chosen], np.inf)
            stages.append((start, end, chosen[int(seconds.argmin())]))
        return tuple(stages)


def _by_ends(seconds: np.ndarray) -> np.ndarray:
    """`[levels, L, W]` by first layer and number of layers behind that to `[levels, L + 1, L + 1]`
    by first layer and layer after the last."""
    levels, layers, most = seconds.shape
    by_ends = np.full((levels, layers + 1, layers + 1), np.inf)
    for behind in range(most):
        first = np.arange(layers - behind)
        by_ends[:, first, first + behind + 1] = seconds[:, first, behind]
    return by_ends


def _traced(ends: np.ndarray) -> np.ndarray:
    """The borders of the path of all layers."""
    borders = np.zeros(len(ends), dtype=np.int64)
    for stage in range(len(ends) - 1):
        borders[stage + 1] = ends[stage, borders[stage]]
    return borders


def use_kernels_for_shared_meshes() -> None:
    """Cut three layers into two stages: that calls every kernel."""
    length = np.arange(4.0)[None, :] - np.arange(4.0)[:, None]
    seconds = np.where(length > 0, length, np.inf)[..., None]
    zeros = np.zeros_like(seconds)
    problem = StageProblem(
        num_layers=3,
        configs=(StageConfig(1, Submesh(1, 1), (1, 1)),),
        num_devices=(2,),
        num_microbatches=2,
        seconds=seconds,
        forward_seconds=zeros,
        fixed_bytes=zeros,
        activation_bytes=zeros,
        memory_bytes=(1.0,),
        homes=lambda count: tuple(range(count)),
    )
    SharedMeshSearch(problem, (0,), 2).run()
