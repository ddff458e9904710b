"""The arrays of the stage DP while costs are being found: lower bounds that become exact one after
the other.

An entry rises through levels: a roofline; the sum of its layers' bounds, of their forward first and
within the memory last; the seconds of its sharding; and the bytes of that plan. Seconds and bytes
never fall on the way, so what the stage DP finds with them is a bound of what it will find with
exact ones: where the shortest sharding does not fit and a leaner one takes its place that is
shorter, as the search for the shortest has missed it, the stage still takes as long as was known.
Only to look again within the limit (`fit`, `polish`) may make an entry fit that did not, or shorten
one that is known to the last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from shardopt.graph.offloading import has_activations, without_activations
from shardopt.graph.recomputed_units import split_mode, units_of_stage
from shardopt.mesh.mesh import Mesh
from shardopt.solve.presets.presets import state_axes
from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs.bounds import kept_bytes
from shardopt.solve.stages.costs.cost_cache import CostCache
from shardopt.solve.stages.costs.layer_bounds import (
    Candidate,
    Intervals,
    LayerBounds,
    interval_sums,
)
from shardopt.solve.stages.costs.lean import CLOSELY, ROUGHLY, Effort, Leaner, LeanSharder, leaner
from shardopt.solve.stages.costs.offload import moved_bytes
from shardopt.solve.stages.costs.preset_sharder import PresetSharder, StepInputKinds
from shardopt.solve.stages.costs.recomputation import recompute_forward
from shardopt.solve.stages.costs.sharders import Memory, Method, OptimalSharder
from shardopt.solve.stages.costs.stage_part import StagePart, cut_part
from shardopt.solve.stages.stage_problem import (
    USUAL_FORWARD_SHARE,
    InFlight,
    StageConfig,
    StageProblem,
)

ROOFLINE, LAYERS, SECONDS, MEMORY = range(4)  # what is known of an entry


@dataclass(frozen=True)
class _Kept:
    """Bytes of whole tensors that forwards keep for backwards, at least: of what is `made` there,
    of which `movable` may lie on hosts, and of what is `entering`."""

    made: np.ndarray
    entering: np.ndarray
    movable: np.ndarray


@dataclass(eq=False)
class CostArrays:
    """`level[i, j, c]` says what is known; seconds are those of one microbatch. `refusals`: why
    methods do not apply to some stages, each reason once. `like`: arrays of a problem that differs
    in its memory and in how stages share meshes alone."""

    problem: CandidateProblem
    cost_cache: CostCache
    like: InitVar[CostArrays | None] = None
    refusals: dict[str, None] = field(default_factory=dict)
    _kept_by: dict[str, _Kept] = field(default_factory=dict)
    _kept_of: dict[str, _Kept] = field(default_factory=dict)
    _parts: dict[tuple[int, int, str, str], StagePart] = field(default_factory=dict)
    _part_of_content: dict[tuple[str, str, bytes], StagePart] = field(default_factory=dict)
    _part_of_key: dict[str, StagePart] = field(default_factory=dict)
    # Entries with a sharding that is leaner than the shortest, until it is looked for more closely.
    _lean: dict[Candidate, None] = field(default_factory=dict)

    def __post_init__(self, like: CostArrays | None) -> None:
        problem = self.problem
        self.candidates = self._once()
        self.level = np.full(self.candidates.shape, ROOFLINE, dtype=np.int8)
        self.forward_seconds = np.full(self.candidates.shape, np.nan)
        if like is None:
            self.layers = LayerBounds(problem, self.meshes, self.cost_cache)
        else:
            self.layers = like.layers.within(problem)
            self._kept_by, self._kept_of = like._kept_by, like._kept_of
            self._parts, self._part_of_content = like._parts, like._part_of_content
            self._part_of_key = like._part_of_key
        self.seconds: np.ndarray = np.full(self.candidates.shape, np.inf)
        for c in range(len(problem.configs)):
            for last, at in enumerate(self._intervals):
                entries = *at, c
                sums = self.layers.sums(c, bool(last), at)
                least = self._least_seconds(c, bool(last), at, sums)
                self.seconds[entries] = np.where(self.candidates[entries], least, np.inf)
        # Of entries whose sharding is known, what every sharding of them counts at least.
        self.least_seconds = np.zeros(self.candidates.shape)
        self.fixed_bytes = interval_sums(self._held_bytes())
        self.weight_bytes = None if problem.weight_ages is None else self._least_weight_bytes()
        self.activation_bytes = np.stack(
            [self._kept_on_devices(c) / c.num_devices for c in problem.configs], axis=2
        )
        self.activation_bytes[:, -1] = 0.0  # in a last stage nothing waits for the backward
        # Copies: when exact bytes come in, the bounds stay. `likely_problem` compares the two, and
        # `fit` asks whether any sharding could do with less than the one at hand.
        self.least_bytes = self.fixed_bytes.copy(), self.activation_bytes.copy()
        self.outside_bytes = np.zeros(self.candidates.shape)
        if like is not None:
            for c in range(len(problem.configs)):
                for last in (False, True):
                    self._spread_bounds(c, last)
        # Of a device on its host, where something is: all step long, and for every microbatch in
        # flight.
        self._host_bytes: dict[Candidate, tuple[int, int]] = {}
        self._known_forwards: dict[Candidate, None] = {}

    @cached_property
    def _intervals(self) -> tuple[Intervals, Intervals]:
        """The stages before a last one, and the last ones, that are candidates on any config."""
        start, end = np.nonzero(self.candidates.any(axis=2))
        is_last = end == self.problem.num_layers
        before, last = (Intervals(start[which], end[which]) for which in (~is_last, is_last))
        return before, last

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
        """What is known now. Its arrays are these arrays, so it holds until more is found out: with
        thousands of devices a copy takes longer than to plan with it."""
        problem = self.problem
        limits = problem.memory_limit_bytes or (None,) * len(problem.cluster.groups)
        return StageProblem(
            num_layers=problem.num_layers,
            configs=problem.configs,
            num_devices=tuple(group.num_devices for group in problem.cluster.groups),
            num_microbatches=problem.num_microbatches,
            seconds=self._within_hosts(in_flight_of),
            forward_seconds=self.forward_seconds,
            forward_share=self._usual_forward_share(),
            fixed_bytes=self.fixed_bytes,
            activation_bytes=self.activation_bytes,
            memory_bytes=tuple(np.inf if limit is None else float(limit) for limit in limits),
            transfer_seconds=self._cut_seconds,
            in_flight=in_flight_of,
            stages_per_mesh=problem.stages_per_mesh,
            outside_bytes=self.outside_bytes,
            least_bytes=self.least_bytes,
            weight_ages=problem.weight_ages,
            weight_bytes=self.weight_bytes,
            homes=problem.homes,
        )

    def _within_hosts(self, in_flight_of: InFlight) -> np.ndarray:
        """The seconds, inf where a stage lays more on its hosts than there is room, with as many
        stages as there can be."""
        problem, exceeding = self.problem, list[Candidate]()
        limits = problem.host_limit_bytes or (None,) * len(problem.cluster.groups)
        for (start, end, c), (all_step, waiting) in self._host_bytes.items():
            limit, behind = limits[problem.configs[c].group], problem.num_layers - end
            most = in_flight_of(1 + behind, start + 1 + behind, problem.num_microbatches)
            if limit is not None and all_step + most * waiting > limit:
                exceeding.append((start, end, c))
        if not exceeding:
            return self.seconds
        seconds = self.seconds.copy()
        seconds[tuple(np.array(exceeding).T)] = np.inf
        return seconds

    def _usual_forward_share(self) -> float:
        """That of stages before the last whose seconds are exact."""
        last = self.problem.num_layers
        known = [each for each in self._known_forwards if each[1] != last]
        shares = [self.forward_seconds[each] / self.seconds[each] for each in known]
        return float(np.median(shares)) if shares else USUAL_FORWARD_SHARE

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
        """Find out more about every one of `candidates`: the next level of each, unless what was
        found about another says as much."""
        levels = [(candidate, int(self.level[candidate])) for candidate in candidates]
        for candidate, level in levels:
            if level < self.level[candidate]:
                continue
            if level < LAYERS:
                for c, last in self.layers.solve_one(candidate):
                    self._spread_bounds(c, last)
            elif level < SECONDS:
                self._compute_seconds(candidate)
            elif level < MEMORY:
                self._compute_bytes(candidate)

    @cached_property
    def _cut_seconds(self) -> np.ndarray:
        return self.problem.transfers().slowest_seconds()

    def _held_bytes(self) -> np.ndarray:
        """Bytes of a device that live all step with each layer, at least, `[configs, layers]`: of
        state and accumulators, which known methods split over some axes only, and of the rest."""
        rows, (state, others) = [], self._state_bytes()
        for config, ways in zip(self.problem.configs, self._ways_of_state, strict=True):
            resting = self._moved_bytes[config.offload] / 2
            of_state, of_others = np.minimum(resting, state), (resting - state).clip(min=0)
            rows.append((state - of_state) / ways + (others - of_others) / config.num_devices)
        return np.array(rows)

    @cached_property
    def _ways_of_state(self) -> tuple[int, ...]:
        """Over how many devices each config splits state at most."""
        pairs = zip(self.problem.configs, self.meshes, strict=True)
        return tuple(
            prod(map(mesh.axis_size, state_axes(config.method, mesh))) for config, mesh in pairs
        )

    def _least_weight_bytes(self) -> np.ndarray:
        """Bytes of a device for one older version of the weights of every interval, at least, `[L +
        1, L + 1, C]`."""
        layers = range(self.problem.num_layers)
        parts = [self.layers.relaxed_layer(layer, False, "none").part for layer in layers]
        whole = [sum(part.graph.tensors[t].size_bytes for t in part.weights) for part in parts]
        return interval_sums(np.array(whole) / np.array(self._ways_of_state)[:, None])

    def _state_bytes(self) -> np.ndarray:
        """Bytes of whole tensors that live all step with each layer, `[2, layers]`: state and
        accumulators without the batch, as far as it is known, and others."""
        step, kinds = self.problem.step, StepInputKinds(self.problem.step, self.problem.input_kinds)
        state_bytes, behind = np.zeros((2, self.problem.num_layers)), dict(step.carried)
        for tensor, layer in step.resident.items():
            other = tensor not in kinds.input_kinds.state
            if step.producers[tensor] >= 0:
                other = not kinds.input_kinds.batch or kinds.batch[behind[tensor]] is not None
            state_bytes[int(other), layer] += step.graph.tensors[tensor].size_bytes
        return state_bytes

    def _once(self) -> np.ndarray:
        """The candidates, without those that are one of another config, too, `[L + 1, L + 1, C]`:
        they recompute their first K layers where they have no more, or the whole of a last stage,
        behind which no backward waits, or whose activations do not wait on hosts."""
        configs, candidates = self.problem.configs, self.problem.candidates()
        layers = np.arange(self.problem.num_layers + 1)
        length, is_last = layers[None, :] - layers[:, None], layers[None, :] == layers[-1]
        number = {config: c for c, config in enumerate(configs)}
        once = candidates.copy()
        for c, config in enumerate(configs):
            kind, count = split_mode(config.recompute)
            same, alike = (is_last, "none") if kind == "full" else (length <= (count or 0), kind)
            other = number.get(replace(config, recompute=alike), c)
            if other != c:
                once[..., c] &= ~(same & candidates[..., other])
            other = number.get(replace(config, offload=without_activations(config.offload)), c)
            if other != c:
                once[..., c] &= ~(is_last & candidates[..., other])
        return once

    def _least_seconds(
        self, c: int, last: bool, at: Intervals, bounds: Sequence[np.ndarray]
    ) -> np.ndarray:
        """What intervals on a config take by the `bounds` of their layers: computing, and what
        travels to hosts and back."""
        config, problem = self.problem.configs[c], self.problem
        sums: np.ndarray = np.max(bounds, axis=0)
        link = problem.cluster.groups[config.group].host_link
        if config.offload == "none" or link is None:
            return sums
        rate = config.num_devices * link.bandwidth_bytes_per_second
        moved = at.sums(self._moved_bytes[config.offload] / problem.num_microbatches)
        if has_activations(config.offload) and not last:
            moved += 2 * self._kept(config.recompute).movable[at]
        return sums + moved / rate

    @cached_property
    def _moved_bytes(self) -> dict[str, np.ndarray]:
        """Of each mode of offloading, what state travels for each layer at least, of whole
        tensors."""
        modes = dict.fromkeys(config.offload for config in self.problem.configs)
        return {mode: moved_bytes(self.layers.offloaded(mode)) for mode in modes}

    def _kept_on_devices(self, config: StageConfig) -> np.ndarray:
        """Bytes of it that do not lie on hosts, `[L + 1, L + 1]`."""
        kept = self._kept(config.recompute)
        made = kept.made - kept.movable if has_activations(config.offload) else kept.made
        return made + kept.entering

    def _kept(self, recompute: str) -> _Kept:
        """What the forward of every interval keeps for its backward, `[L + 1, L + 1]` each."""
        if recompute not in self._kept_by:
            self._kept_by[recompute] = self._find_kept(recompute)
        return self._kept_by[recompute]

    def _find_kept(self, recompute: str) -> _Kept:
        kind, count = split_mode(recompute)
        first = self._kept_alone(kind)
        rest = first if count is None else self._kept_alone("none")
        entering = np.zeros_like(first.entering)
        if kind in ("layer", "full"):
            # Such a stage keeps what enters its first layer, wherever it ends.
            entering = first.entering
            nothing = np.zeros(self.problem.num_layers)
            first = replace(first, made=nothing, movable=nothing)
            rest = first if count is None else rest
        length = self.problem.num_layers if count is None else count
        every = Intervals.all_of(self.problem.num_layers)
        return _Kept(
            every.first_and_rest(first.made, rest.made, length),
            np.repeat(entering[:, None], len(entering), axis=1),
            every.first_and_rest(first.movable, rest.movable, length),
        )

    def _kept_alone(self, mode: str) -> _Kept:
        """What every layer alone keeps, `[L]`, and `[L + 1]` of what enters it."""
        if mode not in self._kept_of:
            parts = [
                self.layers.relaxed_layer(layer, False, mode).part
                for layer in range(self.problem.num_layers)
            ]
            known = {part.key: part for part in parts}
            of_part = {key: kept_bytes(part) for key, part in known.items()}
            rows = np.array([of_part[part.key] for part in parts], dtype=float)
            made, entering, movable = rows.T
            self._kept_of[mode] = _Kept(made, np.append(entering, 0.0), movable)
        return self._kept_of[mode]

    def _spread_bounds(self, c: int, last: bool) -> None:
        """Every interval on a config costs its layers at least."""
        at = self._intervals[last]
        entries = *at, c
        seconds, level = self.seconds[entries], self.level[entries]
        is_open = self.candidates[entries] & (level < SECONDS)
        sums = self.layers.sums(c, last, at)
        least = self._least_seconds(c, last, at, sums)
        known = self.layers.is_known(c, last, at, sums)
        self.seconds[entries] = np.where(is_open, np.maximum(seconds, least), seconds)
        self.level[entries] = np.where(is_open & known, LAYERS, level)

    def _compute_seconds(self, candidate: Candidate) -> None:
        c, part = candidate[2], self.part(candidate)
        sharding = self.cost_cache.sharding(part, self.meshes[c], self.sharders[c])
        self.level[candidate] = SECONDS
        if not sharding.choice:
            self.seconds[candidate], self.level[candidate] = np.inf, MEMORY
            self.refusals.update({sharding.refusal: None} if sharding.refusal else {})
            return
        # A sharding that is shorter than any that fits the memory will not be that of the stage.
        self.least_seconds[candidate] = self.seconds[candidate]
        self._set_seconds(candidate, part, sharding.fragment_seconds)
        self.least_seconds[candidate] = self.seconds[candidate]

    def _set_seconds(self, candidate: Candidate, part: StagePart, seconds: Sequence[float]) -> None:
        repeats = self.problem.num_microbatches
        forward = [s for s, kind in zip(seconds, part.kinds, strict=True) if kind == "forward"]
        self.seconds[candidate] = max(sum(seconds) / repeats, self.least_seconds[candidate])
        self.forward_seconds[candidate] = sum(forward) / repeats
        self._known_forwards[candidate] = None

    def _compute_bytes(self, candidate: Candidate) -> None:
        c = candidate[2]
        memory = self.cost_cache.memory(self.part(candidate), self.meshes[c], self.sharders[c])
        self._set_bytes(candidate, memory)
        if self.problem.configs[c].method == "ilp":
            held = self._usually_held(candidate)
            if found := self._leaner(candidate, memory, held, ROUGHLY):
                self._take(candidate, found)
        self.level[candidate] = MEMORY

    def fit(self, candidate: Candidate, in_flight: int, versions: int = 0) -> bool:
        """Whether a stage whose seconds and bytes are exact, and too many, can be sharded within
        the limit after all; then they become those of that. Older versions of weights get the room
        that they take now."""
        c, limits = candidate[2], self.problem.memory_limit_bytes
        limit = limits[self.problem.configs[c].group] if limits else None
        part = self.part(candidate)
        least = (float(bound[candidate]) for bound in self.least_bytes)
        if limit is not None and self.weight_bytes is not None:
            limit -= int(versions * self.weight_bytes[candidate])
        if limit is None or next(least) + in_flight * next(least) > limit:
            return False
        within = self.cost_cache.fitted(part, self.meshes[c], self.sharders[c], limit, in_flight)
        if within.fragment_seconds:
            self._set_seconds(candidate, part, within.fragment_seconds)
            self._set_bytes(candidate, within.memory)
            self._lean.pop(candidate, None)
        return bool(within.fragment_seconds)

    def _set_bytes(self, candidate: Candidate, memory: Memory) -> None:
        self.fixed_bytes[candidate] = memory.fixed_bytes
        self.activation_bytes[candidate] = memory.activation_bytes
        self.outside_bytes[candidate] = memory.outside_bytes
        if self.weight_bytes is not None:
            self.weight_bytes[candidate] = memory.weight_bytes
        if memory.host_bytes or memory.waiting_bytes:
            self._host_bytes[candidate] = memory.host_bytes, memory.waiting_bytes

    def has_lean(self, stages: Iterable[Candidate]) -> bool:
        """Whether `polish` may find shorter shardings of one of them."""
        return any(stage in self._lean for stage in stages)

    def polish(self, stage: Candidate, in_flight: int, versions: int) -> None:
        """Look more closely for a shorter sharding within the limit, if the shortest of all is not,
        with as many microbatches in flight and older versions of weights as a plan has."""
        if stage in self._lean:
            mesh, sharder = self.meshes[stage[2]], self.sharders[stage[2]]
            shortest = self.cost_cache.memory(self.part(stage), mesh, sharder)
            usual = self._usually_held(stage)
            held = max(usual[0], in_flight), max(usual[1], versions)
            found = self._leaner(stage, shortest, held, CLOSELY)
            if found and found.seconds / self.problem.num_microbatches < self.seconds[stage]:
                self._take(stage, found)
            del self._lean[stage]

    def _usually_held(self, candidate: Candidate) -> tuple[int, int]:
        """How many microbatches a stage holds, and how many older versions of its weights: the plan
        decides, here as many as with stages of its size behind it."""
        start, end, _ = candidate
        # Rounded up: a stage more behind it is a microbatch more in flight.
        behind = -(-(self.problem.num_layers - end) // (end - start))
        ages = self.problem.weight_ages
        versions = ages(1 + behind)[0] if ages is not None else 0
        return min(self.problem.num_microbatches, 1 + behind), versions

    def _leaner(
        self, candidate: Candidate, shortest: Memory, held: tuple[int, int], effort: Effort
    ) -> Leaner | None:
        """A leaner sharding of a stage, where the shortest does not fit and there is one."""
        limits, c = self.problem.memory_limit_bytes, candidate[2]
        limit = limits[self.problem.configs[c].group] if limits else None
        if limit is None or shortest.need(*held) <= limit:
            return None
        part, mesh = self.part(candidate), self.meshes[c]
        plain = self.cost_cache.sharding(part, mesh, self.sharders[c])

        def priced(byte_seconds: float) -> Leaner:
            sharder = LeanSharder(plain, byte_seconds, *held)
            sharding = self.cost_cache.sharding(part, mesh, sharder)
            memory = self.cost_cache.memory(part, mesh, sharder)
            return Leaner(sharding, memory, memory.need(*held))

        most = Leaner(plain, shortest, shortest.need(*held))
        found = leaner(most, limit, priced, effort)
        return None if found is most else found

    def _take(self, candidate: Candidate, found: Leaner) -> None:
        self._lean[candidate] = None
        self._set_seconds(candidate, self.part(candidate), found.sharding.fragment_seconds)
        self._set_bytes(candidate, found.memory)

    def part(self, candidate: Candidate) -> StagePart:
        """What a candidate stage runs."""
        start, end, c = candidate
        recompute, offload = self.problem.configs[c].recompute, self.problem.configs[c].offload
        if (start, end, recompute, offload) not in self._parts:
            self._parts[start, end, recompute, offload] = self._part(start, end, recompute, offload)
        return self._parts[start, end, recompute, offload]

    def _part(self, start: int, end: int, recompute: str, offload: str) -> StagePart:
        """Only known methods ask where in the model a part stands; else one stands for all that are
        equal, which would take gigabytes."""
        if any(config.method != "ilp" for config in self.problem.configs):
            return self._cut(start, end, recompute, offload)
        mode = recompute if _is_of_layers(recompute) else "none"
        content = self.layers.contents(mode, offload).of(start, end, end)
        if content is None:
            part = self._cut(start, end, recompute, offload)
            return self._part_of_key.setdefault(part.key, part)
        known = (recompute, offload, content.digest)
        if known not in self._part_of_content:
            part = self._cut(start, end, recompute, offload)
            self._part_of_content[known] = self._part_of_key.setdefault(part.key, part)
        return self._part_of_content[known]

    def _cut(self, start: int, end: int, recompute: str, offload: str) -> StagePart:
        if _is_of_layers(recompute):
            return cut_part(self.layers.step(recompute, offload), start, end)
        units = units_of_stage(recompute, range(start, end))
        return cut_part(recompute_forward(self.layers.offloaded(offload), units), start, end)


def _is_of_layers(recompute: str) -> bool:
    """Whether all layers recompute alike, whatever stages they are in: that is done to the whole
    step at once."""
    return recompute != "full" and split_mode(recompute)[1] is None


# Of bytes to their bounds, where nothing is known yet: weights and activations lie once more on
# some devices.
_USUAL_EXCESS = 1.2


def _typical(exact: np.ndarray, least: np.ndarray) -> float:
    """How many times exact bytes are their bounds."""
    ratios = exact[least > 0] / least[least > 0]
    return float(np.median(ratios)) if ratios.size else _USUAL_EXCESS
