"""Plans that are applied again from their file without search, edited by hand, and given in
parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.from_plan_file import options_after
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.pipeline.manager import PipelineResult
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.reference import compare, run_reference
from shardopt.support.documents import json_text
from shardopt.support.errors import UserError
from tests.e2e.models import MODELS, batch_args, mlp
from tests.e2e.test_host_groups import deep_mlp

TOLERANCE = 1e-4
SEARCHED = ("stage candidates", "sharding problems solved", "meshes solved")


def planned(name: str, **options: Any) -> Plan:
    keywords = {
        "microbatches": 2,
        "stages": 2,
        "submesh": "1x2",
        "batch_args": batch_args(name),
        **options,
    }
    return make_plan(MODELS[name]()[0], PlanOptions("cpu-test:1x4", **keywords), cache=False)


def applied(model: bytes, folder: Path, document: object) -> tuple[Plan, dict[str, float]]:
    """The plan that a file gives, and the statistics of all phases."""
    path = folder / "given.json"
    path.write_text(json.dumps(document))
    statistics: dict[str, float] = {}

    def keep(result: PipelineResult) -> None:
        statistics.update((name, value) for (_, name), value in result.statistics.items())

    return make_plan(model, options_after(str(path), {}), cache=False, on_result=keep), statistics


def values_of(plan: Plan) -> dict[str, Any]:
    return json.loads(json_text(plan.to_json()))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scanned", {}),
        pytest.param("gpt", {}, marks=pytest.mark.slow),
        pytest.param(
            "gpt",
            {"microbatches": 4, "schedule": "gpipe", "recompute": "layer"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "clipped", {"schedule": "zero-bubble", "microbatches": 4}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_a_plan_is_applied_again_without_search(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    plan = planned(name, **options)
    again, statistics = applied(MODELS[name]()[0], tmp_path, values_of(plan))
    assert {key: statistics[key] for key in SEARCHED} == dict.fromkeys(SEARCHED, 0)
    assert again.module == plan.module
    assert values_of(again) == values_of(plan)


@pytest.mark.parametrize("schedule", ["interleaved:2", "dualpipe-v"])
def test_stages_that_share_a_mesh_are_applied_again(schedule: str, tmp_path: Path) -> None:
    model = mlp(8, 16, 4)[0]
    options = PlanOptions("cpu-test:1x2", microbatches=2, stages=4, layers=4, schedule=schedule)
    plan = make_plan(model, options, cache=False)
    written = values_of(plan)
    assert [stage["shardings"] is not None for stage in written["stages"]] == [
        True,
        True,
        False,
        False,
    ]
    again, statistics = applied(model, tmp_path, written)
    assert {key: statistics[key] for key in SEARCHED} == dict.fromkeys(SEARCHED, 0)
    assert again.module == plan.module
    written["stages"][2]["shardings"] = {}
    mesh = {"interleaved:2": ("m0", 0), "dualpipe-v": ("m1", 1)}[schedule]
    message = f"expected the shardings of mesh '{mesh[0]}' in its first stage, stages.{mesh[1]}"
    with pytest.raises(UserError, match=message):
        applied(model, tmp_path, written)


@pytest.mark.parametrize(
    ("homes", "schedule"), [((0, 1, 0, 1), "interleaved"), ((0, 1, 1, 0), "auto")]
)
def test_stages_laid_on_meshes_by_hand_run(
    homes: tuple[int, ...], schedule: str, tmp_path: Path
) -> None:
    """Also as no schedule by name lays them: the tasks are then listed by their durations."""
    model, inputs = mlp(8, 16, 4)
    way = {"submesh": "1x1", "logical_shape": "1x1"}
    stages = [{"layers": [k, k], "devices": [home], **way} for k, home in enumerate(homes)]
    options = {"cluster": "cpu-test:1x2", "microbatches": 2}
    document = {"version": 3, "options": options, "layers": {"count": 4}, "stages": stages}
    plan, statistics = applied(model, tmp_path, document)
    assert statistics["stage candidates"] == 0
    assert plan.summary.schedule == schedule
    assert [row.devices for row in plan.summary.stages] == [(home,) for home in homes]
    assert outputs_agree(plan, inputs, model)


def outputs_agree(plan: Plan, inputs: list[np.ndarray], model: bytes) -> bool:
    with make_context() as context:
        program = prepare(load_module(plan.module, context))
    with open_run(program, "local", quick_compile=True) as run:
        run.load(inputs)
        outputs = list(run.step())
    with make_context() as context:
        reference = run_reference(load_module(model, context), inputs)
    return all(row.within(TOLERANCE) for row in compare(outputs, reference))


@pytest.mark.slow
def test_an_edited_plan_runs(tmp_path: Path) -> None:
    """Another cut, other logical shapes, one of three axes, another sharding of an argument: what
    the edit leaves is planned."""
    model, inputs = MODELS["gpt"]()
    document = values_of(planned("gpt", layers=4))
    for stage, layers in zip(document["stages"], ([0, 0], [1, 3]), strict=True):
        stage.update(layers=layers, logical_shape="2x1", shardings=None)
    document["stages"][0].update(recompute="full", devices=[3, 1])
    document["stages"][1].update(devices=[0, 2], logical_shape="1x2x1")
    plan, statistics = applied(model, tmp_path, document)
    assert statistics["stage candidates"] == 0 and statistics["meshes solved"] == 2
    first, second = plan.summary.stages
    assert (first.layers, first.logical_shape, first.devices) == (("layer_0",), (2, 1), (3, 1))
    assert (first.recompute, len(second.layers), second.devices) == ("full", 3, (0, 2))
    assert second.logical_shape == (1, 2, 1)
    assert outputs_agree(plan, inputs, model)


MANUAL: dict[str, dict[str, Any]] = {
    "number of layers": {"layers": {"count": 2}},
    "starts of layers": {"layers": {"starts": ["tanh", "tanh"]}, "stages": [{}, {}]},
    "stages": {"stages": [{"layers": [0, 0]}, {"layers": [1, 3]}]},
    "meshes": {
        "stages": [
            {"submesh": "1x1"},
            {"submesh": "1x2", "logical_shape": "2x1"},
            {"submesh": "1x1"},
        ]
    },
    "one mesh": {"stages": [{}, {"devices": None, "submesh": "1x2"}]},
    "sharding of an argument": {
        "stages": [{"shardings": {"inputs": {"arg0": "[{}, {y}]"}}, "layers": [0, 1]}, {}]
    },
}


@pytest.mark.parametrize("kind", MANUAL)
def test_what_a_file_leaves_open_is_planned(kind: str, tmp_path: Path) -> None:
    fields = MANUAL[kind]
    options = {
        "cluster": "cpu-test:1x4",
        "microbatches": 4,
        "layers": None if "layers" in fields else 4,
    }
    plan, _ = applied(deep_mlp(4), tmp_path, {"version": 3, "options": options, **fields})
    written, stages = values_of(plan), plan.summary.stages
    assert sorted(device for stage in stages for device in stage.devices) == [0, 1, 2, 3]
    if "stages" in fields:
        assert len(stages) == len(fields["stages"])
    for stage, row in zip(fields.get("stages", ()), written["stages"], strict=False):
        fixed = {
            name: value
            for name, value in stage.items()
            if value is not None and name != "shardings"
        }
        assert fixed.items() <= row.items()
    if kind == "number of layers":
        assert written["layers"]["count"] == 2
    if kind == "starts of layers":
        assert written["layers"]["count"] == 3
    if kind == "sharding of an argument":
        assert written["stages"][0]["shardings"]["inputs"]["arg0"] == "[{}, {y}]"


def test_given_stages_are_the_best_of_their_kind(tmp_path: Path) -> None:
    """A file that says what the planner would find anyway changes nothing; one that says less is
    never better."""
    plan_options = PlanOptions("cpu-test:1x4", microbatches=4, layers=4, stages=2, schedule="1f1b")
    plan = make_plan(deep_mlp(4), plan_options, cache=False)
    values = values_of(plan)
    options = {"cluster": "cpu-test:1x4", "microbatches": 4, "layers": 4, "schedule": "1f1b"}
    shapes = [{"submesh": stage["submesh"]} for stage in values["stages"]]
    again, _ = applied(deep_mlp(4), tmp_path, {"version": 3, "options": options, "stages": shapes})
    formula = values["predicted"]["formula_seconds"]
    assert values_of(again)["predicted"]["formula_seconds"] == pytest.approx(formula, rel=1e-6)
    cuts = [{"layers": [0, 0]}, {"layers": [1, 3]}]
    worse, _ = applied(deep_mlp(4), tmp_path, {"version": 3, "options": options, "stages": cuts})
    assert values_of(worse)["predicted"]["formula_seconds"] >= formula


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"stages": [{"layers": [0, 1]}, {"layers": [3, 3]}]},
            "field 'stages.1..layers': expected layers from 2 on",
        ),
        (
            {"stages": [{"submesh": "1x4"}, {}]},
            "no plan has the 2 stages of the plan file|cannot make 2 stages",
        ),
        (
            {"stages": [{"submesh": "1x3"}]},
            "no plan has the 1 stages of the plan file: stage 0 has no layers and",
        ),
        (
            {"layers": {"starts": ["no_such_operation"]}},
            "field 'layers.starts.0.': no operation from 0 on has",
        ),
        ({"layers": {"starts": ["0"]}}, "expected a forward operation in every layer"),
        (
            {"stages": [{"submesh": "1x4", "shardings": {"inputs": {"arg99": "[]"}}}]},
            "expected arguments of the stage .*found 'arg99'",
        ),
        (
            {"stages": [{"submesh": "1x4", "shardings": {"inputs": {"arg0": "[{x}]"}}}]},
            "field 'stages.0..shardings.inputs.arg0': sharding",
        ),
    ],
)
def test_what_cannot_be_is_said(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    options = {
        "cluster": "cpu-test:1x4",
        "microbatches": 4,
        "layers": None if "layers" in fields else 4,
    }
    with pytest.raises(UserError, match=message):
        applied(deep_mlp(4), tmp_path, {"version": 3, "options": options, **fields})


def test_options_of_the_user_come_before_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps(
            {"version": 3, "options": {"cluster": "cpu-test", "microbatches": 4, "layers": 3}}
        )
    )
    options = options_after(str(path), {"layers": 5})
    assert (options.cluster, options.microbatches, options.layers) == ("cpu-test", 4, 5)
    path.write_text(json.dumps({"version": 3}))
    with pytest.raises(UserError, match="expected field 'cluster' or"):
        options_after(str(path), {})
