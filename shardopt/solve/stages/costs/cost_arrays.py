"""The arrays of the stage DP while costs are being found: lower bounds that become exact one after
the other.

An entry rises through levels: a roofline; the sum of its layers' bounds, of their forward first;
the seconds of its sharding; and the bytes of that plan. Seconds and bytes of an entry never fall,
so what the stage DP finds with them is a bound of what it will find with exact ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from shardopt.graph.op_graph import SHARED
from shardopt.graph.recomputed_units import split_mode, units_of_stage
from shardopt.mesh.mesh import Mesh
from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs.bounds import RelaxedLayer, Rooflines, kept_bytes, relaxed_layer
from shardopt.solve.stages.costs.cost_cache import CostCache
from shardopt.solve.stages.costs.lean import STRICTNESS, LeanSharder
from shardopt.solve.stages.costs.offload import moved_bytes, offload_state
from shardopt.solve.stages.costs.preset_sharder import PresetSharder, StepInputKinds
from shardopt.solve.stages.costs.recomputation import recompute_forward
from shardopt.solve.stages.costs.sharders import Memory, Method, OptimalSharder
from shardopt.solve.stages.costs.stage_part import StagePart, cut_part
from shardopt.solve.stages.stage_problem import InFlight, StageProblem
from shardopt.solve.stages.step_graph import StepGraph

ROOFLINE, LAYERS, SECONDS, MEMORY = range(4)  # what is known of an entry
_ROOFLINE, _FORWARD, _WHOLE = range(3)  # and of a layer

Candidate = tuple[int, int, int]  # first layer, layer after the last, config


@dataclass(eq=False)
class CostArrays:
    """`level[i, j, c]` says what is known; seconds are those of one microbatch. `refusals`: why
    methods do not apply to some stages, each reason once."""

    problem: CandidateProblem
    cost_cache: CostCache
    refusals: dict[str, None] = field(default_factory=dict)
    _parts: dict[tuple[int, int, str, str], StagePart] = field(default_factory=dict)
    _part_of_key: dict[str, StagePart] = field(default_factory=dict)
    _layers: dict[tuple[int, bool, str], RelaxedLayer] = field(default_factory=dict)
    _forwards: dict[tuple[int, bool, str], RelaxedLayer | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.problem
        self.candidates = problem.candidates() & ~self._twice()
        self.level = np.full(self.candidates.shape, ROOFLINE, dtype=np.int8)
        self.forward_seconds = np.zeros(self.candidates.shape)
        self.layer_seconds, self.rest_seconds = self._roofs() / problem.num_microbatches
        self.layer_level = np.full(self.layer_seconds.shape, _ROOFLINE, dtype=np.int8)
        self.seconds = np.full(self.candidates.shape, np.inf)
        for c in range(len(problem.configs)):
            for ends, last in ((slice(None, -1), False), (slice(-1, None), True)):
                sums = self._least_seconds(c, last)[:, ends]
                self.seconds[:, ends, c] = np.where(self.candidates[:, ends, c], sums, np.inf)
        devices = np.array([config.num_devices for config in problem.configs], dtype=float)
        state_bytes = self._state_bytes()
        held = [state_bytes - self._moved_bytes[c.offload] / 2 for c in problem.configs]
        self.fixed_bytes = _sums(np.array(held) / devices[:, None])
        self.activation_bytes = np.stack(
            [self._kept_bytes(c.recompute) / c.num_devices for c in problem.configs], axis=2
        )
        self.activation_bytes[:, -1] = 0.0  # in a last stage nothing waits for the backward
        # Copies: when exact bytes come in, the bounds stay. `likely_problem` compares the two, and
        # `fit` asks whether any sharding could do with less than the one at hand.
        self.least_bytes = self.fixed_bytes.copy(), self.activation_bytes.copy()
        self.outside_bytes = np.zeros(self.candidates.shape)

    @cached_property
    def meshes(self) -> tuple[Mesh, ...]:
        return tuple(self.problem.mesh(config) for config in self.problem.configs)

    @cached_property
    def sharders(self) -> tuple[Method, ...]:
        """How a stage on each config is sharded."""
        input_kinds = StepInputKinds(self.problem.step, self.problem.input_kinds)
        methods = [config.method for config in self.problem.configs]
        known: dict[str, Method] = {
            method: OptimalSharder() if method == "ilp" else PresetSharder(method, input_kinds)
            for method in set(methods)
        }
        return tuple(known[method] for method in methods)

    def stage_problem(self, in_flight_of: InFlight) -> StageProblem:
        problem = self.problem
        limits = problem.memory_limit_bytes or (None,) * len(problem.cluster.groups)
        return StageProblem(
            num_layers=problem.num_layers,
            configs=problem.configs,
            num_devices=tuple(group.num_devices for group in problem.cluster.groups),
            num_microbatches=problem.num_microbatches,
            seconds=self.seconds.copy(),
            forward_seconds=self.forward_seconds.copy(),
            fixed_bytes=self.fixed_bytes.copy(),
            activation_bytes=self.activation_bytes.copy(),
            memory_bytes=tuple(np.inf if limit is None else float(limit) for limit in limits),
            transfer_seconds=self._cut_seconds,
            in_flight=in_flight_of,
            stages_per_mesh=problem.stages_per_mesh,
            outside_bytes=self.outside_bytes.copy(),
            least_bytes=self.least_bytes,
        )

    def likely_problem(self, in_flight_of: InFlight) -> StageProblem:
        """What costs will probably be: bounds, and bytes as much above them as in what is
        exact."""
        exact = self.level == MEMORY
        need = [
            np.where(exact, known, known * _typical(known[exact], least[exact]))
            for known, least in (
                (self.fixed_bytes, self.least_bytes[0]),
                (self.activation_bytes, self.least_bytes[1]),
            )
        ]
        return replace(
            self.stage_problem(in_flight_of), fixed_bytes=need[0], activation_bytes=need[1]
        )

    def refine(self, candidates: Iterable[Candidate]) -> None:
        """Find out more about every one of `candidates`: the next level of each."""
        for candidate in candidates:
            level = int(self.level[candidate])
            if level < LAYERS:
                self._bound_layers(candidate)
            elif level < SECONDS:
                self._compute_seconds(candidate)
            elif level < MEMORY:
                self._compute_bytes(candidate)

    @cached_property
    def _cut_seconds(self) -> np.ndarray:
        return self.problem.transfers().slowest_seconds()

    def _state_bytes(self) -> np.ndarray:
        """Bytes of state and accumulators that live all step with each layer, at least,
        `[layers]`."""
        step = self.problem.step
        state_bytes = np.zeros(self.problem.num_layers)
        for before, after in step.carried:
            layer = SHARED if step.producers[after] < 0 else step.op_layer[step.producers[after]]
            # An accumulator that is an argument of the step is counted below, as what a layer owns.
            if layer >= 0 and step.producers[before] >= 0:
                state_bytes[layer] += step.graph.tensors[before].size_bytes
        read = {tensor for op in step.graph.ops for tensor in op.operands}
        for tensor, layer in step.owner.items():
            if layer >= 0 and tensor in read:
                state_bytes[layer] += step.graph.tensors[tensor].size_bytes
        return state_bytes

    def _twice(self) -> np.ndarray:
        """Candidates that recompute their first K layers where they have no more, and all is a
        config of its own, `[L + 1, L + 1, C]`."""
        configs, num_layers = self.problem.configs, self.problem.num_layers
        layers = np.arange(num_layers + 1)
        length = layers[None, :] - layers[:, None]
        known = set(configs)
        rows = []
        for config in configs:
            kind, count = split_mode(config.recompute)
            is_known = replace(config, recompute=kind) in known
            rows.append(length <= (count if count is not None and is_known else -num_layers - 1))
        return np.stack(rows, axis=2)

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
        """The row of `layer_seconds` of what a layer does at least on a mesh, in a stage before
        the last or in the last one."""
        keys = dict.fromkeys(
            (last, mode, mesh)
            for last in (False, True)
            for modes, mesh in zip(self._modes[last], self.meshes, strict=True)
            for mode in modes[:2]
        )
        return {key: row for row, key in enumerate(keys)}

    def _joined(self, values: np.ndarray, c: int, last: bool) -> np.ndarray:
        """`[rows, L]` to `[L + 1, L + 1]`: what the layers of each interval have together on a
        config."""
        first, rest, count = self._modes[last][c]
        rows = [self._rows[last, mode, self.meshes[c]] for mode in (first, rest)]
        return _first_and_rest(values[rows[0]], values[rows[1]], count)

    def _least_seconds(self, c: int, last: bool) -> np.ndarray:
        """What every interval on a config takes as the sum of its layers, as far as is known, `[L +
        1, L + 1]`: computing, and what travels to hosts and back."""
        config, problem = self.problem.configs[c], self.problem
        sums = self._joined(self.layer_seconds, c, last)
        link = problem.cluster.groups[config.group].host_link
        if config.offload == "none" or link is None:
            return sums
        rate = config.num_devices * link.bandwidth_bytes_per_second * problem.num_microbatches
        return sums + _sums(self._moved_bytes[config.offload][None, :] / rate)[..., 0]

    @cached_property
    def _moved_bytes(self) -> dict[str, np.ndarray]:
        """Of each mode of offloading, what travels for each layer at least, of whole tensors."""
        modes = dict.fromkeys(config.offload for config in self.problem.configs)
        return {mode: moved_bytes(self._offloaded(mode)) for mode in modes}

    def _roofs(self) -> np.ndarray:
        """Seconds of every layer with nothing communicated, of a step, for each of `_rows`, and
        without what it runs forward: `[2, rows, L]`."""
        layers, of_mode = range(self.problem.num_layers), dict[str, Rooflines]()
        for mode in dict.fromkeys(mode for _, mode, _ in self._rows):
            forward = frozenset().union(*(self._forward_ops(layer, mode) for layer in layers))
            of_mode[mode] = Rooflines(self._step(mode), self.problem.cluster, forward)
        known: dict[tuple[str, Mesh], np.ndarray] = {}
        for _, mode, mesh in self._rows:
            if (mode, mesh) not in known:
                known[mode, mesh] = of_mode[mode].seconds(mesh)
        return np.stack([known[mode, mesh] for _, mode, mesh in self._rows], axis=1)

    def _kept_bytes(self, recompute: str) -> np.ndarray:
        """Bytes that the forward of every interval keeps for its backward, at least, `[L + 1, L +
        1]`."""
        kind, count = split_mode(recompute)
        if count is not None:
            rest = self._made_and_entering("none")[0]
            if kind == "selective":
                return _first_and_rest(self._made_and_entering(kind)[0], rest, count)
            nothing = _first_and_rest(np.zeros_like(rest), rest, count)
            return nothing + self._made_and_entering(kind)[1][:, None]
        made, entering = self._made_and_entering(kind)
        if kind in ("none", "selective"):
            return _sums(made[None, :])[..., 0]
        # A stage that recomputes all keeps what enters its first layer, wherever it ends.
        return np.repeat(entering[:, None], len(entering), axis=1)

    def _made_and_entering(self, mode: str) -> tuple[np.ndarray, np.ndarray]:
        """Bytes that every layer alone keeps at least, `[L]` of what it makes and `[L + 1]` of
        what enters it."""
        if mode not in self._kept:
            parts = [
                self._relaxed_layer(layer, False, mode).part
                for layer in range(self.problem.num_layers)
            ]
            known = {part.key: part for part in parts}
            of_part = {key: kept_bytes(part) for key, part in known.items()}
            made, entering = np.array([of_part[part.key] for part in parts], dtype=float).T
            self._kept[mode] = made, np.append(entering, 0.0)
        return self._kept[mode]

    @cached_property
    def _kept(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {}

    def _step(self, mode: str, offload: str = "none") -> StepGraph:
        """The step as it is, or with every layer recomputed as a stage does it at least. Offloading
        only adds to what layers cost and hold, so that their bounds do without."""
        if (mode, offload) not in self._steps:
            kind = "layer" if mode == "full" else mode
            units = units_of_stage(kind, range(self.problem.num_layers))
            step = self._offloaded(offload)
            self._steps[mode, offload] = step if kind == "none" else recompute_forward(step, units)
        return self._steps[mode, offload]

    @cached_property
    def _steps(self) -> dict[tuple[str, str], StepGraph]:
        return {}

    def _offloaded(self, mode: str) -> StepGraph:
        """The step with what a mode of offloading leaves on the hosts."""
        if mode not in self._with_state_on_hosts:
            self._with_state_on_hosts[mode] = offload_state(self.problem.step)
        return self._with_state_on_hosts[mode]

    @cached_property
    def _with_state_on_hosts(self) -> dict[str, StepGraph]:
        return {"none": self.problem.step}

    def _bound_layers(self, candidate: Candidate) -> None:
        """Solve one layer of a candidate, or its forward if there is one that is not known: of
        those that are alike, the most numerous, which often settles it."""
        start, end, c = candidate
        last, mesh = end == self.problem.num_layers, self.meshes[c]
        first, rest, count = self._modes[last][c]
        modes = {layer: first if layer < start + count else rest for layer in range(start, end)}
        levels = {each: self._level(mesh, each[0], last, each[1]) for each in modes.items()}
        level = min(levels.values())
        open_ = [each for each, known in levels.items() if known == level]
        keys = {(layer, mode): self._relaxed(layer, last, mode, level).key for layer, mode in open_}
        # One solve serves all layers alike, in all stages: the most numerous raises the most
        # bounds.
        most = Counter(keys.values())
        chosen, mode = max(open_, key=lambda each: (most[keys[each]], -each[0]))
        bound = self.cost_cache.bound(self._relaxed(chosen, last, mode, level), mesh)
        self._raise_bounds(mesh, last, mode, level, keys[chosen, mode], bound)

    def _raise_bounds(
        self, mesh: Mesh, last: bool, mode: str, level: int, key: str, bound: float
    ) -> None:
        """Layers that look so have that bound, of a step, beside the roofline of what it leaves
        out."""
        row, share = self._rows[last, mode, mesh], self.cost_cache.least_share(mesh)
        seconds = bound / self.problem.num_microbatches
        for layer in range(self.problem.num_layers):
            if self._level(mesh, layer, last, mode) == level and (
                self._relaxed(layer, last, mode, level).key == key
            ):
                rest = share * self.rest_seconds[row, layer] * (level == _ROOFLINE)
                known = self.layer_seconds[row, layer]
                self.layer_seconds[row, layer] = max(known, seconds + rest)
                self.layer_level[row, layer] = level + 1
        # The bound does not depend on how a config shards: all that recompute as much on this mesh
        # share it.
        for other in range(len(self.problem.configs)):
            if self.meshes[other] == mesh and mode in self._modes[last][other][:2]:
                self._spread_bounds(other, last)

    def _spread_bounds(self, c: int, last: bool) -> None:
        """Every interval on a config costs its layers at least."""
        ends = slice(-1, None) if last else slice(None, -1)
        sums = self._least_seconds(c, last)[:, ends]
        known = self._joined(self.layer_level < _WHOLE, c, last)[:, ends] == 0
        open_ = self.candidates[:, ends, c] & (self.level[:, ends, c] < SECONDS)
        seconds, level = self.seconds[:, ends, c], self.level[:, ends, c]
        self.seconds[:, ends, c] = np.where(open_, np.maximum(seconds, sums), seconds)
        self.level[:, ends, c] = np.where(open_ & known, LAYERS, level)

    def _compute_seconds(self, candidate: Candidate) -> None:
        c = candidate[2]
        part = self.part(candidate)
        sharding = self.cost_cache.sharding(part, self.meshes[c], self.sharders[c])
        self.level[candidate] = SECONDS
        if not sharding.choice:
            self.seconds[candidate], self.level[candidate] = np.inf, MEMORY
            self.refusals.update({sharding.refusal: None} if sharding.refusal else {})
            return
        self._set_seconds(candidate, part, sharding.fragment_seconds)

    def _set_seconds(self, candidate: Candidate, part: StagePart, seconds: Sequence[float]) -> None:
        repeats = self.problem.num_microbatches
        forward = [s for s, kind in zip(seconds, part.kinds, strict=True) if kind == "forward"]
        self.seconds[candidate] = sum(seconds) / repeats
        self.forward_seconds[candidate] = sum(forward) / repeats

    def _compute_bytes(self, candidate: Candidate) -> None:
        c = candidate[2]
        memory = self.cost_cache.memory(self.part(candidate), self.meshes[c], self.sharders[c])
        if self.problem.configs[c].method == "ilp":
            memory = self._leaner(candidate, memory)
        self._set_bytes(candidate, memory)
        self.level[candidate] = MEMORY

    def fit(self, candidate: Candidate, in_flight: int) -> bool:
        """Whether a stage whose seconds and bytes are exact, and too many, can be sharded within
        the limit after all; then they become those of that."""
        c, limits = candidate[2], self.problem.memory_limit_bytes
        limit = limits[self.problem.configs[c].group] if limits else None
        part = self.part(candidate)
        least = (float(bound[candidate]) for bound in self.least_bytes)
        if limit is None or next(least) + in_flight * next(least) > limit:
            return False
        within = self.cost_cache.fitted(part, self.meshes[c], self.sharders[c], limit, in_flight)
        if within.fragment_seconds:
            self._set_seconds(candidate, part, within.fragment_seconds)
            self._set_bytes(candidate, within.memory)
        return bool(within.fragment_seconds)

    def _set_bytes(self, candidate: Candidate, memory: Memory) -> None:
        self.fixed_bytes[candidate] = memory.fixed_bytes
        self.activation_bytes[candidate] = memory.activation_bytes
        self.outside_bytes[candidate] = memory.outside_bytes
        limits = self.problem.host_limit_bytes
        limit = limits[self.problem.configs[candidate[2]].group] if limits else None
        if limit is not None and memory.host_bytes > limit:
            self.seconds[candidate] = np.inf

    def _leaner(self, candidate: Candidate, plain: Memory) -> Memory:
        """The memory of a stage, whose seconds become those of a leaner sharding where the shortest
        does not fit.

        How many microbatches it will hold the plan decides; here as many as stages of its size
        would stand behind it."""
        start, end, c = candidate
        limits = self.problem.memory_limit_bytes
        limit = limits[self.problem.configs[c].group] if limits else None
        # Rounded up: a stage more behind it is a microbatch more in flight.
        behind = -(-(self.problem.num_layers - end) // (end - start))
        in_flight = min(self.problem.num_microbatches, 1 + behind)
        leanest = plain
        part, mesh = self.part(candidate), self.meshes[c]
        shortest = self.cost_cache.sharding(part, mesh, self.sharders[c])
        for strictness in STRICTNESS:
            if limit is None or leanest.need(in_flight) <= limit:
                break
            sharder = LeanSharder(
                shortest, strictness * sum(shortest.fragment_seconds) / limit, in_flight
            )
            sharding = self.cost_cache.sharding(part, mesh, sharder)
            memory = self.cost_cache.memory(part, mesh, sharder)
            if memory.need(in_flight) < leanest.need(in_flight):
                leanest = memory
                self._set_seconds(candidate, part, sharding.fragment_seconds)
        return leanest

    def part(self, candidate: Candidate) -> StagePart:
        """What a candidate stage runs."""
        start, end, c = candidate
        recompute, offload = self.problem.configs[c].recompute, self.problem.configs[c].offload
        if (start, end, recompute, offload) not in self._parts:
            # What depends on where a stage begins and ends is not done to the whole step at once.
            if split_mode(recompute)[1] is None and recompute != "full":
                step = self._step(recompute, offload)
            else:
                units = units_of_stage(recompute, range(start, end))
                step = recompute_forward(self._offloaded(offload), units)
            part = cut_part(step, start, end)
            # Only known methods ask where in the model a part stands; else one stands for all that
            # are equal, which would take gigabytes.
            if all(config.method == "ilp" for config in self.problem.configs):
                part = self._part_of_key.setdefault(part.key, part)
            self._parts[start, end, recompute, offload] = part
        return self._parts[start, end, recompute, offload]

    def _relaxed_layer(self, layer: int, last: bool, mode: str) -> RelaxedLayer:
        if (layer, last, mode) not in self._layers:
            self._layers[layer, last, mode] = relaxed_layer(self._step(mode), layer, last)
        return self._layers[layer, last, mode]

    def _forward(self, layer: int, last: bool, mode: str) -> RelaxedLayer | None:
        """What a layer runs forward, where that can be looked at alone. In the last layer it is one
        fragment with the backward."""
        if (layer, last, mode) not in self._forwards:
            ops = self._forward_ops(layer, mode)
            self._forwards[layer, last, mode] = self._relaxed_layer(layer, last, mode).alone(ops)
        return self._forwards[layer, last, mode]

    def _forward_ops(self, layer: int, mode: str) -> frozenset[int]:
        """Operations of the step that a layer runs forward."""
        ends = layer == self.problem.num_layers - 1
        return self._relaxed_layer(layer, ends, mode).forward_ops()

    def _level(self, mesh: Mesh, layer: int, last: bool, mode: str) -> int:
        """What is known of a layer: its roofline, the bound of its forward, or that of all of
        it."""
        level = int(self.layer_level[self._rows[last, mode, mesh], layer])
        none = level == _ROOFLINE and self._forward(layer, last, mode) is None
        return _FORWARD if none else level

    def _relaxed(self, layer: int, last: bool, mode: str, level: int) -> RelaxedLayer:
        """By what a layer of that level is to be bounded next."""
        forward = self._forward(layer, last, mode) if level == _ROOFLINE else None
        return forward or self._relaxed_layer(layer, last, mode)


def _least_recomputed(recompute: str, last: bool) -> str:
    """What a layer of a stage recomputes at least. "full" does all that "layer" does, but nothing
    in the last stage: no backward waits there for layers behind the stage."""
    if recompute != "full":
        return recompute
    return "none" if last else "layer"


def _first_and_rest(first: np.ndarray, rest: np.ndarray, count: int) -> np.ndarray:
    """`[L]` to `[L + 1, L + 1]`: the sum of `first` over the first `count` layers of each interval
    and of `rest` over its others."""
    heads, tails = (_sums(values[None, :])[..., 0] for values in (first, rest))
    layers = np.arange(len(first) + 1)
    middle = np.minimum(layers[:, None] + count, layers[None, :]).clip(min=layers[:, None])
    return heads[layers[:, None], middle] + tails[middle, layers[None, :]]


def _sums(values: np.ndarray) -> np.ndarray:
    """`[O, L]` to `[L + 1, L + 1, C]`: the sum over the layers [i, j)."""
    total = np.concatenate([np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)], axis=1)
    return np.transpose(total[:, None, :] - total[:, :, None], (1, 2, 0)).clip(min=0.0)


# Of bytes to their bounds, where nothing is known yet: weights and activations lie once more on
# some devices.
_USUAL_EXCESS = 1.2


def _typical(exact: np.ndarray, least: np.ndarray) -> float:
    """How many times exact bytes are their bounds."""
    ratios = exact[least > 0] / least[least > 0]
    return float(np.median(ratios)) if ratios.size else _USUAL_EXCESS
