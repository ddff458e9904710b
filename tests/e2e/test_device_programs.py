"""Programs for one device with explicit collectives, run as replicas: the numbers of one device, and
just the collectives of the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.cost.traffic import Traffic
from shardopt.cost.traffic import compare as compare_traffic
from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.forms.sharded_form import read_cost
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import Diagnostic
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import parse_mesh
from shardopt.passes.sharding.decide.writing import write_plans
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.reference import compare, run_reference
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from tests.e2e.device_programs import named_traffic, run_device_program
from tests.e2e.models import export_step, mlp
from tests.e2e.test_op_strategies import GRID, LINE, ON_A_GRID, Harness
from tests.e2e.test_random_unreduced import draw_program, open_plan
from tests.e2e.test_sharding_formats import Model, attention, convolution
from tests.unit.operations.op_examples import EXAMPLES

TOLERANCE = 1e-5
PARTITION = (
    "shardopt-insert-reshards,shardopt-annotate-shardings{sharding-format=collectives},"
    "shardopt-verify-sharded"
)
# One of each kind that has code of its own.
OWN_CODE = (
    *("constant", "convolution:same", "convolution:kernel gradient", "convolution:transposed"),
    *("gather:rows", "iota", "pad", "pad:shift", "reduce_window:padded max pool", "reverse"),
    *("scatter:add rows", "scatter:set", "slice:shift"),
)


def check_traffic(planned: Sequence[Traffic], module: ir.Module, label: str) -> None:
    wrong = [
        str(row)
        for row in compare_traffic(planned, named_traffic(module))
        if row.predicted_tensors != row.found_tensors or row.predicted_bytes != row.found_bytes
    ]
    assert not wrong, f"{label}: {wrong}"


class DeviceHarness(Harness):
    """Checks a strategy by the program for one device in place of XLA's partitioner."""

    @cached_property
    def even(self) -> tuple[int, ...]:
        """The strategies without padding, which such programs do not have."""
        with make_context():
            graph = self._read(ir.Module.parse(self.example.text))[0].graph
        op = graph.ops[self.number]
        shapes = [graph.tensors[tensor].shape for tensor in (*op.operands, *op.results)]
        return tuple(
            number
            for number, each in enumerate(self.strategies)
            if all(
                sharding.is_even(self.mesh, shape)
                for sharding, shape in zip((*each.operands, *each.results), shapes, strict=True)
            )
        )

    def check(self, strategy: int) -> None:
        label = f"{self.example.name}: {self.strategies[strategy]}"
        remarks: list[Diagnostic] = []
        with make_context(), ir.Location.unknown():
            module = ir.Module.parse(self.example.text)
            graph, tables = self._read(module)
            plan = tables.problem().decode(
                Solution(self._choice(tables, strategy), 0.0, 0.0, 0.0, "feasible")
            )
            write_plans(module, next(functions(module)), [graph], [plan], tables.strategies.cluster)
            run_pipeline(module, f"builtin.module({PARTITION})", handler=remarks.append)
            assert not remarks, f"{label}: {remarks[0].message}"
            check_traffic(plan.summary().traffic, module, label)
            for row in compare(run_device_program(module, self.inputs), self.reference):
                assert row.within(TOLERANCE), f"{label}: {row}"


@pytest.mark.parametrize("name", OWN_CODE)
def test_an_operation_that_depends_on_its_tile(name: str) -> None:
    """Its last strategies, in which most is split, and those that reduce."""
    harness = DeviceHarness(next(each for each in EXAMPLES if each.name == name), LINE)
    reduced = [k for k in harness.even if harness.strategies[k].reduced]
    for strategy in {harness.even[-1], *reduced[:2]}:
        harness.check(strategy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [each.name for each in EXAMPLES if each.op != "optimization_barrier"]
)
def test_every_strategy_on_a_line(name: str) -> None:
    harness = DeviceHarness(next(each for each in EXAMPLES if each.name == name), LINE)
    for strategy in harness.even:
        harness.check(strategy)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_A_GRID)
def test_strategies_on_a_grid(name: str) -> None:
    harness = DeviceHarness(next(each for each in EXAMPLES if each.name == name), GRID)
    for strategy in harness.even[::5]:
        operands = harness.strategies[strategy].operands
        if {axis for operand in operands for axis in operand.axes} == {"x", "y"}:
            harness.check(strategy)


def check_random(seed: int, mesh: str) -> None:
    """A random plan of a random program, with as many open sums as possible."""

    def decide(
        module: ir.Module, graph: MeshGraph, tables: IntraOpTables, rng: np.random.Generator
    ) -> None:
        plan = open_plan(tables.problem(), rng)
        [main] = functions(module)
        write_plans(module, main, [graph], [plan], tables.strategies.cluster)
        before = "shardopt-verify-chosen,shardopt-rematerialize,shardopt-verify-chosen"
        run_pipeline(module, f"builtin.module({before},{PARTITION})")
        check_traffic(plan.summary().traffic, module, f"seed {seed}")

    with make_context() as context, ir.Location.unknown():
        drawn = draw_program(seed, parse_mesh(mesh), context, decide, partitioned=False)
        assert drawn is not None
        module, inputs, reference = drawn
        for row in compare(run_device_program(module, inputs), reference):
            assert row.within(TOLERANCE), f"seed {seed} on {mesh}: {row}"


