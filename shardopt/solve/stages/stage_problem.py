"""The problem of the stage DP and its solutions, as arrays: candidate stages, their costs, and
plans made of them.

A candidate stage is an interval of layers on a `StageConfig`: a submesh of one host group in a
logical shape, with or without recomputation. Its cost is that of the intra-operator solver
(`shardopt.solve.stages.costs`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shardopt.hardware.cluster import Cluster, Submesh
from shardopt.hardware.topology import logical_shapes, submeshes

# (first layer, layer after the last, config), in pipeline order.
Stages = tuple[tuple[int, int, int], ...]
# (stage from the end, 1 = last; number of stages; microbatches) -> microbatches in flight.
InFlight = Callable[[int, int, int], float]
# Number of stages of the model -> the mesh of each stage of the list, which has the model's once or
# more often: first all of the first time.
ModelHomes = Callable[[int], tuple[int, ...]]

# What the longest stage counts in the slot of meshes that have several; the rest is the mean stage
# of the busiest mesh. Where the stages of a mesh differ, it waits now and then; this share ranks
# plans most like the simulator (`benchmarks.schedule.shared_meshes`).
LONGEST_SHARE = 0.1

# Of a stage's seconds that it computes forward, where nothing is known of it: a backward takes
# twice as long.
USUAL_FORWARD_SHARE = 1 / 3


class Copies(NamedTuple):
    """How often a stage holds what it keeps for the backward, and how many older versions of its
    weights. Both rise together from the last stage of a pipeline to the first."""

    in_flight: float
    versions: int = 0


@dataclass(frozen=True)
class StageConfig:
    """How a stage is run: `num_devices` of host group `group` as `submesh`, seen as
    `logical_shape`.

    `recompute`: what the backward recomputes instead of keeping it: nothing, what is cheap and
    large, the insides of each layer, or the whole stage (`shardopt.graph.recomputed_units`).
    `offload`: what is kept in the memory of the hosts (`shardopt.graph.offloading`).
    `method` is how the values inside are sharded: by the solver (`ilp`), or as a preset does
    (`shardopt.solve.presets`)."""

    num_devices: int
    submesh: Submesh
    logical_shape: tuple[int, ...]
    group: int = 0
    recompute: str = "none"
    method: str = "ilp"
    offload: str = "none"

    def __str__(self) -> str:
        place = f"{self.submesh} as {'x'.join(map(str, self.logical_shape))}"
        place += f" by {self.method}" if self.method != "ilp" else ""
        place += f" of host group {self.group}" if self.group else ""
        modes = [
            f"{name}={mode}"
            for name, mode in (("recompute", self.recompute), ("offload", self.offload))
            if mode != "none"
        ]
        return f"{place} with {', '.join(modes)}" if modes else place


def stage_configs(cluster: Cluster) -> tuple[StageConfig, ...]:
    """All logical shapes of all submeshes of the cluster."""
    return tuple(
        StageConfig(submesh.num_devices, submesh, shape, group)
        for group, submesh in submeshes(cluster)
        for shape in logical_shapes(submesh)
    )


def one_f_one_b_in_flight(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
    """Microbatches whose activations a stage holds under 1F1B: the last stage 1, the one before 2,
    ..."""
    return min(stage_from_end, num_microbatches)


def gpipe_in_flight(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
    """Under GPipe every stage holds all microbatches."""
    return num_microbatches


@dataclass(frozen=True, eq=False)
class StageProblem:
    """Costs of every candidate stage.

    `seconds`, `forward_seconds`, `fixed_bytes` and `activation_bytes` are `[L + 1, L + 1, C]`,
    indexed by first layer, layer after the last, and config; `seconds` is inf where a stage is
    infeasible, and entries with end <= start are not read. Seconds and activations are those of one
    microbatch, `seconds` forward and backward, `forward_seconds` its share up to the last forward
    operation, nan where it is not known and `forward_share` of the seconds is likely; bytes are per
    device. `num_devices` and `memory_bytes` (of a device) have one entry for each host group. A
    plan uses all devices of all groups.

    `transfer_seconds`, `[2, L + 1]`: seconds of one microbatch over the cut before layer j,
    forwards and backwards. `stages_per_mesh`: if more than 1, a plan uses every device in so many
    stages, and `memory_bytes` is the share of each. `homes` says on which meshes the stages are; by
    default each has one of its own. A device holds `fixed_bytes` + microbatches in
    flight · `activation_bytes` in the loop, and at most `outside_bytes` before and behind it; on
    top of both `weight_bytes` for every older version of its weights, of which
    `weight_ages(stages)` says how many each stage keeps.
    `least_bytes`: proven bounds of fixed and of activation bytes, where those above belong to one
    sharding and others may need less; None where the bytes above are the bounds."""

    num_layers: int
    configs: tuple[StageConfig, ...]
    num_devices: tuple[int, ...]
    num_microbatches: int
    seconds: np.ndarray
    forward_seconds: np.ndarray
    fixed_bytes: np.ndarray
    activation_bytes: np.ndarray
    memory_bytes: tuple[float, ...]
    transfer_seconds: np.ndarray | None = None
    in_flight: InFlight = one_f_one_b_in_flight
    stages_per_mesh: int = 1
    outside_bytes: np.ndarray | None = None
    least_bytes: tuple[np.ndarray, np.ndarray] | None = None
    weight_ages: Callable[[int], tuple[int, ...]] | None = None
    weight_bytes: np.ndarray | None = None
    homes: ModelHomes | None = None
    forward_share: float = USUAL_FORWARD_SHARE

    def __post_init__(self) -> None:
        shape = (self.num_layers + 1, self.num_layers + 1, len(self.configs))
        for name in ("seconds", "forward_seconds", "fixed_bytes", "activation_bytes"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {getattr(self, name).shape}")
        if self.transfer_seconds is not None and self.transfer_seconds.shape != (2, shape[0]):
            raise ValueError(
                f"transfer_seconds must have shape {(2, shape[0])}, got "
                f"{self.transfer_seconds.shape}"
            )
        sizes = (self.num_layers, self.num_microbatches, len(self.configs), self.total_devices)
        if min(*sizes, *self.num_devices) < 1:
            raise ValueError(
                "the numbers of layers, configs, devices and microbatches must be at least 1"
            )
        if len(self.memory_bytes) != len(self.num_devices):
            raise ValueError(
                f"memory_bytes has {len(self.memory_bytes)} groups, num_devices "
                f"{len(self.num_devices)}"
            )
        if not all(0 <= config.group < len(self.num_devices) for config in self.configs):
            raise ValueError(
                f"a config names a host group that is not one of {len(self.num_devices)}"
            )

    @property
    def total_devices(self) -> int:
        return sum(self.num_devices)

    @property
    def most_stages(self) -> int:
        """A stage needs a layer and a device."""
        return min(self.num_layers, self.total_devices)

    def likely_forward_seconds(self, stage: tuple[int, int, int]) -> float:
        """Those of a stage, as far as is known: all seconds of a last one, which runs as one
        fragment, and the usual share of others."""
        known, whole = float(self.forward_seconds[stage]), float(self.seconds[stage])
        if not np.isnan(known):
            return min(known, whole)
        return whole if stage[1] == self.num_layers else self.forward_share * whole

    def cut_seconds(self) -> np.ndarray:
        """Transfer before each layer, `[2, L + 1]`: what it adds to the sum, and as a slot of
        the pipeline, where both ways go at once. Nothing comes before layer 0."""
        cuts = np.zeros((2, self.num_layers + 1))
        if self.transfer_seconds is not None:
            # In the steady state the activations of one microbatch travel while the gradients of
            # another come back, and links carry both directions at once: a slot lasts as long as
            # the slower of the two.
            cuts[:, 1:] = (
                self.transfer_seconds.sum(axis=0)[1:],
                self.transfer_seconds.max(axis=0)[1:],
            )
        return cuts

    @cached_property
    def limit_bytes(self) -> np.ndarray:
        """Memory of a device of each config's group, `[C]`."""
        return np.array([self.memory_bytes[config.group] for config in self.configs], dtype=float)

    def need_bytes(self, copies: Copies, where: tuple[int, ...] = ()) -> np.ndarray:
        """Bytes of a device that holds so many copies, `[L + 1, L + 1, C]`, or those of the entry
        or row `where` of that."""
        # No microbatch is in flight before and behind the loop, so the two needs never add up.
        need = self.fixed_bytes[where] + copies.in_flight * self.activation_bytes[where]
        if self.outside_bytes is not None:
            need = np.maximum(need, self.outside_bytes[where])
        return need + self.version_bytes(copies.versions, where)

    def version_bytes(self, versions: int, where: tuple[int, ...] = ()) -> np.ndarray | float:
        """Bytes of a device for so many older versions of weights, as `need_bytes`."""
        if self.weight_bytes is None or not versions:
            return 0.0
        return versions * self.weight_bytes[where]

    def fits(self, copies: Copies, start: int, end: int) -> np.ndarray:
        """The configs with which layers [start, end) have a finite time and enough memory for so
        many copies, bool `[C]`."""
        need = self.need_bytes(copies, (start, end))
        return (need <= self.limit_bytes) & np.isfinite(self.seconds[start, end])

    def shardable(self) -> np.ndarray:
        """Stages that end after they start and have a finite time, bool `[L + 1, L + 1, C]`."""
        return np.isfinite(self.seconds) & self.ordered()

    def ordered(self) -> np.ndarray:
        """Stages that end after they start, bool `[L + 1, L + 1, C]`."""
        pairs = np.triu(np.ones(self.seconds.shape[:2], bool), k=1)
        return np.broadcast_to(pairs[:, :, None], self.seconds.shape)


