"""`@shardopt.parallelize` beside the undecorated function, and what travels between the two
sides."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardopt
from examples.gpt import init_params, make_train_step
from shardopt.frontend.steps.state_array import StateArray
from shardopt.runtime import driver
from shardopt.runtime.errors import MeshError
from shardopt.runtime.faults import Fault
from shardopt.runtime.options import RunOptions
from shardopt.runtime.run import Run
from shardopt.runtime.state.periodic import CheckpointOptions
from shardopt.support.errors import UserError
from tests.e2e.models import BATCH, GPT

OPTIONS: dict[str, Any] = {"cluster": "cpu-test:1x4", "quick_compile": True}
PIPELINE: dict[str, Any] = {**OPTIONS, "microbatches": 2, "stages": 2, "submesh": "1x2"}


def mlp_step(params: Any, x: jax.Array, y: jax.Array, rate: Any = 0.1) -> dict[str, Any]:
    """Donates nothing by itself; results are a dictionary with the loss and a count beside the
    parameters."""

    def loss_fn(params: Any) -> jax.Array:
        h = jnp.tanh(x @ params["layers"][0])
        return jnp.mean((jnp.tanh(h @ params["layers"][1]) @ params["head"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
    return {"params": new, "loss": loss}


@pytest.fixture(scope="module")
def mlp() -> tuple[Any, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 5)
    layers = [0.3 * jax.random.normal(key, (16, 16)) for key in keys[:2]]
    params = {"layers": layers, "head": jax.random.normal(keys[2], (16, 4))}
    return params, jax.random.normal(keys[3], (8, 16)), jax.random.normal(keys[4], (8, 4))


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """The arguments, by number, that each `load` and each step sends to the workers."""
    seen: list[tuple[int, ...]] = []
    load, step = Run.load, Run.step
    monkeypatch.setattr(
        Run, "load", lambda run, inputs: seen.append(tuple(range(len(inputs)))) or load(run, inputs)
    )
    monkeypatch.setattr(
        Run,
        "step",
        lambda run, inputs=None: seen.append(tuple(sorted(inputs or {}))) or step(run, inputs),
    )
    yield seen


def assert_same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-3, atol=1e-4)


def test_gpt_trains_like_the_undecorated_step(uploads: list[tuple[int, ...]]) -> None:
    config = replace(GPT, layers=1)
    optimizer, train_step = make_train_step(config)
    params = init_params(config, jax.random.key(0))
    state = expected = (params, optimizer.init(params))
    before = jax.tree.map(np.array, state)
    count = len(jax.tree.leaves(state))
    plain = jax.jit(train_step)
    with shardopt.parallelize(train_step, donate_argnums=(0, 1), **PIPELINE) as step:
        for k in range(4):
            tokens = jax.random.randint(
                jax.random.key(k), (BATCH, config.length + 1), 0, config.vocab
            )
            *state, loss = step(*state, tokens)
            *expected, expected_loss = plain(*expected, tokens)
            assert isinstance(loss, jax.Array) and loss.weak_type == expected_loss.weak_type
            np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)
        assert_same(tuple(state), tuple(expected))
    # everything once, and from then on the tokens only
    assert uploads == [tuple(range(count + 1)), (), (count,), (count,), (count,)]
    # the arrays of the caller are untouched
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.tree.map(np.array, (params, optimizer.init(params))),
        before,
    )


def test_only_what_changed_travels(mlp: Any, uploads: list[tuple[int, ...]]) -> None:
    params, x, y = mlp
    with shardopt.parallelize(mlp_step, donate_argnums=0, **PIPELINE) as step:
        first = step(params, x, y)
        second = step(first["params"], x, y)
        third = step({**second["params"], "head": params["head"]}, x, np.asarray(y))
        again = step(params, x, y)
    # the head (argument 0) is replaced; a numpy array may have changed unseen; then the whole state
    # goes back
    assert uploads == [(0, 1, 2, 3, 4), (), (), (0, 4), (0, 1, 2, 4)]
    plain = jax.jit(mlp_step)
    assert_same(second, plain(plain(params, x, y)["params"], x, y))
    assert_same(third, plain({**second["params"], "head": params["head"]}, x, y))
    assert_same(again, first)


def test_lazy_state_stays_on_the_workers(mlp: Any, uploads: list[tuple[int, ...]]) -> None:
    params, x, y = mlp
    plain = jax.jit(mlp_step)
    with shardopt.parallelize(mlp_step, donate_argnums=0, lazy_state=True, **PIPELINE) as step:
        first = step(params, x, y)
        assert isinstance(first["loss"], jax.Array)
        kept = first["params"]["head"]
        assert isinstance(kept, StateArray) and (kept.shape, kept.dtype, kept.ndim) == (
            (16, 4),
            jnp.float32,
            2,
        )
        seen = first["params"]["layers"][0].value
        second = step(first["params"], x, y)
        np.testing.assert_array_equal(first["params"]["layers"][0], seen)
        with pytest.raises(
            shardopt.UserError, match=r"no longer on the workers .*lazy_state=False"
        ):
            _ = kept.value
        with pytest.raises(shardopt.UserError, match="no longer on the workers"):
            step(first["params"], x, y)  # what was replaced cannot be sent back
        third = step(second["params"], x, y)  # and the failed call has harmed nothing
        np.testing.assert_array_equal(
            jnp.asarray(third["params"]["head"]), np.asarray(third["params"]["head"])
        )
        expected = plain(plain(plain(params, x, y)["params"], x, y)["params"], x, y)
        assert_same(jax.tree.map(jnp.asarray, third), expected)
    assert uploads == [(0, 1, 2, 3, 4), (), (), ()]


def test_a_last_batch_of_another_size_goes_on_with_the_same_weights(mlp: Any) -> None:
    """Five rows, of which no two microbatches can be made, after eight: a warning says so. Where
    no call of another size was before, they are refused."""
    params, x, y = mlp
    step = shardopt.parallelize(mlp_step, donate_argnums=0, **PIPELINE)
    with pytest.raises(UserError, match="expected a batch that divides into"):
        step(params, x[:5], y[:5])
    expected = params
    with step:
        for rows in (8, 5, 8):
            if rows == 5:
                with pytest.warns(UserWarning, match="microbatches=1 instead of 2"):
                    found = step(params, x[:rows], y[:rows])
            else:
                found = step(params, x[:rows], y[:rows])
            expected = mlp_step(expected, x[:rows], y[:rows])
            assert_same(found, expected)
            params, expected = found["params"], expected["params"]


def test_keywords_scalars_and_a_second_signature(mlp: Any) -> None:
    params, x, y = mlp
    plain = jax.jit(mlp_step)
    with shardopt.parallelize(
        mlp_step, donate_argnames="params", batch_argnums=(1, 2), **PIPELINE
    ) as step:
        assert_same(step(params, y=y, x=x, rate=0.2), plain(params, x, y, 0.2))
        assert_same(step(params, y=y, x=x, rate=0.4), plain(params, x, y, 0.4))
        assert_same(
            step(params, x[:4], y[:4], rate=np.float32(0.3)), plain(params, x[:4], y[:4], 0.3)
        )
        assert step.plan(params, x, y=y, rate=0.2) is not step.plan(params, y=y, x=x, rate=0.2)
        assert step.plan(params, y=y, x=x, rate=0.5) is step.plan(params, y=y, x=x, rate=0.2)


def test_functions_that_donate_nothing_and_jitted_ones(mlp: Any) -> None:
    params, x, y = mlp

    @shardopt.parallelize(batch_argnums=1, stages=1, **OPTIONS)
    def predict(params: Any, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ params["layers"][0]) @ params["head"]

    with predict:
        assert_same(predict(params, x), predict.__wrapped__(params, x))  # type: ignore[attr-defined]
    jitted = jax.jit(mlp_step, donate_argnums=0)
    unused = shardopt.parallelize(
        jax.jit(lambda skipped, p, x, y: mlp_step(p, x, y), donate_argnums=1), **PIPELINE
    )
    with shardopt.parallelize(jitted, **PIPELINE) as step, unused:
        assert_same(step(params, x, y), mlp_step(params, x, y))
        assert_same(unused(jnp.ones(3), params, x, y), mlp_step(params, x, y))


def test_typed_keys_go_in_and_come_out(mlp: Any) -> None:
    params, x, y = mlp

    def step(params: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        key, used = jax.random.split(key)
        mask = jax.random.bernoulli(used, 0.5, (16,))
        return mlp_step(params, x * mask, y)["params"], key

    state = expected = (params, jax.random.key(3))
    with shardopt.parallelize(step, donate_argnums=(0, 1), **PIPELINE) as parallel:
        for _ in range(2):
            state, expected = parallel(*state, x, y), jax.jit(step)(*expected, x, y)
    assert state[1].dtype == expected[1].dtype
    assert jax.random.key_data(state[1]).tolist() == jax.random.key_data(expected[1]).tolist()
    assert_same(state[0], expected[0])


def test_integers_of_four_bits_are_state() -> None:
    def step(codes: Any, x: jax.Array) -> Any:
        for code in codes:
            x = jnp.tanh(x @ (code.astype(x.dtype) / 8))
        return [code ^ 1 for code in codes], x

    codes = expected = [
        jax.random.randint(jax.random.key(k), (16, 16), -8, 8).astype(jnp.int4) for k in range(2)
    ]
    x = jax.random.normal(jax.random.key(2), (8, 16))
    with shardopt.parallelize(step, donate_argnums=0, **PIPELINE) as parallel:
        for _ in range(2):
            (codes, result), (expected, wanted) = parallel(codes, x), jax.jit(step)(expected, x)
            assert_same((codes, result), (expected, wanted))


def test_plan_needs_no_arrays_and_starts_nothing(mlp: Any) -> None:
    step = shardopt.parallelize(mlp_step, donate_argnums=0, **PIPELINE)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp)
    plan = step.plan(*shapes)
    assert len(plan.summary.stages) == 2
    assert step.plan(*mlp) is plan
    with pytest.raises(shardopt.UserError, match="only plan\\(\\) takes shapes"):
        step(*shapes)


def test_workers_start_again_after_close_and_after_a_failure(
    mlp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, x, y = mlp
    step = shardopt.parallelize(mlp_step, donate_argnums=0, **PIPELINE)
    first = step(params, x, y)
    step.close()
    assert_same(step(params, x, y), first)

    def fail(run: Run, inputs: Any = None) -> None:
        raise RuntimeError("a worker died")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="a worker died"):
        patch.setattr(Run, "step", fail)
        step(params, x, y)
    assert_same(step(params, x, y), first)
    step.close()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps at which the workers of attempt k raise; the number of attempts is what is gone."""
    steps: list[int] = []
    start = driver.start_run

    def start_failing(program: Any, options: RunOptions) -> Run:
        faults = [Fault("raise", "m1", 0, steps.pop(0), 3)] if steps else []
        return start(program, replace(options, faults=faults))

    monkeypatch.setattr(driver, "start_run", start_failing)
    return steps


