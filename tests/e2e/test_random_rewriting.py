"""Random training steps whose plans recompute values and make copies twice, by random choice and as
the solver asks for it under a memory limit: the rewritten program verifies, does what was decided,
and has the numbers of the original on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from shardopt.extract.control_flow import numbered_operations
from shardopt.extract.mesh_graphs import MeshGraph, read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import defining, functions, operations, past_barriers
from shardopt.mesh.mesh import parse_mesh
from shardopt.passes.sharding.decide.writing import write_plans
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.reference import compare, run_reference
from shardopt.solve.sharding.budget.search import fit
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables
from shardopt.solve.sharding.strategies.linear import find_linear
from tests.e2e.random_steps import RandomStep
from tests.e2e.test_random_remats import random_rows
from tests.e2e.test_random_unreduced import SIDE, open_plan
from tests.e2e.test_sharding_against_xla import SLOW

TOLERANCE = 1e-3  # a product of many factors in float32
MESHES = ("2x2", "4")

Rows = Sequence[Recompute | SeparateCopy]
# The plan of a problem, and rows that it does not have by itself; None where there is no plan.
Choose = Callable[[MeshGraph, IntraOpProblem, np.random.Generator], tuple[IntraOpPlan, Rows] | None]


def at_random(
    graph: MeshGraph, problem: IntraOpProblem, rng: np.random.Generator
) -> tuple[IntraOpPlan, Rows]:
    plan, ops = open_plan(problem, rng), graph.graph.ops
    rows = [*random_rows(graph, problem.tables, plan, rng)]
    # As the solver: within one region.
    return plan, [row for row in rows if len({ops[op].scope for op in _named(row)}) == 1]


def within_a_limit(
    graph: MeshGraph, problem: IntraOpProblem, rng: np.random.Generator
) -> tuple[IntraOpPlan, Rows] | None:
    free = problem.decode(problem.solve()).peak_bytes
    plan = fit(problem, int(free * rng.uniform(0.5, 0.98))).plan
    return None if plan is None else (plan, ())


def _named(row: Recompute | SeparateCopy) -> tuple[int, ...]:
    return (*row.chain, *row.readers) if isinstance(row, Recompute) else row.readers


def rewritten_rows(seed: int, choose: Choose) -> int:
    """Check the step of a seed; how many rows were obeyed."""
    rng, step = np.random.default_rng(seed), RandomStep(seed)
    inputs = [rng.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(3)]
    exported = jax.export.export(jax.jit(step, keep_unused=True))(*inputs)
    with make_context() as context, ir.Location.unknown():
        module = load_module(bytes(exported.mlir_module_serialized), context)
        run_pipeline(module, "builtin.module(shardopt-import,shardopt-mark-carried)")
        reference = run_reference(module, inputs)
        [main] = functions(module)
        with sharding_rules(module):
            graph = read_plain(main, parse_mesh(MESHES[seed % len(MESHES)]))
        linear = find_linear(graph.graph, graph.tied)
        tables = IntraOpTables(graph.graph, graph.mesh, SLOW, linear=linear)
        chosen = choose(graph, tables.problem(tied=tuple(graph.tied)), rng)
        if chosen is None:
            return 0
        write_plans(module, main, [graph], [chosen[0]], tables.strategies.cluster)
        rows = (*read_rematerialization(main), *chosen[1])
        write_rematerialization(main, rows)
        ops = numbered_operations(main.regions[0].blocks[0])
        run_pipeline(module, "builtin.module(shardopt-verify-chosen,shardopt-rematerialize)")
        _check_obeyed(graph, ops, rows)
        run_pipeline(module, "builtin.module(shardopt-verify-chosen,shardopt-insert-reshards)")
        _drop_reshards(module)
        for row in compare(run_reference(module, inputs), reference):
            assert row.within(TOLERANCE), f"seed {seed}: {row}"
    return len(rows)


def _check_obeyed(graph: MeshGraph, ops: Sequence[ir.Operation], rows: Rows) -> None:
    """No reader of a value that is recomputed for it has the original."""
    for row in rows:
        if isinstance(row, Recompute):
            [tensor] = graph.graph.ops[row.chain[-1]].results
            for reader in row.readers:
                pairs = zip(graph.graph.ops[reader].operands, ops[reader].operands, strict=False)
                makers = [defining(past_barriers(value)) for t, value in pairs if t == tensor]
                assert ops[row.chain[-1]] not in makers, f"{row} was not obeyed by {reader}"


def _drop_reshards(module: ir.Module) -> None:
    """On one device nothing is resharded."""
    for op in operations(module.operation, ("stablehlo.custom_call",)):
        if ir.StringAttr(op.attributes["call_target_name"]).value == "Sharding":
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


@pytest.mark.parametrize("seed", [0, 108, 113])
def test_random_rows_are_obeyed_and_change_no_number(seed: int) -> None:
    assert rewritten_rows(seed, at_random)


@pytest.mark.slow
def test_more_random_rows_are_obeyed_and_change_no_number() -> None:
    assert sum(rewritten_rows(seed, at_random) for seed in range(100, 130)) > 60


@pytest.mark.slow
def test_what_the_solver_asks_for_within_a_limit_changes_no_number() -> None:
    # Of the steps of seeds 100 to 123 the only one where a limit is met by rewriting; how often
    # depends on costs and on the version of jax.
    assert rewritten_rows(108, within_a_limit)
