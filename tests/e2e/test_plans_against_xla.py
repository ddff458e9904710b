"""XLA does exactly what was planned: tensors and bytes by kind and mesh axis, of whole models on
host devices.

What the solver would rarely choose is shown by presets and by random plans: any strategy of any
operation that the rules allow has to compile to the collectives it was predicted with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.cost.xla_agreement import REMATERIALIZATION
from benchmarks.cost.xla_agreement_case import Case, check
from shardopt.cost.traffic import Traffic, agree, comparable, compare
from tests.e2e.models import accumulated, convolution, gpt, mixture, mlp, transformer_layer

MODELS = {
    "mlp": mlp,
    "transformer": transformer_layer,
    "convolution": convolution,
    "mixture": mixture,
    "tied": gpt,
    "accumulated": accumulated,
}
slow = pytest.mark.slow


def exchanged(
    name: str, mesh: str, plan: str = "ilp", form: str = "sdy"
) -> tuple[tuple[Traffic, ...], ...]:
    """What was planned and what was compiled, in the same notation."""
    [outcome] = check(MODELS[name]()[0], Case(mesh, plan, gap=0.05), (form,))
    return comparable(outcome.predicted), comparable(outcome.emitted)


@pytest.mark.parametrize(
    ("name", "mesh", "plan"),
    [
        ("mlp", "4", "data"),
        ("mlp", "2x2", "ilp"),
        ("mlp", "4", "megatron"),
        ("mlp", "4", "zero3"),
        ("convolution", "4", "ilp"),
        ("mixture", "4", "ilp"),
        ("accumulated", "4", "data"),
        pytest.param("accumulated", "4", "zero1", marks=slow),
        pytest.param("accumulated", "4", "zero2", marks=slow),
        pytest.param("accumulated", "2x2", "ilp", marks=slow),
        pytest.param("convolution", "2x2", "ilp", marks=slow),
        pytest.param("mixture", "2x2", "ilp", marks=slow),
        pytest.param("transformer", "4", "megatron", marks=slow),
        pytest.param("transformer", "2x2", "ilp", marks=slow),
        pytest.param("tied", "4", "ilp", marks=slow),
    ],
)
def test_the_module_exchanges_what_the_plan_says(name: str, mesh: str, plan: str) -> None:
    planned, emitted = exchanged(name, mesh, plan)
    assert planned and emitted == planned


@pytest.mark.parametrize(
    ("name", "mesh", "seed"),
    [
        ("mlp", "2x2", 0),
        pytest.param("mixture", "4", 1, marks=slow),
        pytest.param("accumulated", "2x2", 1, marks=slow),
        pytest.param("transformer", "2x2", 2, marks=slow),
    ],
)
def test_random_plans_are_compiled_as_predicted(name: str, mesh: str, seed: int) -> None:
    """But for what XLA finds to be equal on all devices, or made twice: it moves a little less than
    such plans say."""
    planned, emitted = exchanged(name, mesh, f"random:{seed}")
    assert agree(compare(planned, emitted), 0.05), "\n".join(map(str, compare(planned, emitted)))


@slow
def test_gspmd_compiles_its_plan_to_the_same_collectives() -> None:
    planned, emitted = exchanged("mixture", "2x2", form="gspmd")
    assert planned and emitted == planned


# From rows over both axes to columns over the second one: there is no single step, and here no stop
# between.
WITHOUT_STOPS = """
module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<60x4xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"})
      -> (tensor<60x4xf32> {mhlo.sharding = "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"}) {
    return %x : tensor<60x4xf32>
  }
}
"""

PROGRAM = """
import sys
from shardopt.runtime.devices.compiled import compiled_text
from tests.e2e.test_plans_against_xla import WITHOUT_STOPS, exchanged
exchanged("accumulated", "2x2")
exchanged("mixture", "2x2", "random:3", "gspmd")
print("WITHOUT STOPS", file=sys.stderr, flush=True)
compiled_text(WITHOUT_STOPS.encode(), 4, shardy=False)
"""


@slow
def test_no_tensor_is_gathered_for_want_of_a_way() -> None:
    """XLA warns on stderr when it gives up on a resharding; log levels are fixed when a process
    starts."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plans, _, without = done.stderr.partition("WITHOUT STOPS")
    assert REMATERIALIZATION in without, "the warning has another form now"
    assert REMATERIALIZATION not in plans
