"""Random programs under random plans that leave as many sums open as they can, run by XLA against
one device."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.extract.mesh_graphs import MeshGraph, read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.forms.shardy import to_shardy
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Mesh, parse_mesh
from shardopt.passes.sharding.decide.writing import write_plans
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.reference import run_reference
from shardopt.solve.assignment.problem import Edge, Problem
from shardopt.solve.assignment.search.sharding_ilp import solve
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables
from shardopt.solve.sharding.strategies.constraints import Constraints
from shardopt.solve.sharding.strategies.linear import find_linear
from shardopt.solve.sharding.strategies.strategies import Strategy
from tests.e2e.test_sharding_against_xla import SLOW, Compiled, check_numbers, stage_function

SIDE, STEPS = 8, 9

Binary = Callable[[jax.Array, jax.Array], jax.Array]

# On squares of SIDE, from linear in both operands to linear in neither.
OPERATIONS: tuple[Binary, ...] = (
    lambda a, b: a @ b,
    lambda a, b: a @ b.T,
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / (2 + b * b),
    lambda a, b: -a.T,
    lambda a, b: jnp.concatenate([a[:, :4], b[:, 4:]], axis=1),
    lambda a, b: jnp.where(jnp.arange(SIDE) % 3 == 0, a, b),
    lambda a, b: jnp.where(b > 0, a, 0.0),
    lambda a, b: (a.reshape(4, 2, SIDE).sum(1)[:, None] + b.reshape(4, 2, SIDE)).reshape(
        SIDE, SIDE
    ),
    lambda a, b: jnp.pad(a[1:-1], ((0, 2), (0, 0))),
    lambda a, b: a[jnp.array([3, 1, 1, 7, 0, 2, 5, 6])] + a[:, ::-1],
    lambda a, b: jnp.zeros_like(a).at[jnp.array([3, 1, 1, 7, 0, 2, 5, 6])].add(a @ b),
    lambda a, b: jax.lax.dynamic_update_slice(a, b[:2], (2 * jnp.sum(b[:3, 0] > 0), 0)),
    lambda a, b: jax.lax.optimization_barrier(a) + jnp.sum(b, 0),
    lambda a, b: jnp.tanh(a),
)


def random_program(seed: int) -> Callable[..., Any]:
    """Each operation reads the values before it, new ones rather than old ones."""
    rng = np.random.default_rng(seed)

    def program(*arguments: jax.Array) -> Any:
        values = list(arguments)
        for _ in range(STEPS):
            operation = OPERATIONS[rng.integers(len(OPERATIONS))]
            first, second = (
                values[max(-len(values), -1 - int(rng.geometric(0.5)) + 1)] for _ in range(2)
            )
            values.append(operation(first, second))
        return jnp.tanh(values[-1]), values[-2] * values[-3]

    return program


def open_plan(problem: IntraOpProblem, rng: np.random.Generator) -> IntraOpPlan:
    """A random assignment that is possible, with a premium on unreduced values and on work that is
    split."""
    costs = []
    for node, cost in enumerate(problem.problem.costs):
        prices = rng.random(len(cost))
        if node < len(problem.ops):
            strategies = problem.tables.ops[problem.ops[node]].strategies
            prices -= [
                2.0 * _open_values(strategy) + bool(strategy.reduced) for strategy in strategies
            ]
        costs.append(np.where(np.isfinite(cost), prices, np.inf))
    edges = tuple(
        Edge(e.u, e.v, np.where(np.isfinite(e.cost), 0.0, np.inf)) for e in problem.problem.edges
    )
    return problem.decode(solve(Problem(tuple(costs), edges)))


def _open_values(strategy: Strategy) -> int:
    return sum(bool(sharding.unreduced) for sharding in (*strategy.operands, *strategy.results))


# Writes a plan, and what else it decides, into the module of a graph; False to go no further.
Decide = Callable[[ir.Module, MeshGraph, IntraOpTables, np.random.Generator], Any]


def draw_program(
    seed: int, mesh: Mesh, context: ir.Context, decide: Decide, *, partitioned: bool = True
) -> tuple[ir.Module, list[np.ndarray], list[np.ndarray]] | None:
    """The program of a seed with what `decide` writes, its inputs, and its results on one device;
    None where `decide` says so. Without `partitioned`, tiles are
    not XLA's."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(3)]
    exported = jax.export.export(jax.jit(random_program(seed), keep_unused=True))(*inputs)
    module = load_module(bytes(exported.mlir_module_serialized), context)
    run_pipeline(module, "builtin.module(shardopt-import)")
    reference = run_reference(module, inputs)
    [main] = functions(module)
    with sharding_rules(module):
        graph = read_plain(main, mesh)
    linear = find_linear(graph.graph, graph.tied)
    tables = IntraOpTables(
        graph.graph, mesh, SLOW, Constraints(partitioned=partitioned), linear=linear
    )
    return (module, inputs, reference) if decide(module, graph, tables, rng) is not False else None


def compile_at_random(seed: int, mesh: Mesh, decide: Decide) -> Compiled | None:
    """The program of a seed under what `decide` draws; None where it says so."""
    with make_context() as context, ir.Location.unknown():
        drawn = draw_program(seed, mesh, context, decide)
        if drawn is None:
            return None
        module, inputs, reference = drawn
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
    return Compiled((), mesh, function, reference, inputs)


def leave_unreduced(
    module: ir.Module, graph: MeshGraph, tables: IntraOpTables, rng: np.random.Generator
) -> bool:
    """A random plan, if a value of it is unreduced."""
    plan = open_plan(tables.problem(), rng)
    if not any(sharding.unreduced for sharding in plan.shardings.values()):
        return False
    [main] = functions(module)
    write_plans(module, main, [graph], [plan], tables.strategies.cluster)
    return True


def test_open_sums_give_the_numbers_of_one_device() -> None:
    _check(2, "2x2", first_seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "programs"), [("2x2", 5), ("4", 3), ("2x2x2", 2)])
def test_more_open_sums_give_the_numbers_of_one_device(mesh: str, programs: int) -> None:
    _check(programs, mesh, first_seed=100)


def _check(programs: int, mesh: str, first_seed: int) -> None:
    """So many programs whose plans have unreduced values; most of the seeds give one."""
    checked = 0
    for seed in range(first_seed, first_seed + 5 * programs):
        compiled = compile_at_random(seed, parse_mesh(mesh), leave_unreduced)
        if compiled is not None:
            check_numbers(compiled)
            checked += 1
        if checked == programs:
            return
    pytest.fail(f"only {checked} of {5 * programs} random programs have unreduced values")
