"""Rows of measurements: read from a file, and what each states as model, machine and plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardopt.measured.case import case_of
from shardopt.measured.figures import measured_seconds
from shardopt.measured.rows import Row, read_rows
from shardopt.measured.unstated import InexpressibleRow
from shardopt.models.specs import LlamaSpec, MoeSpec, ResnetSpec
from shardopt.support.errors import UserError

TABLE = Path(__file__).parents[3] / "benchmarks" / "cost" / "measured_steps.csv"


@pytest.fixture(scope="module")
def gpt() -> Row:
    return next(row for row in read_rows(TABLE) if row.id == "korthikanti-175B")


def test_a_row_states_a_plan(gpt: Row) -> None:
    case = case_of(gpt)
    layout = case.layout
    assert (layout.dp, layout.tp, layout.pp, layout.vpp) == (1, 8, 8, 3)
    assert (layout.intra_op, layout.recompute, layout.schedule) == (
        "megatron",
        "layer",
        "interleaved:3",
    )
    assert layout.microbatch * layout.microbatches * layout.dp == gpt.gbs
    assert (case.dtype, case.machine.device.name) == ("f16", "A100-SXM4-80GB")
    assert case.machine.inter_host.bandwidth_bytes_per_second == pytest.approx(200e9)


def test_families(gpt: Row) -> None:
    llama = replace(gpt, arch="llama2-70b", kv_heads=8, ffn=28672)
    assert case_of(llama).spec == LlamaSpec(12288, 96, 96, 8, 28672, 2048, 51200, 64)
    gpt = replace(gpt, schedule="1f1b")
    moe = replace(gpt, arch="moe", experts=16, dp=64, tp=1, pp=1, vpp=1)
    assert isinstance(case_of(moe).spec, MoeSpec)
    sizes = {"layers": 50, "params_B": 0.254123, "devices": 1, "tp": 1, "pp": 1, "vpp": 1}
    resnet = replace(gpt, arch="wresnet", mbs=32, gbs=32, **sizes)  # type: ignore[arg-type]
    assert case_of(resnet).spec == ResnetSpec(50, 160, 2, batch=32)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": "fp8"}, "products in fp8"),
        ({"cp": 2}, "context parallelism"),
        ({"dp": None}, "states no plan"),
        ({"dp": 4}, "dp · tp · pp"),
        ({"zero": "1"}, "ZeRO-1 together with tensor"),
        ({"recompute": "selective"}, "recomputation 'selective'"),
        ({"vpp": 5}, "96 layers on 40 stages"),
        ({"mbs": 7}, "no multiple"),
        ({"hardware": "abacus"}, "no preset"),
        ({"vocab": None}, "states no vocab"),
        ({"heads": 7}, "7 heads do not divide"),
        ({"schedule": "zigzag", "vpp": 1}, "schedule 'zigzag'"),
    ],
)
def test_what_cannot_be_said_has_a_reason(
    gpt: Row, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(InexpressibleRow, match=reason):
        case_of(replace(gpt, **changes))  # type: ignore[arg-type]


def test_seconds_follow_from_flops_where_only_these_are_published(gpt: Row) -> None:
    # 96 B s l h² (1 + s / 6h + V / 16lh) over 64 devices of 135 TFLOPS
    width, depth = 12288, 96
    share = 1 + 2048 / (6 * width) + 51200 / (16 * depth * width)
    flops = 96 * 64 * 2048 * depth * width**2 * share
    only = replace(gpt, step_s=None, tflops_dev=135.0, tflops_def="hardware (recompute counted)")
    assert measured_seconds(only) == pytest.approx(flops / (64 * 135e12))
    assert measured_seconds(gpt) == gpt.step_s
    assert measured_seconds(replace(only, tflops_def="counted in a way of its own")) is None


def test_errors_name_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text("id,arch,hardware,devices\na,gpt,A100,8\nb,gpt,A100,eight\n")
    with pytest.raises(UserError, match=r"steps.csv:3: column 'devices': expected a whole number"):
        read_rows(file)
    file.write_text("id,arch\n")
    with pytest.raises(UserError, match="found no 'hardware'"):
        read_rows(file)
