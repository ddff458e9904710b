"""Random programs under random plans in which random values are recomputed, or resharded once
more, for random readers: whatever is decided, the rewriting gives a valid module with the numbers
of one device."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace

import jax
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
from shardopt.extract.mesh_graphs import MeshGraph, read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.forms.shardy import to_shardy
from shardopt.graph.op_graph import Op
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Mesh, parse_mesh
from shardopt.passes.sharding.decide.writing import write_plans
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.reference import run_reference
from shardopt.solve.sharding.intra_op import IntraOpTables
from shardopt.solve.sharding.intra_op_plan import IntraOpPlan
from shardopt.solve.sharding.linear import find_linear
from shardopt.solve.sharding.strategies import Strategy
from tests.e2e.test_random_unreduced import SIDE, open_plan, random_program
from tests.e2e.test_sharding_against_xla import SLOW, Compiled, check_numbers, stage_function

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


def compile_at_random(seed: int, mesh: Mesh) -> tuple[Compiled, int]:
    """The program of a seed under a random plan with random rows, and how many rows it has."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(3)]
    exported = jax.export.export(jax.jit(random_program(seed), keep_unused=True))(*inputs)
    with make_context() as context, ir.Location.unknown():
        module = load_module(bytes(exported.mlir_module_serialized), context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        reference = run_reference(module, inputs)
        [main] = functions(module)
        with sharding_rules(module):
            graph = read_plain(main, mesh)
        linear = find_linear(graph.graph, graph.tied)
        tables = IntraOpTables(graph.graph, mesh, SLOW, linear=linear)
        plan = open_plan(tables.problem(), rng)
        write_plans(module, main, [graph], [plan])
        rows = (*read_rematerialization(main), *random_rows(graph, tables, plan, rng))
        write_rematerialization(main, rows)
        run_pipeline(
            module,
            "builtin.module(shardopt-verify-chosen,shardopt-rematerialize,shardopt-verify-chosen,"
            "shardopt-insert-reshards,shardopt-annotate-shardings,shardopt-verify-sharded)",
        )
        function = stage_function(module, mesh)
        to_shardy(module, mesh)
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
    function = replace(function, bytecode=buffer.getvalue())
    return Compiled((), (), mesh, function, reference, inputs), len(rows)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_recomputed_has_the_numbers_of_one_device(seed: int) -> None:
    compiled, count = compile_at_random(seed, parse_mesh("2x2"))
    assert count > 0
    check_numbers(compiled)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "first"), [("2x2", 100), ("4", 200), ("2x2x2", 300)])
def test_more_of_what_is_recomputed_has_the_numbers_of_one_device(mesh: str, first: int) -> None:
    for seed in range(first, first + 4):
        compiled, _ = compile_at_random(seed, parse_mesh(mesh))
        check_numbers(compiled)
