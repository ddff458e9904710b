"""The intra-operator problem of a graph on one mesh: which strategy each operation and each input
tensor takes.

The formulation is Alpa's (arXiv 2201.12023, section 4.2) over strategies from sharding rules: a
node pays for its compute and its own collectives, an edge for resharding between what the producer
makes and what the consumer wants. Inputs (weights, optimizer state, accumulators, boundary values)
are nodes that choose among all even shardings.

Alpa's edges charge a resharding to each reader, while a module has it once for all that share it
(`find_reshards`). `sharing` says which edges have which steps in common, and `solve` minimizes what
the module costs.

    tables = IntraOpTables(graph, mesh, cluster)   # once for each (graph, mesh)
    problem = tables.problem(range(100, 300))      # any of its operations, from the same tables
    plan = problem.decode(problem.solve())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from math import fsum

import numpy as np

from shardopt.cost.host_link import host_seconds
from shardopt.graph.op_graph import MARKER, Op, OpGraph
from shardopt.graph.residency import Residency, host_moves, travels
from shardopt.graph.windows import is_far
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import Problem, Solution
from shardopt.solve.assignment.search.restriction import solve_in_steps
from shardopt.solve.assignment.sharing.arcs import SharedEdges
from shardopt.solve.assignment.sharing.possible import possible_sharing
from shardopt.solve.assignment.sharing.price_splitting import solve_shared
from shardopt.solve.assignment.sharing.shared_edges import Sharing
from shardopt.solve.sharding.intra_op.builder import ProblemBuilder, SharedReads
from shardopt.solve.sharding.intra_op.communication import find_communication
from shardopt.solve.sharding.intra_op.copies import copies_after_others, find_copies
from shardopt.solve.sharding.intra_op.graph_kernels import GraphKernels
from shardopt.solve.sharding.intra_op.lifetimes import Lifetime, Lifetimes, live_bytes
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.rematerialized import Rematerialized, fresh_copies, with_gaps
from shardopt.solve.sharding.intra_op.sharded_ops import (
    FreshCopies,
    ShardedOps,
    Transient,
    local_bytes,
)
from shardopt.solve.sharding.kernels.execution_order import ExecutionOrder
from shardopt.solve.sharding.kernels.fusion import Fusion
from shardopt.solve.sharding.kernels.kernel_bytes import Accesses
from shardopt.solve.sharding.strategies.constraints import Constraints
from shardopt.solve.sharding.strategies.layouts import Column
from shardopt.solve.sharding.strategies.linear import REDUCED, Linear
from shardopt.solve.sharding.strategies.simpler import NodeColumns, simpler_masks
from shardopt.solve.sharding.strategies.strategies import Strategy
from shardopt.solve.sharding.strategies.tables import OpStrategies, StrategyTables
from shardopt.support.errors import UserError
from shardopt.support.spans import timed

Tied = Iterable[tuple[int, int]]

UNCONSTRAINED = Constraints()


def build_problem(
    graph: OpGraph,
    mesh: Mesh,
    cluster: Cluster,
    *,
    fixed: Mapping[int, Sharding] | None = None,
    allowed: Mapping[int, Sequence[int]] | None = None,
    tied: Tied = (),
    memory_limit_bytes: int | None = None,
) -> IntraOpProblem:
    """The problem of the whole graph; see `IntraOpTables.problem`."""
    tables = IntraOpTables(graph, mesh, cluster)
    return tables.problem(
        fixed=fixed, allowed=allowed, tied=tied, memory_limit_bytes=memory_limit_bytes
    )


class IntraOpTables:
    """A graph with the strategies of all its operations on one mesh; problems of any part of it are
    cut from here."""

    @timed("sharding program: strategies")
    def __init__(
        self,
        graph: OpGraph,
        mesh: Mesh,
        cluster: Cluster,
        constraints: Constraints = UNCONSTRAINED,
        linear: Sequence[Linear] = (),
        strategies: StrategyTables | None = None,
        kernels: GraphKernels | None = None,
    ) -> None:
        """`linear` says for each operation which values may be unreduced (`linear`): by default
        none. `strategies` are those of this mesh, where another graph has made some, and `kernels`
        those of this graph, where they are known for such devices."""
        self.graph = graph
        self.mesh = mesh
        self.constraints = constraints
        self.strategies = strategies or StrategyTables(mesh, cluster)
        self.linear = linear
        fusing = self.strategies.device.fusing
        if kernels is None or kernels.fusing != fusing:
            kernels = GraphKernels(graph, fusing)
        self.kernels = kernels
        self.ops: tuple[OpStrategies, ...] = tuple(
            map(self._strategies, graph.ops, linear or repeat(REDUCED), self.kernels.accesses)
        )

    def _strategies(self, op: Op, linear: Linear, accesses: Accesses) -> OpStrategies:
        if op.name == MARKER and op.results[0] in self.constraints.allowed:
            return self.strategies.marker(self.constraints.allowed[op.results[0]])
        return self.strategies.of(op, self.graph.tensors, linear, accesses)

    def _even(self, columns: Mapping[int, Column]) -> dict[int, tuple[Sharding, ...]]:
        """The shardings without padding of tensors that may have no other, where they have one."""
        limited = {}
        partitioned = self.constraints.partitioned
        even_tensors = self.constraints.even if partitioned else columns.keys()
        for tensor in sorted(even_tensors & columns.keys()):
            shape, distinct = self.graph.tensors[tensor].shape, columns[tensor].distinct
            even = tuple(sharding for sharding in distinct if sharding.is_even(self.mesh, shape))
            if len(even) < len(distinct):
                limited[tensor] = even
        return limited

    def _permitted(self) -> dict[int, list[int]]:
        """The strategies without forbidden axes, and those that need no partitioner where there is
        none; the replicated one is among them."""
        permits, partitioned = self.constraints.permits, self.constraints.partitioned
        limited = self.constraints.forbidden if partitioned else range(len(self.ops))
        return {
            index: [
                number
                for number, strategy in enumerate(self.ops[index].strategies)
                if permits(index, strategy) and (partitioned or self._is_plain(index, strategy))
            ]
            for index in limited
        }

    def _is_plain(self, index: int, strategy: Strategy) -> bool:
        """Whether operands have no padding, and borders come from neighbours."""
        op, tensors = self.graph.ops[index], self.graph.tensors
        return all(
            sharding.is_even(self.mesh, tensors[tensor].shape)
            for tensor, sharding in zip(op.operands, strategy.operands, strict=True)
        ) and not any(
            is_far(window, strategy.operands[0].tile_counts(self.mesh)[window.dim])
            for window in op.windows
        )

    @cached_property
    def producers(self) -> tuple[int, ...]:
        return self.graph.producers()

    @property
    def execution(self) -> ExecutionOrder:
        return self.kernels.execution

    @property
    def fusion(self) -> Fusion:
        return self.kernels.fusion

    @property
    def cheap_to_clone(self) -> frozenset[int]:
        """See `find_cheap_to_clone`."""
        return self.kernels.cheap_to_clone

    def column(self, tensor: int) -> Column:
        """The shardings a tensor may have: those of its operation, or all when it is an input."""
        producer = self.producers[tensor]
        if producer < 0:
            allowed = self.constraints.allowed.get(tensor)
            shape = self.graph.tensors[tensor].shape
            return (
                self.strategies.choices(shape)
                if allowed is None
                else self.strategies.column(allowed)
            )
        return self.ops[producer].results[self.graph.ops[producer].results.index(tensor)]

    @timed("sharding program: build")
    def problem(
        self,
        ops: Iterable[int] | None = None,
        *,
        fixed: Mapping[int, Sharding] | None = None,
        allowed: Mapping[int, Sequence[int]] | None = None,
        tied: Tied = (),
        transient: Transient = (),
        memory_limit_bytes: int | None = None,
        residency: Residency | None = None,
    ) -> IntraOpProblem:
        """The problem of the operations `ops` (all by default), which are taken in program order.

        `fixed` gives tensors their sharding; `allowed` limits operations to some of their
        strategies (number 0 runs in full on every device). `tied` pairs must end with equal
        shardings; the second of a pair lives in the memory of the first (a donated argument and its
        result, an accumulator before and after). Copies of `transient` tensors are dropped after
        use. Tensors and operations outside of the part are ignored. `memory_limit_bytes` bounds the
        bytes that a device holds at any time, apart from copies of operands; these and recomputed
        values are the business of `budget`. `residency` says what lives longer than the order of
        operations tells.

        Raises ImpossibleSharding for a fixed sharding that no strategy of the operation can make.
        """
        fixed, tied = fixed or {}, tuple((a, b) for a, b in tied if a != b)
        # What is demanded of a value, or ties it to another, must hold for all of its readers.
        pinned = {*fixed, *self.constraints.allowed, *(tensor for pair in tied for tensor in pair)}
        ops = tuple(range(len(self.graph.ops))) if ops is None else tuple(sorted(ops))
        builder = ProblemBuilder(self, ops, self.cheap_to_clone - pinned)
        # The whole graph holds inputs that nobody reads as well, a part only what it reads.
        inputs = self.graph.inputs if len(ops) == len(self.graph.ops) else ()
        residency = residency or Residency()
        replaced = {b: a for a, b in tied}
        builder.add_nodes(
            inputs,
            travels(host_moves(self.graph.ops, residency.on_host, replaced), replaced),
        )
        builder.add_edges()
        builder.tie(tied)
        builder.limit(self.constraints.allowed)
        builder.limit(self._even(builder.columns))
        builder.limit({tensor: (sharding,) for tensor, sharding in fixed.items()})
        builder.allow(self._permitted())
        builder.allow(allowed or {})
        return self._finished(builder, transient, memory_limit_bytes, residency)

    def _finished(
        self,
        builder: ProblemBuilder,
        transient: Transient,
        limit: int | None,
        residency: Residency,
    ) -> IntraOpProblem:
        execution = self.execution
        inside = set(builder.ops)
        order = tuple(op for op in execution.order if op in inside)
        lives = Lifetimes(
            self.graph, execution, order, builder.inputs, builder.aliases, residency
        ).all()
        usages = None if limit is None else builder.usages(lives)
        problem = Problem(
            tuple(builder.costs), tuple(builder.edges), usages, limit, len(builder.ops)
        )
        return IntraOpProblem(
            tables=self,
            ops=builder.ops,
            inputs=tuple(builder.inputs),
            columns=builder.columns,
            cheap_to_clone=builder.cheap_to_clone,
            lifetimes=lives,
            problem=problem,
            groups=tuple(builder.groups),
            shared_reads=tuple(builder.shared_reads),
            node_of=builder.node_of,
            order=order,
            aliases=builder.aliases,
            transient=transient,
            residency=residency,
        )


@dataclass(frozen=True, eq=False)
class IntraOpProblem:
    """The arrays for the solver, and what they mean: node n < len(ops) is an operation, the others
    are `inputs`.

    The times of memory are positions in `order`, in which the operations run. Copies of `transient`
    tensors in other shardings are dropped after use, and made anew for later readers.
    """

    tables: IntraOpTables
    ops: tuple[int, ...]
    inputs: tuple[int, ...]
    columns: Mapping[int, Column]
    cheap_to_clone: frozenset[int]
    lifetimes: tuple[Lifetime, ...]
    problem: Problem
    groups: tuple[SharedEdges, ...]
    shared_reads: tuple[SharedReads, ...]
    node_of: Mapping[int, int]
    order: tuple[int, ...]
    aliases: Mapping[int, int]
    transient: Transient
    residency: Residency

    @cached_property
    def places(self) -> dict[int, int]:
        """The position of each operation in `order`."""
        return {op: place for place, op in enumerate(self.order)}

    @cached_property
    def sharing(self) -> Sharing:
        """What `problem`, in which each reader pays for itself, has in common."""
        return Sharing(self.problem, self.groups)

    def seconds(self, choice: Sequence[int]) -> float:
        """What an assignment costs, every shared step once; inf if it is forbidden."""
        return self.sharing.seconds(tuple(choice))

    def plan_seconds(self, plan: IntraOpPlan) -> float:
        """What a plan costs in the terms of the objective, with what it recomputes or makes
        anew."""
        cost, columns = plan.summary(), self.columns
        inputs = (
            self.problem.costs[node][columns[tensor].shardings.index(plan.shardings[tensor])]
            for node, tensor in enumerate(self.inputs, len(self.ops))
            if tensor not in self.cheap_to_clone
        )
        moved = fsum(map(float, inputs)) + self._waiting_seconds(plan)
        return cost.compute_seconds + cost.communication_seconds + moved

    def _waiting_seconds(self, plan: IntraOpPlan) -> float:
        """Of what is made and waits on hosts, on its way there and back."""
        graph, mesh, strategies = self.tables.graph, plan.mesh, self.tables.strategies
        waiting = self.residency.on_host.difference(graph.inputs)
        link = strategies.cluster.group_of(mesh).host_link
        return fsum(
            times * host_seconds(link, local_bytes(graph, mesh, tensor, plan.shardings[tensor]))
            for _, tensor, times in host_moves(graph.ops, waiting, {})
        )

    def with_residency(self, residency: Residency) -> IntraOpProblem:
        """The same problem for other facts about memory; only for one without a memory limit, which
        has usages."""
        assert self.problem.usages is None
        tables = self.tables
        lives = Lifetimes(
            tables.graph, tables.execution, self.order, self.inputs, self.aliases, residency
        )
        return replace(self, lifetimes=lives.all(), residency=residency)

    @timed("sharding program: solve")
    def solve(
        self,
        limits: SearchLimits = NO_LIMITS,
        start: Sequence[int] | None = None,
    ) -> Solution:
        """Least cost within memory; a large problem is first solved for some of its strategies
        (`simpler`), and layers that repeat are solved once.

        However little the limits allow, the plan is no worse than `start` (the assignment of a
        preset, say), by default everything in full on every device, if that is allowed."""
        if start is None:
            # The first strategy and the first sharding of each are whole.
            start = (0,) * self.problem.num_nodes
        possible = possible_sharing(self.sharing)
        masks = possible.masks(simpler_masks(self.tables.mesh, self._shardings_of_nodes))
        store = self.tables.strategies.store

        def run(problem: Problem, start: Sequence[int] | None, limits: SearchLimits) -> Solution:
            return solve_in_steps(problem, masks, limits, start=start, store=store)

        begin = possible.restricted.project(start)
        solution = solve_shared(possible.sharing, run, limits, begin)
        choice = solution.choice and possible.restricted.spread(solution.choice)
        return replace(solution, choice=choice)

    @property
    def _shardings_of_nodes(self) -> list[NodeColumns]:
        """The columns of what each node decides about."""
        ops = (self.tables.ops[index] for index in self.ops)
        return [
            *((*op.operands, *op.results) for op in ops),
            *((self.columns[tensor],) for tensor in self.inputs),
        ]

    def decode(
        self,
        solution: Solution,
        rematerialized: tuple[Rematerialized, ...] = (),
        fresh: FreshCopies = frozenset(),
    ) -> IntraOpPlan:
        """The plan of a solution, with values recomputed and copies made anew; what is recomputed
        brings copies of its own, and others of it are not. Raises UserError when there is no plan.

        Choices of nodes behind those of this problem are ignored.
        """
        if not solution.choice:
            raise UserError(
                f"no sharding found on mesh {self.tables.mesh}: {solution.statistics.get('reason')}"
            )
        strategies = self.strategies(solution.choice)
        shardings = {
            tensor: self.columns[tensor].shardings[choice]
            for tensor, choice in zip(self.inputs, solution.choice[len(self.ops) :], strict=False)
        }
        for op, strategy in strategies.items():
            shardings.update(zip(self.tables.graph.ops[op].results, strategy.results, strict=True))
        shardings.update(self._of_first_readers(strategies))
        graph, mesh, cluster = self.tables.graph, self.tables.mesh, self.tables.strategies.cluster
        recomputed = {remat.tensor for remat in rematerialized}
        fresh = frozenset(copy for copy in fresh if copy[0] not in recomputed)
        fresh |= fresh_copies(graph, strategies, rematerialized)
        fused = self.tables.fusion.fused
        sharded = ShardedOps(graph, mesh, shardings, strategies, self.cheap_to_clone, fused, fresh)
        again = copies_after_others(sharded, self.order, self.transient)
        sharded = replace(sharded, fresh=fresh | again)
        return IntraOpPlan(
            **vars(sharded),
            communication=find_communication(sharded, cluster),
            order=self.order,
            live_bytes=self._live_bytes(sharded, rematerialized),
            rematerialized=rematerialized,
        )

    def strategies(self, choice: Sequence[int]) -> dict[int, Strategy]:
        """Those of the operations, by the choice of a solution."""
        return {
            op: self.tables.ops[op].strategies[number]
            for op, number in zip(self.ops, choice, strict=False)
        }

    def _live_bytes(
        self, sharded: ShardedOps, rematerialized: tuple[Rematerialized, ...]
    ) -> np.ndarray:
        graph, mesh, shardings = sharded.graph, sharded.mesh, sharded.shardings
        lives, needed = with_gaps(graph, mesh, self.lifetimes, shardings, rematerialized)
        copies = find_copies(sharded, enumerate(self.order))
        return live_bytes(graph, mesh, lives, shardings, (*copies, *needed), len(self.order))

    def _of_first_readers(self, strategies: Mapping[int, Strategy]) -> dict[int, Sharding]:
        """A value that is cheap to clone gets the sharding of its first reader, so that most need
        no second copy."""
        shardings: dict[int, Sharding] = {}
        for op, strategy in strategies.items():
            for tensor, sharding in zip(
                self.tables.graph.ops[op].operands, strategy.operands, strict=True
            ):
                if tensor in self.cheap_to_clone:
                    shardings.setdefault(tensor, sharding.reduced())
        return shardings
