"""Rows of measurements: read from a file, and what each states as model, machine and plan."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from shardopt.hardware.cluster import AttentionRate
from shardopt.measured.case import case_of
from shardopt.measured.figures import measured_seconds
from shardopt.measured.frameworks import Framework, framework_of
from shardopt.measured.layout import RowRecomputation, layout_of
from shardopt.measured.predict import open_microbatches, whole_case
from shardopt.measured.rows import Row, read_rows
from shardopt.measured.unstated import InexpressibleRow
from shardopt.models.specs import GptSpec, LlamaSpec, MoeSpec, ResnetSpec
from shardopt.support.errors import UserError

TABLE = Path(__file__).parents[3] / "benchmarks" / "cost" / "measured_steps.csv"


@pytest.fixture(scope="module")
def gpt() -> Row:
    return next(row for row in read_rows(TABLE) if row.id == "korthikanti-175B")


def test_a_row_states_a_plan(gpt: Row) -> None:
    case = case_of(gpt)
    layout = case.layout
    assert (layout.shape, layout.replicas, layout.pp, layout.vpp) == ((1, 8), 1, 8, 3)
    assert (layout.intra_op, layout.schedule) == ("megatron", "interleaved:3")
    assert layout.recomputation == RowRecomputation(within="whole")
    assert layout.microbatch is not None
    assert layout.microbatch * layout.microbatches * layout.replicas == gpt.gbs
    assert (case.dtype, case.machine.device.name) == ("f16", "A100-SXM4-80GB")
    assert case.machine.inter_host.bandwidth_bytes_per_second == pytest.approx(200e9)


def test_families(gpt: Row) -> None:
    llama = replace(gpt, arch="llama2-70b", kv_heads=8, ffn=28672)
    assert case_of(llama).spec == LlamaSpec(
        hidden=12288,
        layers=96,
        heads=96,
        kv_heads=8,
        ffn=28672,
        sequence=2048,
        vocab=51200,
        batch=64,
    )
    gpt = replace(gpt, schedule="1f1b")
    moe = replace(gpt, arch="moe", experts=16, dp=64, tp=1, pp=1, vpp=1)
    assert isinstance(case_of(moe).spec, MoeSpec)
    sizes = {"layers": 50, "params_B": 0.254123, "devices": 1, "tp": 1, "pp": 1, "vpp": 1}
    resnet = replace(gpt, arch="wresnet", mbs=32, gbs=32, **sizes)  # type: ignore[arg-type]
    assert case_of(resnet).spec == ResnetSpec(50, 160, 2, batch=32)


@pytest.mark.parametrize(
    ("changes", "shape", "intra_op"),
    [
        ({"dp": 8, "zero": "1"}, (8, 8), "megatron-zero1"),
        ({"dp": 8, "zero": "3", "recompute": "none + sequence parallel"}, (8, 8), "sequence-zero3"),
        ({"zero": "3"}, (1, 8), "megatron"),
        ({"dp": 8, "tp": 1, "zero": "2"}, (8, 1), "zero2"),
        (
            {"dp": 16, "tp": 1, "zero": "3", "note": "2 pods of 8; FSDP inside a pod"},
            (2, 8),
            "mics",
        ),
        (
            {"dp": 8, "tp": 1, "zero": "3", "note": "1 pods of 8; FSDP inside a pod"},
            (8, 1),
            "zero3",
        ),
        ({"dp": 2, "tp": 1, "cp": 4}, (2, 4), "context-gather"),
        ({"dp": 2, "tp": 1, "cp": 4, "zero": "3"}, (2, 4), "context-gather-zero3"),
        ({"dp": None, "tp": None, "cp": 4, "note": "attention by ulysses"}, (2, 4), "ulysses"),
        ({"dp": 2, "tp": 1, "cp": 4, "note": "attention by ring"}, (2, 4), "context-gather"),
        ({"dp": 2, "tp": 4, "cp": 2}, (2, 2, 4), "context-gather-megatron"),
        (
            {"dp": 2, "tp": 4, "cp": 2, "zero": "1", "recompute": "none + sequence parallel"},
            (2, 2, 4),
            "context-gather-sequence-zero1",
        ),
        (
            {"dp": 1, "tp": 2, "cp": 2, "note": "attention by ulysses"},
            (1, 2, 2),
            "ulysses-megatron",
        ),
        ({"dp": 8, "tp": 1, "ep": 4, "arch": "moe", "experts": 8}, (2, 4), "expert"),
        (
            {"dp": 8, "tp": 1, "ep": 8, "zero": "3", "arch": "moe", "experts": 8},
            (1, 8),
            "expert-zero3",
        ),
    ],
)
def test_methods_follow_from_axes(
    gpt: Row, changes: dict[str, object], shape: tuple[int, ...], intra_op: str
) -> None:
    row = replace(gpt, vpp=1, schedule="1f1b", **changes)  # type: ignore[arg-type]
    layout = layout_of(replace(row, devices=prod(shape) * 8), Framework())
    assert (layout.shape, layout.intra_op) == (shape, intra_op)


@pytest.mark.parametrize(
    ("text", "recomputation"),
    [
        ("", None),
        ("none", RowRecomputation()),
        ("full (every layer)", RowRecomputation("layer")),
        ("selective", RowRecomputation(within="attention")),
        ("selective (attention) + sequence parallel", RowRecomputation(within="attention")),
        ("selective per op", RowRecomputation(within="per-operation")),
        ("all but attention", RowRecomputation(within="all-but-attention")),
        ("custom (context=device)", RowRecomputation(within="all-but-attention")),
    ],
)
def test_words_for_recomputation(
    gpt: Row, text: str, recomputation: RowRecomputation | None
) -> None:
    layout = layout_of(replace(gpt, recompute=text), Framework())
    assert layout.recomputation == recomputation
    assert layout.full == RowRecomputation("layer")


def test_zero_among_replicas_that_divide_nothing_splits_among_a_power_of_two(gpt: Row) -> None:
    """40 replicas of two tensor-parallel parts, whose flat buffers a framework splits."""
    row = replace(gpt, schedule="1f1b", dp=40, tp=2, pp=1, vpp=1, zero="1", mbs=2)
    row = replace(row, gbs=160, devices=80)
    layout = layout_of(row, Framework())
    assert (layout.shape, layout.replicas, layout.batch) == ((32, 2), 32, 128)
    assert layout.microbatches == 160 // (40 * 2)
    whole = layout_of(replace(row, zero="0"), Framework())
    assert (whole.shape, whole.batch) == ((40, 2), 160)


def test_a_framework_pads_vocabularies(gpt: Row) -> None:
    """Megatron-LM to what each of its tensor-parallel parts takes 128 columns of."""
    row = replace(gpt, vocab=50257)
    parts = {tp: replace(row, tp=tp, devices=8 * tp) for tp in (1, 8)}
    specs = {tp: case_of(each).spec for tp, each in parts.items()}
    assert {tp: getattr(spec, "vocab", None) for tp, spec in specs.items()} == {1: 50304, 8: 51200}
    assert getattr(case_of(replace(row, source="of my own")).spec, "vocab", None) == 50257


def test_a_framework_ties_and_looks_up_by_products(gpt: Row) -> None:
    """As what Alpa's figures 8 and 7 were measured with, each in its own way."""
    figure8 = case_of(replace(gpt, source="Alpa OSDI22 artifact, results_intra_ablation_ref.tsv"))
    figure7 = case_of(replace(gpt, source="Alpa OSDI22 artifact, results_e2e_ref.tsv"))
    assert [getattr(case.spec, "tied", None) for case in (figure8, figure7)] == [True, False]
    for case in (figure8, figure7):
        assert case.how.looks_up_by_product and case.how.carries_copies and case.sums_together
        assert case.how.normalizes_sums and case.how.sums_narrow
        assert case.layout.recomputation == RowRecomputation(within="whole")


