"""Stage DP: cut the layers into pipeline stages and give each a submesh, so that one training step is shortest.

Alpa (OSDI'22, section 5.2), equations 2-4: T* = min sum of t_i + (B - 1) · max t_i over stages that use all devices,
with F(s, k, d; t_max) = min over (end, mesh) of t(k, end, mesh) + F(s - 1, end, d - n(mesh); t_max), where s counts
stages from the end and no stage exceeds t_max or the device memory. Departures from the paper:

1. Memory is fixed + in_flight · activations, with the in-flight count of the schedule at hand, not always 1F1B's.
2. The transfer at a cut is one more station of the pipeline: it counts in the sum and in the maximum.
3. t_max is searched by branch and bound instead of upwards. If F(t) uses only m <= t, no t in [m, t] does better, and
   every t in (a, m) has T >= F(t) + (B - 1) · (next candidate above a); intervals that cannot win are dropped, others
   halved. It visits tens of candidates instead of thousands and stays exact, so the paper's epsilon is not needed.
4. F drops s where memory does not depend on it, which is most of the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from shardopt.cost.cluster import Cluster, Submesh, logical_shapes, submeshes
from shardopt.cost.errors import UserError
from shardopt.cost.spans import timed

Stages = tuple[tuple[int, int, int], ...]  # (first layer, layer after the last, mesh choice) in pipeline order
InFlight = Callable[[int, int, int], float]  # (stage from the end, 1 = last; number of stages; microbatches) -> count


@dataclass(frozen=True)
class MeshChoice:
    """A submesh with a logical shape a stage may run on."""

    num_devices: int
    submesh: Submesh
    logical_shape: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.submesh} as {self.logical_shape[0]}x{self.logical_shape[1]}"


def mesh_choices(cluster: Cluster) -> tuple[MeshChoice, ...]:
    """All logical shapes of all submeshes of the cluster."""
    return tuple(
        MeshChoice(submesh.num_devices, submesh, shape)
        for submesh in submeshes(cluster)
        for shape in logical_shapes(submesh)
    )


def one_f_one_b_in_flight(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
    """Microbatches whose activations a stage holds under 1F1B: the last stage 1, the one before 2, ..."""
    return min(stage_from_end, num_microbatches)


def gpipe_in_flight(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
    """Under GPipe every stage holds all microbatches."""
    return num_microbatches


@dataclass(frozen=True, eq=False)
class StageProblem:
    """Costs of every candidate stage.

    `seconds`, `fixed_bytes` and `activation_bytes` are `[L + 1, L + 1, M]`, indexed by first layer, layer after the
    last, and mesh choice; `seconds` is inf where a stage is infeasible, and entries with end <= start are not read.
    Seconds and activations are those of one microbatch, forward and backward; bytes are per device.
    `transfer_seconds[j]`, if given, `[L + 1]`, is the transfer of one microbatch over a cut before layer j.
    """

    num_layers: int
    meshes: tuple[MeshChoice, ...]
    num_devices: int
    num_microbatches: int
    seconds: np.ndarray
    fixed_bytes: np.ndarray
    activation_bytes: np.ndarray
    memory_bytes: float
    transfer_seconds: np.ndarray | None = None
    in_flight: InFlight = one_f_one_b_in_flight

    def __post_init__(self) -> None:
        shape = (self.num_layers + 1, self.num_layers + 1, len(self.meshes))
        for name in ("seconds", "fixed_bytes", "activation_bytes"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {getattr(self, name).shape}")
        if self.transfer_seconds is not None and self.transfer_seconds.shape != shape[:1]:
            raise ValueError(f"transfer_seconds must have shape {shape[:1]}, got {self.transfer_seconds.shape}")
        if min(self.num_layers, self.num_devices, self.num_microbatches, len(self.meshes)) < 1:
            raise ValueError("the numbers of layers, meshes, devices and microbatches must be at least 1")


@dataclass(frozen=True)
class StageSolution:
    """Stages as (first layer, layer after the last, index into `meshes`), in pipeline order.

    `seconds` = `sum_seconds` + (B - 1) · `max_stage_seconds`; both include transfers. `bound` is a proven lower bound
    of `seconds` (nan for baselines), `evaluations` the number of t_max values solved.
    """

    stages: Stages
    seconds: float
    max_stage_seconds: float
    sum_seconds: float
    status: str
    bound: float = float("nan")
    evaluations: int = 0


@timed("stage DP: solve")
def solve_stages(problem: StageProblem, num_stages: int | None = None) -> StageSolution:
    """The plan with the shortest step, with exactly `num_stages` stages if given.

    Raises UserError that says what is missing: a cover of the devices, a feasible sharding, or memory by stage.
    """
    if num_stages is not None and not 1 <= num_stages <= min(problem.num_layers, problem.num_devices):
        raise UserError(
            f"cannot make {num_stages} stages of {problem.num_layers} layers on {problem.num_devices} devices: "
            f"a stage needs a layer and a device"
        )
    best: StageSolution | None = None
    evaluations = 0
    for held, counts in _groups(problem, num_stages):
        best, used = _branch_and_bound(problem, _timed_search(problem, held, counts), best)
        evaluations += used
    if best is None:
        raise UserError(_why_infeasible(problem, num_stages))
    return replace(best, status="optimal", bound=best.seconds, evaluations=evaluations)


def evaluate(problem: StageProblem, stages: Stages, status: str = "feasible") -> StageSolution:
    """The step time of a given plan; does not check memory."""
    cuts = _cut_seconds(problem)
    stations = [float(problem.seconds[stage]) for stage in stages] + [float(cuts[start]) for start, _, _ in stages[1:]]
    total, longest = sum(stations), max(stations)
    return StageSolution(stages, total + (problem.num_microbatches - 1) * longest, longest, total, status)


def stage_memory_bytes(problem: StageProblem, stages: Stages) -> tuple[float, ...]:
    """Bytes per device each stage of a plan needs under the problem's schedule."""
    count, batches = len(stages), problem.num_microbatches
    return tuple(
        float(problem.fixed_bytes[stage])
        + problem.in_flight(count - index, count, batches) * float(problem.activation_bytes[stage])
        for index, stage in enumerate(stages)
    )