@pytest.mark.parametrize(
    "lazy",
    [pytest.param(False, id="whole", marks=pytest.mark.slow), pytest.param(True, id="lazy")],
)
def test_restarts_go_on_as_if_nothing_had_happened(
    mlp: Any, failing: list[int], tmp_path: Path, lazy: bool
) -> None:
    """Also where a restarted step fails, and one that is run again for the sake of a later one; and
    arguments that did not change are brought to the new workers, too."""
    params, x, y = mlp
    batches = [x * scale for scale in (1.0, 1.0, -1.0, 0.5, 0.5, 2.0, 1.0)]

    def train(step: Any) -> tuple[Any, list[Any]]:
        state, losses = params, []
        for batch in batches:
            results = step(state, batch, y)
            state, loss = results["params"], results["loss"]
            losses.append(loss)
        return jax.tree.map(np.asarray, state), losses

    options = {**PIPELINE, "donate_argnums": 0, "lazy_state": lazy}
    with shardopt.parallelize(mlp_step, **options) as step:
        expected = train(step)
    failing += [0, 1, 3, 4, 4]
    checkpoints = CheckpointOptions(tmp_path / "checkpoints", every=2, background=False)
    with shardopt.parallelize(mlp_step, **options, restarts=5, checkpoints=checkpoints) as step:
        with pytest.warns(RuntimeWarning, match=r"mesh 'm1', host 0, step \d, .*; starting again"):
            found = train(step)
        (session,) = step.sessions
        assert session.run.steps_done == len(batches)
    assert failing == []
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_state_that_was_made_on_the_workers_is_made_again(mlp: Any, failing: list[int]) -> None:
    params, x, y = mlp
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, x, y))
    options = {**PIPELINE, "donate_argnums": 0}

    def first(**more: int) -> Any:
        with shardopt.parallelize(mlp_step, **options, **more) as step:
            made = step.start(*shapes).create(lambda: jax.tree.map(lambda a: 0.5 * a, params))
            return step(made, x, y)

    expected = first()
    failing += [0, 0]
    with pytest.raises(MeshError), pytest.warns(RuntimeWarning, match="starting again"):
        first(restarts=1)
    failing += [0]
    with pytest.warns(RuntimeWarning, match="starting again"):
        found = first(restarts=1)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    with pytest.raises(UserError, match="restarts with lazy_state=True need checkpoints"):
        shardopt.parallelize(mlp_step, **options, lazy_state=True, restarts=1)
    with pytest.raises(UserError, match="expected restarts to be an integer of at least 0"):
        shardopt.parallelize(mlp_step, **options, restarts=-1)


