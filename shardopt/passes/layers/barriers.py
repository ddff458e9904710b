"""Layers of barriers, and operations of no layer kept away from them.

    %b:2 = stablehlo.optimization_barrier %x, %g           %b:2 = … {shardopt.layer = 2}
    %m2 = stablehlo.iota … (repeats %m, of no layer)  =>
    %d = stablehlo.multiply %b#1, %m2 {layer = 2}          %d = stablehlo.multiply %b#1, %m {layer = 2}

A barrier belongs to the last layer that reads it: that is where the gradient that it waits for
arrives. Operations that every reader copies have no backward pass to wait for: they read what goes
into a barrier, and of two equal ones only the first is read."""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.attributes import i64
from shardopt.dialect.mpmd import LAYER
from shardopt.extract.op_graph import reads
from shardopt.graph.op_graph import SHARED
from shardopt.ir.rewriting import BARRIER, defining, past_barriers, replace_reads


def free_shared(ops: Sequence[ir.Operation], repeated: Mapping[ir.Operation, ir.Operation]) -> None:
    """Let operations of no layer among `ops`, which have layers but for barriers, read nothing that
    waits. Those that repeat others stay without a reader."""
    if not any(op.name == BARRIER for op in ops):
        return
    for op in ops:
        if op.name == BARRIER or _layer(op) != SHARED:
            continue
        replace_reads(op, {value: past_barriers(value) for value in reads(op)})
        if op not in repeated:
            continue
        for result, same in zip(op.results, repeated[op].results, strict=True):
            result.replace_all_uses_with(same)


def place_barriers(ops: Sequence[ir.Operation]) -> None:
    """Give every barrier among `ops`, which are in program order, the last layer of its readers;
    where none has a layer, the last of what goes into it."""
    barriers = [op for op in ops if op.name == BARRIER]
    readers: dict[ir.Value, list[ir.Operation]] = {}
    for op in ops if barriers else ():
        for value in reads(op):
            readers.setdefault(value, []).append(op)
    # A barrier may read another one, which needs the layer of this reader first.
    for barrier in reversed(barriers):
        reading = [op for result in barrier.results for op in readers.get(result, ())]
        layer = max(map(_layer, reading), default=SHARED)
        if layer == SHARED:
            makers = [maker for v in barrier.operands if (maker := defining(past_barriers(v)))]
            layer = max((_layer(maker) for maker in makers if LAYER in maker.attributes), default=0)
        barrier.attributes[LAYER] = i64(max(layer, 0))


def _layer(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[LAYER]).value
