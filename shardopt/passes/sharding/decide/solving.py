"""The plans of all meshes; meshes that look alike are solved once.

Two meshes look alike when they have the same shape and links, and their operations, what is
demanded of these and what a preset wants to know have the same structure. Then the solution of the
first, with its tensors renamed, is that of the second. How many microbatches a stage holds at once
may differ: the solution without memory is shared all the same, and only where it does not fit is
the search within the limit done again, from the plan that holds the next larger number. Where the
plans for two such numbers take equally long, no search is done for those between: the plan for the
larger number fits there too, and what bounds the one for the smaller number bounds all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, pairwise
from typing import Any

from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.graph.op_graph import OpGraph
from shardopt.graph.residency import MicrobatchLoop
from shardopt.graph.structure import Structure, structure_of
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.topology import group_placement
from shardopt.mesh.mesh import Mesh
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.budget.search import Fit, is_as_short, taken_over
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.plans.renaming import renamed
from shardopt.solve.sharding.strategies.constraints import Constraints
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.support.children import results
from shardopt.support.progress import progress

# The problem of a mesh (with strategies of meshes that are linked like it), its solution without
# memory, and the plan within memory, from an assignment to begin with or none.
Build = Callable[[MeshGraph, Constraints, Mapping[int, int], StrategyTables], IntraOpProblem]
Solve = Callable[[IntraOpProblem], Solution]
FitWithin = Callable[[IntraOpProblem, Solution, Sequence[int]], Fit]
# Microbatches in flight, as far as they matter for the memory: none of a mesh without a loop.
InFlight = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Solved:
    """The plan of a mesh, or None, and then `problem` is its own. Else `problem` and what `fit`
    chooses are those of the mesh `first`, which looks alike; `ops` says which operation of this
    mesh is which there."""

    problem: IntraOpProblem
    fit: Fit
    plan: IntraOpPlan | None
    first: MeshGraph
    ops: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class Request:
    """A mesh to be planned. `batch` and `received` tensors hold the batch along a dimension;
    `alone` keeps it apart from meshes that look alike."""

    graph: MeshGraph
    constraints: Constraints
    batch: Mapping[int, int]
    received: Mapping[int, int]
    alone: bool


@dataclass(eq=False)
class _Kind:
    """The first of the meshes that look alike; `relaxed` is the solution without memory. `loops`
    are those of all such meshes that are known of."""

    graph: MeshGraph
    structure: Structure | None  # none of a mesh that is planned alone
    problem: IntraOpProblem
    relaxed: Solution | None = None
    loops: dict[InFlight, MicrobatchLoop | None] = field(default_factory=dict)
    fits: dict[InFlight, Fit] = field(default_factory=dict)

    def problem_with(self, in_flight: InFlight) -> IntraOpProblem:
        """The problem with so many microbatches in flight."""
        residency = self.graph.residency
        if self.loops[in_flight] == residency.loop:
            return self.problem
        return self.problem.with_residency(replace(residency, loop=self.loops[in_flight]))

    def plain_fits(self, keys: Iterable[InFlight]) -> dict[InFlight, Fit]:
        """Some of the plans, for another process, without the graph and the strategies, which that
        has."""
        return {key: _with(self.fits[key], graph=_NO_GRAPH, strategies={}) for key in keys}

    def take(self, fits: Mapping[InFlight, Fit]) -> None:
        """Plans that `plain_fits` handed over."""
        for key, fit in fits.items():
            chosen = self.problem.strategies(fit.solution.choice)
            self.fits[key] = _with(fit, graph=self.graph.graph, strategies=chosen)


class MeshSolver:
    """Solves one mesh after another. Plans are as long as others within the share `gap`."""

    def __init__(
        self, cluster: Cluster, build: Build, solve: Solve, fit: FitWithin, gap: float
    ) -> None:
        self.cluster, self.build, self.solve, self.fit = cluster, build, solve, fit
        self.gap = gap
        self._kinds: dict[Hashable, _Kind] = {}
        self._kind_of: dict[Request, tuple[_Kind, Structure | None]] = {}
        self._strategies: dict[Hashable, StrategyTables] = {}

    @property
    def num_kinds(self) -> int:
        """How many of the meshes did not look like an earlier one."""
        return len(self._kinds)

    def prepare(self, requests: Iterable[Request]) -> None:
        """Solve all that `plan` will need of these, as many at a time as there are cores."""
        wanted = defaultdict[_Kind, list[InFlight]](list)
        for request in requests:
            kind, _ = self._kind(request)
            wanted[kind].append(_in_flight(request.graph.residency.loop))
        # The largest first: nobody waits long for the last one.
        kinds = sorted(wanted, key=lambda kind: -len(kind.problem.ops))

        def solve(number: int) -> tuple[Solution, dict[InFlight, Fit]]:
            kind = kinds[number]
            progress(number, len(kinds), f"kinds of meshes, now {kind.graph.mesh}")
            kind.relaxed = self.solve(kind.problem)
            for in_flight in wanted[kind]:
                if self._fit(kind, in_flight).plan is None:  # which ends the planning
                    break
            return kind.relaxed, kind.plain_fits(kind.fits)

        solved = results([partial(solve, number) for number in range(len(kinds))])
        for kind, (relaxed, fits) in zip(kinds, solved, strict=True):
            kind.relaxed = relaxed
            kind.take(fits)

    def _kind(self, request: Request) -> tuple[_Kind, Structure | None]:
        """What a mesh looks like, and its own structure."""
        if request not in self._kind_of:
            self._kind_of[request] = self._find_kind(request)
            kind = self._kind_of[request][0]
            loop = request.graph.residency.loop
            kind.loops.setdefault(_in_flight(loop), loop)
        return self._kind_of[request]

    def _find_kind(self, request: Request) -> tuple[_Kind, Structure | None]:
        graph, structure = request.graph, None
        links = _links(self.cluster, graph.mesh)
        key: tuple[Hashable, ...] = (graph.mesh.name,)
        if not request.alone:
            structure = structure_of(graph.graph)
            batch = {**request.received, **request.batch}
            requirements = _requirements(graph, structure, request.constraints, batch)
            key = (structure.digest, *links, *requirements)
        if key not in self._kinds:
            strategies = self._strategies.setdefault(
                links, StrategyTables(graph.mesh, self.cluster)
            )
            problem = self.build(graph, request.constraints, request.received, strategies)
            self._kinds[key] = _Kind(graph, structure, problem)
        return self._kinds[key], structure

    def plan(self, request: Request) -> Solved:
        """The plan of a mesh."""
        graph = request.graph
        kind, structure = self._kind(request)
        if kind.relaxed is None:
            kind.relaxed = self.solve(kind.problem)
        in_flight = _in_flight(graph.residency.loop)
        problem, fit = kind.problem_with(in_flight), self._fit(kind, in_flight)
        if kind.graph is graph:
            own = {op: op for op in range(len(graph.graph.ops))}
            return Solved(problem, fit, fit.plan, graph, own)
        if fit.plan is None:  # the error names what stands on this very mesh
            return self.plan(replace(request, alone=True))
        assert structure is not None and kind.structure is not None  # what is alone is the first
        tensors = dict(zip(kind.structure.tensors, structure.tensors, strict=True))
        ops = dict(zip(kind.structure.ops, structure.ops, strict=True))
        plan = renamed(fit.plan, graph.graph, graph.mesh, tensors, ops)
        return Solved(problem, fit, plan, kind.graph, {op: first for first, op in ops.items()})

    def _fit(self, kind: _Kind, in_flight: InFlight) -> Fit:
        if in_flight not in kind.fits:
            self._fit_all(kind, in_flight)
        return kind.fits[in_flight]

    def _fit_all(self, kind: _Kind, wanted: InFlight) -> None:
        """Find the plans of a kind for all numbers of microbatches in flight, from the largest to
        the smallest where they can be put so in order; else for those that are wanted alone."""
        falling = sorted(kind.loops.keys() - kind.fits.keys() | {wanted}, reverse=True)
        if kind.fits or not all(_at_least(*pair) for pair in pairwise(falling)):
            falling = [wanted]
        for ends in dict.fromkeys((0, len(falling) - 1)):
            if self._fit_one(kind, falling[ends]).plan is None:
                # The error is told of the first mesh that asks.
                if falling[ends] != wanted:
                    self._fit_one(kind, wanted)
                return
        self._fit_between(kind, falling)

    def _fit_one(self, kind: _Kind, in_flight: InFlight) -> Fit:
        # What fits with more microbatches in flight fits with fewer.
        larger = min((counts for counts in kind.fits if _at_least(counts, in_flight)), default=None)
        start = () if larger is None else kind.fits[larger].solution.choice
        assert kind.relaxed is not None
        fit = self.fit(kind.problem_with(in_flight), kind.relaxed, start)
        kind.fits[in_flight] = fit
        return fit

    def _fit_between(self, kind: _Kind, falling: Sequence[InFlight]) -> None:
        """Those between the first and the last, which are known."""
        inner = falling[1:-1]
        if not inner:
            return
        most, fewest = kind.fits[falling[0]], kind.fits[falling[-1]]
        if is_as_short(most, fewest, self.gap):
            for in_flight in inner:
                kind.fits[in_flight] = taken_over(kind.problem_with(in_flight), most, fewest)
            return
        middle = len(falling) // 2
        self._fit_one(kind, falling[middle])

        # Each half begins with plans of its own.
        def fitted(half: Sequence[InFlight]) -> dict[InFlight, Fit]:
            self._fit_between(kind, half)
            return kind.plain_fits(half)

        halves = falling[: middle + 1], falling[middle:]
        for fits in results([partial(fitted, half) for half in halves if len(half) > 2]):
            kind.take(fits)


_NO_GRAPH = OpGraph((), (), (), ())


def _with(fit: Fit, **parts: Any) -> Fit:
    """With other parts of the plan, where there is one."""
    return fit if fit.plan is None else replace(fit, plan=replace(fit.plan, **parts))


def _in_flight(loop: MicrobatchLoop | None) -> InFlight:
    if loop is None:
        return ()
    return (
        loop.in_flight,
        *(count for _, count in sorted(loop.of_group.items())),
        *(count for _, count in sorted(loop.beside.items())),
    )


def _at_least(counts: tuple[int, ...], others: tuple[int, ...]) -> bool:
    return len(counts) == len(others) and all(a >= b for a, b in zip(counts, others, strict=True))


def _links(cluster: Cluster, mesh: Mesh) -> tuple[Hashable, ...]:
    """All that costs depend on in a mesh: not which devices it has, but of what kind, and how they
    are linked."""
    names = mesh.axis_names
    subsets = (axes for count in range(1, len(names) + 1) for axes in combinations(names, count))
    return (
        mesh.axes,
        cluster.group_of(mesh).device,
        cluster.group_of(mesh).host_link,
        *(group_placement(cluster, mesh, axes) for axes in subsets),
    )


def _requirements(
    graph: MeshGraph, structure: Structure, constraints: Constraints, batch: Mapping[int, int]
) -> tuple[Hashable, ...]:
    """What the operations do not say, with tensors by canonical number."""
    number, residency = structure.number, graph.residency
    # Without the microbatches in flight, which change the memory only: `fits` tells them apart.
    loop = None if residency.loop is None else (residency.loop.start, residency.loop.stop)
    return (
        graph.method,
        loop,
        _renumbered(residency.arrivals, number),
        tuple(sorted(number[tensor] for tensor in residency.literals)),
        tuple(sorted(number[tensor] for tensor in residency.on_host)),
        tuple(sorted((number[a], number[b]) for a, b in graph.tied)),
        tuple(sorted(number[tensor] for tensor in graph.sent)),
        tuple(sorted(number[tensor] for tensor in graph.state)),
        _renumbered(batch, number),
        _renumbered(constraints.allowed, number),
        tuple(sorted(number[tensor] for tensor in constraints.even)),
        constraints.partitioned,
        tuple(
            sorted(
                (structure.position[op], tuple(sorted(axes)))
                for op, axes in constraints.forbidden.items()
            )
        ),
    )


def _renumbered(values: Mapping[int, Hashable], number: Mapping[int, int]) -> tuple[Hashable, ...]:
    return tuple(
        sorted(
            ((number[tensor], value) for tensor, value in values.items()), key=lambda item: item[0]
        )
    )
