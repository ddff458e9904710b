"""Programs on GPUs: stage executables against numpy, donation, a profile, and a GPT's step beside
plain `jax.jit`."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import jax
import numpy as np
import pytest

import shardopt
from benchmarks.cost.predicted_steps import gpt_step
from examples.gpt import Config, init_params, make_train_step
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.devices.gpus import mesh_gpus, visible_gpus
from shardopt.runtime.devices.replicas import Replicas, accelerators
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.profiling.chains import matmul
from shardopt.runtime.profiling.slopes import Effort, measure_chain
from shardopt.runtime.program.instructions import Program

# Heads and widths that fill a GPU for long enough: a step must not be a race of launches.
CONFIG, BATCH = Config(layers=6, hidden=1024, heads=16, vocab=8192, length=512), 8


def planned(model: object, stages: int) -> Program:
    cluster = f"h100-sxm:1x{stages}"
    plan = make_plan(
        model, PlanOptions(cluster, stages=stages, submesh="1x1", microbatches=1, recompute="none")
    )
    with make_context() as context:
        return prepare(load_module(plan.module, context))


def test_steps_match_those_of_the_host() -> None:
    model, inputs = gpt_step(Config(layers=2), 4)
    program = planned(model, 1)
    losses = {}
    for platform in ("gpu", "cpu"):
        with open_run(program, platform=platform, checked_steps=5) as run:
            run.load(inputs)
            losses[platform] = [float(run.step()[-1]) for _ in range(5)]
    assert losses["gpu"] == pytest.approx(losses["cpu"], rel=2e-2)
    assert losses["gpu"][-1] < losses["gpu"][0]


def test_two_stages_share_a_gpu() -> None:
    """The numbers of a pipeline are those of one stage, whether GPUs are its own or not."""
    model, inputs = gpt_step(Config(layers=2), 4)
    losses = {}
    for stages in (1, 2):
        with open_run(
            planned(model, stages), platform="gpu", share_gpus=True, checked_steps=3
        ) as run:
            run.load(inputs)
            losses[stages] = [float(run.step()[-1]) for _ in range(3)]
    assert losses[2] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.skipif(len(visible_gpus()) < 2, reason="no second GPU found")
def test_stages_on_gpus_of_their_own() -> None:
    model, inputs = gpt_step(Config(layers=2), 4)
    with open_run(planned(model, 2), platform="gpu", checked_steps=3) as run:
        run.load(inputs)
        losses = [float(run.step()[-1]) for _ in range(3)]
    assert losses[-1] < losses[0]


def test_state_is_updated_in_place() -> None:
    """A step of a plan whose state is donated holds the state once."""
    model, inputs = gpt_step(Config(layers=2, hidden=512), 4)
    with open_run(planned(model, 1), platform="gpu", track_bytes=True) as run:
        run.load(inputs)
        run.step()
        run.step()
        held = max(run.live_bytes()["m0"])
    state = sum(each.nbytes for each in inputs)
    assert held < 2 * state


def test_products_are_profiled_on_the_gpu() -> None:
    slope = measure_chain(matmul(2048, "f32"), Replicas(accelerators()[:1]), Effort(seconds=0.2))
    assert 0 < slope.seconds < 1


def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(Exception, match=r"mesh 'm' needs GPU 977, found \d+ GPUs"):
        mesh_gpus("m", [0, 977])


def test_a_step_takes_what_it_takes_under_jit() -> None:
    """The one test with a clock, for it is a promise: in turns, by medians, on steps of many
    milliseconds."""
    import jax

    model, inputs = gpt_step(CONFIG, BATCH)
    optimizer, train_step = make_train_step(CONFIG)
    params = jax.device_put(init_params(CONFIG, jax.random.key(0)), visible_gpus()[0])
    state, tokens = (params, optimizer.init(params)), jax.device_put(inputs[-1], visible_gpus()[0])
    jitted = jax.jit(train_step, donate_argnums=(0, 1))
    ratios = []
    with open_run(planned(model, 1), platform="gpu") as run:
        run.load(inputs)
        for turn in range(23):
            begin = perf_counter()
            run.step()
            middle = perf_counter()
            *state, loss = jitted(*state, tokens)  # type: ignore[assignment]
            loss.block_until_ready()
            end = perf_counter()
            if turn >= 3:
                ratios.append((middle - begin) / (end - middle))
    print(f"step of {median(ratios):.4f} of plain jit")
    assert median(ratios) <= 1.02
    assert np.isfinite(float(loss))


def test_parallelized_steps_run_on_the_gpu() -> None:
    """Without being told: as many GPUs are seen as the cluster has devices."""
    optimizer, step = make_train_step(Config(layers=2))
    params = init_params(Config(layers=2), jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (4, Config.length + 1), 0, Config.vocab)
    state = (params, optimizer.init(params))
    planned = shardopt.parallelize(step, cluster="h100-sxm:1x1", donate_argnums=(0, 1), trace=True)
    expected = jax.jit(step)(*state, tokens)[-1]
    with planned:
        assert planned.start(*state, tokens).run.program.meshes
        assert float(planned(*state, tokens)[-1]) == pytest.approx(float(expected), rel=2e-2)
        assert planned._platform == "gpu"
