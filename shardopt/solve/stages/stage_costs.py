"""Costs of every candidate stage (an interval of layers on a submesh), from the intra-operator solver.

Alpa §5.2, with the profiler replaced by the cost model: t_intra of layers i..j on a mesh is the optimum of the sharding
problem of their operations, forward and backward, as the shard phase will set it up: over all microbatches of a step,
with accumulators that may stay unfinished sums until its end (`shardopt.solve.stages.step_graph`). What runs once a
step counts with an equal share in every microbatch. Candidates that no cover of the devices can use are not solved,
and candidates whose operations and dataflow are equal (repeated layers) are solved once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardopt.cost.cluster import Cluster
from shardopt.cost.errors import UserError
from shardopt.cost.graph import OpGraph
from shardopt.cost.mesh import AXIS_NAMES, Mesh, Sharding
from shardopt.solve.assignment.sharding_ilp import solve
from shardopt.solve.presets.base import Roles
from shardopt.solve.sharding.intra_op import IntraOpTables
from shardopt.solve.sharding.intra_op_plan import IntraOpPlan
from shardopt.solve.sharding.strategies_tables import StrategyTables
from shardopt.solve.stages.cut_transfers import cut_transfers
from shardopt.solve.stages.stage_method import StageMethods
from shardopt.solve.stages.stage_problem import InFlight, StageOption, StageProblem
from shardopt.solve.stages.step_graph import Accumulator, StepGraph, reached_layers, step_graph


@dataclass(frozen=True)
class CandidateProblem:
    """The body of a microbatch by layers. `op_layer[i]` is -1 for operations every stage copies.

    `state_bytes[k]`: bytes that live all step with layer k but are not read by the body (optimizer state).
    `memory_limit_bytes`: what a device of each host group may hold, None for any amount; empty for any amount in all
    groups. `tied`: tensors that loops and branches need in equal shardings. `roles` is what options with a preset as
    their method need to know. `wanted` leaves candidates out that a plan file has no use for.
    """

    graph: OpGraph
    op_layer: tuple[int, ...]
    num_layers: int
    state_bytes: tuple[int, ...]
    cluster: Cluster
    options: tuple[StageOption, ...]
    num_microbatches: int
    num_stages: int | None
    in_flight: InFlight
    accumulators: tuple[Accumulator, ...] = ()
    memory_limit_bytes: tuple[int | None, ...] = ()
    tied: tuple[tuple[int, int], ...] = ()
    roles: Roles = field(default_factory=Roles)
    wanted: Callable[[int, int, StageOption], bool] | None = None


@dataclass(frozen=True)
class CandidateCosts:
    """The stage DP's input, and how many sharding problems were solved for how many candidates. `refusals`: why methods
    do not apply to some candidates, each reason once."""

    stage_problem: StageProblem
    num_candidates: int
    num_solves: int
    refusals: tuple[str, ...] = ()


def candidate_mesh(option: StageOption, devices: Sequence[int], name: str = "candidate") -> Mesh:
    """The logical mesh of an option on some devices."""
    return Mesh(name, tuple(zip(AXIS_NAMES, option.logical_shape, strict=False)), tuple(devices))


def candidate_costs(problem: CandidateProblem, progress: Callable[[int, int], None] | None = None) -> CandidateCosts:
    """Solve every useful candidate; `progress(done, total)` is told along the way."""
    layers = problem.num_layers
    shape = (layers + 1, layers + 1, len(problem.options))
    seconds, forward, fixed, activations = np.full(shape, np.inf), *(np.zeros(shape) for _ in range(3))
    candidates = tuple(_candidates(problem))
    step = step_graph(problem.graph, problem.op_layer, problem.accumulators, problem.num_microbatches, problem.tied)
    methods = StageMethods(step.graph, problem.roles)
    refusals: dict[str, None] = {}
    solves = done = 0
    for o, option in enumerate(problem.options):
        mine = [(i, j) for i, j, k in candidates if k == o]
        if not mine:
            continue
        first = problem.cluster.first_devices[option.group]
        mesh = candidate_mesh(option, range(first, first + option.num_devices))
        solver = _CandidateSolver(problem, step, mesh, methods, option.method)
        for i, j in mine:
            seconds[i, j, o], forward[i, j, o], fixed[i, j, o], activations[i, j, o] = solver.costs(i, j)
            done += 1
            if progress is not None:
                progress(done, len(candidates))
        solves += solver.num_solves
        refusals.update(dict.fromkeys(solver.refusals))
    limits = problem.memory_limit_bytes or (None,) * len(problem.cluster.groups)
    stage_problem = StageProblem(
        layers,
        problem.options,
        tuple(group.num_devices for group in problem.cluster.groups),
        problem.num_microbatches,
        seconds,
        forward,
        fixed,
        activations,
        tuple(np.inf if limit is None else limit for limit in limits),
        cut_transfers(problem.graph, problem.op_layer, layers, problem.cluster).slowest_seconds(),
        problem.in_flight,
    )
    return CandidateCosts(stage_problem, len(candidates), solves, tuple(refusals))


def _candidates(problem: CandidateProblem) -> Iterator[tuple[int, int, int]]:
    """(first layer, layer after the last, option) that some exact cover of devices and layers can contain."""
    layers, most = problem.num_layers, problem.num_stages or problem.num_layers
    covered = _covers(problem, most)
    for i in range(layers):
        for j in range(i + 1, layers + 1):
            fewest, largest = (i > 0) + (j < layers), i + layers - j
            others = range(fewest, min(largest, most - 1) + 1)
            if problem.num_stages is not None:
                others = range(most - 1, most) if fewest <= most - 1 <= largest else range(0)
            for o, option in enumerate(problem.options):
                if problem.wanted is not None and not problem.wanted(i, j, option):
                    continue
                if any(_rest(problem, option) in covered[k] for k in others):
                    yield i, j, o


def _covers(problem: CandidateProblem, most: int) -> list[set[tuple[int, ...]]]:
    """`[k]`: how many devices of every host group k stages can occupy together."""
    groups = problem.cluster.groups
    sizes = sorted({(option.group, option.num_devices) for option in problem.options})
    covered = [{(0,) * len(groups)}]
    for _ in range(most):
        grown = {
            (*taken[:group], taken[group] + size, *taken[group + 1 :])
            for taken in covered[-1]
            for group, size in sizes
            if taken[group] + size <= groups[group].num_devices
        }
        covered.append(grown)
    return covered


def _rest(problem: CandidateProblem, option: StageOption) -> tuple[int, ...]:
    """Devices of every host group that a stage leaves to the others."""
    groups = enumerate(problem.cluster.groups)
    return tuple(group.num_devices - option.num_devices * (index == option.group) for index, group in groups)


class _CandidateSolver:
    """All intervals on one mesh, sharded by one method."""

    def __init__(
        self, problem: CandidateProblem, step: StepGraph, mesh: Mesh, methods: StageMethods, method: str
    ) -> None:
        self.problem, self.step = problem, step
        self.methods, self.method = methods, method
        self.refusals: list[str] = []
        self.mesh, self.strategies = mesh, StrategyTables(mesh, problem.cluster)
        self.producers = step.graph.producers()
        self._tables: dict[frozenset[int], IntraOpTables] = {}
        self.num_solves = 0
        self._solved: dict[tuple[object, ...], tuple[float, float, float, float]] = {}
        self._reached = reached_layers(step)

    def costs(self, start: int, end: int) -> tuple[float, float, float, float]:
        """(seconds, forward seconds, fixed bytes, activation bytes) of layers [start, end); infinite seconds when
        unsolvable."""
        ops = [k for k, layer in enumerate(self.step.op_layer) if start <= layer < end]
        ops = self._with_shared(ops)
        tables = self._tables_for(self.step.sent(start, end))
        forward = [op for op in ops if self._reached[op] < end]
        key = (self._signature(tables, ops), tuple(ops.index(op) for op in forward))
        if key not in self._solved:
            self.num_solves += 1
            self._solved[key] = self._solve(tables, ops, forward)
        seconds, forward_seconds, weights, activations = self._solved[key]
        state = sum(self.problem.state_bytes[start:end]) / self.mesh.size
        return seconds, forward_seconds, weights + state, activations

    def _tables_for(self, sent: frozenset[int]) -> IntraOpTables:
        if sent not in self._tables:
            linear = self.step.linear(sent)
            self._tables[sent] = IntraOpTables(
                self.step.graph, self.mesh, self.problem.cluster, linear=linear, strategies=self.strategies
            )
        return self._tables[sent]

    def _with_shared(self, ops: Sequence[int]) -> list[int]:
        """`ops` and the shared operations they read."""
        graph, wanted = self.step.graph, set(ops)
        stack = list(ops)
        while stack:
            for tensor in graph.ops[stack.pop()].operands:
                producer = self.producers[tensor]
                if producer >= 0 and self.step.op_layer[producer] < 0 and producer not in wanted:
                    wanted.add(producer)
                    stack.append(producer)
        return sorted(wanted)

    def _signature(self, tables: IntraOpTables, ops: Sequence[int]) -> tuple[object, ...]:
        """Equal for intervals with equal operations and equal dataflow: tensors are numbered by first occurrence."""
        numbers: dict[int, int] = {}
        rows = []
        for index in ops:
            op = self.step.graph.ops[index]
            tensors = tuple(numbers.setdefault(t, len(numbers)) for t in (*op.operands, *op.results))
            rows.append((id(tables.ops[index].strategies), tensors))
        carried = sorted((numbers[a], numbers[b]) for a, b in self.step.tied if a in numbers and b in numbers)
        return (*rows, tuple(carried), self.methods.signature(self.method, numbers))

    def _solve(
        self, tables: IntraOpTables, ops: Sequence[int], forward: Sequence[int]
    ) -> tuple[float, float, float, float]:
        try:
            restriction = self.methods.restriction(self.method, tables, ops)
        except UserError as error:
            self.refusals.append(str(error))
            return float("inf"), 0.0, 0.0, 0.0
        problem = tables.problem(ops, fixed=restriction.fixed, allowed=restriction.allowed, tied=self.step.tied)
        solution = solve(problem.problem)
        if not solution.choice:
            return float("inf"), 0.0, 0.0, 0.0
        plan = problem.decode(solution)
        cost, held = plan.summary(), self._held_bytes(plan)
        batches = self.problem.num_microbatches
        return (
            cost.seconds / batches,
            plan.summary(forward).seconds / batches,
            float(held),
            float(max(cost.peak_bytes - held, 0)),
        )

    def _held_bytes(self, plan: IntraOpPlan) -> int:
        """Bytes a device holds of what the body is given: weights and accumulators."""
        given = set(self.problem.graph.inputs) & plan.shardings.keys()
        return sum(self._local_bytes(tensor, plan.shardings[tensor]) for tensor in given)

    def _local_bytes(self, tensor: int, sharding: Sharding) -> int:
        tiles = int(np.prod(sharding.tile_counts(self.mesh), dtype=np.int64))
        return self.step.graph.tensors[tensor].size_bytes // tiles
