"""Sums that stay open: over microbatches, between projections, in random programs; counted and run
by XLA."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from shardopt.cost.traffic import REDUCED, Traffic, comparable
from shardopt.dialect.cluster import write_cluster
from shardopt.forms.exported_form import read_exported
from shardopt.forms.exported_program import StageFunction
from shardopt.forms.sharded_form import read_cost
from shardopt.forms.shardy import to_shardy
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.hardware.cluster import Cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions, operations
from shardopt.mesh.mesh import Mesh, parse_mesh
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.xla import XlaMesh
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.reference import compare, run_reference
from shardopt.xla_text.hlo import module_traffic
from tests.e2e.models import export_step
from tests.e2e.test_sharding_against_xla import (
    FAST,
    SLOW,
    Compiled,
    bytecode_of,
    check_numbers,
    mlp,
    reduced,
    stage_function,
    tensors_by_kind,
)

Model = tuple[bytes, list[np.ndarray]]

TOLERANCE = 1e-4
# Links are what costs: adding up whole gradients in memory is cheaper than moving parts of them.
LINKS = """
name: links
hosts: 1
devices_per_host: 4
device:
  name: d
  peak_flops: {f32: 1.0e+9}
  memory_bytes: 2147483648
  memory_bandwidth: 1.0e+11
intra_host: {latency_seconds: 1.0e-6, bandwidth_bytes_per_second: 1.0e+8}
inter_host: {latency_seconds: 1.0e-6, bandwidth_bytes_per_second: 1.0e+8}
dispatch_seconds: 0.0
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "links.yaml"
    path.write_text(LINKS)
    return path


@pytest.fixture(scope="module")
def slow_cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With devices on which computing in full what could be split does not pay."""
    path = tmp_path_factory.mktemp("cluster") / "slow.yaml"
    path.write_text(LINKS.replace("1.0e+9", "1.0e+8"))
    return path


def plan_of(model: Model, cluster: Path, **options: Any) -> Plan:
    """One stage on four devices in a row, with the last two arguments as the batch."""
    count = len(model[1])
    chosen = {
        "stages": 1,
        "logical_shape": "1x4",
        "batch_args": f"{count - 2}:0,{count - 1}:0",
        **options,
    }
    return make_plan(model[0], PlanOptions(str(cluster), **chosen))


def traffic_of(plan: Plan) -> dict[str, dict[str, int]]:
    """What each compiled stage function exchanges: tensors by kind."""
    by_function = {}
    with make_context() as context:
        exported = read_exported(load_module(plan.module, context))
        for function in exported.functions:
            text = text_of(function, exported.meshes[0])
            by_function[function.name] = tensors_by_kind(module_traffic(text, exported.meshes[0]))
    return by_function


def text_of(function: StageFunction, mesh: Mesh) -> str:
    return XlaMesh(mesh).compile(function, quick=True)._loaded.hlo_modules()[0].to_string()


def planned(plan: Plan) -> dict[str, int]:
    """What the plan says about one execution of every fragment, as `folded`."""
    with make_context() as context:
        module = load_module(dict(plan.phases)["shard"].encode(), context)
        fragments = operations(module.operation, ["mpmd.fragment"])
        return folded(tensors_by_kind(read_cost(op).traffic) for op in fragments)


def folded(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Tensors by kind, with sums in one number: XLA's CPU backend writes a reduce-scatter as
    all-reduce and slice."""
    total: Counter[str] = Counter()
    for counts in parts:
        for kind, number in counts.items():
            total["sums" if "reduce" in kind else kind] += number
    return dict(sorted(total.items()))


def run_and_compare(plan: Plan, model: Model) -> None:
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
        reference = run_reference(load_module(model[0], context), model[1])
    with open_run(program, checked_steps=1, quick_compile=True) as run:
        run.load(model[1])
        rows = compare(list(run.step()), reference)
    assert [row for row in rows if not row.within(TOLERANCE)] == []


