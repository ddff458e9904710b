"""Files of version 2 of the plan format: one that `shardopt plan` has written is kept here."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.planning.plan_check import check_plan
from shardopt.frontend.plans.from_plan_file import options_after
from shardopt.ir.diagnostics import Diagnostic
from shardopt.planfile.parts import VERSION, PlannedCopy, PlannedRemat
from shardopt.planfile.plan_file import load_plan_file, load_values, read_plan_file
from shardopt.planfile.version_2 import upgraded
from shardopt.report.plan_diff import differences
from shardopt.support.documents import json_text
from tests.unit.planfile.test_plan_file import JSON, MODEL

# Of docs/tutorial/mlp.mlir on cpu-test:1x4 with 4 microbatches, 2 layers, 2 stages, partial sums
# and a memory budget; without the rows of three operations that nothing reads where a stage
# recomputes its layers, which fragments held then. Sums of gradients were taken up behind all of them,
# so that stage 1 was predicted to hold 0.25 MiB more.
KEPT = str(Path(__file__).parent / "files" / "version-2.json")
REMAT = {
    "tensor": 4,
    "chain": [1],
    "strategies": ["tanh [{x}, {}] -> [{x}, {}]"],
    "readers": [6],
    "gap": [2, 6],
    "extended": [3],
    "scratch_bytes": 0,
    "seconds": 0.5,
}
COPY = {"tensor": 4, "sharding": "[{}, {}]", "op": 6}


def shardings(fields: dict[str, Any], version: int) -> dict[str, Any]:
    return {"version": version, "stages": [{"shardings": fields}]}


def test_a_kept_file_is_read_in_the_words_of_version_3() -> None:
    plan = load_plan_file(KEPT)
    assert plan.version == VERSION == 3
    assert plan.options["unreduced"] == "on" and "partial_sums" not in plan.options
    assert check_plan(KEPT) == () and check_plan(KEPT, MODEL) == ()


def test_a_kept_file_gives_the_plan_that_it_was_written_for() -> None:
    """Its prediction is believed too: the figures of the plan that is written anew are its own."""
    said = list[Diagnostic]()
    plan = make_plan(MODEL, options_after(KEPT, {}), cache=False, handler=said.append)
    assert load_plan_file(KEPT).stage_phase_prediction() is not None
    of_plans = [each.message for each in said if each.kind == "sharding-plan"]
    assert of_plans and all(message.endswith("; no bound is known") for message in of_plans)
    written = json.loads(json_text(plan.to_json()))
    paths = [each.path for each in differences(load_values(KEPT), written)]
    since = [
        "options.microbatch_sums",
        "options.layer_balance",
        "options.split_stacks",
        "options.overlap",
    ]
    since += ["options.offload", "stages[0].offload"]
    since += ["stages[1].predicted.peak_bytes", "stages[1].offload"]
    assert paths == ["model.fingerprint", *since], "options since then, at their defaults"


def test_a_fingerprint_of_bytecode_says_nothing_in_another_jaxlib(tmp_path: Path) -> None:
    values = json.loads(Path(KEPT).read_text())
    values["model"]["fingerprint"] = "sha256:0"
    values["made_by"]["jaxlib"] = "0.0.1"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(values))
    assert check_plan(str(path), MODEL) == ()
    values["made_by"]["jaxlib"] = version("jaxlib")
    path.write_text(json.dumps(values))
    [message] = check_plan(str(path), MODEL)
    assert "the plan was made for another model, sha256:0" in message


def test_a_prediction_of_other_decisions_stays_refused() -> None:
    values = json.loads(Path(KEPT).read_text())
    values["stages"][0]["recompute"] = "full"
    plan, errors = read_plan_file(values)
    assert not errors and plan.stage_phase_prediction() is None


def test_rematerialized_values_and_copies_have_other_names() -> None:
    plan, errors = read_plan_file(shardings({"again": [REMAT], "fresh": [COPY]}, 2))
    assert not errors and plan.stages[0].shardings is not None
    assert plan.stages[0].shardings.copies == (PlannedCopy(4, "[{}, {}]", 6),)
    (remat,) = plan.stages[0].shardings.rematerialized
    assert isinstance(remat, PlannedRemat) and remat.gap == (2, 6)


def test_version_3_knows_no_names_of_version_2() -> None:
    _, (error,) = read_plan_file(shardings({"again": [REMAT]}, 3))
    assert error.startswith("unknown field 'stages[0].shardings.again'")
    _, (error,) = read_plan_file(shardings({"fresh": [COPY], "copies": []}, 2))
    assert error.startswith("unknown field 'stages[0].shardings.fresh'")


@given(JSON, st.sampled_from(["options", "stages", "predicted", "layers"]))
def test_damaged_files_are_left_to_the_reader(value: Any, field: str) -> None:
    read_plan_file({"version": 2, field: value})
    read_plan_file({"version": 2, "stages": [{"shardings": value}, value]})
    assert upgraded(value) == value
