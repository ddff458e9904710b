"""Seconds of the products inside of a fused attention kernel.

A kernel takes blocks of queries past all keys that they may see. Its products run at a rate of
their own, less than that of large ones, as softmax is computed beside them; and every block takes
as long as some more keys would, to begin and to end. So

    seconds = FLOPs / (peak · share) · (visible + fill / keys)

with `share` and `fill` as measured, by head size (`AttentionRate`), and `visible` the part of the
blocks that a triangular mask does not hide: with n blocks a side, (n + 1) / 2n."""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.graph.attention_use import AttentionUse
from shardopt.hardware.cluster import AttentionRate


def attention_seconds(
    rates: Sequence[AttentionRate], peak_flops: float, flops: float, use: AttentionUse
) -> float:
    """Of one product of so many FLOPs, masked or not."""
    share, fill = _interpolated(rates, use)
    return flops / (peak_flops * share) * (use.visible + fill / use.keys)


def least_attention_seconds(
    rates: Sequence[AttentionRate], peak_flops: float, flops: float
) -> float:
    """Of any product inside of a kernel."""
    best = max(max(rate.forward, rate.backward) for rate in rates)
    return flops / (peak_flops * best) / 2


def _interpolated(rates: Sequence[AttentionRate], use: AttentionUse) -> tuple[float, float]:
    """Share and fill at the head size, between the sizes that were measured."""
    ordered = sorted(rates, key=lambda rate: rate.head)
    below = max((r for r in ordered if r.head <= use.head), key=lambda r: r.head, default=None)
    above = next((r for r in ordered if r.head >= use.head), None)
    first, last = below or ordered[0], above or ordered[-1]
    span = last.head - first.head
    part = (use.head - first.head) / span if span else 0.0
    pairs = [
        (rate.backward, rate.backward_fill) if use.backward else (rate.forward, rate.forward_fill)
        for rate in (first, last)
    ]
    (share, fill), (next_share, next_fill) = pairs
    return share + part * (next_share - share), fill + part * (next_fill - fill)
