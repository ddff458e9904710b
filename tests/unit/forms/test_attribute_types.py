"""Attributes of ours that have another type, as edited files have them: one error, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from benchmarks.tools.dump_mutations import OTHER_TYPES
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import copy_of, operations
from shardopt.pipeline.manager import run_pipeline

STAGES = Path(__file__).parents[2] / "lit" / "passes" / "Inputs" / "two-stages.mlir"
VERIFIERS = ",".join(
    f"shardopt-verify-{form}" for form in ("staged", "sharded", "transferred", "scheduled")
)


@pytest.fixture(scope="module")
def stages() -> ir.Module:
    return load_module(STAGES, make_context())


def ours(module: ir.Module) -> Iterator[tuple[int, str]]:
    """(position of an operation, name of an attribute of ours)."""
    for number, op in enumerate((module.operation, *operations(module.operation))):
        for name in op.attributes:
            if name.startswith("shardopt.") or name == "mhlo.sharding":
                yield number, name


@pytest.mark.parametrize("pipeline", [VERIFIERS, "shardopt-export"])
def test_every_attribute_of_another_type_is_an_error(stages: ir.Module, pipeline: str) -> None:
    refused = 0
    for number, name in ours(stages):
        for text in OTHER_TYPES:
            with stages.context:
                module = ir.Module.parse(str(copy_of(stages)))
                op = (module.operation, *operations(module.operation))[number]
                if text:
                    op.attributes[name] = ir.Attribute.parse(text)
                else:
                    del op.attributes[name]
            try:
                run_pipeline(module, pipeline)
            except DiagnosedError as error:
                assert "Cannot cast" not in str(error)
                refused += 1
    assert refused > 200
