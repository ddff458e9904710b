"""Plans of real train steps, run on local threads and compared with the original module on one
device."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardopt.dialect.mpmd import read_topology
from shardopt.dialect.program import read_program
from shardopt.extract.pipeline_graph import read_pipeline
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.reference import compare, run_reference
from tests.e2e.models import MODELS, batch_args

TOLERANCE = 1e-4


@cache
def plan_of(name: str, cluster: str = "cpu-test:1x4", **options: Any) -> Plan:
    keywords = {
        "microbatches": 2,
        "stages": 2,
        "submesh": "1x2",
        "batch_args": batch_args(name),
        **options,
    }
    return make_plan(MODELS[name]()[0], PlanOptions(cluster, **keywords))


def run_plan(plan: Plan, inputs: list[np.ndarray], backend: str = "local") -> list[np.ndarray]:
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    with open_run(program, backend, quick_compile=True) as run:
        run.load(inputs)
        return list(run.step())


@cache
def reference_of(name: str) -> list[np.ndarray]:
    artifact, inputs = MODELS[name]()
    with make_context() as context:
        return run_reference(load_module(artifact, context), inputs)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("gpt", {}, marks=pytest.mark.slow),
        pytest.param("gpt", {"microbatches": 1}, marks=pytest.mark.slow),
        pytest.param("gpt", {"microbatches": 4, "schedule": "gpipe"}, marks=pytest.mark.slow),
        pytest.param(
            "gpt",
            {"stages": 1, "submesh": "1x4", "logical_shape": "2x2"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "gpt",
            {"stages": 4, "submesh": "1x1", "microbatches": 4, "layers": 4},
            marks=pytest.mark.slow,
        ),
        pytest.param("gpt", {"microbatches": 4, "schedule": "eager-1f1b"}, marks=pytest.mark.slow),
        pytest.param("gpt", {"microbatches": 4, "schedule": "zero-bubble"}, marks=pytest.mark.slow),
        pytest.param("gpt", {"intra_op": "data"}, marks=pytest.mark.slow),
        pytest.param("gpt", {"intra_op": "heuristic"}, marks=pytest.mark.slow),
        pytest.param("gpt", {"inter_op": "equal-layer", "layers": 2}, marks=pytest.mark.slow),
        pytest.param("gpt", {"inter_op": "equal-op", "layers": 2}, marks=pytest.mark.slow),
        pytest.param(
            "gpt",
            {"inter_op": "intra-only", "stages": None, "submesh": None},
            marks=pytest.mark.slow,
        ),
        pytest.param("gpt", {"resharding": "broadcast"}, marks=pytest.mark.slow),
        ("scanned", {}),
        ("scanned", {"stages": 1, "submesh": "1x4", "logical_shape": "2x2"}),
        ("scanned", {"inter_op": "equal-layer", "layers": 2}),
        ("scanned", {"inter_op": "equal-op", "layers": 2}),
        ("scanned", {"inter_op": "intra-only", "stages": None, "submesh": None}),
        ("scanned", {"microbatches": 4, "intra_op": "data"}),
        (
            "scanned",
            {
                "stages": 4,
                "submesh": "1x1",
                "layers": 4,
                "microbatches": 4,
                "schedule": "zero-bubble",
            },
        ),
        ("clipped", {}),
        pytest.param(
            "clipped", {"microbatches": 4, "schedule": "zero-bubble"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "clipped", {"microbatches": 4, "intra_op": "heuristic"}, marks=pytest.mark.slow
        ),
        ("scanned", {"microbatches": 4, "intra_op": "heuristic"}),
    ],
    ids=lambda value: (
        value
        if isinstance(value, str)
        else "-".join(f"{k}={v}" for k, v in value.items()) or "default"
    ),
)
def test_outputs_equal_those_of_one_device(name: str, options: dict[str, Any]) -> None:
    outputs = run_plan(plan_of(name, **options), MODELS[name]()[1])
    failed = [row for row in compare(outputs, reference_of(name)) if not row.within(TOLERANCE)]
    assert failed == []


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "scanned" else pytest.mark.slow) for name in MODELS],
)
def test_equal_plans_have_equal_bytes(name: str) -> None:
    assert plan_of(name).module == plan_of.__wrapped__(name).module


@pytest.mark.slow
@pytest.mark.ray
def test_ray_gives_the_outputs_of_one_device() -> None:
    outputs = run_plan(plan_of("gpt"), MODELS["gpt"]()[1], "ray")
    assert [row for row in compare(outputs, reference_of("gpt")) if not row.within(TOLERANCE)] == []


def test_a_schedule_from_a_csv_file_is_run(tmp_path: Path) -> None:
    """All forwards but one ahead, in an order that no name stands for."""
    listed = tmp_path / "mine.csv"
    listed.write_text("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1B0,1F1,1F2,1B1,1B2,1F3,1B3\n")
    plan = plan_of("scanned", microbatches=4, schedule=str(listed))
    assert plan.summary.schedule == "mine"
    assert str(plan.simulate().schedule) == listed.read_text().replace(",", " ").strip()
    rows = compare(run_plan(plan, MODELS["scanned"]()[1]), reference_of("scanned"))
    assert [row for row in rows if not row.within(TOLERANCE)] == []


@pytest.mark.slow
def test_the_schedule_built_from_durations_is_run() -> None:
    options = {"microbatches": 4, "stages": 4, "submesh": "1x1", "layers": 4}
    plan = plan_of("gpt", **options)
    named = [
        plan_of("gpt", schedule=name, **options).summary.makespan_seconds
        for name in ("gpipe", "1f1b")
    ]
    assert plan.summary.makespan_seconds <= min(named)
    outputs = run_plan(plan, MODELS["gpt"]()[1])
    assert [row for row in compare(outputs, reference_of("gpt")) if not row.within(TOLERANCE)] == []


def test_transfers_between_hosts_use_the_cards_of_both() -> None:
    plan = make_plan(MODELS["scanned"]()[0], PlanOptions("cpu-test:2x1", microbatches=2, stages=2))
    with make_context() as context:
        program = read_program(load_module(plan.module, context))
        pipeline = read_pipeline(program, read_topology(program.main))
    used = {
        str(edge): links
        for edge, links in zip(pipeline.graph.edges, pipeline.edge_links, strict=True)
    }
    assert used["0F->1F"] == (0, 3)
    assert used["1F->0B"] == (1, 2)
    assert used["0F->0B"] == ()
