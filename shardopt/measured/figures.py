"""What was measured, in seconds: sources publish seconds, tokens or FLOP/s."""

from __future__ import annotations

from shardopt.measured.rows import Row


def measured_seconds(row: Row) -> float | None:
    """Seconds of a step. From FLOP/s by Megatron-LM's formula (arXiv 2104.04473, equation 3), where
    the row says that they are counted so: `hardware` with the forward pass twice, `model` without.
    A gated feed forward part counts by its three products. None where nothing of this is stated."""
    if row.step_s is not None:
        return row.step_s
    sizes = (row.layers, row.hidden, row.ffn, row.vocab, row.seq, row.gbs, row.devices)
    if row.tflops_dev is None or None in sizes:
        return None
    if not row.tflops_def.startswith(("hardware (recompute", "model (no causal")):
        return None
    layers, hidden, ffn, vocab, seq, batch, devices = (int(size or 0) for size in sizes)
    products = 3 if "swiglu" in row.arch or "llama" in row.arch else 2
    block = 4 * hidden * hidden + products * hidden * ffn + 2 * seq * hidden
    passes = 4 if row.tflops_def.startswith("hardware") else 3
    flops = 2 * batch * seq * (passes * layers * block + 3 * hidden * vocab)
    return flops / (devices * 1e12 * row.tflops_dev)
