"""What JAX was told about shardings is obeyed, whichever partitioner's words the export uses, with
the same numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import shardopt
from tests.e2e.host_devices import run_on_host_devices

CLUSTER = "cpu-test:1x8"
FREE = PartitionSpec.UNCONSTRAINED


def make_step(mesh: jax.sharding.Mesh) -> Any:
    """A training step of two products; weights, batch, a value in the middle all results but the
    loss are placed."""

    def on(*axes: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*axes))

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ params["in"]), on("dp", FREE))
            return jnp.mean((hidden @ params["out"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value, x

    shardings = {"in": on(None, "mp"), "out": on("mp", None)}
    return jax.jit(
        step,
        in_shardings=(shardings, on("dp", None)),
        out_shardings=(shardings, None, on(("mp", "dp"))),
        donate_argnums=0,
    )


def exported_steps(mesh: jax.sharding.Mesh, arguments: Any) -> list[export.Exported]:
    """The step in Shardy's words and in GSPMD's."""
    exported = []
    for shardy in (True, False):
        jax.config.update("jax_use_shardy_partitioner", shardy)
        exported.append(export.export(make_step(mesh))(*arguments))
    jax.config.update("jax_use_shardy_partitioner", True)
    return exported


def check(constraints: str) -> None:
    """The test, in a process with eight devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("dp", "mp"))
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": jax.random.normal(keys[0], (16, 64)),
        "out": jax.random.normal(keys[1], (64, 16)),
    }
    arguments = (params, jax.random.normal(keys[2], (32, 16)))
    steps = exported_steps(mesh, jax.eval_shape(lambda: arguments))
    expected_results = jax.tree.leaves(
        make_step(mesh)(jax.tree.map(jnp.copy, params), arguments[1])
    )

    sharded = [shardopt.shard(step, CLUSTER, "2x4", annotations="require") for step in steps]
    specs = [(str(s._in_named_shardings), str(s._out_named_shardings)) for s in sharded]
    assert specs[0] == specs[1], "both exports of one step give one plan"
    inputs = shardopt.input_shardings(sharded[0])[0]
    results = jax.tree.leaves(
        jax.jit(sharded[0].call, in_shardings=inputs)(*jax.device_put(arguments, inputs))
    )
    for result, expected in zip(results, expected_results, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
        if expected.ndim:
            assert result.sharding.is_equivalent_to(expected.sharding, expected.ndim), (
                result.sharding,
                expected.sharding,
            )
    for sharding, axes in zip(
        jax.tree.leaves(inputs), ((None, "mp"), ("mp", None), ("dp", None)), strict=True
    ):
        assert sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(*axes)), 2), (
            sharding,
            axes,
        )
    freed = shardopt.shard(steps[0], CLUSTER, "8", annotations="drop", constraints=constraints)
    assert all(not any(s.spec) for s in freed._in_named_shardings), (
        "a file says that the arguments are whole"
    )
    print("checked")


def test_in_shardings_and_constraints_are_obeyed(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "- {argument: 'params.*', replicated: true}\n- {argument: x, replicated: true}\n"
    )
    program = f"from tests.e2e.test_annotations import check; check({str(tmp_path / 'c.yaml')!r})"
    run = run_on_host_devices(program, devices=8)
    assert run.stdout == "checked\n", run.stderr
    assert "warning" not in run.stderr


def test_annotations_reach_the_stages_of_a_pipeline() -> None:
    """Microbatches, layers and stages lose none: every weight lies as asked, and every value in the
    middle."""
    mesh = jax.sharding.AbstractMesh((2,), ("model",), axis_types=(AxisType.Auto,))

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            h = x
            for w in params:
                h = jax.lax.with_sharding_constraint(
                    jnp.tanh(h @ w), NamedSharding(mesh, PartitionSpec(None, "model"))
                )
            return jnp.mean(h**2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    weights = NamedSharding(mesh, PartitionSpec("model"))
    abstract = (
        [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 4,
        jax.ShapeDtypeStruct((32, 64), jnp.float32),
    )
    exported = export.export(jax.jit(step, in_shardings=(weights, None), donate_argnums=0))(
        *abstract
    )
    messages: list[str] = []
    plan = shardopt.optimize(
        exported,
        "cpu-test:1x4",
        stages=2,
        microbatches=4,
        submesh="1x2",
        annotations="require",
        handler=lambda diagnostic: messages.append(str(diagnostic)),
    )
    texts = dict(plan.phases)
    # four weights, and the values in the middle, forward and backward
    assert [
        texts[phase].count("shardopt.sharding = ") for phase in ("import", "stage", "shard")
    ] == [12, 12, 0]
    # Its type goes on over several lines.
    main = " ".join(texts["shard"].partition("func.func public @main")[2].split())
    arguments, _, results = main.partition(" attributes ")[0].partition("-> (")
    pattern = re.compile(r'tensor<64x64xf32>, sharding=<@m[01], \[\{"y"\}, \{\}\]>')
    for side in (arguments, results):
        assert side.count("tensor<64x64xf32>") == len(pattern.findall(side)) == 4
    # Stages are chosen without annotations: that the step takes longer is said, and nothing else.
    assert all("takes" in text for text in messages if "warning" in text)