def test_errors_name_the_argument(mlp: Any) -> None:
    params, x, y = mlp
    sums = shardopt.parallelize(lambda w, a, b: w - a.sum() * b.sum(), **PIPELINE)
    with pytest.raises(
        shardopt.UserError,
        match=r"cannot tell the batch arguments: .* with batch_argnames=NAME or {NAME: DIM}, or "
        r"keep the batch whole with microbatches=1$",
    ):
        sums(x[0], x, x[:7])
    step = shardopt.parallelize(mlp_step, **PIPELINE)
    with pytest.raises(
        shardopt.UserError,
        match=r"expected args\[0\]\['head'\] to be an array or a number, found str",
    ):
        step({**params, "head": "x"}, x, y)
    with pytest.raises(shardopt.UserError, match=r"kwargs\['rate'\] is being traced"):
        jax.jit(lambda rate: step(params, x, y, rate=rate))(0.1)
    with pytest.raises(shardopt.UserError, match=r"batch_argnums=\(7,\) name no array"):
        shardopt.parallelize(mlp_step, batch_argnums=7, **PIPELINE)(params, x, y)


def test_a_batch_with_leaves_that_have_no_rows(mlp: Any) -> None:
    """A dictionary with rows in dimension 0, in dimension 1, and in none, which the name of the
    whole dictionary does not tell."""
    params, x, y = mlp

    def step(params: Any, batch: Any) -> Any:
        return mlp_step(params, batch["x"] * batch["scale"], batch["y"].T, batch["rate"])

    batch = {"x": x, "y": y.T, "scale": jnp.linspace(0.5, 1, 16), "rate": jnp.float32(0.1)}
    whole = shardopt.parallelize(step, batch_argnames="batch", **PIPELINE)
    with pytest.raises(UserError, match="a tree of dimensions has None for leaves without rows"):
        whole.plan(params, {**batch, "scale": jnp.ones(1)})
    dims = {"x": 0, "y": 1, "scale": None, "rate": None}
    with shardopt.parallelize(step, batch_argnames={"batch": dims}, **PIPELINE) as planned:
        assert_same(planned(params, batch), step(params, batch))
        assert planned.plan(params, batch).summary.num_microbatches == 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["process", pytest.param("ray", marks=pytest.mark.ray)])
