"""Random small problems, and all programs that their plans can be, counted one by one. Nothing here
knows how a plan within a budget is searched for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np

from shardopt.cost.resharding_chain import resharding_steps
from shardopt.graph.op_graph import MARKER, Op, OpGraph
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.budget.rematerialization import (
    find_candidates,
    recipe,
    rematerialized,
)
from shardopt.solve.sharding.intra_op.finished import finished
from shardopt.solve.sharding.intra_op.lifetimes import live_bytes
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables
from shardopt.solve.sharding.intra_op.rematerialized import Rematerialized, with_gaps
from shardopt.solve.sharding.strategies.linear import find_linear
from tests.unit.solve.sharding.op_graphs import CLUSTER, LINE, MESH, elementwise, f32, matmul, rule

PAIR = Mesh("m", (("x", 2),), (0, 1))
SQUARE = (8, 8)
_IDENTITY = rule("ab->ab", dict(zip("ab", SQUARE, strict=True)))
_PRODUCT, _OF_TWO, _OF_ONE = "dot_general", ("add", "power"), ("tanh", "exponential", "sort")
_KINDS = (_PRODUCT, _PRODUCT, *_OF_TWO, *_OF_ONE, "constant", MARKER)
# Strategies that an operation may have, by the number of operations: so that all can be tried.
_MOST_STRATEGIES = {3: 6, 4: 4, 5: 3, 6: 3, 7: 2}


def random_graph(rng: random.Random, count: int) -> OpGraph:
    """Operations over 8 x 8 tensors, in one group or two; inputs are tensors 0 and 1."""
    ops = []
    for result in range(2, count + 2):
        kind, some = rng.choice(_KINDS), tuple(rng.randrange(result) for _ in range(2))
        if kind == _PRODUCT:
            ops.append(matmul(*SQUARE, SQUARE[1], some, result))
        elif kind == MARKER:
            ops.append(Op(MARKER, some[:1], (result,), _IDENTITY))
        else:
            operands = some[: 2 if kind in _OF_TWO else kind in _OF_ONE]
            ops.append(elementwise(kind, SQUARE, operands, result))
    cut = rng.choice((0, 0, rng.randrange(1, count)))
    ops = [replace(op, group=int(number >= cut)) for number, op in enumerate(ops)]
    read = {tensor for op in ops for tensor in op.operands}
    unread = set(range(2, count + 2)) - read
    outputs = unread | {rng.randrange(2, count + 2)}
    return OpGraph((f32(*SQUARE),) * (count + 2), tuple(ops), (0, 1), tuple(sorted(outputs)))


@cache
def random_problem(seed: int, count: int) -> IntraOpProblem:
    """Of a random graph on two or four devices of several kinds, with some of the strategies."""
    rng = random.Random(seed)
    mesh = rng.choice((PAIR, PAIR, LINE, MESH))
    cluster = rng.choice((CLUSTER, load_cluster("a100-80g:1x4"), load_cluster("cpu-test:1x4")))
    graph = random_graph(rng, count)
    linear = find_linear(graph, (), ()) if rng.random() < 0.5 else ()
    tables = IntraOpTables(graph, mesh, cluster, linear=linear)
    allowed = {}
    for number, op in enumerate(tables.ops):
        most = min(_MOST_STRATEGIES[count], len(op.strategies))
        allowed[number] = sorted(rng.sample(range(len(op.strategies)), most))
    fixed = {
        tensor: rng.choice(tables.column(tensor).distinct)
        for tensor in graph.inputs
        if mesh is MESH or count > 5
    }
    return tables.problem(allowed=allowed, fixed=fixed)


def assignments(problem: IntraOpProblem) -> Iterator[tuple[int, ...]]:
    """All that are not forbidden."""
    possible = [np.flatnonzero(np.isfinite(cost)).tolist() for cost in problem.problem.costs]
    edges = problem.problem.edges

    def from_node(node: int, choice: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if node == len(possible):
            yield choice
            return
        for strategy in possible[node]:
            longer = (*choice, strategy)
            ends = (e for e in edges if max(e.u, e.v) == node)
            if all(np.isfinite(e.cost[longer[e.u], longer[e.v]]) for e in ends):
                yield from from_node(node + 1, longer)

    yield from from_node(0, ())


def programs(problem: IntraOpProblem, choice: tuple[int, ...], limit: int) -> Iterator[IntraOpPlan]:
    """The plans of an assignment that differ in what is recomputed and who makes a copy anew; some
    that exceed the limit are left out."""
    plain = decode(problem, choice)
    for remats in recomputations(problem, plain):
        lives, _ = with_gaps(plain.graph, plain.mesh, problem.lifetimes, plain.shardings, remats)
        values = live_bytes(plain.graph, plain.mesh, lives, plain.shardings, (), len(problem.order))
        if values.max(initial=0) > limit:
            continue
        own = {remat.tensor for remat in remats}
        later = [read for read in later_reads(problem, plain) if read[0] not in own]
        for size in range(len(later) + 1):
            for fresh in combinations(later, size):
                yield decode(problem, choice, remats, fresh)


def decode(
    problem: IntraOpProblem,
    choice: tuple[int, ...],
    remats: tuple[Rematerialized, ...] = (),
    fresh: tuple[tuple[int, Sharding, int], ...] = (),
) -> IntraOpPlan:
    return problem.decode(Solution(choice, 0.0, 0.0, 0.0, "feasible"), remats, frozenset(fresh))


def recomputations(
    problem: IntraOpProblem, plan: IntraOpPlan
) -> Iterator[tuple[Rematerialized, ...]]:
    """All sets of values that can be recomputed without communication."""
    rows = []
    for candidate in find_candidates(problem):
        how = recipe(problem, candidate, plan.shardings[candidate.tensor])
        if how is not None and all(
            source in problem.cheap_to_clone or not exchanged(plan, source, sharding)
            for source, sharding in how.sources.items()
        ):
            rows.append(rematerialized(candidate, how))
    for size in range(len(rows) + 1):
        yield from combinations(rows, size)


def exchanged(plan: IntraOpPlan, tensor: int, wanted: Sharding) -> bool:
    value, source = plan.graph.tensors[tensor], plan.shardings[tensor]
    return bool(resharding_steps(source, wanted, plan.mesh, value.shape, value.itemsize))


def later_reads(problem: IntraOpProblem, plan: IntraOpPlan) -> list[tuple[int, Sharding, int]]:
    """The reads of copies that an operation before has read."""
    reads, seen = [], set[tuple[int, Sharding, tuple[int, int]]]()
    for index in problem.ops:
        op, here = plan.graph.ops[index], set[tuple[int, Sharding, tuple[int, int]]]()
        for tensor, wanted in zip(op.operands, plan.strategies[index].operands, strict=True):
            is_marker = op.name == MARKER and op.results[0] in plan.graph.handed_on
            moves = tensor not in problem.cheap_to_clone and plan.shardings[tensor] != wanted
            if not moves or is_marker:
                continue
            if tensor not in plan.fused or exchanged(plan, tensor, wanted):
                copy = plan.origin(tensor), wanted, op.scope
                if copy in seen and (tensor, wanted, index) not in reads:
                    reads.append((tensor, wanted, index))
                here.add(copy)
        seen |= here
    return reads


def peak_bytes(problem: IntraOpProblem, plan: IntraOpPlan) -> int:
    """Of the order without copies and of the finished program, both of which have to fit."""
    return max(plan.peak_bytes, finished(problem, plan).peak_bytes)
