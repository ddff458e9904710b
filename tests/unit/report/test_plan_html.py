"""Plans in few lines: as text, and as a piece of HTML that needs no other file."""

from __future__ import annotations

import inspect
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import shardopt
from shardopt.frontend.plans.plan import Plan

MODEL = Path(__file__).parents[3] / "docs" / "tutorial" / "mlp.mlir"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return shardopt.optimize(MODEL, "cpu-test:1x4", microbatches=4, stages=2)


class Tags(HTMLParser):
    """Open elements, and how many of each kind there were."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.stack.append(tag)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert not any(name in ("src", "href") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_a_line_for_the_plan_and_one_for_each_stage(plan: Plan) -> None:
    head, *stages = repr(plan).splitlines()
    assert head.startswith("Plan(cpu-test:1x4: 2 stages, 4 microbatches, schedule ")
    assert [line.split(":")[0] for line in stages] == ["  stage 0", "  stage 1"]


def test_plans_of_many_stages_stay_short(plan: Plan) -> None:
    many = replace(plan.summary, stages=plan.summary.stages * 20)
    lines = repr(replace(plan, summary=many)).splitlines()
    assert len(lines) == 18 and lines[-1] == "  and 24 more stages"


def test_notebooks_get_a_table_and_a_picture(plan: Plan) -> None:
    tags = Tags()
    tags.feed(plan._repr_html_())
    assert not [tag for tag in tags.stack if tag not in ("rect", "line", "path")]
    assert tags.counts["tr"] == 3 and tags.counts["svg"] >= 1
    assert len(plan._repr_html_()) < 50_000


def test_plans_run_themselves(plan: Plan) -> None:
    assert "backend" in inspect.signature(plan.run).parameters
    with plan.run(quick_compile=True) as run:
        specs = [argument.value.spec for argument in run.program.arguments]
        run.load([np.zeros(spec.shape, spec.dtype) for spec in specs])
        assert float(run.step()[-1]) == 0.0
    with pytest.raises(shardopt.UserError, match="unknown backend 'remote'"):
        plan.run("remote")  # type: ignore[arg-type]
