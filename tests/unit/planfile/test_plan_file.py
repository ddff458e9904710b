"""Plan files: the fields, what the parts say of each other, the schema, and files that a machine
has damaged."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.planning.plan_check import check_plan
from shardopt.frontend.plans.from_plan_file import options_after
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Sharding
from shardopt.mesh.sharding_text import parse_sharding, sharding_text
from shardopt.planfile.fields import schema
from shardopt.planfile.parts import VERSION, PlanFile, layers_in, runs_of
from shardopt.planfile.plan_file import load_plan_file, read_plan_file
from shardopt.report.plan_diff import differences
from shardopt.support.documents import json_text
from shardopt.support.errors import UserError
from shardopt.tools.shardopt import main
from tests.draws import draws

MODEL = str(Path(__file__).parents[3] / "docs" / "tutorial" / "mlp.mlir")


@cache
def planned() -> Plan:
    return make_plan(
        MODEL, PlanOptions("cpu-test:1x4", microbatches=4, layers=2, stages=2), cache=False
    )


def document() -> dict[str, Any]:
    """A file that gives everything, to be changed."""
    return copy.deepcopy(_document())


@cache
def _document() -> dict[str, Any]:
    return json.loads(json_text(planned().to_json()))


def change(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """One field set, or removed for `...`; numbers in the path are positions."""
    inner: Any = data
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in parents:
        inner = inner[part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


def write(folder: Path, data: object) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps(data))
    return str(path)


# ---- texts ----


@given(
    st.lists(st.lists(st.sampled_from("xyz"), max_size=2).map(tuple), max_size=3).map(tuple),
    st.booleans(),
)
def test_shardings_are_read_as_they_are_written(
    dims: tuple[tuple[str, ...], ...], unreduced: bool
) -> None:
    sharding = Sharding(dims, ("x", "z") if unreduced else ())
    assert parse_sharding(sharding_text(sharding)) == sharding


@pytest.mark.parametrize(
    "text", ["", "x", "[x]", "[{x}", "[{x}, {}] +", "[{x} {y}]", "[{x}, ]", "[[x]]", "[{}] + x"]
)
def test_other_texts_are_no_shardings(text: str) -> None:
    with pytest.raises(ValueError, match="expected a sharding such as"):
        parse_sharding(text)


@given(st.lists(st.integers(-1, 3), max_size=20))
def test_runs_stand_for_layers(layers: list[int]) -> None:
    runs = tuple((layer, count) for layer, count in runs_of(layers))
    assert layers_in(runs) == tuple(layers)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
JSON = st.recursive(
    SCALARS,
    lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(max_size=4), i, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_json_with_lines_for_people_is_json(value: Any) -> None:
    assert json.loads(json_text(value)) == value


# ---- fields ----


def test_a_written_plan_has_no_errors(tmp_path: Path) -> None:
    path = write(tmp_path, document())
    assert check_plan(path) == () and check_plan(path, MODEL) == ()
    jsonschema.Draft202012Validator(schema()).validate(document())


def test_the_schema_in_the_package_is_that_of_the_readers() -> None:
    assert (
        json.loads((resources.files("shardopt") / "schemas" / "plan.schema.json").read_text())
        == schema()
    )


ERRORS = [
    ("version", 1, "expected field 'version' to be 3 or 2, found 1"),
    ("version", ..., "expected field 'version' to be 3 or 2, found None"),
    ("options.microbatches", "many", "field 'options.microbatches': expected a number, got 'many'"),
    ("options.microbaches", 4, "unknown field 'options.microbaches'; did you mean 'microbatches'?"),
    ("options.inter_op", "best", "field 'options.inter_op': expected one of dp, equal-layer"),
    ("stage", [], "unknown field 'stage'; did you mean 'stages'?"),
    ("cluster.hosts", 0, "field 'cluster.hosts': expected a positive number, got 0"),
    ("stages.0.layers", [0], "field 'stages[0].layers': expected a list of 2 items, got [0]"),
    (
        "stages.0.layers",
        [0, 1],
        "field 'stages[1].layers': expected layers from 2 on, found 1 to 1",
    ),
    (
        "stages.0.layers",
        [1, 0],
        "field 'stages[0].layers': expected the first layer before the last, found 1 to 0",
    ),
    ("stages.1.layers", [1, 2], "field 'stages[1].layers': expected 1 as the last layer, found 2"),
    (
        "stages.0.submesh",
        "1*2",
        "field 'stages[0].submesh': expected sizes such as '1x4', got '1*2'",
    ),
    (
        "stages.0.submesh",
        "1x1",
        "field 'stages[0].logical_shape': expected 1 devices as in 'submesh', found 2",
    ),
    (
        "stages.0.submesh",
        "2x1",
        "field 'stages[0].submesh': expected a part of a host or whole hosts of cpu-test:1x4",
    ),
    (
        "stages.0.logical_shape",
        "1x2x2",
        "field 'stages[0].logical_shape': expected 2 devices as in 'submesh', found 4",
    ),
    (
        "stages.0.logical_shape",
        "2",
        "field 'stages[0].logical_shape': expected sizes such as '2x2', got '2'",
    ),
    (
        "stages.1.devices",
        [2, 1],
        "field 'stages[1].devices': expected every device once, found 1 in stage 0, too",
    ),
    ("stages.1.devices", [2, 4], "field 'stages[1].devices': expected devices below 4, found 4"),
    (
        "stages.1.devices",
        ...,
        "field 'stages[1]': expected devices in all stages or in none, found none here",
    ),
    ("stages.0.group", "gpu", "field 'stages[0].group': expected one of cpu-test, found 'gpu'"),
    (
        "stages.0.recompute",
        "some",
        "field 'stages[0].recompute': expected one of none, selective, layer, full, "
        "selective:K or layer:K (the first K layers), got 'some'",
    ),
    (
        "stages.0.predicted.peak_bytes",
        3 << 30,
        "field 'stages[0].predicted.peak_bytes': expected at most 2147483648",
    ),
    (
        "stages.0.shardings.inputs.arg0",
        "x",
        "field 'stages[0].shardings.inputs.arg0': expected a sharding such as",
    ),
    (
        "stages.0.shardings.inputs.arg0",
        "[{z}, {}]",
        "field 'stages[0].shardings.inputs.arg0': expected axes x, y",
    ),
    ("stages.0.shardings.inputs.arg0", "[{y}, {y}]", "expected every axis once, found [{y}, {y}]"),
    ("layers.count", 3, "field 'layers.count': expected 2, the layers in 'layers.body', found 3"),
    (
        "layers.body",
        [[0, 20], [2, 4]],
        "field 'layers.body': expected operations of every layer, found none of layer 1",
    ),
    ("layers.body", [[0, -1]], "field 'layers.body[0][1]': expected a positive number, got -1"),
    ("layers.epilogue", [[5, 7]], "field 'layers.epilogue': expected layers below 2, found 5"),
]


@pytest.mark.parametrize(("path", "value", "message"), ERRORS, ids=lambda value: str(value)[:40])
def test_errors_name_the_field(tmp_path: Path, path: str, value: object, message: str) -> None:
    errors = check_plan(write(tmp_path, change(document(), path, value)))
    assert any(message in error for error in errors), errors


def test_all_errors_are_told(tmp_path: Path) -> None:
    data = document()
    for path, value in (
        ("stages.0.submesh", 3),
        ("stages.1.recompute", "x"),
        ("options", 3),
        ("layers.count", 0),
    ):
        change(data, path, value)
    assert len(check_plan(write(tmp_path, data))) == 4


# What only shows when the plan is applied to a model.
ERRORS_WITH_A_MODEL = [
    (
        "model.fingerprint",
        "text-sha256:0",
        "field 'model.fingerprint': the plan was made for another model",
    ),
    ("layers.body", [[0, 3], [1, 3]], "field 'layers.body': expected the layers of"),
    (
        "layers.arguments",
        [[0, 3]],
        "field 'layers.arguments': expected the layers of 4 arguments, found 3",
    ),
    ("stages.0.shardings.ops", ["add"], "field 'stages[0].shardings.ops': expected"),
    (
        "stages.0.shardings.ops.0",
        "add [] -> []",
        "field 'stages[0].shardings.ops[0]': expected a way to split",
    ),
    ("stages.0.shardings.inputs.arg0", ..., "missing field 'stages[0].shardings.inputs.arg0'"),
    (
        "stages.0.shardings.inputs.arg0",
        "[{}]",
        "field 'stages[0].shardings.inputs.arg0': expected a sharding of shape",
    ),
    ("options.schedule", "2f2b", "unknown schedule: '2f2b'"),
]


@pytest.mark.parametrize(
    ("path", "value", "message"), ERRORS_WITH_A_MODEL, ids=lambda value: str(value)[:40]
)
def test_mistakes_that_show_with_the_model(
    tmp_path: Path, path: str, value: object, message: str
) -> None:
    file = write(tmp_path, change(document(), path, value))
    assert check_plan(file) == ()
    errors = check_plan(file, MODEL)
    assert len(errors) == 1 and message in errors[0], errors


def test_check_plan_prints_errors_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path, document())
    assert main(["plan", "--check-plan", good]) == 0
    assert capsys.readouterr().out == f"{good}: no errors found\n"
    bad = write(tmp_path, change(document(), "stages.0.devices", [1, 1]))
    assert main(["plan", "--check-plan", bad]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors == [
        f"{bad}: field 'stages[0].devices': expected every device once, found 1 in stage 0, too",
        f"{bad}: field 'stages': expected all 4 devices of the cluster in use, device 0 is not",
    ]
    assert main(["plan", "--check-plan", str(tmp_path / "none.json")]) == 1
    assert "cannot read the plan file" in capsys.readouterr().err


# ---- differences ----


def test_equal_plans_do_not_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = change(document(), "made_by.shardopt", "9.9")
    assert differences(document(), other) == ()
    path = write(tmp_path, document())
    assert main(["plan", "--diff", path, path]) == 0
    assert capsys.readouterr().out == "no differences\n"


def test_differences_are_told_by_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = document()
    ops = other["stages"][0]["shardings"]["ops"]
    for path, value in (
        ("options.microbatches", 8),
        ("stages.0.logical_shape", "2x1"),
        ("stages.1.shardings.inputs.arg1", "[{x}, {}]"),
        ("stages.0.shardings.ops", [ops[0], "other", *ops[2:]]),
        ("layers.body", [[0, sum(count for _, count in other["layers"]["body"])]]),
        ("stages.1.predicted.forward_seconds", 1.5),
    ):
        change(other, path, value)
    by_path = {row.path: (row.first, row.second) for row in differences(document(), other)}
    assert by_path["options.microbatches"] == ("4", "8")
    assert by_path["stages[0].logical_shape"] == ("1x2", "2x1")
    assert by_path["stages[1].shardings.inputs.arg1"][1] == "[{x}, {}]"
    assert by_path["stages[0].shardings.ops"] == (f"1 of {len(ops)} differ; [1] {ops[1]}", "other")
    assert by_path["layers.body"][1].endswith("in other layers")
    assert by_path["stages[1].predicted.forward_seconds"][1] == "1.5 s"
    assert len(by_path) == 6
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(document()))
    second.write_text(json.dumps(other))
    assert main(["plan", "--diff", str(first), str(second)]) == 1
    assert "options.microbatches" in capsys.readouterr().out


def test_more_stages_are_a_difference() -> None:
    fewer = document()
    fewer["stages"].pop()
    (row,) = differences(document(), fewer)
    assert (row.path, row.second) == ("stages[1]", "–")


# ---- files that a machine has damaged ----


def places(value: Any, prefix: str = "") -> list[str]:
    """All paths into a document."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    paths = []
    for name, inner in items:
        if "." not in str(name):
            paths += [f"{prefix}{name}", *places(inner, f"{prefix}{name}.")]
    return paths