@dataclass(frozen=True)
class StageSolution:
    """Stages as (first layer, layer after the last, index into `configs`), in pipeline order.

    `seconds` = `sum_seconds` + (B - 1) · `slot_seconds`; both include transfers, and the slot is
    the longest stage or transfer. With v stages a mesh it is `sum_seconds` / v + (v B - 1) ·
    `slot_seconds`: the pipeline fills v times as fast, and a mesh then runs v B stages. Their slot
    is nearly the mean stage of the busiest mesh (`LONGEST_SHARE`). `bound` is a proven lower bound
    of `seconds` (nan for baselines), `evaluations` the number of t_max values solved."""

    stages: Stages
    seconds: float
    slot_seconds: float
    sum_seconds: float
    status: str
    bound: float = float("nan")
    evaluations: int = 0


def evaluate(problem: StageProblem, stages: Stages, status: str = "feasible") -> StageSolution:
    """The step time of a given plan; does not check memory."""
    cuts = problem.cut_seconds()
    seconds = np.array([float(problem.seconds[stage]) for stage in stages])
    before = cuts[:, [start for start, _, _ in stages]]  # nothing is before layer 0
    each = problem.stages_per_mesh
    if problem.homes is None:
        slot = float(max(seconds.max(), before[1].max()))
    else:
        places = places_of(problem.homes(len(stages)), len(stages))
        before = np.where(places.links[0] >= 0, before, 0.0)
        slot = shared_slot(places, seconds, before[1], each)
    total = float(seconds.sum() + before[0].sum())
    step = total / each + (each * problem.num_microbatches - 1) * slot
    return StageSolution(stages, step, slot, total, status)


