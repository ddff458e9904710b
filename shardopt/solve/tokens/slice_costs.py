"""Seconds of a slice of tokens behind others, for `shardopt.schedule.token_slices`.

An operation on l of n tokens does l / n of its work; one on scores also just the part of it that
the keys so far are of all keys; one on terms of sums, as gradients of weights are, all of it. A
slice behind others also puts keys and values of these before its own, hands gradients of them back,
and adds its terms to sums. Seconds are those of one device, its share of the work, by the same
formulas as of whole stages; what devices exchange is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from shardopt.cost.compute import op_seconds, work_kind
from shardopt.graph.microbatching import Split
from shardopt.hardware.cluster import Device, Fusing
from shardopt.solve.microbatches.batch_factors import operand_split, result_split
from shardopt.solve.sharding.kernels.attention import find_attention
from shardopt.solve.sharding.kernels.fusion import CHEAP, fuse
from shardopt.solve.tokens.token_axis import Kind, TokenAxis, TokenBody

_UNITS = 16  # into which a sequence is cut at most
_MOVES = work_kind("add")


@dataclass(frozen=True)
class StageDevices:
    """`count` devices share the work of a stage; each of its calls takes `call_seconds` more."""

    device: Device
    count: int
    call_seconds: float


@dataclass(frozen=True)
class _Part:
    """Bytes of an operand or result, and whether a slice touches its share of them."""

    size: int
    of_rows: bool
    of_keys: bool


@dataclass(frozen=True)
class _Work:
    """What equal operations have in common; `behind`: the first slice has none of it."""

    kind: str
    dtype: str
    flops: float
    of_rows: bool
    of_keys: bool
    parts: tuple[_Part, ...]
    kernels: int
    behind: bool = False

    def seconds(self, device: Device, devices: int, rows: float, keys: float) -> float:
        """Of a slice with the share `rows` of the tokens, which sees the share `keys` of them."""
        share = (rows if self.of_rows else 1.0) * (keys if self.of_keys else 1.0)
        moved = sum(
            part.size * (rows if part.of_rows else 1.0) * (keys if part.of_keys else 1.0)
            for part in self.parts
        )
        return op_seconds(
            device,
            self.flops * share / devices,
            moved / devices,
            self.dtype,
            kind=self.kind,
            kernels=self.kernels,
        )


def unit_borders(extent: int) -> list[int]:
    """Where a sequence may be cut: even parts of it."""
    count = min(extent, _UNITS)
    return [extent * k // count for k in range(count + 1)]


def slice_seconds(
    body: TokenBody, axis: TokenAxis, stages: Sequence[StageDevices], fusing: Fusing
) -> np.ndarray:
    """[l - 1, c]: the seconds of l units behind c units, forward and backward, on the stage that
    takes longest."""
    borders = unit_borders(body.extent)
    count = len(borders) - 1
    works = _works(body, axis, fusing, len(stages))
    table = np.zeros((count, count))
    for start, stop in combinations(range(count + 1), 2):
        rows, keys = (borders[stop] - borders[start]) / body.extent, borders[stop] / body.extent
        table[stop - start - 1, start] = max(
            2 * stage.call_seconds
            + sum(
                number * work.seconds(stage.device, stage.count, rows, keys)
                for work, number in of_stage.items()
                if start or not work.behind
            )
            for stage, of_stage in zip(stages, works, strict=True)
        )
    return table


def _works(
    body: TokenBody, axis: TokenAxis, fusing: Fusing, num_stages: int
) -> list[Counter[_Work]]:
    """What the slices of each stage compute."""
    graph, works = body.graph, [Counter[_Work]() for _ in range(num_stages)]
    attention = find_attention(graph, CHEAP) if fusing.attention else ()
    fused = fuse(graph, set(), fusing, attention).fused
    for index, (op, how) in enumerate(zip(graph.ops, axis.ops, strict=True)):
        stage = body.stages[index]
        if stage < 0 or how.kind in (Kind.CONST, Kind.WHOLE) or how.once is not None:
            continue

        def part(tensor: int, rows: Split | None, keys: Split | None) -> _Part:
            return _Part(graph.tensors[tensor].size_bytes, rows is not None, keys is not None)

        parts = [
            part(tensor, operand_split(op, k, how.rows), operand_split(op, k, how.keys))
            for k, tensor in enumerate(op.operands)
            if tensor not in fused
        ]
        parts += [
            part(tensor, result_split(op, k, how.rows), result_split(op, k, how.keys))
            for k, tensor in enumerate(op.results)
            if tensor not in fused
        ]
        works[stage][
            _Work(
                work_kind(op.name),
                graph.tensors[op.results[0]].dtype,
                op.weighted_flops,
                how.rows is not None,
                how.keys is not None,
                tuple(parts),
                int(op.results[0] not in fused),
            )
        ] += 1
    for stage, tensor, part_, times in _handed_on(body, axis):
        dtype = graph.tensors[tensor].dtype
        moved = _Work(_MOVES, dtype, 0.0, False, False, (part_,) * times, 1, behind=True)
        works[stage][moved] += 1
    return works


def _handed_on(body: TokenBody, axis: TokenAxis) -> Iterator[tuple[int, int, _Part, int]]:
    """What slices read of others, and write for them: the stage, the tensor, and how often memory
    is touched for it."""
    graph, prefixes = body.graph, dict[tuple[int, int, bool], None]()
    summed = {t: None for t in graph.outputs if axis.tokens[t].kind is Kind.TERM}
    for index, (op, how) in enumerate(zip(graph.ops, axis.ops, strict=True)):
        if how.kind is Kind.WHOLE:
            summed |= {t: None for t in op.operands if axis.tokens[t].kind is Kind.TERM}
        if how.keys is None:
            continue
        for number, tensor in enumerate(op.operands):
            tokens, split = axis.tokens[tensor], operand_split(op, number, how.keys)
            if tokens.kind is Kind.ROWS and split is not None and split == tokens.rows:
                prefixes[body.stages[index], tensor, how.backwards] = None
        for tensor in op.results if how.joins else ():
            size = graph.tensors[tensor].size_bytes
            # added to what later slices hand back, and cut into what is kept and handed on
            yield body.stages[index], tensor, _Part(size, of_rows=False, of_keys=True), 5
    for stage, tensor, _ in prefixes:
        size = graph.tensors[tensor].size_bytes
        yield stage, tensor, _Part(size, of_rows=False, of_keys=True), 2
    makers = graph.producers()
    for tensor in summed:
        size = graph.tensors[tensor].size_bytes
        yield body.stages[makers[tensor]], tensor, _Part(size, of_rows=False, of_keys=False), 3