DAMAGE = st.tuples(
    st.sampled_from(places(_document())),
    JSON | st.sampled_from([..., -1, 0, 1, 2, 10**9, "1x2", "x"]),
)


@settings(max_examples=draws(60), deadline=None)
@given(st.lists(DAMAGE, min_size=1, max_size=2))
def test_damaged_files_are_applied_or_refused(damage: list[tuple[str, object]]) -> None:
    data = document()
    for path, value in damage:
        try:
            change(data, path, value)
        except (KeyError, IndexError, TypeError):
            continue  # a change before took the place away
    with TemporaryDirectory() as folder:
        file = write(Path(folder), data)
        errors = check_plan(file)
        try:
            plan = make_plan(MODEL, options_after(file, {}), cache=False)
        except UserError:  # what C++ diagnoses is one, too
            return
    assert not read_plan_file(data)[1] and len(plan.summary.stages) >= 1
    if not errors:
        assert sorted(d for stage in plan.summary.stages for d in stage.devices) == [0, 1, 2, 3]


@settings(max_examples=draws(100), deadline=None)
@given(JSON | st.text(max_size=30))
def test_any_values_are_refused(value: Any) -> None:
    _, errors = read_plan_file(value)
    assert errors
    differences(value, document())


def test_text_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(UserError, match=r"plan\.json:1: not valid JSON"):
        load_plan_file(str(path))


def test_what_kernels_reach_is_part_of_what_was_decided_on() -> None:
    """A prediction made with other rates is not one of this plan."""
    group = load_cluster("h100-sxm:1x2").groups[0]
    assert group.device.kernels is not None
    faster = replace(group.device.kernels, memory=1.0)
    devices = [
        replace(group.device, kernels=kernels) for kernels in (None, group.device.kernels, faster)
    ]
    files = [
        PlanFile(VERSION, cluster=Cluster("c", (replace(group, device=device),)))
        for device in devices
    ]
    assert len({file.decisions() for file in files}) == 3
