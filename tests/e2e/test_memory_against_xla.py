"""Memory of plans as XLA compiles them: close to the prediction, within budgets, with the numbers
of one device."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.dialect.cluster import write_cluster
from shardopt.extract.mesh_graphs import read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.forms.sharded_form import read_cost
from shardopt.hardware.cluster import Cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions, operations
from shardopt.mesh.mesh import parse_mesh
from shardopt.passes.base import PassFailure
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.compiled import compiled_bytes
from shardopt.runtime.reference import compare, run_reference
from shardopt.solve.assignment.limits import SearchLimits, work_of
from shardopt.solve.sharding.budget.search import fit
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables
from tests.e2e.models import MODELS, mlp
from tests.e2e.test_sharding_against_xla import SLOW, TOLERANCE, Compiled, stage_function

Model = tuple[bytes, list[np.ndarray]]
# XLA's CPU backend orders and fuses in its own ways, and pads small buffers.
ACCURACY = 0.30


class Planned:
    """A module sharded with options and compiled: predicted and compiled bytes, barriers, and
    outputs."""

    def __init__(self, model: Model, mesh: str, options: str = "", cluster: Cluster = SLOW) -> None:
        artifact, inputs = model
        with make_context() as context, ir.Location.unknown():
            module = load_module(artifact, context)
            run_pipeline(module, "builtin.module(shardopt-import)")
            self.reference = run_reference(module, inputs)
            write_cluster(module, cluster)
            self.result = run_pipeline(
                module, f"builtin.module(shardopt-shard{{mesh={mesh} {options}}})"
            )
            self.barriers = len(operations(module.operation, ["stablehlo.optimization_barrier"]))
            function = stage_function(module, parse_mesh(mesh))
            [main] = functions(module)
            self.predicted = read_cost(main).peak_bytes
        self.compiled = compiled_bytes(function.bytecode, parse_mesh(mesh).size, shardy=True)
        self.program = Compiled((), parse_mesh(mesh), function, self.reference, inputs)

    def check_numbers(self) -> None:
        differences = compare(self.program.run(), self.reference)
        assert all(row.within(TOLERANCE) for row in differences), differences


@cache
def free(mesh: str) -> Planned:
    return Planned(mlp(256, 64), mesh)


@cache
def transformer() -> Planned:
    return Planned(MODELS["gpt"](), "1")


@pytest.mark.slow
def test_predicted_bytes_are_close_to_the_compiled_ones() -> None:
    for planned in (free("1"), free("2x2"), Planned(mlp(32, 256), "2x2"), transformer()):
        assert planned.predicted == pytest.approx(planned.compiled, rel=ACCURACY)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["1", "2x2"])
def test_a_budget_makes_the_compiled_program_smaller_and_keeps_its_numbers(mesh: str) -> None:
    budget = int(0.8 * free(mesh).predicted)
    planned = Planned(mlp(256, 64), mesh, f"memory-budget={budget}")
    assert planned.predicted <= budget
    assert planned.barriers > 0
    assert planned.compiled < 0.9 * free(mesh).compiled
    planned.check_numbers()


@pytest.mark.slow
def test_a_recomputed_transformer_gives_the_numbers_of_one_device() -> None:
    budget = int(0.91 * transformer().predicted)
    planned = Planned(MODELS["gpt"](), "1", f"memory-budget={budget}")
    assert planned.predicted <= budget
    assert planned.result.statistics["shardopt-choose-shardings", "mesh: rematerialized values"] > 0
    assert any(remark.kind == "rematerialized" for remark in planned.result.diagnostics)
    planned.check_numbers()


def test_a_slice_of_what_kernels_make_for_themselves_takes_no_memory() -> None:
    """The mask of the whole batch is made on every device, which reads its own part."""

    def masked(queries: jax.Array, keys: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqd,bkd->bqk", queries, keys)
        at = jnp.arange(scores.shape[1])
        mask = jnp.broadcast_to(at[:, None] >= at, scores.shape)
        shares = jnp.tanh(jnp.where(mask, scores, -1e9))
        return jnp.where(mask, (shares @ keys[:, :, :1]) * shares, 0.0).sum(1)

    rows = np.random.default_rng(0).random((8, 256, 64), np.float32)
    exported = jax.export.export(jax.jit(masked))(rows, rows).mlir_module_serialized
    planned = Planned((exported, [rows, rows]), "4", "intra-op=data batch-args=0,1")
    assert planned.predicted == pytest.approx(planned.compiled, rel=0.05)
    planned.check_numbers()


def test_xla_adds_a_gradient_to_its_sum_where_it_is_made() -> None:
    """A backward pass that writes all sums down last, over donated ones: what the account of
    fragments takes for granted (`execution_order`)."""
    layers, width = 8, 256

    def backward(
        weights: list[jax.Array], sums: list[jax.Array], kept: list[jax.Array], seed: jax.Array
    ) -> list[jax.Array]:
        gradients = []
        for weight, value in zip(reversed(weights), reversed(kept), strict=True):
            gradients.append(value.T @ seed)
            seed = jnp.tanh(seed @ weight.T)
        return [total + each for total, each in zip(reversed(sums), gradients, strict=True)][::-1]

    square = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * layers
    rows = [jax.ShapeDtypeStruct((8, width), jnp.float32)] * layers
    compiled = jax.jit(backward, donate_argnums=1).lower(square, square, rows, rows[0]).compile()
    stats = compiled.memory_analysis()
    assert stats.alias_size_in_bytes == layers * 4 * width**2
    assert stats.temp_size_in_bytes < 2 * 4 * width**2


def problem_of(model: Model, mesh: str) -> IntraOpProblem:
    with make_context() as context:
        module = load_module(model[0], context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        [main] = functions(module)
        with sharding_rules(module):
            graph = read_plain(main, parse_mesh(mesh))
        tables = IntraOpTables(graph.graph, graph.mesh, SLOW)
        return tables.problem(tied=tuple(graph.tied), residency=graph.residency)


@pytest.mark.parametrize(
    ("mesh", "shares"),
    [
        ("1", (1.0, 0.91)),
        *(
            pytest.param(mesh, (1.0, 0.97, 0.94, 0.91), marks=pytest.mark.slow)
            for mesh in ("1", "4")
        ),
    ],
)
def test_the_example_costs_more_the_smaller_its_budget(
    mesh: str, shares: tuple[float, ...]
) -> None:
    """No plan exceeds its budget, or is faster than what was proven for a larger one. One device
    can only compute again."""
    problem = problem_of(MODELS["gpt"](), mesh)
    whole = fit(problem, None).plan
    assert whole is not None
    solutions, recomputed = [], []
    for share in shares:
        limits = SearchLimits(gap_tolerance=1e-3, work=work_of(2.0))
        result = fit(problem, int(share * whole.peak_bytes), limits=limits)
        if result.plan is None:
            break
        assert result.plan.peak_bytes <= share * whole.peak_bytes
        solutions.append(result.solution)
        recomputed.append(len(result.plan.rematerialized))
    for larger, smaller in combinations(solutions, 2):
        assert larger.bound <= smaller.objective * (1 + 1e-9)
    assert recomputed[0] == 0 and (mesh != "1" or max(recomputed) > 0)
    assert len(solutions) == len(shares) and solutions[-1].objective > solutions[0].objective


def test_too_small_a_budget_names_the_operation_and_what_is_held() -> None:
    with pytest.raises(
        PassFailure, match=r"mesh 'mesh' does not fit into 1000 bytes a device \(at least \d+ bytes"
    ):
        Planned(mlp(16, 32, 2), "1", "memory-budget=1000")
