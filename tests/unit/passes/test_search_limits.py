"""Plans do not depend on the load of the machine: no clock ends a search of shardings, and what
ends early says so."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.io import module_text
from shardopt.passes.stages import choosing
from shardopt.pipeline.manager import run_pipeline
from shardopt.solve.stages import fewer_configs
from shardopt.solve.stages.search.plan_search import PlanSearch, search_plans
from tests.unit.passes.test_mesh_sharing import step

LIT = Path(__file__).parents[2] / "lit"


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


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_search_of_stages_says_where_it_ends_early(
    monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    def search(*args: Any, **options: Any) -> PlanSearch:
        return replace(search_plans(*args, **options), is_finished=is_finished)

    monkeypatch.setattr(choosing, "search_plans", search)
    text = (LIT / "passes" / "choose-stages.mlir").read_text("utf-8")
    passes = "shardopt-cluster-layers{layers=2},shardopt-choose-stages{cluster=cpu-test:1x2}"
    with make_context() as context:
        module = ir.Module.parse(text, context)
        said = run_pipeline(module, f"builtin.module({passes})").diagnostics
    [remark] = [each.message for each in said if each.message.startswith("schedule ")]
    assert ("other plans may be shorter" in remark) == (not is_finished)


@pytest.mark.parametrize("most", [None, 0])
def test_a_search_of_too_many_stages_says_at_which_it_looks(
    monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    """Of one to seven hosts, five is no round number."""
    if most is not None:
        monkeypatch.setattr(fewer_configs, "MANY_CANDIDATES", most)
    text = (LIT / "passes" / "choose-stages.mlir").read_text("utf-8")
    passes = "shardopt-cluster-layers{layers=2},shardopt-choose-stages{cluster=cpu-test:7x2}"
    with make_context() as context:
        module = ir.Module.parse(text, context)
        said = run_pipeline(module, f"builtin.module({passes})").diagnostics
    warnings = [each.message for each in said if each.severity == "warning"]
    expected = (
        "2 layers have 1,134 candidate stages on cpu-test:7x2, of which those with submeshes 1x2, "
        "2x2, 3x2, 4x2, 6x2, 7x2 and recomputation none, selective, layer, full are looked "
        "at; options submesh and recompute name others"
    )
    assert warnings == ([] if most is None else [expected])
