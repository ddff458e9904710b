"""State and batches that the devices of a mesh do not divide, in plans with stages: made, trained,
shown, saved, and read back on other meshes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jaxlib.mlir import ir

import shardopt
from shardopt.cost.traffic import comparable
from shardopt.dialect.mpmd import KIND
from shardopt.forms.sharded_form import read_cost
from shardopt.frontend.plans.plan import Plan
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import operations
from shardopt.runtime.devices.xla import XlaMesh
from shardopt.runtime.driver import open_run
from shardopt.runtime.run import Run
from shardopt.runtime.state.initializers import fill, normal
from shardopt.xla_text.hlo import module_traffic

Tree = dict[str, jax.Array]
ROWS, INNER, WIDE = 24, 50, 250  # of three devices, only the first is a multiple
MOST = {1: 280, 2: 150}


def init(key: jax.Array) -> tuple[Tree, Tree]:
    keys = jax.random.split(key)
    weights = {
        "in": jax.random.normal(keys[0], (INNER, WIDE)) / 7,
        "out": jax.random.normal(keys[1], (WIDE, INNER)) / 16,
    }
    return weights, jax.tree.map(jnp.zeros_like, weights)


def step(weights: Tree, momentum: Tree, x: jax.Array) -> tuple[Tree, Tree, jax.Array]:
    def loss(weights: Tree) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights["in"]) @ weights["out"] - x) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda w, m: w - 0.3 * m, weights, momentum), momentum, value


KEY = np.array([0, 5], np.uint32)
X = np.asarray(jax.random.normal(jax.random.key(2), (ROWS, INNER)))


@lru_cache
def planned(cluster: str, stages: int) -> Plan:
    shapes = jax.eval_shape(init, KEY)
    exported = export.export(jax.jit(step, donate_argnums=(0, 1)))(*shapes, X)
    return shardopt.optimize(
        exported,
        cluster=cluster,
        microbatches=3,
        stages=stages,
        layers=2,
        memory_budget=f"{MOST[stages]}KiB",  # too little for copies of all state
    )


def uneven(plan: Plan) -> set[str]:
    """The names of state that its mesh does not divide."""
    program = plan.program()
    meshes = {part.mesh.name: part.mesh for part in program.meshes}
    return {
        argument.name
        for argument in program.arguments
        if not argument.value.spec.sharding.is_even(
            meshes[argument.value.mesh], argument.value.spec.shape
        )
    }


def trained(steps: int) -> list[np.ndarray]:
    state = jax.jit(init)(KEY)
    for _ in range(steps):
        *state, value = jax.jit(step)(*state, X)
    return [np.asarray(leaf) for leaf in (*jax.tree.leaves(state), value)]


def assert_close(actual: Any, expected: list[np.ndarray]) -> None:
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def start(plan: Plan, backend: str = "local", **options: Any) -> Run:
    return open_run(plan.program(), backend, quick_compile=True, **options)


@pytest.mark.parametrize(("cluster", "stages"), [("cpu-test:1x3", 1), ("cpu-test:2x3", 2)])
def test_a_step_trains_as_on_one_device(cluster: str, stages: int) -> None:
    plan = planned(cluster, stages)
    assert uneven(plan)
    with start(plan) as run:
        run.load([*map(np.asarray, jax.tree.leaves(jax.jit(init)(KEY))), X])
        for steps in (1, 2, 3):
            assert_close(list(run.step()), trained(steps))


def test_what_is_demanded_of_state_may_need_padding(tmp_path: Path) -> None:
    demands = tmp_path / "demands.yaml"
    demands.write_text("- argument: weights.*\n  sharding: [[y], []]\n")
    shapes = jax.eval_shape(init, KEY)
    plan = shardopt.optimize(
        export.export(jax.jit(step, donate_argnums=(0, 1)))(*shapes, X),
        cluster="cpu-test:2x4",
        microbatches=3,
        stages=2,
        submesh="1x4",
        logical_shape="1x4",
        constraints=str(demands),
    )
    # 50 and 250 rows over four devices; what replaces them, and the momentum, follow.
    assert {"weights['in']", "weights['out']"} <= uneven(plan)
    with start(plan) as run:
        run.load([*map(np.asarray, jax.tree.leaves(jax.jit(init)(KEY))), X])
        assert_close(list(run.step()), trained(1))


def test_state_is_held_in_parts(tmp_path: Path) -> None:
    """A device holds a third of it, and the module says what is padding."""
    plan = planned("cpu-test:1x3", 1)
    program = plan.program()
    [part] = program.meshes
    assert part.shapes and uneven(plan) == {
        program.arguments[number].name
        for number, buffer in part.arguments
        if buffer in dict(part.shapes)
    }
    plan.save(tmp_path / "plan")
    assert "shardopt.shape = array<i64: " in plan.phases[-1][1]
    assert Plan.load(tmp_path / "plan").program() == program


def test_stages_exchange_what_is_planned() -> None:
    """Cutting padding off and putting it on moves nothing."""
    plan = planned("cpu-test:1x3", 1)
    planned_traffic, compiled = {}, {}
    with make_context() as context:
        module = load_module(dict(plan.phases)["schedule"].encode(), context)
        for fragment in operations(module.operation, ("mpmd.fragment",)):
            kind = ir.StringAttr(fragment.attributes[KIND]).value
            planned_traffic[f"stage0_{kind}"] = comparable(read_cost(fragment).traffic)
    [part] = plan.program().meshes
    devices = XlaMesh(part.mesh)
    for function in part.functions:
        text = devices.compile(function)._loaded.hlo_modules()[0].to_string()
        compiled[function.name] = comparable(module_traffic(text, part.mesh))
    assert compiled == planned_traffic and any(compiled.values())


def test_state_is_made_on_the_workers_and_goes_on_with_other_meshes(tmp_path: Path) -> None:
    exported = export.export(jax.jit(init), platforms=("cpu",))(KEY)
    with start(planned("cpu-test:1x3", 1)) as run, make_context() as context:
        run.initialize(load_module(exported.mlir_module_serialized, context), range(4), [KEY])
        first = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(init)(KEY))]
        assert_close([run.argument(number) for number in range(4)], first)
        np.testing.assert_array_equal(
            run.argument(0, ((3, 40), (80, 170))), run.argument(0)[3:40, 80:170]
        )
        assert_close(list(run.step({4: X})), trained(1))
        run.save(tmp_path / "one")
    with start(planned("cpu-test:2x3", 2)) as run:
        run.restore(tmp_path / "one")
        assert_close(list(run.step({4: X})), trained(2))
        run.save(tmp_path / "two")
    sizes = [path.stat().st_size for path in (tmp_path / "two").glob("*.bin")]
    state = 4 * 4 * INNER * WIDE  # replicas once, and no padding; shards begin at 64 bytes
    assert state <= sum(sizes) < state + 64 * 12
    with start(planned("cpu-test:1x3", 1)) as run:
        run.restore(tmp_path / "two")
        assert_close(list(run.step({4: X})), trained(3))


def test_arguments_are_made_where_they_live() -> None:
    with start(planned("cpu-test:1x3", 1)) as run:
        weights = np.asarray(jax.jit(init)(KEY)[0]["out"])
        run.create({0: normal(0, 0.3, 1), 1: lambda index: weights[index]})
        np.testing.assert_array_equal(run.argument(1), weights)
        argument = run.program.arguments[0]
        whole = ((0, INNER), (0, WIDE))
        made = fill(normal(0, 0.3, 1), argument.name, argument.value.spec, whole)
        np.testing.assert_array_equal(run.argument(0), made)


@pytest.mark.slow
def test_processes_hold_their_parts(tmp_path: Path) -> None:
    with start(planned("cpu-test:2x3", 2), "process", devices_per_host=2) as run:
        run.load([*map(np.asarray, jax.tree.leaves(jax.jit(init)(KEY))), X])
        run.step()
        run.save(tmp_path / "one")
        assert_close(list(run.step()), trained(2))
        run.restore(tmp_path / "one")
        assert_close(list(run.step()), trained(2))
