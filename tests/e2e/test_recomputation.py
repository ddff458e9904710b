"""Stages that compute their forward again in the backward: the same numbers, less that is kept,
less that XLA needs."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import jax
import numpy as np
import pytest
from jaxlib.mlir import ir

from examples.gpt import Config, init_params, make_train_step
from shardopt.dialect.mpmd import KIND, RECOMPUTE
from shardopt.dialect.program import read_program
from shardopt.forms.exported_form import mesh_value, read_exported
from shardopt.forms.sharded_form import read_cost
from shardopt.frontend.calls.phase_options import phase_text
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module, module_bytecode
from shardopt.ir.rewriting import defining
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import PHASE_NAMES, phase_range
from shardopt.runtime.devices.compiled import compiled_bytes
from shardopt.runtime.reference import compare
from tests.e2e.models import MODELS, export_step, mlp
from tests.e2e.older_xla import check_peaks
from tests.e2e.test_plan_and_run import TOLERANCE, plan_of, reference_of, run_plan


@cache
def staged(name: str, recompute: str) -> bytes:
    """The form after the stage phase, of stages of one device: nothing is searched."""
    options = PlanOptions(
        "cpu-test:1x2", microbatches=2, stages=2, layers=4, submesh="1x1", recompute=recompute
    )
    with make_context() as context:
        module = load_module(mlp(8, 16, 4)[0] if name == "mlp" else MODELS[name]()[0], context)
        for phase in PHASE_NAMES[: PHASE_NAMES.index("stage") + 1]:
            run_pipeline(module, phase_range(phase, phase, phase_text(options, phase)))
        return module_bytecode(module)


@cache
def handed_over(name: str, recompute: str) -> tuple[int, ...]:
    """For each stage with a backward of its own, how many values its forward keeps for it."""
    with make_context() as context:
        program = read_program(load_module(staged(name, recompute), context))
        backward = [
            op
            for op in program.body_ops
            if KIND in op.attributes and op.attributes[KIND].value == "bwd"
        ]
        return tuple(sum(_from_own_forward(value, op) for value in op.operands) for op in backward)


def _from_own_forward(value: ir.Value, reader: ir.Operation) -> bool:
    maker = defining(value)
    return (
        maker is not None
        and maker.name == "mpmd.fragment"
        and maker.attributes["stage_id"] == reader.attributes["stage_id"]
    )


@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt", marks=pytest.mark.slow)])
def test_only_what_enters_a_layer_or_the_stage_is_kept(name: str) -> None:
    modes = ("none", "selective", "layer:1", "layer", "full")
    kept = {mode: handed_over(name, mode) for mode in modes}
    assert len(kept["none"]) == 1
    assert kept["none"][0] > kept["selective"][0]
    assert kept["none"][0] > kept["layer:1"][0] > kept["layer"][0]
    assert kept["none"][0] > kept["layer"][0] > kept["full"][0] == 0


def test_the_loop_says_what_is_recomputed() -> None:
    with make_context() as context:
        for mode, expected in (("none", None), ("full", '["full", "full"]')):
            program = read_program(load_module(staged("mlp", mode), context))
            attributes = program.loop.attributes
            assert (str(attributes[RECOMPUTE]) if RECOMPUTE in attributes else None) == expected


@pytest.mark.parametrize(
    ("name", "recompute", "options"),
    [
        pytest.param("gpt", "selective", {"layers": 4}, marks=pytest.mark.slow),
        pytest.param(
            "gpt", "selective", {"layers": 4, "stages": 1, "submesh": "1x4"}, marks=pytest.mark.slow
        ),
        ("scanned", "selective", {"layers": 4, "stages": 4, "submesh": "1x1", "microbatches": 4}),
        pytest.param("clipped", "selective", {"layers": 2}, marks=pytest.mark.slow),
        pytest.param("gpt", "selective:1", {"layers": 4}, marks=pytest.mark.slow),
        ("scanned", "layer:1", {"layers": 4, "submesh": "1x1", "cluster": "cpu-test:1x2"}),
        pytest.param("gpt", "layer:1", {"layers": 4}, marks=pytest.mark.slow),
        pytest.param(
            "gpt", "layer:3", {"layers": 4, "stages": 1, "submesh": "1x4"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "gpt", "selective", {"layers": 4, "schedule": "zero-bubble"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "gpt",
            "selective:1",
            {"layers": 4, "schedule": "zb-v", "stages": 4, "submesh": "1x2"},
            marks=pytest.mark.slow,
        ),
        pytest.param("gpt", "layer", {"layers": 4}, marks=pytest.mark.slow),
        pytest.param("gpt", "full", {"layers": 4}, marks=pytest.mark.slow),
        pytest.param(
            "gpt", "layer", {"layers": 4, "stages": 1, "submesh": "1x4"}, marks=pytest.mark.slow
        ),
        ("scanned", "full", {"layers": 4, "stages": 4, "submesh": "1x1", "microbatches": 4}),
        ("scanned", "layer", {"layers": 2}),
        pytest.param("clipped", "layer", {"layers": 2}, marks=pytest.mark.slow),
        pytest.param("clipped", "full", {"layers": 2, "schedule": "gpipe"}, marks=pytest.mark.slow),
    ],
)
def test_outputs_equal_those_of_one_device(
    name: str, recompute: str, options: dict[str, Any]
) -> None:
    outputs = run_plan(plan_of(name, recompute=recompute, **options), MODELS[name]()[1])
    assert [row for row in compare(outputs, reference_of(name)) if not row.within(TOLERANCE)] == []


@cache
def transformer() -> tuple[bytes, list[np.ndarray]]:
    """A GPT whose activations outweigh its state."""
    config = Config(layers=4, hidden=64, heads=4, vocab=64, length=64)
    optimizer, step = make_train_step(config)
    params = init_params(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (16, config.length + 1), 0, config.vocab)
    return export_step(step, (params, optimizer.init(params)), (tokens,))


def body_bytes(plan: Plan) -> tuple[int, int]:
    """Bytes that a device holds while the forward and backward fragment of a single stage runs:
    predicted, and compiled with what only the update reads of the state beside it."""
    with make_context() as context:
        exported = read_exported(load_module(plan.module, context))
        program = read_program(load_module(plan.module, context))
        [fragment] = [op for op in program.body_ops if op.name == "mpmd.fragment_call"]
        predicted = read_cost(fragment).peak_bytes
        read = set(program.captured.values())
        waiting = [
            mesh_value(argument.type).spec
            for argument in program.main_block.arguments
            if argument not in read
        ]
    [body] = [function for function in exported.functions if function.name.endswith("fwd")]
    state = sum(prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in waiting)
    return predicted, state + compiled_bytes(body.bytecode, 1, shardy=True)


@pytest.mark.slow
def test_xla_needs_as_much_less_memory_as_predicted() -> None:
    options = {"microbatches": 2, "stages": 1, "layers": 4}
    modes = ("none", "selective", "layer")
    plans = {
        mode: make_plan(transformer()[0], PlanOptions("cpu-test:1x1", recompute=mode, **options))
        for mode in modes
    }
    predicted, compiled = zip(*(body_bytes(plans[mode]) for mode in modes), strict=True)
    assert max(compiled[1:]) < 0.5 * compiled[0]
    check_peaks(predicted, compiled, 0.02)
