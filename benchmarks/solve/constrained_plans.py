"""Whether a plan with constraints is ever cheaper than the one that is called optimal without.

    python -m benchmarks.solve.constrained_plans [--programs 500] [--sets 50] [--ops 8]

Random programs of products and elementwise operations, whose values are read once to many times, on
meshes of one and two axes. Each is planned without constraints, and then with random sets of
constraints, which give one to three values a sharding that the operation can make. What a plan with
constraints costs is an upper bound of the optimum without: it must not be below the bound, nor,
where the first plan is called optimal, below its cost."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass

from shardopt.graph.op_graph import FactorRule, Op, OpGraph, Tensor
from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.sharding.intra_op.builder import ImpossibleSharding
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables

MESHES = (Mesh("m", (("x", 4),), (0, 1, 2, 3)), Mesh("m", (("x", 2), ("y", 2)), (0, 1, 2, 3)))
# Devices about as slow as their links, so that neither splitting nor replicating always pays.
_CLUSTER = Cluster.uniform(
    "random", 1, 4, Device("d", {"f32": 4e9}, 1 << 30, 4e9), Link(1e-7, 1e9), Link(1e-7, 1e9), 0.0
)
_EXTENTS = (8, 16, 64)
_ROUNDING = 1e-9
# Enough to prove of nearly all plans with constraints that they cost no less, in a quarter of the
# time that closing their gaps takes.
_LITTLE = SearchLimits(gap_tolerance=0.3, work=1_000_000)
# Enough for all rounds of prices, which find the plans; integer programs end after their first
# iterations, as only the free plan has to be proven.
_MORE = SearchLimits(work=1_000_000)


@dataclass
class Counts:
    """What was tried: constrained plans, those that are impossible, and free plans that are proven,
    cost less than if every reader paid alone, or are contradicted."""

    programs: int = 0
    constrained: int = 0
    impossible: int = 0
    proven: int = 0
    shared: int = 0
    contradicted: int = 0
    widest_gap: float = 0.0


def random_program(rng: random.Random, num_ops: int) -> OpGraph:
    """Products and sums of matrices of equal extents; few values are read by many."""
    extent = rng.choice(_EXTENTS)
    tensor = Tensor((extent, extent), "f32", 4)
    ops: list[Op] = []
    for result in range(3, 3 + num_ops):
        favourites = rng.sample(range(result), 2)
        operands = tuple(rng.choice([*favourites, rng.randrange(result)]) for _ in range(2))
        ops.append(_op(rng.random() < 0.6, extent, operands, result))
    outputs = tuple(sorted(rng.sample(range(3, 3 + num_ops), 2)))
    return OpGraph((tensor,) * (3 + num_ops), tuple(ops), (0, 1, 2), outputs)


def _op(is_product: bool, extent: int, operands: tuple[int, ...], result: int) -> Op:
    if not is_product:
        rule = FactorRule((extent,) * 2, (((0,), (1,)),) * 2, (((0,), (1,)),))
        return Op("add", operands, (result,), rule, flops=float(extent**2))
    sides = (((0,), (2,)), ((2,), (1,)))
    rule = FactorRule((extent,) * 3, sides, (((0,), (1,)),), reduction=frozenset({2}))
    return Op("dot_general", operands, (result,), rule, reducer="add", flops=2.0 * extent**3)


def random_constraints(rng: random.Random, problem: IntraOpProblem) -> dict[int, Sharding]:
    values = rng.sample(sorted(problem.columns), rng.randint(1, 3))
    return {value: rng.choice(problem.columns[value].distinct) for value in values}


def compare(programs: int, sets: int, num_ops: int) -> Counts:
    counts = Counts()
    for seed in range(programs):
        rng = random.Random(seed)
        graph, mesh = random_program(rng, num_ops), MESHES[seed % len(MESHES)]
        free = IntraOpTables(graph, mesh, _CLUSTER).problem()
        best = free.solve()
        counts.programs += 1
        counts.proven += best.status == "optimal"
        alone = float(best.statistics.get("pair_objective", best.objective))
        counts.shared += best.objective < alone * (1 - _ROUNDING)
        counts.widest_gap = max(counts.widest_gap, best.gap)
        least = best.objective if best.status == "optimal" else best.bound
        for cost in _constrained(rng, free, sets, least):
            counts.constrained += cost is not None
            counts.impossible += cost is None
            counts.contradicted += cost is not None and cost < least * (1 - _ROUNDING)
    return counts


def _constrained(
    rng: random.Random, free: IntraOpProblem, sets: int, least: float
) -> Iterator[float | None]:
    """What the plan of each set of constraints costs; None where there is none."""
    for _ in range(sets):
        fixed = random_constraints(rng, free)
        try:
            problem = free.tables.problem(fixed=fixed)
        except ImpossibleSharding:
            yield None
            continue
        solution = problem.solve(_LITTLE)
        # Only where its bound leaves room for a cheaper plan is the best one worth its time.
        if solution.bound < least * (1 - _ROUNDING):
            solution = problem.solve(_MORE)
        yield solution.objective if solution.choice else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--sets", type=int, default=50)
    parser.add_argument("--ops", type=int, default=8)
    arguments = parser.parse_args()
    counts = compare(arguments.programs, arguments.sets, arguments.ops)
    print(
        f"{counts.programs} programs, {counts.proven} proven optimal, largest gap of the others "
        f"{counts.widest_gap:.2%}, {counts.shared} cheaper than with every reader paying alone; "
        f"{counts.constrained} plans with constraints ({counts.impossible} impossible), of which "
        f"{counts.contradicted} contradict"
    )


if __name__ == "__main__":
    main()