def test_workers_elsewhere_keep_the_state(
    mlp: Any, uploads: list[tuple[int, ...]], backend: str
) -> None:
    params, x, y = mlp
    plain = jax.jit(mlp_step)
    expected = params
    with shardopt.parallelize(mlp_step, donate_argnums=0, backend=backend, **PIPELINE) as step:
        for _ in range(3):
            params, expected = step(params, x, y)["params"], plain(expected, x, y)["params"]
        assert_same(params, expected)
    assert uploads == [(0, 1, 2, 3, 4), (), (), ()]


def test_state_is_made_saved_and_loaded_without_being_here(
    mlp: Any, uploads: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between two sessions with different plans; only what the test looks at is ever whole in this
    process."""
    whole, argument = [], Run.argument
    monkeypatch.setattr(
        Run,
        "argument",
        lambda run, number, slice_=None: whole.append(number) or argument(run, number, slice_),
    )
    params, x, y = mlp

    def init(key: jax.Array, scale: float) -> Any:
        return jax.tree.map(lambda leaf: scale * jax.random.normal(key, leaf.shape), params)

    def step(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
        results = mlp_step(params, x, y)
        return results["params"], results["loss"]

    expected, _ = jax.jit(step)(jax.jit(init)(jax.random.key(3), 0.2), x, y)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, x, y))
    with shardopt.parallelize(step, donate_argnums=0, lazy_state=True, **PIPELINE) as train:
        session = train.start(*shapes)
        made = session.create(init, jax.random.key(3), 0.2)
        assert all(isinstance(leaf, StateArray) for leaf in jax.tree.leaves(made))
        state, _ = train(made, x, y)
        assert whole == [] and uploads == [(3, 4)]  # the batch alone
        with pytest.raises(UserError, match="this state is no longer on the workers"):
            session.fetch(made)
        session.save(tmp_path / "after")
        assert_same(session.fetch(state), expected)
        with pytest.raises(UserError, match="init function: expected 3 results"):
            session.create(lambda: jnp.zeros(3))
    with shardopt.parallelize(step, donate_argnums=0, lazy_state=True, **OPTIONS) as train:
        session = train.start(*shapes)
        (loaded,) = session.load(tmp_path / "after")
        assert_same(session.fetch(loaded), expected)
        again, loss = train(loaded, x, y)
        reference, reference_loss = jax.jit(step)(expected, x, y)
        assert_same((session.fetch(again), loss), (reference, reference_loss))


def scaled(params: Any, x: jax.Array, mode: str, *, rate: float = 0.1, key: Any = None) -> Any:
    """A step with a static mode, a key, a flag and a missing part in its state."""

    def loss_fn(weights: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x @ weights)
        if mode == "noisy":
            hidden = hidden + jax.random.normal(key, hidden.shape)
        return jnp.mean(hidden**2)

    loss, grads = jax.value_and_grad(loss_fn)(params["w"])
    return {**params, "w": params["w"] - rate * grads, "count": params["count"] + 1}, loss


def test_state_may_be_made_by_calls_that_jax_promises_to_no_later_version() -> None:
    """`jax.export` refuses LAPACK's pivoted factors, as it does kernels."""

    def init() -> jax.Array:
        numbers = jax.random.normal(jax.random.key(0), (8, 8))
        return jax.lax.linalg.qr(numbers, pivoting=True)[0]

    def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(weights)
        return weights - grad, loss

    weights, rows = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 8), (16, 8)))
    with shardopt.parallelize(step, donate_argnums=0, lazy_state=True, **OPTIONS) as train:
        session = train.start(weights, rows)
        np.testing.assert_allclose(session.fetch(session.create(init)), init(), atol=1e-6)


