"""`shardopt.optimize` on everything it takes, and `shardopt.shard` on four devices of another
process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardopt
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from tests.e2e.host_devices import run_on_host_devices

CLUSTER = "cpu-test:1x4"


def train_step(params: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
    def loss_fn(params: Any) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def shapes(batch: int | str = 8) -> tuple[Any, ...]:
    struct = jax.ShapeDtypeStruct
    params = {"in": struct((16, 32), "float32"), "out": struct((32, 4), "float32")}
    return params, struct((batch, 16), "float32"), struct((batch, 4), "float32")


@pytest.fixture(scope="module")
def exported() -> jax.export.Exported:
    return jax.export.export(jax.jit(train_step, donate_argnums=0))(*shapes())


def test_every_kind_of_source_gives_the_same_plan(
    exported: jax.export.Exported, tmp_path: Path
) -> None:
    artifact = bytes(exported.mlir_module_serialized)
    (tmp_path / "step.mlirbc").write_bytes(artifact)
    sources = [exported, artifact, tmp_path / "step.mlirbc", exported.mlir_module().encode()]
    plans = [shardopt.optimize(source, CLUSTER, microbatches=2, stages=2) for source in sources]
    assert len({repr(plan.summary) for plan in plans}) == 1
    assert len(plans[0].summary.stages) == 2 and plans[0].summary.num_microbatches == 2
    with make_context() as context:
        module = load_module(artifact, context)
        assert repr(shardopt.optimize(module, CLUSTER, microbatches=2, stages=2).summary) == repr(
            plans[0].summary
        )


def test_batch_arguments_by_number(exported: jax.export.Exported) -> None:
    by_number = shardopt.optimize(exported, CLUSTER, microbatches=2, stages=2, batch_args=[2, 3])
    by_dimension = shardopt.optimize(
        exported, CLUSTER, microbatches=2, stages=2, batch_args={2: 0, 3: 0}
    )
    assert by_number == by_dimension
    with pytest.raises(shardopt.UserError, match="batch argument 7 is not used by 'train_step'"):
        shardopt.optimize(exported, CLUSTER, batch_args=[7])


@pytest.mark.parametrize(
    "names",
    [
        ["x", "y"],
        pytest.param({"x": 0, "y": 0}, marks=pytest.mark.slow),
        pytest.param("?", marks=pytest.mark.slow),
        ["y", 2],
    ],
)
def test_batch_arguments_by_name(exported: jax.export.Exported, names: Any) -> None:
    """The names of the function's parameters, in every phase that wants to know the batch."""
    options = {"microbatches": 2, "stages": 2, "intra_op": "data"}
    by_name = shardopt.optimize(exported, CLUSTER, batch_args=names, **options)
    assert (
        by_name.module == shardopt.optimize(exported, CLUSTER, batch_args=[2, 3], **options).module
    )


@pytest.mark.parametrize(
    ("source", "cluster", "message"),
    [
        (3, CLUSTER, "expected a path, bytes, a jax.export.Exported or an MLIR module, found int"),
        (train_step, CLUSTER, "found function"),
        (b"func", 4, "expected cluster to be a file or the name of a preset, found int"),
        (b"\x00\x01", CLUSTER, "neither MLIR text nor MLIR bytecode"),
        ("nowhere.mlir", CLUSTER, "cannot read 'nowhere.mlir'"),
    ],
)
def test_wrong_inputs(source: Any, cluster: Any, message: str) -> None:
    with pytest.raises(shardopt.UserError, match=message):
        shardopt.optimize(source, cluster)


