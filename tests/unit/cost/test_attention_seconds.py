"""Seconds of products inside of attention."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardopt.cost.attention import attention_seconds, least_attention_seconds
from shardopt.graph.attention_use import AttentionUse
from shardopt.hardware.cluster import AttentionRate

RATES = (AttentionRate(128, 0.6, 0.4, 100, 200), AttentionRate(64, 0.3, 0.2, 300, 400))
PEAK, FLOPS = 1e12, 1e12


def seconds(
    head: int, keys: int = 2**20, triangular: bool = False, backward: bool = False
) -> float:
    use = AttentionUse(head, keys, triangular, backward)
    return attention_seconds(RATES, PEAK, FLOPS, use)


def test_long_sequences_reach_the_rate_of_their_head_size() -> None:
    assert seconds(128) == pytest.approx(1 / 0.6, rel=1e-3)
    assert seconds(64, backward=True) == pytest.approx(1 / 0.2, rel=1e-3)
    assert seconds(96) == pytest.approx(1 / 0.45, rel=1e-3), "half way between"
    assert seconds(16) == seconds(64) and seconds(256) == seconds(128), "and not beyond"


def test_short_sequences_take_as_long_as_longer_ones() -> None:
    assert seconds(128, keys=100) == pytest.approx(2 / 0.6)
    assert seconds(128, keys=100, backward=True) == pytest.approx(3 / 0.4)


def test_a_triangular_mask_hides_half_but_for_the_diagonal() -> None:
    assert seconds(128, triangular=True) == pytest.approx(seconds(128) / 2, rel=1e-3)
    whole, masked = seconds(128, keys=256), seconds(128, keys=256, triangular=True)
    assert masked == pytest.approx(whole - 1 / 4 / 0.6), "three of four blocks are seen"
    assert seconds(128, keys=128, triangular=True) == seconds(128, keys=128)


@given(st.integers(1, 512), st.integers(1, 2**18), st.booleans(), st.booleans())
def test_no_kernel_is_faster_than_the_least(
    head: int, keys: int, triangular: bool, backward: bool
) -> None:
    least = least_attention_seconds(RATES, PEAK, FLOPS)
    assert seconds(head, keys, triangular, backward) >= least
