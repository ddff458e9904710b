"""Measured costs: curves, the profile file, and how the cost model uses them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from shardopt.cost.collectives import COLLECTIVES, collective_seconds
from shardopt.cost.compute import dispatch_seconds, memory_seconds, op_seconds, work_kind
from shardopt.cost.products import Product
from shardopt.cost.transfers import messages_seconds
from shardopt.dialect.cluster import read_cluster, write_cluster
from shardopt.hardware.cluster import HostGroup
from shardopt.hardware.cluster_file import load_cluster
from shardopt.hardware.curves import Curve, CurveTable, rising
from shardopt.hardware.profile import COLLECTIVE_KINDS, INTER_HOST, Measurement, Profile
from shardopt.hardware.profile_file import load_profile, profile_json, profile_text, with_profile
from shardopt.ir.context import make_context
from shardopt.mesh.mesh import Mesh
from shardopt.support.errors import UserError

PROFILE = Profile(
    "cpu",
    4,
    (
        Measurement("matmul", (1e3, 1e6), (1e-5, 1e-3), "f32"),
        Measurement("elementwise", (100.0, 200.0), (1.0, 3.0), "f32", spread=(0.1, 0.2)),
        Measurement("transcendental", (100.0, 200.0), (2.0, 7.0), "f32"),
        Measurement("all_reduce", (10.0, 20.0), (0.5, 0.75), devices=2),
        Measurement("all_reduce", (10.0, 20.0), (5.0, 7.5), devices=2, placement=INTER_HOST),
        Measurement("send", (8.0,), (4.0,), devices=1),
        Measurement("send", (8.0,), (16.0,), devices=2),
        Measurement("dispatch", (0.0, 10.0), (0.25, 0.5), devices=2),
    ),
    (4.0, 2.0, 1.5, 1.0),
    {"jax": "0"},
)
CPU = load_cluster("cpu-test:2x4")
GROUP = CPU.groups[0]
MEASURED = replace(CPU, groups=(replace(GROUP, device=replace(GROUP.device, profile=PROFILE)),))
H200 = load_cluster("h200:1x1")
MESH = Mesh("m", (("x", 2), ("y", 2)), (0, 1, 2, 3))


@st.composite
def points(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    steps = draw(
        st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0, 1e3)), min_size=1, max_size=8)
    )
    first = draw(st.sampled_from([0, 1]))
    sizes = np.cumsum([step for step, _ in steps]) - (
        steps[0][0] if first == 0 and len(steps) > 1 else 0
    )
    return [float(size) for size in sizes], np.cumsum([rise for _, rise in steps]).tolist()


@settings(deadline=None)
@given(points(), st.lists(st.floats(0, 1e7), min_size=2, max_size=20))
def test_curves_are_exact_at_their_points_and_rise(
    xy: tuple[list[float], list[float]], at: list[float]
) -> None:
    curve = Curve.through(*xy)
    np.testing.assert_allclose([curve.at(x) for x in xy[0]], xy[1], rtol=1e-9, atol=1e-9)
    seconds = [curve.at(x) for x in sorted(at)]
    assert all(value >= 0 for value in seconds)
    assert all(b >= a - 1e-9 * abs(a) for a, b in itertools.pairwise(seconds))
    np.testing.assert_allclose(curve.at(np.array(sorted(at))), seconds, rtol=1e-12)


def test_curves_go_on_with_their_outer_slopes() -> None:
    curve = Curve.through((10, 20, 40), (5, 6, 10))
    assert [curve.at(x) for x in (0.0, 5.0, 15.0, 30.0, 60.0)] == [4, 4.5, 5.5, 8, 14]
    # The first slope would be below zero at 0.
    assert Curve.through((10, 20), (1, 5)).at(5.0) == 0.5
    assert Curve.through((10,), (1,)).at(30.0) == 3


@settings(deadline=None)
@given(st.lists(points(), min_size=1, max_size=5), st.floats(0, 1e7))
def test_a_table_of_curves_is_its_curves(
    many: list[tuple[list[float], list[float]]], at: float
) -> None:
    curves = [Curve.affine(1.0, 2.0), *(Curve.through(*xy) for xy in many)]
    sizes = at * np.linspace(0, 1, len(curves))
    expected = [curve.at(float(size)) for curve, size in zip(curves, sizes, strict=True)]
    np.testing.assert_allclose(CurveTable(curves).at(sizes), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "seconds", "message"),
    [
        ((), (), "as many seconds as sizes"),
        ((2, 1), (1, 1), "rising sizes"),
        ((1, 2), (2, 1), "do not fall"),
        ((1, 2), (1, float("nan")), "at least 0"),
        ((0,), (1,), "beyond size 0"),
    ],
)
def test_points_that_make_no_curve(
    sizes: tuple[float, ...], seconds: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Curve.through(sizes, seconds)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=12))
def test_rising_fit(seconds: list[float]) -> None:
    fit = rising(seconds)
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(fit))
    assert sum(fit) == pytest.approx(sum(seconds))
    assert rising(sorted(seconds)) == pytest.approx(sorted(seconds))


# ---- the file ----


def test_a_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(profile_text(PROFILE))
    loaded = load_profile(str(path))
    assert loaded == PROFILE
    assert profile_json(loaded) == profile_json(PROFILE)  # what equality leaves out
    assert with_profile(CPU, str(path)) == MEASURED
    assert with_profile(CPU, "") == CPU


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "field 'version': expected 1, found 99"),
        (
            {"device": "tpu"},
            "expected a profile of device 'cpu', which cluster cpu-test:2x4 has, "
            "found one of 'tpu'",
        ),
        ({"device": 3}, "field 'device': expected a name"),
        ({"devices": 0}, "field 'devices': expected a positive whole number, found 0"),
        ({"speeds": [1.0]}, "expected 4 positive speeds"),
        ({"sizes": 3}, "unknown field 'sizes'"),
        ({"measurements": 3}, "field 'measurements': expected a list"),
        (
            {"measurements": [{"kind": "gossip", "points": []}]},
            r"measurements\[0\].kind': expected one of",
        ),
        (
            {"measurements": [{"kind": "send", "points": [[1]]}]},
            r"measurements\[0\].points': expected a list of",
        ),
        (
            {"measurements": [{"kind": "send", "points": [[1, "a"]]}]},
            r"measurements\[0\].points': expected numbers",
        ),
        (
            {"measurements": [{"kind": "send", "points": [[2, 1], [1, 1]]}]},
            r"measurements\[0\]': expected rising",
        ),
        ({"measurements": [{"points": []}]}, r"missing field 'measurements\[0\].kind'"),
        ({"measurements": [{"kind": "send", "points": [[1, 1]]}] * 2}, "found two of"),
    ],
)
def test_a_bad_file_is_one_clear_error(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({**profile_json(PROFILE), **change}))
    with pytest.raises(UserError, match=f"p.json: .*{message}"):
        with_profile(CPU, str(path))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with pytest.raises(UserError, match=r"p.json: cannot read the profile: No such file"):
        load_profile(str(path))
    path.write_text("{\n,")
    with pytest.raises(UserError, match=r"p.json:2: not valid JSON"):
        load_profile(str(path))
    path.write_text("[]")
    with pytest.raises(UserError, match=r"p.json: expected a mapping"):
        load_profile(str(path))


@pytest.mark.parametrize("others", [(), load_cluster("a100-80g").groups])
def test_the_module_carries_the_profile(others: tuple[HostGroup, ...]) -> None:
    measured, plain = (replace(c, groups=(*c.groups, *others)) for c in (MEASURED, CPU))
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.create()
        write_cluster(module, measured)
        again = ir.Module.parse(str(module), context)
        assert read_cluster(again) == measured
        assert hash(read_cluster(again)) == hash(measured) != hash(plain)


def test_a_profile_belongs_to_the_groups_with_its_device(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(profile_text(PROFILE))
    mixed = with_profile(load_cluster("a100-80g+cpu-test+cpu-test:1x2"), str(path))
    assert [group.device.profile for group in mixed.groups] == [None, PROFILE, PROFILE]
    with pytest.raises(UserError, match="of device 'A100-SXM4-80GB' or 'H100-SXM5-80GB', which"):
        with_profile(load_cluster("a100-80g+h100-sxm"), str(path))


# ---- use ----


def test_kinds_of_collectives_have_one_spelling() -> None:
    assert set(COLLECTIVE_KINDS) == set(COLLECTIVES)


def test_measured_work_overrides_the_roofline() -> None:
    device, formula = MEASURED.groups[0].device, GROUP.device
    assert op_seconds(device, 1e6, 0.0, "f32", kind="matmul") == pytest.approx(1e-3)
    # No curve of its own.
    assert op_seconds(device, 1e6, 0.0, "f32", kind="batch_matmul") == pytest.approx(1e-3)
    assert op_seconds(device, 1e9, 0.0, "bf16", kind="matmul") == op_seconds(
        formula, 1e9, 0.0, "bf16"
    )
    assert op_seconds(device, 1.0, 200.0, "f32", kind="elementwise", in_memory=0.25) == 0.75
    assert op_seconds(device, 1.0, 200.0, "i32", kind="elementwise") == 3.0
    assert (
        op_seconds(device, 1.0, 200.0, "f32", kind="transcendental", in_memory=0.25) == 0.75 + 4.0
    )
    assert op_seconds(device, 6e15, 100.0, "f32", kind="reduction") == op_seconds(
        formula, 6e15, 1.0, "f32"
    )
    assert memory_seconds(device, 100.0) == 1.0


def test_described_kernels_keep_shapes_and_take_measured_rates() -> None:
    """Products and copies of the largest sizes take what was measured; what tiles waste and what is
    merged counts as before."""
    flops, size = 2.0 * 4096**3, 3.0 * 2**30
    profile = Profile(
        "H200-SXM-141GB",
        1,
        (
            Measurement("matmul", (8e3, flops), (1e-6, flops / 800e12), "bf16"),
            Measurement("elementwise", (3e3, size), (1e-6, size / 4.5e12), "f32"),
            Measurement("scatter", (10.0, 20.0), (0.5, 0.75), "f32"),
        ),
    )
    device = H200.groups[0].device.with_measured(profile)
    assert device.with_measured(profile) == device
    product = partial(op_seconds, device, flops, 0.0, "bf16", kind="matmul")
    assert product() == pytest.approx(2e-6 + flops / 800e12, rel=1e-6)
    assert product(product=Product(1, 4096, 4096, 4096, 2)) > product()
    assert memory_seconds(device, size) == pytest.approx(size / 4.5e12)
    assert op_seconds(device, 0.0, 20.0, "f32", kind="scatter") >= 0.75
    # Not measured: as described.
    assert device.kernels is not None and device.kernels.products["f32"] == 0.87
    assert device.fusing == H200.groups[0].device.fusing


def test_what_is_faster_than_the_data_sheet_is_the_data_sheet() -> None:
    rows = (Measurement("matmul", (1e9,), (1e-6,), "f32"),)
    device = H200.groups[0].device.with_measured(Profile("H200-SXM-141GB", 1, rows))
    assert device.peak_flops["f32"] == 1e15
    assert device.kernels is not None and device.kernels.products["f32"] == 1.0
    cluster = replace(H200, groups=(replace(H200.groups[0], device=device),))
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.create()
        write_cluster(module, cluster)
        assert read_cluster(module) == cluster


def test_kinds_of_work() -> None:
    assert work_kind("dot_general") == "matmul"
    assert work_kind("dot_general", batched=True) == "batch_matmul"
    assert work_kind("tanh") == "transcendental"
    assert work_kind("add") == "elementwise"
    assert work_kind("sort") == "other"


def test_measured_groups_override_the_formulas() -> None:
    assert collective_seconds(MEASURED, MESH, "all_reduce", ("x",), 30.0) == 1.0
    across = replace(MESH, devices=(0, 1, 4, 5))
    assert collective_seconds(MEASURED, across, "all_reduce", ("x",), 20.0) == 7.5
    both = ("x", "y")
    assert collective_seconds(MEASURED, MESH, "all_reduce", both, 9.0) == collective_seconds(
        CPU, MESH, "all_reduce", both, 9.0
    )


def test_measured_messages_and_calls() -> None:
    assert messages_seconds(MEASURED, [(0, 1, 8)]) == 4.0
    assert messages_seconds(MEASURED, [(0, 2, 8), (1, 3, 4)]) == 16.0  # two at once
    assert messages_seconds(MEASURED, [(0, 4, 8)]) == messages_seconds(CPU, [(0, 4, 8)])
    assert dispatch_seconds(MEASURED.groups[0], 4, 20) == 0.75
    assert dispatch_seconds(GROUP, 4, 20) == GROUP.dispatch_seconds
    assert [PROFILE.speed(busy) for busy in (0, 1, 3, 4, 9)] == [4.0, 4.0, 1.5, 1.0, 1.0]