def equal_layer_stages(problem: StageProblem, num_stages: int | None = None) -> StageSolution:
    """Baseline: equal layers and equal devices a stage, the best logical shape for each, the best even `num_stages`.

    Raises UserError if no (or not the given) number of stages divides layers and devices and fits the memory.
    """
    layers, devices = problem.num_layers, problem.num_devices
    counts = range(1, min(layers, devices) + 1) if num_stages is None else (num_stages,)
    even = [n for n in counts if n > 0 and layers % n == 0 and devices % n == 0]
    plans = [evaluate(problem, stages) for n in even if (stages := _even_stages(problem, n)) is not None]
    if not plans:
        wanted = "any number of" if num_stages is None else str(num_stages)
        raise UserError(f"{layers} layers on {devices} devices cannot be split evenly into {wanted} stages that fit")
    return min(plans, key=lambda plan: plan.seconds)


def _even_stages(problem: StageProblem, count: int) -> Stages | None:
    per_stage, devices = problem.num_layers // count, problem.num_devices // count
    choices = [m for m, mesh in enumerate(problem.meshes) if mesh.num_devices == devices]
    stages = []
    for index in range(count):
        start, end = index * per_stage, (index + 1) * per_stage
        held = problem.in_flight(count - index, count, problem.num_microbatches)
        bytes_ = problem.fixed_bytes[start, end] + held * problem.activation_bytes[start, end]
        fits = [m for m in choices if bytes_[m] <= problem.memory_bytes and np.isfinite(problem.seconds[start, end, m])]
        if not fits:
            return None
        stages.append((start, end, min(fits, key=lambda m: float(problem.seconds[start, end, m]))))
    return tuple(stages)


# ---- the recursion ----


@dataclass(frozen=True, eq=False)
class _Search:
    """Costs of the candidate stages of one recursion.

    `by_mesh[s, i, j, m]` is the cost (seconds or bytes, inf where infeasible) of layers i..j-1 on mesh choice m as the
    s-th stage from the end, `by_size[s, i, j, g]` the least of the choices with `sizes[g]` devices. `answers` are the
    numbers of stages a plan may have. Where cost and answer do not depend on s, both have one row and `shift` is 0:
    row 0 of F then stands for any number of stages. Otherwise `shift` is 1.
    """

    by_mesh: np.ndarray
    by_size: np.ndarray
    mesh_sizes: np.ndarray  # int64 [M]: devices of each mesh choice
    sizes: tuple[int, ...]
    shift: int
    answers: tuple[int, ...]


def _search(problem: StageProblem, by_mesh: np.ndarray, shift: int, answers: tuple[int, ...]) -> _Search:
    mesh_sizes = np.array([mesh.num_devices for mesh in problem.meshes])
    sizes = tuple(int(size) for size in np.unique(mesh_sizes))
    by_size = np.stack([by_mesh[..., mesh_sizes == size].min(axis=-1) for size in sizes], axis=-1)
    return _Search(by_mesh, by_size, mesh_sizes, sizes, shift, answers)


