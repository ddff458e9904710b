"""What every layer of a step costs at least on every mesh: a roofline, then the bound of what it
runs forward, then that of all of it, then those within the memory.

The last are Lagrangian bounds. A stage within M bytes takes at least what it takes with λ seconds
more for every byte that a device holds all step, less λ · M; the former is a sum over layers. They
are asked for where the devices of a stage could not all hold the whole state of its layers: there
the fastest shardings seldom fit, and those that do may take several times as long. The bound is
concave in λ, so that prices rise only as long as that raises it.

The modes of recomputation share bounds: of a stage that computes its first K layers again, these
have the bound of one mode and the others that of another."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shardopt.graph.offloading import has_state
from shardopt.graph.recomputed_units import split_mode, units_of_stage
from shardopt.mesh.mesh import Mesh
from shardopt.solve.sharding.strategies.linear import Linear
from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs.bounds import (
    RelaxedLayer,
    Rooflines,
    common_forward,
    relaxed_layer,
)
from shardopt.solve.stages.costs.cost_cache import CostCache
from shardopt.solve.stages.costs.interval_contents import IntervalContent, IntervalContents
from shardopt.solve.stages.costs.offload import offload
from shardopt.solve.stages.costs.recomputation import recompute_forward
from shardopt.solve.stages.costs.stage_part import StagePart
from shardopt.solve.stages.step_graph import StepGraph

# What is known of a layer; behind these, as many of the bounds within the memory.
_ROOFLINE, _FORWARD, _WHOLE = range(3)

# λ · M of the bounds within the memory, in times of the seconds of the stage of a mesh for which
# they are asked first. The best is small where leaner shardings are about as fast, and large where
# they take several times as long.
_WORTHS = (0.3, 1.0, 3.0)

Candidate = tuple[int, int, int]  # first layer, layer after the last, config


class Intervals(NamedTuple):
    """Layers [start, end), int64, of shapes that go together: what is asked of them has that
    shape."""

    start: np.ndarray
    end: np.ndarray

    @staticmethod
    def all_of(num_layers: int) -> Intervals:
        """`[L + 1, L + 1]`; those that end before they start are empty."""
        layers = np.arange(num_layers + 1)
        return Intervals(layers[:, None], layers[None, :])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Of `[L]` over the layers of each."""
        total = np.append(0.0, np.cumsum(values))
        return (total[self.end] - total[self.start]).clip(min=0.0)

    def first_and_rest(self, first: np.ndarray, rest: np.ndarray, count: int) -> np.ndarray:
        """The sum of `first`, `[L]`, over the first `count` layers of each and of `rest` over its
        others."""
        middle = np.minimum(self.start + count, self.end)
        heads, tails = Intervals(self.start, middle), Intervals(middle, self.end)
        return heads.sums(first) + tails.sums(rest)