def test_a_framework_may_keep_a_part_before_it_keeps_nothing(gpt: Row) -> None:
    pax = case_of(replace(gpt, source="NVIDIA JAX-Toolbox, PaxML", recompute="")).layout
    assert pax.between == (RowRecomputation(within="all-but-products"),)
    assert not case_of(gpt).layout.between


def test_a_microbatch_that_is_not_stated_is_left_open(gpt: Row) -> None:
    row = replace(gpt, mbs=None, gbs=64, vpp=1, schedule="1f1b")
    sizes = [layout.microbatch for layout in open_microbatches(case_of(row).layout)]
    assert sizes == [1, 2, 4, 8]  # eight meshes have eight microbatches at least
    assert [each.microbatch for each in open_microbatches(case_of(gpt).layout)] == [gpt.mbs]


def test_products_in_8_bits_are_beside_numbers_of_16(gpt: Row) -> None:
    case = case_of(replace(gpt, precision="fp8 tensorwise"))
    assert (case.dtype, case.how.float8) == ("bf16", True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": "int8"}, "products in int8"),
        ({"attention": "slow"}, "attention 'slow' is none of"),
        ({"cp": 2, "ep": 2}, "context parallelism together with expert parallelism"),
        ({"cp": 2, "tp": 1, "note": "attention by post"}, "'post' is none of all-gather, ring"),
        ({"cp": 3, "tp": None, "dp": None, "pp": None}, "dp · cp · tp · pp is 63, on 64 devices"),
        ({"kv_heads": 7}, "7 heads of keys and values do not divide"),
        ({"dp": None}, "states no plan"),
        ({"dp": 4}, "dp · tp · pp"),
        ({"zero": "4"}, "ZeRO stage '4'"),
        ({"ep": 2}, "together with tensor parallelism"),
        ({"tp": 1, "dp": 8, "ep": 3}, "3 groups of experts on 8 replicas"),
        ({"recompute": "offloaded"}, "recomputation 'offloaded'"),
        ({"vpp": 1}, "number of stages of a device"),
        ({"vpp": 5}, "96 layers on 40 stages"),
        ({"mbs": 7}, "no multiple"),
        ({"hardware": "abacus"}, "no preset"),
        ({"vocab": None}, "states no vocab"),
        ({"heads": 7}, "7 heads do not divide"),
        ({"schedule": "zigzag", "vpp": 1}, "schedule 'zigzag'"),
        ({"schedule": "zero-bubble", "vpp": 1}, "schedule 'zero-bubble'"),
    ],
)
def test_what_cannot_be_said_has_a_reason(
    gpt: Row, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(InexpressibleRow, match=reason):
        case_of(replace(gpt, **changes))  # type: ignore[arg-type]


def test_a_row_that_states_it_overlaps(gpt: Row) -> None:
    noted = replace(gpt, note="overlap-grad-reduce on; vpp not stated")
    assert not case_of(gpt).machine.overlap and case_of(noted).machine.overlap
    pieces = case_of(replace(gpt, note="tp-comm-overlap")).machine
    assert pieces.overlap and pieces.windowed_products
    assert case_of(noted).sums_early and not case_of(gpt).sums_early
    assert not case_of(noted).machine.windowed_products
    titan = replace(gpt, source="torchtitan benchmarks", note="async TP")
    async_tp = case_of(titan).machine
    assert async_tp.overlap and async_tp.windowed_products
    assert async_tp.pieces_share < pieces.pieces_share, "most of it is awaited"


def test_collectives_beside_computing_are_combined_as_the_framework_does(gpt: Row) -> None:
    fsdp = replace(gpt, dp=64, tp=1, pp=1, vpp=1, zero="3", schedule="1f1b")
    of_a_block = 12 * 12288**2 * 2
    for source in ("torchtitan benchmarks", "MosaicML llm-foundry training benchmarks"):
        combined = case_of(replace(fsdp, source=source)).machine.combined_bytes
        assert combined == pytest.approx(of_a_block, rel=0.01)
    split = replace(gpt, source="torchtitan benchmarks")  # among eight
    assert case_of(split).machine.combined_bytes == pytest.approx(of_a_block / 8, rel=0.01)
    by_xla = replace(fsdp, source="NVIDIA JAX-Toolbox, PaxML GPT")
    assert case_of(by_xla).machine.combined_bytes == 30 * 2**20
    assert case_of(replace(by_xla, source="MaxText", hardware="TPU v5e")).machine.nccl is None
    assert case_of(replace(gpt, note="overlap-grad-reduce")).machine.combined_bytes is None
    assert case_of(gpt).machine.combined_bytes is None, "nothing is beside computing"


@pytest.mark.parametrize("library", ["cudnn", "flash", "flash-2", "tpu"])
def test_attention_in_kernels_has_rates_wherever_it_runs(gpt: Row, library: str) -> None:
    """Its scores were written to memory on devices that no publication had measured it on. On a
    V100, for which FlashAttention has none, they are."""
    devices = ("A100", "H100", "H100 96GB", "H200", "GH200", "B200", "MI300X")
    assert all(fused(replace(gpt, hardware=name, attention=library)) for name in devices)
    assert not fused(replace(gpt, hardware="V100", attention=library))
    assert bool(fused(replace(gpt, hardware="TPU v5e", attention=library))) == (library == "tpu")


def test_maxtext_takes_the_kernels_of_the_device(gpt: Row) -> None:
    maxtext = replace(gpt, source="MaxText", hardware="H100")
    rates = [
        case_of(each).machine.device.kernels
        for each in (maxtext, replace(maxtext, attention="cudnn"))
    ]
    assert rates[0] == rates[1] and case_of(maxtext).machine.overlap


def test_heads_of_queries_may_share_keys(gpt: Row) -> None:
    assert gpt.heads is not None
    shared = case_of(replace(gpt, kv_heads=gpt.heads // 4)).spec
    alone = case_of(replace(gpt, kv_heads=gpt.heads)).spec
    assert isinstance(shared, GptSpec) and shared.kv_heads == gpt.heads // 4
    assert isinstance(alone, GptSpec) and alone.kv_heads == 0


def test_a_source_names_its_framework(gpt: Row) -> None:
    """With its kernels for attention, of which the column of that name knows better."""
    assert case_of(gpt).how.drops and case_of(gpt).how.clips and not fused(gpt)
    mosaic = replace(gpt, source="MosaicML llm-foundry training benchmarks")
    assert fused(mosaic) and case_of(mosaic).machine.overlap and not case_of(mosaic).how.drops
    default = replace(mosaic, note="FSDP FULL_SHARD, mixed precision DEFAULT")
    assert case_of(default).how.sums_wide and not case_of(mosaic).how.sums_wide
    assert case_of(mosaic).layout.recomputation == RowRecomputation(within="whole")
    titan = case_of(replace(gpt, source="torchtitan benchmarks")).layout
    assert (titan.intra_op, titan.recomputation) == ("sequence", RowRecomputation("layer"))
    nemo = case_of(replace(gpt, source="NVIDIA NeMo framework, performance summary"))
    assert nemo.layout.intra_op == "sequence" and nemo.machine.windowed_products
    slow = fused(replace(gpt, attention="flash-2", hardware="H100-SXM 96GB 500W"))
    fast = fused(replace(gpt, attention="flash-2", hardware="H100-SXM5-80GB"))
    assert slow is not None and fast is not None and slow[0].forward < 0.8 * fast[0].forward
    first = fused(replace(gpt, attention="flash", hardware="H100-SXM5-80GB"))
    assert first is not None and first[0].forward < 0.7 * fast[0].forward, "its first version"
    assert not fused(replace(mosaic, attention="none"))
    assert fused(replace(gpt, attention="flash-2", source="of my own"))
    assert not fused(replace(mosaic, hardware="V100-SXM2-16GB")), "of which none was published"
    rates = fused(replace(gpt, attention="tpu", hardware="TPU v5e"))
    assert rates is not None and rates[0].forward_fill == 0


@pytest.mark.parametrize(
    ("note", "precision", "merges"),
    [
        ("", "bf16", False),
        ("FSDP eager", "bf16", False),
        ("FSDP + torch.compile", "bf16", True),
        ("compiled", "bf16", True),
        ("+AsyncTP", "bf16", True),
        ("", "fp8", True),
    ],
)
def test_torchtitan_compiles_where_it_is_told(
    gpt: Row, note: str, precision: str, merges: bool
) -> None:
    row = replace(gpt, source="torchtitan", note=note, precision=precision)
    framework = framework_of(row)
    assert (framework.merges, framework.how.in_passes) == (merges, not merges)


def test_kernels_of_attention_keep_no_scores_for_another_fragment(gpt: Row) -> None:
    """Forward and backward pass are fragments of their own where there are several stages."""
    plain = replace(gpt, recompute="none")
    flash = replace(plain, attention="flash-2")
    alone = replace(flash, pp=1, vpp=1, schedule="", devices=8)
    rows = (plain, flash, alone, replace(flash, recompute="full"))
    parts = [whole_case(case_of(row)).how.recomputed for row in rows]
    assert parts == ["none", "attention", "none", "whole"]


def test_few_microbatches_stand_for_any_number(gpt: Row) -> None:
    """But for one, which makes no loop unless a framework has a buffer for gradients, as Megatron-LM:
    in a loop of two a sum in 16 bits for each of them would be no dearer than one in 32 bits behind
    it."""
    ours = replace(gpt, source="of my own")
    rows = (replace(ours, mbs=1), replace(ours, mbs=gpt.gbs), replace(gpt, mbs=gpt.gbs))
    assert [whole_case(case_of(row)).microbatches for row in rows] == [8, 1, 8]


@pytest.mark.parametrize(
    ("hardware", "name"),
    [
        ("H100-SXM5-80GB", "H100-SXM5-80GB"),
        ("H100-SXM 96GB HBM2e 2.4TB/s 500W", "H100-96GB-HBM2e"),
        ("GH200 96GB", "GH200-96GB"),
    ],
)
def test_devices_have_presets(gpt: Row, hardware: str, name: str) -> None:
    assert case_of(replace(gpt, hardware=hardware)).machine.device.name == name


def fused(row: Row) -> tuple[AttentionRate, ...] | None:
    kernels = case_of(row).machine.device.kernels
    return kernels.attention if kernels else None


def test_parameters_tell_the_size_of_heads(gpt: Row) -> None:
    """MaxText's heads have 128 numbers whatever the width."""
    sizes = {"layers": 32, "hidden": 4096, "heads": 64, "ffn": 28672, "vocab": 32000, "pp": 1}
    row = replace(gpt, arch="gpt (swiglu)", tp=64, vpp=1, schedule="", **sizes)  # type: ignore[arg-type]
    sizes_of_heads = [
        spec.head_size
        for spec in (case_of(replace(row, params_B=billions)).spec for billions in (16, 13.7))
        if isinstance(spec, LlamaSpec)
    ]
    assert sizes_of_heads == [128, 64]


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
