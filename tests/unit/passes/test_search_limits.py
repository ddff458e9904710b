"""Plans do not depend on the load of the machine: no clock ends a search of shardings."""

from __future__ import annotations

import sys
from itertools import count

import pytest
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.io import module_text
from shardopt.pipeline.manager import run_pipeline
from tests.unit.passes.test_mesh_sharing import step


def planned(options: str) -> str:
    pipeline = f"builtin.module(shardopt-intra{{cluster=cpu-test:1x4 mesh=2x2 {options}}})"
    with make_context() as context:
        module = ir.Module.parse(step([0], rows=512), context)
        run_pipeline(module, pipeline)
        return module_text(module)


# Without a budget, and with one within which copies have to be made again.
@pytest.mark.parametrize("options", ["", "memory-budget=40KiB"])
def test_a_clock_that_leaps_changes_no_plan(monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    expected = planned(options)
    hours = count(step=3600)
    for name, module in list(sys.modules.items()):
        if name.startswith("shardopt.solve.") and hasattr(module, "monotonic"):
            monkeypatch.setattr(module, "monotonic", lambda: float(next(hours)))
    assert planned(options) == expected