@dataclass(eq=False)
class LayerBounds:
    """`seconds[row, layer]` are those of one microbatch, at least; a row is what a layer does at
    least on a mesh, in a stage before the last or in the last one. `within_seconds[k]` are the same
    with `byte_seconds[mesh][k]` seconds of a step more for every byte that is held all step.
    `meshes` are those of the configs."""

    problem: CandidateProblem
    meshes: Sequence[Mesh]
    cost_cache: CostCache
    byte_seconds: dict[Mesh, tuple[float, ...]] = field(default_factory=dict)
    _steps: dict[tuple[str, str], StepGraph] = field(default_factory=dict)
    _offloaded: dict[str, StepGraph] = field(default_factory=dict)
    _contents: dict[tuple[str, str], IntervalContents] = field(default_factory=dict)
    _layers: dict[tuple[int, bool, str], RelaxedLayer] = field(default_factory=dict)
    _forwards: dict[int, RelaxedLayer | None] = field(default_factory=dict)
    _linear: dict[str, np.ndarray] = field(default_factory=dict)
    _ops: dict[str, dict[tuple[int, ...], int]] = field(default_factory=dict)
    # Of layers that are equal, the one that was asked for first.
    _stand_ins: dict[tuple[int, bool, str], int] = field(default_factory=dict)
    _first_of_content: dict[tuple[bool, str, bytes], int] = field(default_factory=dict)
    _firsts: dict[int, int] = field(default_factory=dict)
    _first_of_kinds: dict[tuple[int, ...], int] = field(default_factory=dict)
    _parts: dict[str, StagePart] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds, self._rest_seconds = self._roofs() / self.problem.num_microbatches
        self.within_seconds = np.zeros((len(_WORTHS), *self.seconds.shape))
        self._level = np.full(self.seconds.shape, _ROOFLINE, dtype=np.int8)

    def within(self, problem: CandidateProblem) -> LayerBounds:
        """These bounds for a problem that differs in its memory and in how stages share
        meshes: what is bounded without the memory holds there, too."""
        others = copy.copy(self)
        others.problem, others.byte_seconds = problem, {}
        others.seconds = self.seconds.copy()
        others.within_seconds = np.zeros_like(self.within_seconds)
        others._level = np.minimum(self._level, _WHOLE)
        return others

    def sums(self, c: int, last: bool, at: Intervals) -> list[np.ndarray]:
        """Bounds of intervals on a config: without a price of memory, then with each."""
        sums, limit = [self._joined(self.seconds, c, last, at)], self._limit(c)
        if limit is not None:
            prices = self.byte_seconds.get(self.meshes[c], ())
            for price, seconds in zip(prices, self.within_seconds, strict=False):
                within = self._joined(np.maximum(seconds, self.seconds), c, last, at)
                sums.append(within - price * limit / self.problem.num_microbatches)
        return sums

    def is_known(self, c: int, last: bool, at: Intervals, sums: Sequence[np.ndarray]) -> np.ndarray:
        """Whether all layers of intervals on a config are bounded as a whole, and within the
        memory as far as that may raise one of their `sums`, bool."""
        whole = self._joined(self._level < _WHOLE, c, last, at) == 0
        may_rise = self._is_heavy(c, at)
        for level, (cheaper, dearer) in enumerate(pairwise(sums), _WHOLE + 1):
            is_bounded = self._joined(self._level < level, c, last, at) == 0
            may_rise = may_rise & ~(is_bounded & (dearer <= cheaper))
        within = self._joined(self._level < _WHOLE + len(_WORTHS), c, last, at) == 0
        return whole & (within | ~may_rise)

    def _limit(self, c: int) -> float | None:
        """The bytes of a device, where what layers hold all step counts against them: state that
        lies on hosts between updates does not."""
        limits, config = self.problem.memory_limit_bytes, self.problem.configs[c]
        limit = limits[config.group] if limits and not has_state(config.offload) else None
        return limit or None

    def _is_heavy(self, c: int, at: Intervals) -> np.ndarray:
        """Whether a device could not hold all that the layers of intervals hold all step, bool."""
        limit = self._limit(c)
        return at.sums(self._resident_bytes) > (np.inf if limit is None else limit)

    @cached_property
    def _resident_bytes(self) -> np.ndarray:
        """Of whole tensors, `[L]`."""
        step, held = self.problem.step, np.zeros(self.problem.num_layers)
        for tensor, layer in step.resident.items():
            held[layer] += step.graph.tensors[tensor].size_bytes
        return held

    @cached_property
    def _modes(self) -> tuple[tuple[tuple[str, str, int], ...], ...]:
        """For stages before the last, and for the last, of each config: what its first layers do
        at least, what the others do, and how many are the first."""
        rows = []
        for last in (False, True):
            modes = []
            for config in self.problem.configs:
                kind, count = split_mode(_least_recomputed(config.recompute, last))
                whole = self.problem.num_layers
                modes.append((kind, kind if count is None else "none", count or whole))
            rows.append(tuple(modes))
        return tuple(rows)

    @cached_property
    def _rows(self) -> dict[tuple[bool, str, Mesh], int]:
        """The row of `seconds` of what a layer does at least on a mesh, in a stage before
        the last or in the last one."""
        keys = dict.fromkeys(
            (last, mode, mesh)
            for last in (False, True)
            for modes, mesh in zip(self._modes[last], self.meshes, strict=True)
            for mode in modes[:2]
        )
        return {key: row for row, key in enumerate(keys)}

    def _joined(self, values: np.ndarray, c: int, last: bool, at: Intervals) -> np.ndarray:
        """Of `[rows, L]`: what the layers of intervals have together on a config."""
        first, rest, count = self._modes[last][c]
        rows = [self._rows[last, mode, self.meshes[c]] for mode in (first, rest)]
        return at.first_and_rest(values[rows[0]], values[rows[1]], count)

    def solve_one(self, candidate: Candidate) -> list[tuple[int, bool]]:
        """Solve one layer of a candidate, or its forward if there is one that is not known: of
        those that are alike, the most numerous, which often settles it. Returns the configs
        whose bounds may have risen, each with whether those of its last stages or of its others."""
        start, end, c = candidate
        last, mesh = end == self.problem.num_layers, self.meshes[c]
        first, rest, count = self._modes[last][c]
        modes = {layer: first if layer < start + count else rest for layer in range(start, end)}
        levels = {each: self._known(mesh, each[0], last, each[1]) for each in modes.items()}
        level = min(levels.values())
        open_ = [each for each, known in levels.items() if known == level]
        keys = {(layer, mode): self._relaxed(layer, last, mode, level).key for layer, mode in open_}
        # One solve serves all layers alike, in all stages: the most numerous raises the most
        # bounds.
        most = Counter(keys.values())
        chosen, mode = max(open_, key=lambda each: (most[keys[each]], -each[0]))
        price = self._prices(candidate)[level - _WHOLE] if level >= _WHOLE else 0.0
        bound = self.cost_cache.bound(self._relaxed(chosen, last, mode, level), mesh, price)
        # What runs forward is the same whatever a stage recomputes and wherever it ends.
        kinds = self._kinds_of(chosen) if level == _ROOFLINE else [(last, mode)]
        for kind in kinds:
            self._raise_bounds(mesh, *kind, level, keys[chosen, mode], bound)
        # The bound does not depend on how a config shards: all that recompute as much on this mesh
        # share it.
        return [
            (other, last)
            for other, each in enumerate(self.meshes)
            for last in (False, True)
            if each == mesh and any((last, its) in kinds for its in self._modes[last][other][:2])
        ]

    def _raise_bounds(
        self, mesh: Mesh, last: bool, mode: str, level: int, key: str, bound: float
    ) -> None:
        """Layers that look so have that bound, of a step, beside the roofline of what it leaves
        out."""
        row, share = self._rows[last, mode, mesh], self.cost_cache.least_share(mesh)
        seconds = bound / self.problem.num_microbatches
        for layer in range(self.problem.num_layers):
            if (
                (last, mode) not in self._kinds_of(layer)
                or self._known(mesh, layer, last, mode) != level
                or self._relaxed(layer, last, mode, level).key != key
            ):
                continue
            self._level[row, layer] = level + 1
            if level >= _WHOLE:
                self.within_seconds[level - _WHOLE, row, layer] = seconds
            else:
                rest = share * self._rest_seconds[row, layer] * (level == _ROOFLINE)
                known = self.seconds[row, layer]
                self.seconds[row, layer] = max(known, seconds + rest)

    def _prices(self, candidate: Candidate) -> tuple[float, ...]:
        """Seconds of a step for every byte of a device of the mesh of a candidate."""
        start, end, c = candidate
        if self.meshes[c] not in self.byte_seconds:
            limit = self._limit(c)
            assert limit is not None, "what fits everywhere is not asked for"
            at = Intervals(np.array(start), np.array(end))
            sums = self._joined(self.seconds, c, end == self.problem.num_layers, at)
            seconds = float(sums) * self.problem.num_microbatches
            self.byte_seconds[self.meshes[c]] = tuple(w * seconds / limit for w in _WORTHS)
        return self.byte_seconds[self.meshes[c]]

    def _roofs(self) -> np.ndarray:
        """Seconds of every layer with nothing communicated, of a step, for each of `_rows`, and
        without what it runs forward: `[2, rows, L]`."""
        layers, of_mode = range(self.problem.num_layers), dict[str, Rooflines]()
        for mode in dict.fromkeys(mode for _, mode, _ in self._rows):
            forward = frozenset().union(*(self._forward_ops(layer, mode) for layer in layers))
            of_mode[mode] = Rooflines(self.step(mode), self.problem.cluster, forward)
        known: dict[tuple[str, Mesh], np.ndarray] = {}
        for _, mode, mesh in self._rows:
            if (mode, mesh) not in known:
                known[mode, mesh] = of_mode[mode].seconds(mesh)
        return np.stack([known[mode, mesh] for _, mode, mesh in self._rows], axis=1)

    def step(self, mode: str, offload: str = "none") -> StepGraph:
        """The step as it is, or with every layer recomputed as a stage does it at least. Offloading
        only adds to what layers cost and hold, so that their bounds do without."""
        if (mode, offload) not in self._steps:
            kind = "layer" if mode == "full" else mode
            units = units_of_stage(kind, range(self.problem.num_layers))
            step = self.offloaded(offload)
            self._steps[mode, offload] = step if kind == "none" else recompute_forward(step, units)
        return self._steps[mode, offload]

    def offloaded(self, mode: str) -> StepGraph:
        """The step with what a mode of offloading leaves on the hosts."""
        if mode not in self._offloaded:
            self._offloaded[mode] = offload(self.problem.step, mode)
        return self._offloaded[mode]

    def contents(self, mode: str, offload: str = "none") -> IntervalContents:
        """What the intervals of `step` are made of."""
        if (mode, offload) not in self._contents:
            self._contents[mode, offload] = IntervalContents(self.step(mode, offload))
        return self._contents[mode, offload]

    def relaxed_layer(self, layer: int, last: bool, mode: str) -> RelaxedLayer:
        """What a layer does at least, perhaps as it stands in an equal layer."""
        layer = self._stand_in(layer, last, mode)
        if (layer, last, mode) not in self._layers:
            self._layers[layer, last, mode] = relaxed_layer(
                self.step(mode), layer, last, self._parts
            )
        return self._layers[layer, last, mode]

    def _stand_in(self, layer: int, last: bool, mode: str) -> int:
        """A layer that is equal to this one, whatever stage it is in."""
        if (layer, last, mode) not in self._stand_ins:
            content = self._content_of(layer, mode)
            if content is not None:
                linear = self._linear_numbers(mode)[content.ops].tobytes()
                equal = last, mode, content.digest + linear
                stand_in = self._first_of_content.setdefault(equal, layer)
            else:
                stand_in = layer
            self._stand_ins[layer, last, mode] = stand_in
        return self._stand_ins[layer, last, mode]

    def _content_of(self, layer: int, mode: str) -> IntervalContent | None:
        """The last layer is like no other: what it runs forward is not known from what depends on
        layers behind it."""
        if layer == self.problem.num_layers - 1:
            return None
        return self.contents(mode).of(layer, layer + 1, self.problem.num_layers - 1)

    def _linear_numbers(self, mode: str) -> np.ndarray:
        """Equal numbers for operations of `step` that deal with unreduced values in one way: int64
        `[operations]`."""
        if mode not in self._linear:
            numbers = dict[Linear, int]()
            kinds = [numbers.setdefault(each, len(numbers)) for each in self.step(mode).linear]
            self._linear[mode] = np.array(kinds, dtype=np.int64)
        return self._linear[mode]

    def _forward(self, layer: int) -> RelaxedLayer | None:
        """What a layer runs forward in every stage, where that can be looked at alone. In the last
        layer it is one fragment with the backward."""
        layer = self._alike(layer)
        if layer not in self._forwards:
            self._forwards[layer] = common_forward(
                [
                    (self.step(mode), self._own_relaxed_layer(layer, last, mode))
                    for last, mode in self._kinds_of(layer)
                ]
            )
        return self._forwards[layer]

    def _alike(self, layer: int) -> int:
        """A layer that is equal to this one whatever its stage recomputes."""
        if layer not in self._firsts:
            kinds = self._kinds_of(layer)
            key = tuple(self._stand_in(layer, last, mode) for last, mode in kinds)
            self._firsts[layer] = self._first_of_kinds.setdefault(key, layer)
        return self._firsts[layer]

    def _kinds_of(self, layer: int) -> list[tuple[bool, str]]:
        """Whether a layer is in a last stage, and what it recomputes, as far as that occurs."""
        ends = layer == self.problem.num_layers - 1
        return [(last, mode) for last, mode in self._kinds if last or not ends]

    @cached_property
    def _kinds(self) -> tuple[tuple[bool, str], ...]:
        return tuple(dict.fromkeys((last, mode) for last, mode, _ in self._rows))

    def _own_relaxed_layer(self, layer: int, last: bool, mode: str) -> RelaxedLayer:
        """As it stands in this very layer."""
        if self._stand_in(layer, last, mode) == layer:
            return self.relaxed_layer(layer, last, mode)
        return relaxed_layer(self.step(mode), layer, last, self._parts)

    def _forward_ops(self, layer: int, mode: str) -> frozenset[int]:
        """The operations of `step` that `_forward` has."""
        first = self._alike(layer)
        forward = self._forward(first)
        if forward is None:
            return frozenset()
        original = self.step(self._kinds_of(first)[0][1]).graph.ops
        ops = {self._op_of(mode)[original[op].results] for op in forward.part.source_ops}
        if first == layer:
            return frozenset(ops)
        of_first, of_layer = (self._content_of(each, mode) for each in (first, layer))
        assert of_first is not None and of_layer is not None
        pairs = zip(of_first.ops.tolist(), of_layer.ops.tolist(), strict=True)
        return frozenset(op for its, op in pairs if its in ops)

    def _op_of(self, mode: str) -> Mapping[tuple[int, ...], int]:
        """The operations of `step` by their results."""
        if mode not in self._ops:
            ops = self.step(mode).graph.ops
            self._ops[mode] = {op.results: number for number, op in enumerate(ops)}
        return self._ops[mode]

    def _known(self, mesh: Mesh, layer: int, last: bool, mode: str) -> int:
        """What is known of a layer: its roofline, the bound of its forward, or that of all of
        it."""
        level = int(self._level[self._rows[last, mode, mesh], layer])
        return _FORWARD if level == _ROOFLINE and self._forward(layer) is None else level

    def _relaxed(self, layer: int, last: bool, mode: str, level: int) -> RelaxedLayer:
        """By what a layer of that level is to be bounded next."""
        forward = self._forward(layer) if level == _ROOFLINE else None
        return forward or self.relaxed_layer(layer, last, mode)


def _least_recomputed(recompute: str, last: bool) -> str:
    """What a layer of a stage recomputes at least. "full" does all that "layer" does, but nothing
    in the last stage: no backward waits there for layers behind the stage."""
    if recompute != "full":
        return recompute
    return "none" if last else "layer"


def interval_sums(values: np.ndarray) -> np.ndarray:
    """`[O, L]` to `[L + 1, L + 1, C]`: the sum over the layers [i, j)."""
    total = np.concatenate([np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)], axis=1)
    sums = np.ascontiguousarray(total.T)
    return (sums[None, :] - sums[:, None]).clip(min=0.0)
