"""What rows leave out and frameworks are known to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardopt.cost.attention import attention_seconds
from shardopt.graph.attention_use import AttentionUse
from shardopt.hardware.cluster_file import load_cluster
from shardopt.measured.frameworks import attention_rates, framework_of
from shardopt.measured.machines import machine_of
from shardopt.measured.rows import read_rows

# Of a unit of 128 x 128, by the size of a head.
FILLED = {16: 1 / 8, 64: 1 / 2, 128: 1, 129: 129 / 256, 192: 3 / 4, 256: 1}


@pytest.mark.parametrize("backward", [False, True])
def test_attention_on_a_tpu_fills_as_much_of_a_matrix_unit_as_a_head_does(backward: bool) -> None:
    kernels = load_cluster("tpu-v5e").groups[0].device.kernels
    assert kernels is not None and kernels.matrix_unit == 128
    rates = attention_rates("tpu", "tpu-v5e", kernels)
    assert rates is not None
    for head, filled in FILLED.items():
        use = AttentionUse(head, 2048, False, backward)
        seconds = attention_seconds(rates, 1e12, 1e12, use)
        assert seconds == pytest.approx(1 / (kernels.products["bf16"] * filled))
    wide = attention_rates("tpu", "tpu-v6e", replace(kernels, matrix_unit=256))
    assert wide is not None
    narrow = AttentionUse(128, 2048, False, backward)
    twice = 2 * attention_seconds(rates, 1e12, 1e12, narrow)
    assert attention_seconds(wide, 1e12, 1e12, narrow) == pytest.approx(twice)


@pytest.mark.parametrize(
    ("source", "holds", "recomputes"),
    [
        ("NVIDIA JAX-Toolbox", True, False),  # a loop keeps what its backward pass reads
        ("Alpa OSDI22 artifact", True, True),
        ("torchtitan", False, True),
        ("Narayanan et al.", False, False),
        ("", True, True),
    ],
)
def test_kernels_are_those_of_the_compiler(
    source: str, holds: bool, recomputes: bool, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        f"id,source,arch,hardware,devices,layers,hidden,heads,seq,dp,gbs\n"
        f"a,{source},gpt,A100,8,2,64,2,64,8,8\n"
    )
    [row] = read_rows(path)
    kernels = machine_of(row, framework_of(row)).device.kernels
    assert kernels is not None
    assert (kernels.row_blocks, kernels.recomputes) == (holds, recomputes)