@pytest.mark.parametrize(("seed", "mesh"), [(0, "2x2"), (5, "2x2"), (3, "2x2x2")])
def test_random_programs_under_random_plans(seed: int, mesh: str) -> None:
    check_random(seed, mesh)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["4", "2x2", "2x2x2", "2x2x2x2"])
def test_many_random_programs_under_random_plans(mesh: str) -> None:
    # Plans of four axes take longer.
    for seed in range(10, 40 if len(mesh) < 7 else 14):
        check_random(seed, mesh)


def scan() -> Model:
    """A training step through three layers in a loop."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        hidden, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
        return jnp.mean(hidden**2)

    def step(weights: jax.Array, x: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, x)
        return weights - 0.1 * gradient, value

    weights = 0.2 * jax.random.normal(jax.random.key(0), (3, 16, 16))
    return export_step(step, (weights,), (jax.random.normal(jax.random.key(1), (8, 16)),))


def language_model() -> Model:
    """A training step whose table is looked up by tokens, and tied to the output."""

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(params["table"][tokens] @ params["w"])
        scores = jax.nn.log_softmax(hidden @ params["table"].T)
        return -jnp.mean(jnp.take_along_axis(scores, tokens[..., None], -1))

    def step(params: Any, tokens: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = {
        "table": 0.2 * jax.random.normal(jax.random.key(0), (64, 16)),
        "w": jax.random.normal(jax.random.key(2), (16, 16)),
    }
    tokens = jax.random.randint(jax.random.key(1), (8, 16), 0, 64)
    return export_step(step, (params,), (tokens,))


@pytest.mark.parametrize(
    ("model", "mesh", "preset", "has_loops"),
    [
        pytest.param(partial(mlp, 64, 64, 2), "2x2", "megatron", False, id="mlp"),
        pytest.param(scan, "4", "zero3", True, id="scan"),
        pytest.param(language_model, "2x2", "heuristic", False, id="language-model"),
        pytest.param(attention, "2x2", "megatron", False, id="attention", marks=pytest.mark.slow),
        pytest.param(
            convolution, "2x2", "heuristic", False, id="convolution", marks=pytest.mark.slow
        ),
    ],
)
def test_training_steps(
    model: Callable[[], Model], mesh: str, preset: str, has_loops: bool
) -> None:
    artifact, inputs = model()
    options = f"cluster=cpu-test:1x4 mesh={mesh} intra-op={preset} sharding-format=collectives"
    with make_context() as context:
        whole = load_module(artifact, context)
        run_pipeline(whole, "builtin.module(shardopt-import)")
        module = load_module(artifact, context)
        run_pipeline(module, f"builtin.module(shardopt-intra{{{options}}})")
        planned = read_cost(next(functions(module))).traffic
        assert planned, "the plan of this test must exchange something"
        if not has_loops:
            check_traffic(planned, module, preset)
        for row in compare(run_device_program(module, inputs), run_reference(whole, inputs)):
            assert row.within(TOLERANCE), str(row)


def spectrum(x: jax.Array, filter_: jax.Array) -> jax.Array:
    """A filter in frequency space: transforms that run whole, and complex constants."""
    waves = jnp.fft.fft(x.astype(jnp.complex64) * filter_) * (1 + 2j)
    kept = jnp.where(jnp.abs(waves) > 1, waves, 0j)
    return jnp.real(jnp.fft.ifft(kept)).sum(0) + jnp.conj(kept).imag.mean()


@pytest.mark.parametrize("mesh", ["4", "2x1x2"])
def test_complex_constants_and_axes_of_one_device(mesh: str) -> None:
    rng = np.random.default_rng(0)
    real, imaginary = rng.standard_normal((2, 8, 16)).astype(np.float32)
    inputs = [real, (real + 1j * imaginary).astype(np.complex64)]
    artifact = bytes(jax.export.export(jax.jit(spectrum))(*inputs).mlir_module_serialized)
    with make_context() as context:
        module = load_module(artifact, context)
        options = f"cluster=cpu-test:1x4 mesh={mesh} sharding-format=collectives"
        run_pipeline(module, f"builtin.module(shardopt-intra{{{options}}})")
        [result] = run_device_program(module, inputs)
    expected = jax.jit(spectrum)(*inputs)
    np.testing.assert_allclose(result, expected, rtol=TOLERANCE, atol=TOLERANCE)
