"""The plans of all meshes; meshes that look alike are solved once.

Two meshes look alike when they have the same shape and links, and their operations, what is
demanded of these and what a preset wants to know have the same structure. Then the solution of the
first, with its tensors renamed, is that of the second. How many microbatches a stage holds at once
may differ: the solution without memory is shared all the same, and only where it does not fit is
the search within the limit done again for each such number, from the plan that holds the next
larger number."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.graph.structure import Structure, structure_of
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.topology import group_placement
from shardopt.mesh.mesh import Mesh
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.budget.search import Fit
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
    """The first of the meshes that look alike; `relaxed` is the solution without memory."""

    graph: MeshGraph
    structure: Structure | None  # none of a mesh that is planned alone
    problem: IntraOpProblem
    relaxed: Solution | None = None
    fits: dict[tuple[int, ...], Fit] = field(default_factory=dict)  # by microbatches in flight


class MeshSolver:
    """Solves one mesh after another."""

    def __init__(self, cluster: Cluster, build: Build, solve: Solve, fit: FitWithin) -> None:
        self.cluster, self.build, self.solve, self.fit = cluster, build, solve, fit
        self._kinds: dict[Hashable, _Kind] = {}
        self._kind_of: dict[Request, tuple[_Kind, Structure | None]] = {}
        self._strategies: dict[Hashable, StrategyTables] = {}

    @property
    def num_kinds(self) -> int:
        """How many of the meshes did not look like an earlier one."""
        return len(self._kinds)

    def prepare(self, requests: Iterable[Request]) -> None:
        """Solve all that `plan` will need of these, without memory, as many at a time as there are
        cores."""
        kinds = list(dict.fromkeys(self._kind(request)[0] for request in requests))

        def solve(number: int) -> Solution:
            kind = kinds[number]
            progress(number, len(kinds), f"kinds of meshes, now {kind.graph.mesh}")
            return self.solve(kind.problem)

        solutions = results([partial(solve, number) for number in range(len(kinds))])
        for kind, solution in zip(kinds, solutions, strict=True):
            kind.relaxed = solution

    def _kind(self, request: Request) -> tuple[_Kind, Structure | None]:
        """What a mesh looks like, and its own structure."""
        if request not in self._kind_of:
            self._kind_of[request] = self._find_kind(request)
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
        loop = graph.residency.loop
        in_flight = (
            ()
            if loop is None
            else (
                loop.in_flight,
                *(count for _, count in sorted(loop.of_group.items())),
                *(count for _, count in sorted(loop.beside.items())),
            )
        )
        residency = replace(kind.graph.residency, loop=loop)
        problem = kind.problem if kind.graph is graph else kind.problem.with_residency(residency)
        if in_flight not in kind.fits:
            # What fits with more microbatches in flight fits with fewer.
            larger = min(
                (counts for counts in kind.fits if _at_least(counts, in_flight)), default=None
            )
            start = () if larger is None else kind.fits[larger].solution.choice
            kind.fits[in_flight] = self.fit(problem, kind.relaxed, start)
        fit = kind.fits[in_flight]
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
