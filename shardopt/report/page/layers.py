"""The layers of a step and what crosses their borders: why a pipeline is cut where it is.

A border is a good place to cut where little crosses it and where the work on both sides is in
balance. Both are read from the module behind clustering, before anything is placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.extract.op_graph import GraphReader


@dataclass(frozen=True)
class LayerWork:
    """The FLOPs of each layer in one microbatch, forward and backward together, and for each border
    between neighbours the bytes of a microbatch that cross it, in both directions."""

    flops: tuple[float, ...]
    border_bytes: tuple[int, ...]


def read_layers(program: StepProgram) -> LayerWork:
    """Of the body of a module in the clustered form. Layers are numbered from 0; operations that
    all layers share (layer -1) count for none."""
    reader, layers = GraphReader(), []
    for handle in program.body_ops:
        before = len(reader.ops)
        reader.add_ops([handle])
        layer = ir.IntegerAttr(handle.attributes[LAYER]).value
        layers += [layer] * (len(reader.ops) - before)
    count = max((*layers, 0)) + 1
    flops = [0.0] * count
    for op, layer in zip(reader.ops, layers, strict=True):
        if layer >= 0:
            flops[layer] += op.weighted_flops * op.repeat
    return LayerWork(tuple(flops), _border_bytes(reader, layers, count))


def _border_bytes(reader: GraphReader, layers: Sequence[int], count: int) -> tuple[int, ...]:
    """A value crosses all borders between the layer that makes it and the farthest on either side
    that reads it, each once."""
    makers = {
        result: layer for op, layer in zip(reader.ops, layers, strict=True) for result in op.results
    }
    reach: dict[int, tuple[int, int]] = {}
    for op, layer in zip(reader.ops, layers, strict=True):
        for tensor in op.operands:
            maker = makers.get(tensor, -1)
            if layer >= 0 and maker >= 0:
                low, high = reach.get(tensor, (maker, maker))
                reach[tensor] = (min(low, layer), max(high, layer))
    totals = [0] * (count - 1)
    for tensor, (low, high) in reach.items():
        for border in range(low, high):
            totals[border] += reader.tensors[tensor].size_bytes
    return tuple(totals)
