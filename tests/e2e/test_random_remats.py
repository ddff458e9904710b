"""Random programs under random plans in which random values are recomputed, or resharded once
more, for random readers: whatever is decided, the rewriting gives a valid module with the numbers
of one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.dialect.rematerialization import (
    Recompute,
    SeparateCopy,
    read_rematerialization,
    write_rematerialization,
)
from shardopt.dialect.strategy import OpStrategy
from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.graph.op_graph import Op
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import parse_mesh
from shardopt.passes.sharding.decide.writing import write_plans
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.strategies import Strategy
from tests.e2e.test_random_unreduced import compile_at_random, open_plan
from tests.e2e.test_sharding_against_xla import check_numbers

ROWS = 4  # of one program


def random_rows(
    graph: MeshGraph, tables: IntraOpTables, plan: IntraOpPlan, rng: np.random.Generator
) -> Iterator[Recompute | SeparateCopy]:
    """Any value may be recomputed for readers that do not want it unreduced, with some of what it
    is made from, and with any strategies; later rows may recompute what earlier ones have
    changed."""
    ops, producers = graph.graph.ops, graph.graph.producers()
    readers = {
        t: [number for number, op in enumerate(ops) if _wants_reduced(op, t, plan, number)]
        for t in range(len(graph.graph.tensors))
    }
    makers = [n for n, op in enumerate(ops) if len(op.results) == 1 and readers[op.results[0]]]
    for _ in range(ROWS):
        last = int(rng.choice(makers))
        behind = readers[ops[last].results[0]]
        some = tuple(sorted(rng.choice(behind, rng.integers(1, len(behind) + 1), replace=False)))
        chosen = tuple(int(number) for number in some)
        if rng.random() < 0.3:
            yield SeparateCopy(ops[chosen[0]].operands.index(ops[last].results[0]), chosen)
            continue
        chain = _chain(last, ops, producers, rng)
        drawn = (tables.ops[number].strategies for number in chain)
        picked = [strategies[rng.integers(len(strategies))] for strategies in drawn]
        if any(map(_adds_later, picked)):
            continue
        strategies = tuple(OpStrategy.plain(each.operands, each.results) for each in picked)
        yield Recompute(chain, strategies, chosen)


def _wants_reduced(op: Op, tensor: int, plan: IntraOpPlan, number: int) -> bool:
    required = zip(op.operands, plan.strategies[number].operands, strict=True)
    shardings = [sharding for operand, sharding in required if operand == tensor]
    return bool(shardings) and not any(each.unreduced for each in shardings)


def _adds_later(strategy: Strategy) -> bool:
    """True where a sum is scattered, or a value unreduced: its readers cannot then be chosen
    without it."""
    shardings = (*strategy.operands, *strategy.results)
    return strategy.unscattered != strategy.results or any(each.unreduced for each in shardings)


def _chain(
    last: int, ops: Sequence, producers: Sequence[int], rng: np.random.Generator
) -> tuple[int, ...]:
    """The operation and, with luck, one that it reads, and one that this reads."""
    chain = [last]
    while len(chain) < 3 and rng.random() < 0.5:
        before = [producers[t] for t in ops[chain[0]].operands]
        before = [number for number in before if number >= 0 and len(ops[number].results) == 1]
        if not before:
            break
        chain.insert(0, int(rng.choice(before)))
    return tuple(sorted(set(chain)))


def recompute_at_random(
    module: ir.Module, graph: MeshGraph, tables: IntraOpTables, rng: np.random.Generator
) -> bool:
    """A random plan with random rows beside its own, if any."""
    plan = open_plan(tables.problem(), rng)
    [main] = functions(module)
    write_plans(module, main, [graph], [plan], tables.strategies.cluster)
    rows = (*read_rematerialization(main), *random_rows(graph, tables, plan, rng))
    write_rematerialization(main, rows)
    return bool(rows)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_recomputed_has_the_numbers_of_one_device(seed: int) -> None:
    compiled = compile_at_random(seed, parse_mesh("2x2"), recompute_at_random)
    assert compiled is not None
    check_numbers(compiled)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "first"), [("2x2", 100), ("4", 200), ("2x2x2", 300)])
def test_more_of_what_is_recomputed_has_the_numbers_of_one_device(mesh: str, first: int) -> None:
    for seed in range(first, first + 4):
        compiled = compile_at_random(seed, parse_mesh(mesh), recompute_at_random)
        assert compiled is not None
        check_numbers(compiled)