class Places(NamedTuple):
    """What stages occupy, by number, int64 `[streams, stages]`: the mesh of each, and the pair of
    meshes that the cut before it crosses, counted behind the meshes; -1 where it crosses none."""

    meshes: np.ndarray
    links: np.ndarray

    @property
    def longest_share(self) -> float:
        """`LONGEST_SHARE`, 0 for one mesh: it never waits."""
        return LONGEST_SHARE if self.meshes.max() else 0.0

    def loads(self, stages: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """What every mesh and every pair of meshes does for one microbatch, where stages and the
        cuts before them, `[stages]`, take so long: every stream has its share of the
        microbatches."""
        loads = np.zeros(1 + max(self.meshes.max(), self.links.max()))
        for meshes, links in zip(self.meshes, self.links, strict=True):
            np.add.at(loads, meshes, stages)
            np.add.at(loads, links[links >= 0], cuts[links >= 0])
        return loads / len(self.meshes)


@lru_cache(maxsize=256)
def places_of(homes: tuple[int, ...], num_stages: int) -> Places:
    """The places of stages on the meshes `homes`, of all streams."""
    meshes = np.array(homes, dtype=np.int64).reshape(-1, num_stages)
    links = np.full_like(meshes, -1)
    pairs: dict[frozenset[int], int] = {}
    for stream, row in enumerate(meshes.tolist()):
        for stage, (one, other) in enumerate(pairwise(row), start=1):
            if one != other:
                number = pairs.setdefault(frozenset((one, other)), len(pairs))
                links[stream, stage] = 1 + max(homes) + number
    return Places(meshes, links)


def shared_slot(places: Places, stages: np.ndarray, cuts: np.ndarray, each: int) -> float:
    """The slot of a pipeline whose meshes have so many stages each: between the mean stage, or
    transfer, of what is busiest and the longest of all. `stages` and the `cuts` before them are
    seconds, `[stages]`."""
    share, longest = places.longest_share, max(stages.max(), cuts.max())
    return float((1 - share) * places.loads(stages, cuts).max() / each + share * longest)


def held_copies(problem: StageProblem, num_stages: int) -> tuple[Copies, ...]:
    """What each stage of a pipeline holds, the last stage first."""
    ages = (0,) * num_stages if problem.weight_ages is None else problem.weight_ages(num_stages)
    return tuple(
        Copies(problem.in_flight(s, num_stages, problem.num_microbatches), ages[num_stages - s])
        for s in range(1, num_stages + 1)
    )


def stage_memory_bytes(problem: StageProblem, stages: Stages) -> tuple[float, ...]:
    """Bytes per device each stage of a plan needs under the problem's schedule."""
    copies = held_copies(problem, len(stages))[::-1]
    return tuple(
        float(problem.need_bytes(held, stage)) for stage, held in zip(stages, copies, strict=True)
    )


def used_devices(problem: StageProblem, stages: Stages) -> tuple[int, ...]:
    """Devices of every host group that a plan uses."""
    used = [0] * len(problem.num_devices)
    for _, _, config in stages:
        used[problem.configs[config].group] += problem.configs[config].num_devices
    return tuple(used)


def is_plan(problem: StageProblem, stages: Stages) -> bool:
    """Whether the stages cover all layers in order and all devices, and each has a finite time and
    enough memory."""
    ends = [0, *(end for _, end, _ in stages)]
    copies = held_copies(problem, len(stages))[::-1]
    return (
        [start for start, _, _ in stages] == ends[:-1]
        and ends[-1] == problem.num_layers
        and used_devices(problem, stages)
        == tuple(problem.stages_per_mesh * count for count in problem.num_devices)
        and all(problem.fits(held, i, j)[c] for (i, j, c), held in zip(stages, copies, strict=True))
    )