def _solve(search: _Search, costs: np.ndarray, num_devices: int, combine: np.ufunc) -> Stages | None:
    """The stages of least combined cost; `costs` are those of `search.by_size`, or more where t_max forbids a stage.

    F[s, k, d] = min over end, size of combine(costs[s - 1, k, end, size], F[s - 1, end, d - size]), F[0, L, 0] = 0.
    """
    rows, layers = costs.shape[0], costs.shape[1] - 1
    best = np.full((rows + search.shift, layers + 1, num_devices + 1), np.inf)
    best[0, layers, 0] = 0
    for start in range(layers - 1, -1, -1):
        for group, size in enumerate(search.sizes):
            if size <= num_devices:
                tail = best[:rows, start + 1 :, : num_devices + 1 - size]
                whole = combine(costs[:, start, start + 1 :, group, None], tail).min(axis=1)
                into = best[search.shift :, start, size:]
                np.minimum(into, whole, out=into)
    finals = best[list(search.answers), 0, num_devices]
    if not np.isfinite(finals).any():
        return None
    return _trace(search, costs, best, search.answers[int(finals.argmin())], combine)


def _trace(search: _Search, costs: np.ndarray, best: np.ndarray, answer: int, combine: np.ufunc) -> Stages:
    """The stages behind `best[answer, 0, D]`; the first of equals, so that the answer is deterministic."""
    layers, devices = best.shape[1] - 1, best.shape[2] - 1
    row, start, stages = answer - search.shift, 0, []
    while start < layers:
        ends = np.arange(start + 1, layers + 1)
        options = np.full((len(ends), len(search.sizes)), np.inf)
        for group, size in enumerate(search.sizes):
            if size <= devices:
                options[:, group] = combine(costs[row, start, ends, group], best[row, ends, devices - size])
        index, group = divmod(int(options.argmin()), len(search.sizes))
        end = int(ends[index])
        meshes = np.where(search.mesh_sizes == search.sizes[group], search.by_mesh[row, start, end], np.inf)
        stages.append((start, end, int(meshes.argmin())))
        row, start, devices = row - search.shift, end, devices - search.sizes[group]
    return tuple(stages)


# ---- feasible stages ----


def _groups(problem: StageProblem, num_stages: int | None) -> Iterator[tuple[np.ndarray, tuple[int, ...]]]:
    """(microbatches in flight by stage from the end, numbers of stages it holds for): one group for all numbers of
    stages if a stage's count does not depend on how many stages come before it, as in 1F1B, else one for each."""
    most = min(problem.num_layers, problem.num_devices)
    counts = (num_stages,) if num_stages is not None else tuple(range(1, most + 1))
    held = {n: _held(problem, n) for n in counts}
    longest = held[counts[-1]]
    if all(np.array_equal(held[n], longest[:n]) for n in counts):
        yield longest, counts
    else:
        yield from ((held[n], (n,)) for n in counts)


def _held(problem: StageProblem, count: int) -> np.ndarray:
    return np.array([problem.in_flight(s, count, problem.num_microbatches) for s in range(1, count + 1)], dtype=float)


def _ordered(problem: StageProblem) -> np.ndarray:
    """Stages that end after they start, bool `[L + 1, L + 1, M]`."""
    return np.broadcast_to(np.triu(np.ones(problem.seconds.shape[:2], bool), k=1)[:, :, None], problem.seconds.shape)


def _shardable(problem: StageProblem) -> np.ndarray:
    """Stages with a finite time, bool `[L + 1, L + 1, M]`."""
    return np.isfinite(problem.seconds) & _ordered(problem)


def _need_bytes(problem: StageProblem, held: np.ndarray) -> np.ndarray:
    """Bytes per device with `held[...]` microbatches in flight, `[..., L + 1, L + 1, M]`."""
    return problem.fixed_bytes + np.multiply.outer(held, problem.activation_bytes)


def _timed_search(problem: StageProblem, held: np.ndarray, counts: tuple[int, ...]) -> _Search:
    """The search over seconds, with stages that exceed the memory left out."""
    shardable = _shardable(problem)
    levels, level_of = np.unique(held, return_inverse=True)  # 1F1B repeats its count beyond B stages
    fits = np.stack([shardable & (_need_bytes(problem, level) <= problem.memory_bytes) for level in levels])
    any_count = len(counts) == min(problem.num_layers, problem.num_devices)
    if any_count and (fits == fits[0]).all():
        return _search(problem, np.where(fits[:1], problem.seconds, np.inf), 0, (0,))
    return _search(problem, np.where(fits[level_of], problem.seconds, np.inf), 1, counts)


# ---- the search over t_max ----


def _cut_seconds(problem: StageProblem) -> np.ndarray:
    """Transfer before each layer, `[L + 1]`; nothing comes before layer 0."""
    cuts = np.zeros(problem.num_layers + 1)
    if problem.transfer_seconds is not None:
        cuts[1:] = problem.transfer_seconds[1:]
    return cuts