def test_only_one_stage_and_one_microbatch_make_an_exported(exported: jax.export.Exported) -> None:
    plan = shardopt.optimize(exported, CLUSTER, stages=1, submesh="1x4", logical_shape="2x2")
    sharded = plan.to_exported()
    assert (sharded.nr_devices, sharded.in_tree, sharded.out_avals) == (
        4,
        exported.in_tree,
        exported.out_avals,
    )
    with pytest.raises(shardopt.UserError, match="a pipeline is no single function"):
        shardopt.optimize(exported, CLUSTER, stages=2).to_exported()
    with pytest.raises(shardopt.UserError, match=r"made from a jax\.export\.Exported"):
        shardopt.optimize(bytes(exported.mlir_module_serialized), CLUSTER, stages=1).to_exported()


def test_what_cannot_be_sharded(exported: jax.export.Exported) -> None:
    with pytest.raises(shardopt.UserError, match=r"expected a jax\.export\.Exported, found bytes"):
        shardopt.shard(b"", CLUSTER, "4")  # type: ignore[arg-type]
    with pytest.raises(shardopt.UserError, match="has no input shardings"):
        shardopt.input_shardings(exported)
    with pytest.raises(shardopt.UserError, match="is sharded over 4 devices, found 1"):
        shardopt.input_shardings(shardopt.shard(exported, CLUSTER, "4"), jax.devices()[:1])
    with pytest.raises(shardopt.UserError, match="mesh 8 needs 8 devices"):
        shardopt.shard(exported, CLUSTER, "8")
    (size,) = jax.export.symbolic_shape("b")
    symbolic = jax.export.export(jax.jit(train_step))(*shapes(size))
    with pytest.raises(shardopt.UserError, match="has symbolic dimensions"):
        shardopt.shard(symbolic, CLUSTER, "4")
    both = jax.export.export(jax.jit(train_step), platforms=("cpu", "cuda"))(*shapes())
    with pytest.raises(shardopt.UserError, match="is exported for 2 platforms"):
        shardopt.shard(both, CLUSTER, "4")


SHARDED_STEPS = """
import re
import jax, numpy as np
import shardopt
from examples.gpt import init_params, make_train_step
from tests.e2e.models import BATCH, GPT

optimizer, train_step = make_train_step(GPT)
params = init_params(GPT, jax.random.key(0))
state = (params, optimizer.init(params))
tokens = jax.random.randint(jax.random.key(1), (BATCH, GPT.length + 1), 0, GPT.vocab)
exported = jax.export.export(jax.jit(train_step, donate_argnums=(0, 1)))(*state, tokens)

def steps(step):
    params, opt_state = jax.tree.map(jax.numpy.copy, state)
    losses = []
    for _ in range(3):
        params, opt_state, loss = step(params, opt_state, tokens)
        losses.append(float(loss))
    return losses, params

expected, expected_params = steps(jax.jit(train_step))
for mesh, intra_op in (("2x2", "heuristic"), ("4", "data"), ("2x2", "ilp"), ("2", "replicate")):
    sharded = shardopt.shard(exported, "cpu-test:1x4", mesh, intra_op=intra_op)
    args, kwargs = shardopt.input_shardings(sharded)
    assert kwargs == {} and len(args) == 3
    step = jax.jit(sharded.call, in_shardings=args, donate_argnums=(0, 1))
    losses, params = steps(step)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for got, want in zip(jax.tree.leaves(params), jax.tree.leaves(expected_params), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    # the outputs lie as the inputs of the next step want them
    for leaf, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(args[0]), strict=True):
        assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim), (leaf.sharding, wanted)
    # arguments that are already placed need no in_shardings
    text = jax.jit(sharded.call).lower(*jax.device_put((*state, tokens), args)).compile().as_text()
    split = any(not leaf.is_fully_replicated for leaf in jax.tree.leaves(args))
    collective = re.search(r"all-(reduce|gather)|reduce-scatter", text) is not None
    print(mesh, intra_op, split, collective)
"""


@pytest.mark.slow
def test_sharded_functions_run_under_plain_jit() -> None:
    done = run_on_host_devices(SHARDED_STEPS, devices=4)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[:2] == [["2x2", "heuristic", "True", "True"], ["4", "data", "True", "True"]]
    assert rows[3] == ["2", "replicate", "False", "False"]
