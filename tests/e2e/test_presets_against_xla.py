"""What the known methods exchange against what XLA compiles, kind by kind and byte by byte."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.cost.xla_agreement_case import Case, check
from shardopt.cost.traffic import comparable
from shardopt.passes.base import PassFailure
from shardopt.solve.presets.presets import PRESETS
from tests.e2e.preset_models import module_of

_ON_A_CUBE = {"2.5d", "3d"}
_MODELS, _MESHES = ("gpt", "moe", "resnet"), ("4", "2x2", "2x4")
# For each method a model and a mesh that it applies to: compiling all takes a quarter of an hour,
# which `SHARDOPT_EVERY_PRESET=1 pytest` asks for.
_COVERED = {
    "ilp": ("resnet", "4"),
    "data": ("resnet", "2x4"),
    "zero1": ("gpt", "2x2"),
    "zero2": ("resnet", "2x2"),
    "zero3": ("gpt", "2x4"),
    "mics": ("gpt", "2x2"),
    "autodist": ("gpt", "4"),
    "megatron": ("gpt", "4"),
    "megatron-zero1": ("moe", "2x2"),
    "megatron-zero3": ("gpt", "2x4"),
    "sequence": ("gpt", "2x2"),
    "sequence-zero3": ("resnet", "2x2"),
    "context-gather": ("gpt", "2x2"),
    "ulysses": ("gpt", "2x2"),
    "context-gather-megatron": ("gpt", "2x2"),
    "context-gather-sequence": ("gpt", "2x2"),
    "ulysses-megatron": ("gpt", "2x2"),
    "ulysses-sequence": ("gpt", "2x2"),
    "ring": ("gpt", "4"),
    "summa-2d": ("gpt", "2x2"),
    "2.5d": ("gpt", "2x2x2"),
    "3d": ("gpt", "2x2x2"),
    "expert": ("moe", "4"),
    "expert-zero3": ("moe", "2x2"),
    "tofu": ("gpt", "4"),
    "heuristic": ("resnet", "2x2"),
    "replicate": ("gpt", "4"),
    "shardy": ("gpt", "2x2"),
}


# One of each kind of exchange; `test_preset_collectives` has every preset without XLA.
_QUICK = {"megatron", "sequence", "ring", "expert"}

_ONCE = "XLA unrolls loops of one step, and sends keys once for the turns of a ring of two devices"


def _cases() -> list[Any]:
    if not os.environ.get("SHARDOPT_EVERY_PRESET"):
        return [
            pytest.param(model, preset, mesh, marks=() if preset in _QUICK else pytest.mark.slow)
            for preset, (model, mesh) in _COVERED.items()
        ]
    return [
        (model, preset, mesh)
        for model in _MODELS
        for preset in PRESETS
        for mesh in (("2x2x2",) if preset in _ON_A_CUBE else _MESHES)
    ]


def test_every_method_is_compiled() -> None:
    methods = {preset.partition("-zero")[0] for preset in PRESETS}
    assert methods <= _COVERED.keys() <= PRESETS.keys()
    assert {model for model, _ in _COVERED.values()} == {*_MODELS}


@pytest.mark.parametrize(("model", "preset", "mesh"), _cases())
def test_xla_exchanges_what_the_method_does(model: str, preset: str, mesh: str) -> None:
    if preset.startswith("ring") and mesh == "2x2":
        pytest.xfail(_ONCE)
    case = Case(mesh, preset, cluster="cpu-test", gap=0.05, time_limit=20.0)
    try:
        [outcome] = check(module_of(model), case, ("sdy",))
    except PassFailure as failure:
        if _COVERED.get(preset) == (model, mesh):
            raise
        pytest.skip(f"{preset} does not apply: {failure}")
    assert comparable(outcome.emitted) == comparable(outcome.predicted)
