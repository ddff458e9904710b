"""What a device holds while the program of a plan runs that computes values again or makes copies
anew: counted in that program, as its compiler orders it, not in the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardopt.solve.sharding.intra_op.copies import TensorCopy, find_copies
from shardopt.solve.sharding.intra_op.graph_kernels import GraphKernels
from shardopt.solve.sharding.intra_op.lifetimes import Lifetime, Lifetimes, live_bytes
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.intra_op.rewritten import Rewritten, rewritten
from shardopt.solve.sharding.intra_op.sharded_ops import ShardedOps


@dataclass(frozen=True, eq=False)
class Account:
    """`lives` and `copies` at the positions of `order`, in which `sharded` runs; `home` are the
    operations of the graph that was planned, which those here are or are made for."""

    sharded: ShardedOps
    order: tuple[int, ...]
    lives: Sequence[Lifetime]
    copies: tuple[TensorCopy, ...]
    home: Sequence[int]

    @property
    def live_bytes(self) -> np.ndarray:
        """int64 `[order]`."""
        sharded = self.sharded
        return live_bytes(
            sharded.graph,
            sharded.mesh,
            self.lives,
            sharded.shardings,
            self.copies,
            len(self.order),
        )


def account(problem: IntraOpProblem, plan: IntraOpPlan) -> Account:
    """The account of the program that a plan of the problem leads to."""
    as_it_was = _is_as_it_was(problem, plan)
    program = None if as_it_was else rewritten(plan, plan.rematerialized)
    if program is None:
        copies = find_copies(plan, enumerate(problem.order))
        ops = range(len(plan.graph.ops))
        return Account(plan, problem.order, problem.lifetimes, copies, ops)
    graph = program.graph
    kernels = GraphKernels(graph, problem.tables.kernels.fusing)
    inside = set(problem.ops)
    order = tuple(op for op in kernels.execution.order if program.home[op] in inside)
    residency = program.residency(problem.residency)
    lives = Lifetimes(
        graph, kernels.execution, order, problem.inputs, problem.aliases, residency
    ).all()
    sharded = _sharded(problem, plan, program, kernels)
    return Account(sharded, order, lives, find_copies(sharded, enumerate(order)), program.home)


def finished(problem: IntraOpProblem, plan: IntraOpPlan) -> IntraOpPlan:
    """The plan with the bytes of its program: at each operation the most that is held while that,
    or what was made for it, runs."""
    return plan if _is_as_it_was(problem, plan) else recounted(problem, plan)


def recounted(problem: IntraOpProblem, plan: IntraOpPlan) -> IntraOpPlan:
    """The same of a plan whose bytes were counted for another problem of these operations, which
    holds other numbers of microbatches at once."""
    counted = account(problem, plan)
    most = dict.fromkeys(problem.order, 0)
    for op, size in zip(counted.order, counted.live_bytes.tolist(), strict=True):
        most[counted.home[op]] = max(most[counted.home[op]], size)
    held = np.array([most[op] for op in problem.order], dtype=np.int64)
    return replace(plan, live_bytes=held)


def _is_as_it_was(problem: IntraOpProblem, plan: IntraOpPlan) -> bool:
    """What methods gather again is counted as the stage phase does, which knows no barriers."""
    return not plan.rematerialized and bool(problem.transient or not plan.fresh)


def _sharded(
    problem: IntraOpProblem, plan: IntraOpPlan, program: Rewritten, kernels: GraphKernels
) -> ShardedOps:
    # What was demanded of a value holds on: it is not cheap to clone now if it was not before.
    new = range(len(plan.graph.tensors), len(program.graph.tensors))
    cheap = kernels.cheap_to_clone & {*problem.cheap_to_clone, *new}
    return ShardedOps(
        program.graph,
        plan.mesh,
        program.shardings,
        program.strategies,
        cheap,
        kernels.fusion.fused,
        program.fresh,
    )
