"""What was measured, in seconds: sources publish seconds, tokens or FLOP/s."""

from __future__ import annotations

from shardopt.measured.rows import Row
from shardopt.measured.sizes import spec_of
from shardopt.models.specs import LlamaSpec


def measured_seconds(row: Row) -> float | None:
    """Seconds of a step. From FLOP/s by Megatron-LM's formula (arXiv 2104.04473, equation 3), where
    the row says that they are counted so: `hardware` with the forward pass twice, `model` without.
    A gated feed forward part counts by its three products, and its heads by their size. None where
    nothing of this is stated."""
    if row.step_s is not None:
        return row.step_s
    sizes = (row.layers, row.hidden, row.ffn, row.vocab, row.seq, row.gbs, row.devices)
    if row.tflops_dev is None or None in sizes:
        return None
    if not row.tflops_def.startswith(("hardware (recompute", "model (no causal")):
        return None
    layers, hidden, ffn, vocab, seq, batch, devices = (int(size or 0) for size in sizes)
    spec = spec_of(row)
    if isinstance(spec, LlamaSpec):
        width = spec.heads * spec.head_size
        projections = 2 * hidden * spec.head_size * (spec.heads + spec.kv_heads)
        block = projections + 3 * hidden * ffn + 2 * seq * width
    else:
        block = 4 * hidden * hidden + 2 * hidden * ffn + 2 * seq * hidden
    passes = 4 if row.tflops_def.startswith("hardware") else 3
    flops = 2 * batch * seq * (passes * layers * block + 3 * hidden * vocab)
    return flops / (devices * 1e12 * row.tflops_dev)