class _Attempts:
    """Solves the recursion for given t_max and remembers the best plan and the number of attempts."""

    def __init__(self, problem: StageProblem, search: _Search, best: StageSolution | None) -> None:
        cuts = _cut_seconds(problem)[:, None, None]
        self.problem, self.search, self.best, self.count = problem, search, best, 0
        self.longest = np.maximum(search.by_size, cuts)
        self.total = search.by_size + cuts
        self.candidates = np.unique(self.longest[np.isfinite(self.longest)])

    def __call__(self, candidate: int) -> StageSolution | None:
        """The plan of least sum among those without a station slower than this candidate t_max."""
        self.count += 1
        costs = np.where(self.longest <= self.candidates[candidate], self.total, np.inf)
        stages = _solve(self.search, costs, self.problem.num_devices, np.add)
        if stages is None:
            return None
        plan = evaluate(self.problem, stages)
        if self.best is None or plan.seconds < self.best.seconds:
            self.best = plan
        return plan

    def index(self, seconds: float) -> int:
        """Index of the first candidate that is not below `seconds`."""
        return int(np.searchsorted(self.candidates, seconds))


def _branch_and_bound(
    problem: StageProblem, search: _Search, best: StageSolution | None
) -> tuple[StageSolution | None, int]:
    """The best plan of this search, or `best` if none is shorter, and how many t_max were tried."""
    attempt = _Attempts(problem, search, best)
    repeats = problem.num_microbatches - 1
    # Open intervals of candidates (bound, low, high, floor): t_max strictly between low and high, sum at least floor.
    queue: list[tuple[float, int, int, float]] = []

    def push(low: int, high: int, floor: float) -> None:
        if high - low > 1:
            heapq.heappush(queue, (floor + repeats * float(attempt.candidates[low + 1]), low, high, floor))

    loosest = attempt(len(attempt.candidates) - 1) if len(attempt.candidates) else None
    if loosest is not None:
        push(-1, attempt.index(loosest.max_stage_seconds), loosest.sum_seconds)
    while queue:
        bound, low, high, floor = heapq.heappop(queue)
        if attempt.best is not None and bound >= attempt.best.seconds:
            break
        if attempt.best is not None and repeats:  # a longer t_max cannot win even with the least sum
            high = min(high, attempt.index((attempt.best.seconds - floor) / repeats) + 1)
        middle = (low + high) // 2
        if not low < middle < high:
            continue
        plan = attempt(middle)
        if plan is not None:
            push(low, attempt.index(plan.max_stage_seconds), plan.sum_seconds)
        push(middle, high, floor)
    return attempt.best, attempt.count


# ---- why there is no plan ----


def _why_infeasible(problem: StageProblem, num_stages: int | None) -> str:
    """The first thing missing, in this order: a cover of the devices, shardings, memory."""
    stages = "" if num_stages is None else f"{num_stages} stages of "
    if _leanest(problem, num_stages, _ordered(problem), with_memory=False) is None:
        sizes = sorted({mesh.num_devices for mesh in problem.meshes})
        return (
            f"{stages}{problem.num_layers} layers cannot use exactly {problem.num_devices} devices "
            f"with submeshes of {', '.join(map(str, sizes))} devices"
        )
    shardable = _shardable(problem)
    if _leanest(problem, num_stages, shardable, with_memory=False) is None:
        covered = [bool(shardable[: k + 1, k + 1 :].any()) for k in range(problem.num_layers)]
        where = "" if all(covered) else f": layer {covered.index(False)} is in no feasible stage"
        return f"no cut of {stages}{problem.num_layers} layers has a feasible sharding for every stage{where}"
    plan = _leanest(problem, num_stages, shardable, with_memory=True) or ()
    needs = stage_memory_bytes(problem, plan)
    over = [
        f"stage {index} (layers {start}-{end - 1} on {problem.meshes[mesh]}) {_gib(need)}"
        for index, ((start, end, mesh), need) in enumerate(zip(plan, needs, strict=True))
        if need > problem.memory_bytes
    ]
    return (
        f"no plan of {stages}{problem.num_layers} layers fits the memory of a device ({_gib(problem.memory_bytes)}): "
        f"the leanest, with {len(plan)} stages, needs for {', '.join(over)}"
    )


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**20 else f"{count:.0f} bytes"


def _leanest(problem: StageProblem, num_stages: int | None, allowed: np.ndarray, with_memory: bool) -> Stages | None:
    """The plan of `allowed` stages whose most demanding stage needs the fewest bytes; any plan without memory."""
    plans = []
    for held, counts in _groups(problem, num_stages):
        needs = _need_bytes(problem, held) if with_memory else np.zeros((len(held), *allowed.shape))
        search = _search(problem, np.where(allowed, needs, np.inf), 1, counts)
        stages = _solve(search, search.by_size, problem.num_devices, np.maximum)
        if stages is not None:
            plans.append((max(stage_memory_bytes(problem, stages)), stages))
    return min(plans, key=lambda plan: plan[0])[1] if plans else None
