"""The model of a row of measurements, by its family and its sizes."""

from __future__ import annotations

from dataclasses import replace

from shardopt.measured.rows import Row
from shardopt.measured.unstated import InexpressibleRow
from shardopt.models.specs import GptSpec, LlamaSpec, MoeSpec, ResnetSpec, Spec

# Base channels of Wide-ResNets are multiples of what a tensor core multiplies at once.
_CHANNEL_STEP = 32
_MOST_CHANNELS = 1024
# A size is taken for that of a model if it is as close as that; published sizes have three digits.
_TOLERANCE = 0.01
# Heads of another size than hidden / heads are looked for where parameters differ by more than
# published numbers are rounded.
_OTHER_HEADS = 0.05
_HEAD_SIZES = (64, 128, 256)


def spec_of(row: Row) -> Spec:
    """Raises InexpressibleRow where a size is missing or the family is unknown."""
    assert row.gbs is not None, "the caller looks"
    arch = row.arch.lower()
    if "wresnet" in arch or "resnet" in arch:
        return _resnet(row, row.gbs)
    named = {"layers": row.layers, "hidden": row.hidden, "heads": row.heads}
    named |= {"seq": row.seq, "vocab": row.vocab}
    for column, value in named.items():
        if value is None:
            raise InexpressibleRow(f"states no {column}")
    layers, hidden, heads, seq, vocab = (int(value or 0) for value in named.values())
    if hidden % heads:
        raise InexpressibleRow(f"{heads} heads do not divide a hidden size of {hidden}")
    if "llama" in arch or "swiglu" in arch:
        if row.ffn is None:
            raise InexpressibleRow("states no ffn")
        kv_heads = row.kv_heads or heads
        plain = LlamaSpec(
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            ffn=row.ffn,
            sequence=seq,
            vocab=vocab,
            batch=row.gbs,
        )
        return replace(plain, head=_head_size(plain, row.params_B))
    width = (row.ffn or 4 * hidden) // hidden
    if width * hidden != (row.ffn or 4 * hidden):
        raise InexpressibleRow(f"ffn {row.ffn} is no multiple of the hidden size {hidden}")
    if "moe" in arch:
        if row.experts is None:
            raise InexpressibleRow("states no experts")
        # GShard routes the tokens of one sequence together where nothing else is said.
        return MoeSpec(
            hidden=hidden,
            layers=layers,
            experts=row.experts,
            heads=heads,
            sequence=seq,
            vocab=vocab,
            batch=row.gbs,
            group=seq,
            width=width,
        )
    if "gpt" not in arch:
        raise InexpressibleRow(f"family '{row.arch}' is none of gpt, llama, moe and wresnet")
    return GptSpec(
        hidden=hidden,
        layers=layers,
        heads=heads,
        sequence=seq,
        vocab=vocab,
        batch=row.gbs,
        tied="tied" in arch,
        width=width,
        kv_heads=_groups(row, heads),
    )


def _groups(row: Row, heads: int) -> int:
    """Heads of keys and values, 0 for as many as of queries."""
    stated = row.kv_heads or heads
    if heads % stated:
        raise InexpressibleRow(f"{stated} heads of keys and values do not divide {heads} heads")
    return 0 if stated == heads else stated


def _head_size(spec: LlamaSpec, params_B: float | None) -> int:
    """0 for that of `spec`, or the power of two that the stated parameters need."""
    sizes = (spec.head_size, *(size for size in _HEAD_SIZES if size != spec.head_size))
    if params_B is None or abs(spec.parameters / (1e9 * params_B) - 1) < _OTHER_HEADS:
        return 0
    return min(
        sizes, key=lambda size: abs(replace(spec, head=size).parameters / (1e9 * params_B) - 1)
    )


def _resnet(row: Row, batch: int) -> ResnetSpec:
    """Of the family of Alpa's section 8.1, twice as wide as a ResNet, the one with as many
    parameters as stated."""
    if row.layers not in (50, 101) or row.params_B is None:
        raise InexpressibleRow("a Wide-ResNet without 50 or 101 layers, or without params_B")
    stated = 1e9 * row.params_B
    channels = range(_CHANNEL_STEP, _MOST_CHANNELS + 1, _CHANNEL_STEP)
    specs = [ResnetSpec(row.layers, count, 2, batch=batch) for count in channels]
    best = min(specs, key=lambda spec: abs(spec.parameters - stated))
    if abs(best.parameters / stated - 1) > _TOLERANCE:
        raise InexpressibleRow(f"no Wide-ResNet of double width has {row.params_B} G parameters")
    return best