@pytest.mark.parametrize("microbatches", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_gradients_are_summed_up_once_a_step(microbatches: int, cluster: Path) -> None:
    """Five gradients and losses: with a loop nothing is reduced in its body, and each once behind
    it."""
    model = mlp(1024, 32, 2)
    plan = plan_of(model, cluster, microbatches=microbatches)
    traffic = traffic_of(plan)
    body, update = reduced(traffic["stage0_fwd"]), reduced(traffic["stage0_update"])
    assert (body, update) == ((5, 0) if microbatches == 1 else (0, 5))
    assert planned(plan) == folded(traffic.values())
    run_and_compare(plan, model)


@cache
def with_momentum(batch: int, hidden: int) -> Model:
    """A training step of two layers with momentum."""

    def loss_fn(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for weight in params:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    def step(params: Any, momentum: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g * g, momentum, grads)
        params = jax.tree.map(lambda p, m, g: p - 0.1 * g / (1 + m), params, momentum, grads)
        return params, momentum, loss

    keys = jax.random.split(jax.random.key(0), 4)
    params = [0.2 * jax.random.normal(key, (hidden, hidden)) for key in keys[2:]]
    momentum = [jnp.zeros_like(weight) for weight in params]
    return export_step(
        step, (params, momentum), tuple(jax.random.normal(key, (batch, hidden)) for key in keys[:2])
    )


@pytest.mark.parametrize("preset", ["ilp"])
def test_zero_scatters_accumulated_gradients_onto_the_optimizer_state(
    preset: str, cluster: Path
) -> None:
    """The accumulators hold whole terms; behind the loop each is reduce-scattered onto the
    momentum's tiles, once for both of its readers."""
    model = with_momentum(1024, 32)
    plan = plan_of(model, cluster, microbatches=4, intra_op=preset)
    with make_context() as context:
        exported = read_exported(load_module(plan.module, context))
    shardings = [str(argument.value.spec.sharding) for argument in exported.arguments]
    assert shardings[:4] == ["[{}, {}]"] * 2 + ['[{"y"}, {}]'] * 2
    traffic = traffic_of(plan)
    assert traffic["stage0_fwd"] == {}
    assert reduced(traffic["stage0_update"]) == 3  # two gradients and the loss
    assert traffic["stage0_update"]["all_gather"] == 2  # the new weights
    run_and_compare(plan, model)


def test_mics_scatters_in_each_microbatch_and_all_reduces_once_a_step(tmp_path: Path) -> None:
    """Its "2-hop" synchronization (section 3.4): the accumulators hold parts, which are open along
    the axis of the groups until behind the loop."""
    model, size = with_momentum(1024, 32), 4 * 32 * 32
    cluster = tmp_path / "bytes.yaml"  # with latencies, two short sums of a number beat a long one
    cluster.write_text(LINKS.replace("latency_seconds: 1.0e-6", "latency_seconds: 0.0"))
    plan = plan_of(model, cluster, microbatches=4, intra_op="mics", logical_shape="2x2")
    with make_context() as context:
        exported = read_exported(load_module(plan.module, context))
        mesh = exported.meshes[0]
        compiled = {
            function.name: comparable(module_traffic(text_of(function, mesh), mesh))
            for function in exported.functions
        }
        module = load_module(dict(plan.phases)["shard"].encode(), context)
        fragments = operations(module.operation, ["mpmd.fragment"])
        costs = [read_cost(op).traffic for op in fragments]
    body, update = compiled["stage0_fwd"], compiled["stage0_update"]
    assert {row for row in body if row.kind == REDUCED} == {Traffic(REDUCED, ("y",), 2, 2 * size)}
    sums = {row.axes: row for row in update if row.kind == REDUCED}
    assert sums["x",] == Traffic(REDUCED, ("x",), 2, 2 * size // 2)
    assert sums["x", "y"].tensors == 1  # the loss
    assert comparable(row for rows in compiled.values() for row in rows) == comparable(
        row for rows in costs for row in rows
    )
    run_and_compare(plan, model)


@pytest.mark.parametrize(
    ("preset", "schedule", "gathered"),
    [("data", "1f1b", {})],
)
def test_stages_sum_their_gradients_once_a_step(
    preset: str, schedule: str, gathered: dict[str, int], cluster: Path
) -> None:
    """Two stages, each on two devices that split the batch: nothing is exchanged in the loop,
    forward or backward. Behind it each stage sums up the gradients of its two layers, the last one
    the loss, too; ZeRO gathers new weights."""
    model = mlp(256, 32, 4)
    options = {
        "stages": 2,
        "submesh": "1x2",
        "logical_shape": "1x2",
        "layers": 2,
        "intra_op": preset,
    }
    plan = plan_of(model, cluster, microbatches=4, schedule=schedule, **options)
    traffic = traffic_of(plan)
    updates = {name: dict(traffic.pop(name)) for name in ("stage0_update", "stage1_update")}
    assert {"stage0_fwd", "stage1_fwd"} < traffic.keys()
    assert not any(traffic.values())
    assert updates == {
        "stage0_update": {"all_reduce": 4, **gathered},
        "stage1_update": {"all_reduce": 5, **gathered},
    }
    run_and_compare(plan, model)


@cache
def projections(batch: int = 8, hidden: int = 64) -> Model:
    """Three projections of one value, each followed by a nonlinearity and a product, whose results
    are added."""

    def loss_fn(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ params["in"])
        out = sum(jax.nn.relu(h @ up) @ down for up, down in params["heads"])
        return jnp.mean((jnp.tanh(out) - y) ** 2)

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    keys = jax.random.split(jax.random.key(0), 9)
    up, down = (hidden, 2 * hidden), (2 * hidden, hidden)
    params = {
        "in": 0.1 * jax.random.normal(keys[0], (hidden, hidden)),
        "heads": [
            (0.1 * jax.random.normal(first, up), 0.1 * jax.random.normal(second, down))
            for first, second in zip(keys[1:4], keys[4:7], strict=True)
        ],
    }
    return export_step(
        step, (params,), tuple(jax.random.normal(key, (batch, hidden)) for key in keys[7:])
    )


def test_projections_of_one_value_share_a_sum(slow_cluster: Path) -> None:
    """Weights are split by their inner dimension: what the three give is added up before it is
    summed over devices, once forward and once backward."""
    plan = plan_of(projections(), slow_cluster)
    traffic = traffic_of(plan)
    assert sum(map(reduced, traffic.values())) == 3  # forward, backward, and the loss
    assert planned(plan) == folded(traffic.values())
    run_and_compare(plan, projections())


def compile_plain(model: Model, mesh: str, preset: str, cluster: Cluster) -> Compiled:
    """As `compile_sharded`, with values left unreduced and through Shardy."""
    with make_context() as context, ir.Location.unknown():
        module = load_module(model[0], context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        reference = run_reference(module, model[1])
        write_cluster(module, cluster)
        run_pipeline(
            module,
            f"builtin.module(shardopt-shard{{mesh={mesh} intra-op={preset} unreduced=on}})",
        )
        placed = parse_mesh(mesh)
        function = stage_function(module, placed)
        plan = read_cost(next(functions(module))).traffic
        to_shardy(module, placed)
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        function = replace(function, bytecode=buffer.getvalue())
    return Compiled(plan, placed, function, reference, model[1])


def test_data_parallel_counts_hold_through_shardy() -> None:
    """An MLP of six layers, as through GSPMD: twelve gradients and the loss."""
    compiled = compile_plain(mlp(256, 32), "4x1", "data", FAST)
    assert compiled.predicted == compiled.emitted == {"all_reduce": 13}
    check_numbers(compiled)


@pytest.mark.slow
def test_tensor_parallel_counts_hold_through_shardy() -> None:
    """One sum a layer boundary, and the loss."""
    compiled = compile_plain(mlp(32, 256), "1x4", "ilp", SLOW)
    assert reduced(compiled.emitted) == reduced(compiled.predicted) == 6
    check_numbers(compiled)


def test_gspmd_never_sees_an_open_sum() -> None:
    """It would drop the sum without a word."""
    function = StageFunction("f", b"{devices=[1,2]<=[2] last_tile_dims={unreduced}}", (), (), ())
    with pytest.raises(ValueError, match="unreduced values need Shardy's form"):
        XlaMesh(parse_mesh("2")).compile(function)


@pytest.mark.parametrize(
    "made",
    [
        "stablehlo.constant {S} dense<2.0> : tensor<4x4xf32>",
        "stablehlo.iota dim = 0 {S} : tensor<4x4xf32>",
        "stablehlo.broadcast_in_dim %z, dims = [] {S} : (tensor<f32>) -> tensor<4x4xf32>",
    ],
    ids=["constant", "iota", "splat"],
)
def test_sums_over_values_that_are_made_anew(made: str) -> None:
    """Devices that add up such a value add up their parts of it."""
    split = 'mhlo.sharding = "{devices=[2,1]<=[2]}"'
    text = f"""
module {{
  func.func public @main(%t: tensor<f32> {{mhlo.sharding = "{{replicated}}"}})
      -> (tensor<f32> {{mhlo.sharding = "{{replicated}}"}},
          tensor<4x4xf32> {{mhlo.sharding = "{{replicated}}"}}) {{
    %z = stablehlo.constant {{mhlo.sharding = "{{replicated}}"}} dense<0.5> : tensor<f32>
    %0 = stablehlo.constant {{mhlo.sharding = "{{replicated}}"}} dense<0.0> : tensor<f32>
    %c = {made.replace("{S}", f"{{{split}}}")}
    %1 = stablehlo.reduce(%c init: %0) applies stablehlo.add across dimensions = [0, 1]
        {{mhlo.sharding = "{{unreduced}}"}} : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %2 = stablehlo.custom_call @Sharding(%1) {{mhlo.sharding = "{{replicated}}"}}
        : (tensor<f32>) -> tensor<f32>
    %3 = stablehlo.add %t, %2 {{mhlo.sharding = "{{replicated}}"}} : tensor<f32>
    %4 = stablehlo.negate %c {{mhlo.sharding = "{{replicated}}"}} : tensor<4x4xf32>
    return %3, %4 : tensor<f32>, tensor<4x4xf32>
  }}
}}
"""
    mesh, inputs = parse_mesh("2"), [np.ones((), np.float32)]
    with make_context() as context, ir.Location.unknown():
        module = load_module(text.encode(), context)
        reference = run_reference(module, inputs)
        function = stage_function(module, mesh)
        to_shardy(module, mesh)
        function = replace(function, bytecode=bytecode_of(module))
    check_numbers(Compiled((), mesh, function, reference, inputs))
