"""State to Orbax and back: what one library wrote the other reads, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import shardopt
from shardopt.runtime.state.orbax import export_orbax, import_orbax
from shardopt.support.errors import UserError

OPTIMIZER = optax.chain(optax.clip(1.0), optax.adam(1e-2))


@shardopt.parallelize(
    cluster="cpu-test:1x2",
    stages=2,
    donate_argnums=(0, 1),
    batch_argnums=(2,),
    quick_compile=True,
    lazy_state=True,
)
def step(params: Any, opt_state: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        hidden = jnp.tanh(x @ params["layers"][0]["w"])
        return jnp.mean((hidden @ params["layers"][1]["w"].astype(jnp.float32)) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, value


def state() -> dict[str, Any]:
    """Not in the order of the names."""
    keys = jax.random.split(jax.random.key(0))
    params = {
        "layers": [
            {"w": jax.random.normal(keys[0], (8, 8))},
            {"w": jax.random.normal(keys[1], (8, 4)).astype(ml_dtypes.bfloat16)},
        ]
    }
    return {"params": params, "opt_state": OPTIMIZER.init(params)}


def same(one: Any, other: Any) -> bool:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(
        (a := np.asarray(x)).tobytes() == (b := np.asarray(y)).tobytes() and a.dtype == b.dtype
        for x, y in pairs
    )


def test_state_goes_to_orbax_and_back(tmp_path: Path) -> None:
    x, values = jnp.ones((4, 8)), state()
    program = shardopt.prepare(step.plan(values["params"], values["opt_state"], x).module)
    # Orbax wrote it: a run begins from it, and takes a step.
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", values)
    import_orbax(tmp_path / "orbax", tmp_path / "ours", program, 7, **values)
    with step:
        started = step.start(values["params"], values["opt_state"], x)
        params, opt_state = started.load(tmp_path / "ours")
        assert started.run.steps_done == 7
        assert same(started.fetch([params, opt_state]), list(values.values()))
        step(params, opt_state, x)
        started.save(tmp_path / "after")
        after = [started.run.argument(number) for number in range(len(jax.tree.leaves(values)))]
    # We wrote it: Orbax gives the same trees, of optax's own types.
    shapes = {name: jax.eval_shape(lambda tree: tree, tree) for name, tree in values.items()}
    export_orbax(tmp_path / "after", tmp_path / "orbax-after", **shapes)
    with ocp.StandardCheckpointer() as checkpointer:
        there = checkpointer.restore(tmp_path / "orbax-after", state())
    leaves = [leaf for branch in shapes for leaf in jax.tree.leaves(there[branch])]
    assert same(leaves, after) and not same(there["params"], values["params"])
    # And back.
    import_orbax(tmp_path / "orbax-after", tmp_path / "back", program, 8, **shapes)
    with step:
        started = step.start(values["params"], values["opt_state"], x)
        assert same(
            started.fetch(list(started.load(tmp_path / "back"))), [there[k] for k in shapes]
        )


def test_what_does_not_fit_is_one_error(tmp_path: Path) -> None:
    x, values = jnp.ones((4, 8)), state()
    program = shardopt.prepare(step.plan(values["params"], values["opt_state"], x).module)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", values)
    turned = {"opt_state": values["opt_state"], "params": values["params"]}
    other = {**values, "opt_state": optax.sgd(1.0, 0.9).init(values["params"])}
    for like, message in (
        (turned, r"has float32\[8, 8\] as 'params.*w.*', the tree int32\[\] at opt_state"),
        ({"params": values["params"]}, "has 7 arrays, the tree 2 leaves"),
        (other, "has 7 arrays, the tree 4 leaves"),
    ):
        with pytest.raises(UserError, match=message):
            import_orbax(tmp_path / "orbax", tmp_path / "ours", program, 0, **like)
    named = {"weights": values["params"], "opt_state": values["opt_state"]}
    for source in ("orbax", "none"):
        with pytest.raises(UserError, match=rf"cannot read '.*/{source}' as such a tree: "):
            import_orbax(tmp_path / source, tmp_path / "ours", program, 0, **named)
    assert [path.name for path in tmp_path.iterdir()] == ["orbax"]
