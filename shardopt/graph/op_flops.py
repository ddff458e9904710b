"""FLOPs of StableHLO operations, counted as XLA's HloCostAnalysis counts them
(xla/service/hlo_cost_analysis.cc).

Counts are for the shapes given: pass global shapes for the whole operation, local shapes for one
device's share. docs/reference/costs.md lists them, and where they depart from XLA's; a test
compares every operation with XLA."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardopt.graph.windows import Window, meetings

Shape = Sequence[int]

# What a transcendental function costs beside an addition: the length of the usual polynomial or
# Newton sequences.
TRANSCENDENTAL_FLOPS = 10.0


@dataclass(frozen=True)
class Work:
    """What an operation computes. `transcendentals` are evaluations of functions such as exp, not
    part of `flops`."""

    flops: float = 0.0
    transcendentals: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.transcendentals + other.transcendentals)

    def times(self, count: float) -> Work:
        return Work(self.flops * count, self.transcendentals * count)

    @property
    def weighted_flops(self) -> float:
        """FLOPs of as many seconds: what a roofline divides by the peak rate."""
        return self.flops + TRANSCENDENTAL_FLOPS * self.transcendentals


_TRANSCENDENTAL = frozenset({
    "atan2", "cbrt", "cosine", "erf", "exponential", "exponential_minus_one", "log",
    "log_plus_one", "logistic", "power", "rsqrt", "sine", "sqrt", "tan", "tanh", "rng",
    "rng_bit_generator",
})  # fmt: skip

# Operations that only move, name or make data, and those whose work stands in their regions or
# callees, which the caller counts.
_MOVEMENT = frozenset({
    "after_all", "all_gather", "all_to_all", "async_done", "async_start", "broadcast",
    "broadcast_in_dim", "case", "collective_broadcast", "collective_permute", "composite",
    "concatenate", "constant", "copy", "create_token", "custom_call",
    "dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_iota", "dynamic_pad",
    "dynamic_reshape", "dynamic_slice", "dynamic_update_slice", "gather", "get_dimension_size",
    "get_tuple_element", "if", "infeed", "iota", "optimization_barrier", "outfeed", "pad",
    "partition_id", "real_dynamic_slice", "recv", "reduce_scatter", "replica_id", "reshape",
    "return", "reverse", "send", "set_dimension_size", "slice", "torch_index_select",
    "transpose", "tuple", "while",
})  # fmt: skip

# FLOPs for each element of operand 0 of what XLA counts as nothing, but expands before it runs.
_BATCH_NORM = {"batch_norm_inference": 2, "batch_norm_training": 7, "batch_norm_grad": 11}


def op_work(
    name: str,
    operand_shapes: Sequence[Shape],
    result_shapes: Sequence[Shape],
    attrs: Mapping[str, Any],
    body: Work = Work(1.0),
) -> Work:
    """The work of one StableHLO operation; a multiply-add is 2 FLOPs.

    `name` is the operation name with or without its dialect. `body` is one execution of the region
    that combines, scatters or maps elements (an addition by default). `attrs` holds what shapes do
    not say: dot_general `lhs_contracting_dimensions`; convolution `input_batch_dimension`,
    `batch_group_count`, `kernel_spatial_dimensions`, and `windows`, one for each of these;
    reduce_window `window_dimensions`; select_and_scatter `window_dimensions` and `select` (the work
    of one selection); fft `fft_length`. Missing ones are a KeyError. Data movement is nothing, and
    so are operations with work in regions or callees (while, case, custom_call). Any other
    operation is elementwise."""
    short = name.rpartition(".")[2]
    if short in _MOVEMENT or not result_shapes:
        return Work()
    if short in _FROM_BODY:
        return _FROM_BODY[short](operand_shapes, result_shapes, attrs, body)
    if short in _COUNTERS:
        return Work(float(_COUNTERS[short](operand_shapes, result_shapes, attrs)))
    if short in _TRANSCENDENTAL:
        return Work(0.0, float(sum(map(math.prod, result_shapes))))
    return Work(float(math.prod(result_shapes[0])))


# ---- operations that contract, factor or order ----


def _dot_general(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> float:
    contracted = math.prod(operands[0][dim] for dim in attrs["lhs_contracting_dimensions"])
    return 2.0 * math.prod(results[0]) * contracted


def _dot(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    return 2.0 * math.prod(results[0]) * operands[0][-1]


def _convolution(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> float:
    """Products with padding, and with the holes that a dilation makes, are not counted. Feature
    groups are already divided out of the kernel's input features, batch groups out of the batch
    here."""
    kernel, spatial = operands[1], attrs["kernel_spatial_dimensions"]
    features = math.prod(extent for dim, extent in enumerate(kernel) if dim not in spatial)
    batch = operands[0][attrs["input_batch_dimension"]] // attrs["batch_group_count"]
    windows: Sequence[Window] = attrs["windows"]
    return 2.0 * batch * features * math.prod(map(meetings, windows))


def _sort(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    count = math.prod(operands[0])
    return count * max(count - 1, 0).bit_length()


def _fft(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    """Four complex multiply-adds for each element of the operand and each level of butterflies."""
    levels = math.prod(extent.bit_length() - 1 for extent in attrs["fft_length"])
    return 8.0 * levels * math.prod(operands[0])


def _cholesky(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> float:
    return math.prod(operands[0]) * operands[0][-1] // 3


def _triangular_solve(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> float:
    return 2.0 * math.prod(results[0]) * operands[0][-1]


def _batch_norm(each: int) -> Counter:
    return lambda operands, results, attrs: each * math.prod(operands[0])


def _all_reduce(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> float:
    return sum(map(math.prod, operands))


# ---- operations that apply a region ----


def _map(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any], body: Work
) -> Work:
    return body.times(math.prod(results[0]))


def _reduce(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any], body: Work
) -> Work:
    """n elements are combined by n - 1 executions."""
    return body.times(max(math.prod(operands[0]) - math.prod(results[0]), 0))


def _reduce_window(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any], body: Work
) -> Work:
    return body.times(math.prod(results[0]) * (math.prod(attrs["window_dimensions"]) - 1))


def _select_and_scatter(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any], body: Work
) -> Work:
    selections = math.prod(attrs["window_dimensions"]) - 1
    return (attrs.get("select", Work(1.0)).times(selections) + body).times(math.prod(operands[1]))


def _scatter(
    operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any], body: Work
) -> Work:
    return body.times(math.prod(operands[-1]))  # inputs, indices, updates


Counter = Callable[[Sequence[Shape], Sequence[Shape], Mapping[str, Any]], float]
BodyCounter = Callable[[Sequence[Shape], Sequence[Shape], Mapping[str, Any], Work], Work]

_COUNTERS: Mapping[str, Counter] = {
    "dot_general": _dot_general,
    "dot": _dot,
    "convolution": _convolution,
    "sort": _sort,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "all_reduce": _all_reduce,
    **{name: _batch_norm(each) for name, each in _BATCH_NORM.items()},
}
_FROM_BODY: Mapping[str, BodyCounter] = {
    "map": _map,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "select_and_scatter": _select_and_scatter,
    "scatter": _scatter,
}