@pytest.mark.parametrize(
    "form",
    [
        "jitted",
        "method",
        *(pytest.param(form, marks=pytest.mark.slow) for form in ("plain", "partial")),
    ],
)
def test_static_keyword_and_missing_arguments(form: str) -> None:
    class Trainer:
        def step(self, *args: Any, **kwargs: Any) -> Any:
            return scaled(*args, **kwargs)

    static: dict[str, Any] = {"static_argnames": ("mode", "rate")}
    fun: Any = scaled
    if form == "jitted":
        fun, static = jax.jit(scaled, static_argnames=("mode", "rate")), {}
    elif form == "partial":
        fun = functools.partial(scaled, key=jax.random.key(1))
    elif form == "method":
        fun, static = Trainer().step, {"static_argnums": 2, "static_argnames": ("rate",)}
    expected = {
        mode: jax.jit(scaled, static_argnames=("mode", "rate"))(
            *start(), mode, rate=0.5, key=jax.random.key(1)
        )
        for mode in ("plain", "noisy")
    }
    planned = shardopt.parallelize(
        fun, cluster="cpu-test:1x2", donate_argnums=0, stages=1, **static
    )
    keys = {} if form == "partial" else {"key": jax.random.key(1)}
    with planned:
        for mode, (params, loss) in expected.items():
            got, got_loss = planned(*start(), mode, rate=0.5, **keys)
            np.testing.assert_allclose(got_loss, loss, rtol=1e-5)
            np.testing.assert_allclose(got["w"], params["w"], rtol=1e-5)
            assert (int(got["count"]), bool(got["on"]), got["none"]) == (1, True, None)


def start() -> tuple[Any, jax.Array]:
    params = {"w": jnp.full((4, 4), 0.1), "count": 0, "on": True, "none": None}
    return params, jnp.ones((8, 4))
