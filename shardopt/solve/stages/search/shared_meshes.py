"""Plans of schedules that put several stages on a mesh: interleaved 1F1B, those in a V (ZB-V,
V-Half, V-Min, DualPipeV), and Chimera, which puts every stage on two meshes.

p equal meshes of one logical shape take v stages each; where stage s goes is for the schedule to
say (round robin, or down and up again in a V). For every p and shape the layers are cut into p · v
stages (`shardopt.solve.stages.dp.shared_mesh_search`) for

    T = sum of t_i / v + (v B - 1) · slot

(Narayanan et al., SC'21, arXiv 2104.04473, section 2.2, where the slot is the longest stage). With
several stages a mesh, short ones make up for long ones: the slot is nearly the mean stage of the
busiest mesh.

Of its memory each stage gets an equal share, with the microbatches in flight that the stages of its
mesh have on average: exact for equal stages. The shard phase plans a mesh within its whole memory.

Under Chimera v is 1: a mesh runs half of the microbatches for each of its two stages. Each of them
gets half of the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from shardopt.schedule.schedules import (
    ScheduleKind,
    find_schedule,
    model_homes,
    model_in_flight,
)
from shardopt.solve.stages.baselines.planner import BaselinePlanner, PlannerInput
from shardopt.solve.stages.dp.infeasible import NoPlan, no_plan
from shardopt.solve.stages.dp.shared_mesh_search import SharedMeshSearch
from shardopt.solve.stages.stage_problem import (
    InFlight,
    StageConfig,
    StageProblem,
    Stages,
    StageSolution,
    held_copies,
)
from shardopt.support.counts import counted, plural
from shardopt.support.errors import UserError


def sharing_planner(planner: BaselinePlanner, name: str, kind: ScheduleKind) -> BaselinePlanner:
    """A planner of `kind.stages_per_mesh` stages a mesh instead of `planner`, the stage DP. Raises
    UserError for a planner, called `name`, that is another one."""
    if not planner.by_dp or planner.one_stage:
        raise UserError(
            f"schedule '{kind.name}' puts several stages on a mesh: expected "
            f"inter-op=dp, found {name}"
        )
    multiple, streams = kind.mesh_multiple, kind.streams
    return replace(
        planner,
        solve=partial(solve_sharing, mesh_multiple=multiple, streams=streams),
        near=partial(near_sharing, mesh_multiple=multiple, streams=streams),
        by_dp=False,
    )


def mean_in_flight(schedule: str) -> InFlight:
    """What the stages of a mesh have in flight on average, rounded up, as the stage DP asks for
    it: all of them where the schedule has no place for so many stages, which is no plan anyway."""
    kind = find_schedule(schedule)

    def mean(stage_from_end: int, num_stages: int, num_microbatches: int) -> float:
        listed = kind.streams * num_stages
        if not kind.suits(listed, listed // max(kind.stages_per_mesh, 1)):
            return kind.listed_microbatches(num_microbatches)
        counts = model_in_flight(schedule, num_stages, num_microbatches)
        homes = model_homes(schedule, num_stages)
        home = homes[num_stages - stage_from_end]
        mesh_counts = [count for count, other in zip(counts, homes, strict=True) if other == home]
        return -(-sum(mesh_counts) // len(mesh_counts))

    return mean


def least_busy_seconds(problem: StageProblem) -> float:
    """A lower bound of the step of any plan, whatever its schedule: that of devices which always
    work. inf if there is no plan.

    p meshes that are alike run the stages of all layers B times, each on one of them. With costs
    that are lower bounds it is one, too."""
    least = np.inf
    for count in {config.num_devices for config in problem.configs}:
        on_them = [config.num_devices == count for config in problem.configs]
        seconds = problem.seconds[:, :, on_them].min(axis=2)
        # Of the layers before each, in any stages: the shortest path through the borders.
        reached = np.full(problem.num_layers + 1, np.inf)
        reached[0] = 0.0
        for end in range(1, problem.num_layers + 1):
            reached[end] = (reached[:end] + seconds[:end, end]).min()
        meshes = problem.total_devices / count
        least = min(least, problem.num_microbatches * float(reached[-1]) / meshes)
    return least


def solve_sharing(
    problem: StageProblem, request: PlannerInput, mesh_multiple: int = 1, streams: int = 1
) -> StageSolution:
    """The shortest plan that is found over the numbers of meshes, multiples of `mesh_multiple`, and
    their logical shapes, for so many `streams` of microbatches. Raises UserError where there is
    none."""
    return next(_shortest_first(problem, request, mesh_multiple, streams))


def near_sharing(
    problem: StageProblem,
    request: PlannerInput,
    k: int,
    mesh_multiple: int = 1,
    streams: int = 1,
) -> list[StageSolution]:
    """At most `k` plans by rising `seconds`, the one of `solve_sharing` first. Raises UserError
    where that does."""
    return list(islice(_shortest_first(problem, request, mesh_multiple, streams), k))


def _shortest_first(
    problem: StageProblem, request: PlannerInput, mesh_multiple: int, streams: int
) -> Iterator[StageSolution]:
    """Plans of the best numbers of meshes and shapes, by rising seconds; the first says whether it
    is proven to be the best."""
    searches = _searches(problem, request, mesh_multiple, problem.stages_per_mesh * streams)
    searches.sort(key=lambda search: search.bound)  # the likely ones first
    best: StageSolution | None = None
    is_proven = True
    for search in searches:
        cutoff = np.inf if best is None else best.seconds
        if search.bound >= cutoff:
            break
        is_proven &= search.run(cutoff)
        best = min((best, *search.plans()), key=_order) if best else search.plans()[0]
    assert best is not None, "searches without a plan are left out"
    bound = min(best.seconds, *(search.bound for search in searches))
    yield replace(best, status="optimal" if is_proven else "feasible", bound=bound)
    others = {plan.stages: plan for search in searches for plan in search.plans()}
    yield from sorted((others[each] for each in others.keys() - {best.stages}), key=_order)


def _order(plan: StageSolution) -> tuple[float, float, Stages]:
    return plan.seconds, plan.slot_seconds, plan.stages


def _searches(
    problem: StageProblem, request: PlannerInput, mesh_multiple: int, shared_by: int
) -> list[SharedMeshSearch]:
    """One for each number of meshes and their shape that have a plan. Raises UserError where none
    has."""
    each, devices = problem.stages_per_mesh, problem.num_devices[0]
    if len(problem.num_devices) > 1:
        raise UserError(
            "several stages a mesh need meshes that are alike: expected one host group "
            "in the cluster"
        )
    # All meshes are alike, so their number divides the devices; each stage needs a layer.
    meshes = [p for p in range(mesh_multiple, devices + 1, mesh_multiple) if devices % p == 0]
    by_number = {p: alike for p in meshes if (alike := [*_alike(problem.configs, devices // p)])}
    searches = [
        SharedMeshSearch(problem, alike, p * each)
        for p, shapes in by_number.items()
        if request.num_stages in (None, p * each) and p * each <= problem.num_layers
        for alike in shapes
    ]
    possible = [search for search in searches if np.isfinite(search.bound)]
    if not possible:
        even = "" if mesh_multiple == 1 else f" of a multiple of {mesh_multiple} meshes"
        how_many = "" if request.num_stages is None else f"{request.num_stages} stages of "
        reason = (
            _no_plan_of(searches[0], shared_by)
            if searches
            else NoPlan(_why_no_number(problem, [*by_number]))
        )
        raise NoPlan(
            f"no plan puts {counted(each, 'stage')} on every mesh{even}, of {how_many}"
            f"{counted(problem.num_layers, 'layer')} on {counted(devices, 'device')}: {reason}",
            reason.leanest,
        )
    return possible


def _why_no_number(problem: StageProblem, meshes: list[int]) -> str:
    """Why none of these numbers of meshes, which are alike and take all devices, will do."""
    devices, each = problem.num_devices[0], problem.stages_per_mesh
    if not meshes:
        sizes = sorted({config.num_devices for config in problem.configs})
        return (
            "no number of meshes that are alike takes all devices, with submeshes of "
            f"{', '.join(map(str, sizes))} {plural(sizes[-1], 'device')}"
        )
    numbers = [count * each for count in meshes if count * each <= problem.num_layers]
    if numbers:  # and another one was asked for
        return (
            "meshes have to be alike and take all devices, so there can be "
            f"{' or '.join(map(str, numbers))} stages"
        )
    return (
        f"on {counted(meshes[0], 'mesh')} of {counted(devices // meshes[0], 'device')} that makes "
        f"{meshes[0] * each} stages, each of which needs a layer"
    )


def _no_plan_of(search: SharedMeshSearch, shared_by: int) -> NoPlan:
    """What so many stages lack, every device counted once for each of its stages."""
    problem, chosen = search.problem, list(search.configs)
    counts = [held.in_flight for held in held_copies(problem, search.num_stages)]
    outside, shape = problem.outside_bytes, problem.seconds[:, :, chosen].shape
    alone = replace(
        problem,
        configs=tuple(problem.configs[index] for index in chosen),
        num_devices=tuple(problem.stages_per_mesh * count for count in problem.num_devices),
        seconds=problem.seconds[:, :, chosen],
        forward_seconds=problem.forward_seconds[:, :, chosen],
        fixed_bytes=problem.fixed_bytes[:, :, chosen],
        activation_bytes=problem.activation_bytes[:, :, chosen],
        outside_bytes=None if outside is None else outside[:, :, chosen],
        in_flight=lambda stage_from_end, *_: counts[stage_from_end - 1],
        stages_per_mesh=1,
        homes=None,
        # How stages of a mesh share its memory is not proven to be best.
        least_bytes=(np.zeros(shape), np.zeros(shape)),
    )
    lacking = no_plan(alone, search.num_stages, shared_by)
    if lacking.leanest is None:
        return lacking
    leanest = tuple((start, end, chosen[config]) for start, end, config in lacking.leanest)
    return NoPlan(str(lacking), leanest)


def _alike(configs: Sequence[StageConfig], num_devices: int) -> Iterator[tuple[int, ...]]:
    """The configs of each logical mesh of so many devices: what they recompute and offload may
    differ by stage."""
    groups: dict[StageConfig, list[int]] = {}
    for index, config in enumerate(configs):
        if config.num_devices == num_devices:
            plain = replace(config, recompute="none", offload="none")
            groups.setdefault(plain, []).append(index)
    yield from map(tuple, groups.values())
