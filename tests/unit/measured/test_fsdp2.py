"""What FSDP2 takes beside a plan of ZeRO 3, counted over the weights of the model that is planned."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import jax
import pytest

from shardopt.measured.case import Case, case_of
from shardopt.measured.fsdp2 import Beside, beside
from shardopt.measured.layout import RowRecomputation
from shardopt.measured.rows import Row, read_rows
from shardopt.models import llama
from shardopt.models.specs import LlamaSpec
from shardopt.models.weights import Weight, is_weight

TABLE = Path(__file__).parents[3] / "benchmarks" / "cost" / "measured_steps.csv"
DEVICES, BATCH, SEQUENCE, HIDDEN, LAYERS, VOCAB = 64, 128, 2048, 1024, 6, 32000


@pytest.fixture(scope="module")
def llama_row() -> Row:
    """One microbatch of two examples, on an H100."""
    some = next(iter(read_rows(TABLE)))
    plan = {"dp": DEVICES, "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "zero": "3", "mbs": 2}
    sizes = {"layers": LAYERS, "hidden": HIDDEN, "heads": 8, "kv_heads": 2, "ffn": 3584}
    return replace(
        some,
        arch="llama3",
        source="torchtitan benchmarks",
        hardware="H100-SXM5-80GB",
        precision="bf16",
        devices=DEVICES,
        vocab=VOCAB,
        seq=SEQUENCE,
        gbs=BATCH,
        recompute="selective",
        schedule="",
        note="torch.compile",
        **plan,
        **sizes,
    )


def _beside(case: Case) -> Beside:
    assert isinstance(case.spec, LlamaSpec) and case.layout.recomputation is not None
    device, recomputation = case.machine.device, case.layout.recomputation
    return beside(case.spec, case.how, device, case.layout, recomputation)


def _numbers(tree: object) -> int:
    leaves: list[Weight] = jax.tree.leaves(tree, is_leaf=is_weight)
    return sum(prod(weight.shape) for weight in leaves)


def _groups(case: Case) -> tuple[int, int]:
    """Weights outside of blocks, and in all blocks."""
    assert isinstance(case.spec, LlamaSpec)
    tree = llama.weights(case.spec)
    return _numbers(tree["ends"]), _numbers(tree["blocks"])


def test_bytes_of_streams_and_of_the_outer_group(llama_row: Row) -> None:
    """A buffer for each of the first two gathers, a float32 part of all gradients, and the
    embedding with the last norm, which are there while the loss is taken."""
    case = case_of(llama_row)
    ends, blocks = _groups(case)
    buffers, parts = 2 * (ends + blocks // LAYERS), 4 * (ends + blocks) / DEVICES
    kept = 2 * (VOCAB + 1) * HIDDEN
    assert case.by_fsdp2
    assert _beside(case).bytes == pytest.approx(buffers + parts + kept)
    in_8_bits = _beside(case_of(replace(llama_row, precision="fp8")))
    assert in_8_bits.bytes == pytest.approx(buffers - blocks // LAYERS + parts + kept)


def test_tensor_parallelism_leaves_each_device_its_part(llama_row: Row) -> None:
    """Replicas share what is left, so that parts of gradients stay as they are."""
    alone = case_of(llama_row)
    split = case_of(replace(llama_row, dp=DEVICES // 8, tp=8, mbs=16))
    ends, blocks = _groups(alone)
    parts = 4 * (ends + blocks) / DEVICES
    rest = _beside(alone).bytes - parts
    assert _beside(split).bytes == pytest.approx(parts + rest / 8)


def test_seconds_are_those_of_copies(llama_row: Row) -> None:
    """Weights are read and written whenever they are gathered: in all blocks but the last, and not
    outside of these, twice. A gradient is written, read and written wide, for once written wide."""
    case = case_of(llama_row)
    ends, blocks = _groups(case)
    gathered = 2 * blocks - blocks // LAYERS + ends
    copied = 2 * 2 * gathered + (2 + 2 + 4 - 4) * (ends + blocks)
    kernels = case.machine.device.kernels
    assert kernels is not None
    rate = kernels.memory * case.machine.device.memory_bandwidth
    assert _beside(case).seconds == pytest.approx(copied / rate)
    twice = _beside(case_of(replace(llama_row, mbs=1)))
    assert twice.seconds == pytest.approx(2 * copied / rate)


def test_without_a_compiler_what_nothing_reads_is_kept(llama_row: Row) -> None:
    """Of each block the last product, by selective recomputation alone."""
    eager = case_of(replace(llama_row, note="FSDP eager"))
    kept = 2 * LAYERS * (BATCH // DEVICES) * SEQUENCE * HIDDEN
    compiled = _beside(case_of(llama_row))
    assert _beside(eager).bytes == pytest.approx(compiled.bytes + kept)
    full = case_of(replace(llama_row, note="FSDP eager", recompute="full"))
    assert full.layout.recomputation != RowRecomputation(within="per-operation")
    assert _beside(full).bytes == pytest.approx(compiled.bytes)


def test_other_methods_and_frameworks_have_none(llama_row: Row) -> None:
    assert not case_of(replace(llama_row, zero="2")).by_fsdp2
    assert not case_of(replace(llama_row, source="MosaicML llm-foundry")).by_fsdp2
