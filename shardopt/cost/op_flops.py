"""FLOPs of StableHLO operations.

Counts are for the shapes given: pass global shapes for the whole operation, local shapes for one device's share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = Sequence[int]

# FLOPs per result element. Ratios follow the length of the usual polynomial or Newton sequences; 1 where not listed.
_WEIGHTS = {
    **dict.fromkeys(("divide", "remainder", "sqrt", "rsqrt", "cbrt"), 4.0),
    **dict.fromkeys(("exponential", "exponential_minus_one", "log", "log_plus_one", "power"), 10.0),
    **dict.fromkeys(("tanh", "logistic", "sine", "cosine", "tan", "atan2", "erf", "erf_inv", "erfc"), 10.0),
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh"), 10.0),
    **dict.fromkeys(("digamma", "lgamma", "polygamma", "zeta", "bessel_i1e", "next_after"), 20.0),
    **dict.fromkeys(("rng", "rng_bit_generator"), 10.0),  # about a round of threefry or Philox a word
    **dict.fromkeys(("batch_norm_inference", "batch_norm_training", "batch_norm_grad"), 10.0),
}

# Operations that only move, name or make data, and those whose work stands in their regions or callees, which the
# caller counts.
# fmt: off
_MOVEMENT = frozenset(
    (
        "after_all", "all_gather", "all_to_all", "async_done", "async_start", "bitcast_convert", "broadcast",
        "broadcast_in_dim", "real_dynamic_slice", "torch_index_select",
        "collective_broadcast", "collective_permute", "concatenate", "constant", "convert", "copy", "create_token",
        "custom_call", "dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_iota", "dynamic_pad", "dynamic_reshape",
        "dynamic_slice", "dynamic_update_slice", "gather", "get_dimension_size", "get_tuple_element", "imag",
        "infeed", "iota", "optimization_barrier", "outfeed", "pad", "partition_id", "real", "recv", "replica_id",
        "reshape", "return", "reverse", "send", "set_dimension_size", "slice", "transpose", "tuple", "case",
        "composite", "if", "while",
    )
)
# fmt: on


def op_flops(
    name: str, operand_shapes: Sequence[Shape], result_shapes: Sequence[Shape], attrs: Mapping[str, Any]
) -> float:
    """FLOPs of one StableHLO or CHLO operation; a multiply-add counts 2.

    `name` is the operation name with or without its dialect. `attrs` holds what shapes do not say, as tuples and ints:
    dot_general `lhs_contracting_dimensions`; convolution `kernel_output_feature_dimension`; reduce_window and
    select_and_scatter `window_dimensions`; sort and top_k `dimension` (default: the last). Missing ones are a KeyError.
    Data movement is 0, and so are operations with work in regions or callees (while, case, custom_call). Any other
    operation is elementwise: result elements times a weight.
    """
    short = name.rpartition(".")[2]
    if short in _MOVEMENT:
        return 0.0
    if short in _COUNTERS:
        return float(_COUNTERS[short](operand_shapes, result_shapes, attrs))
    return _WEIGHTS.get(short, 1.0) * math.prod(result_shapes[0]) if result_shapes else 0.0


Counter = Callable[[Sequence[Shape], Sequence[Shape], Mapping[str, Any]], float]


def _dot_general(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    contracted = math.prod(operands[0][dim] for dim in attrs["lhs_contracting_dimensions"])
    return 2.0 * math.prod(results[0]) * contracted


def _dot(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    return 2.0 * math.prod(results[0]) * operands[0][-1]


def _convolution(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    """Each result element sums over the kernel of its own output feature (feature groups are already divided out of
    the kernel's input-feature dimension)."""
    kernel = operands[1]
    features = kernel[attrs["kernel_output_feature_dimension"]]
    return 2.0 * math.prod(results[0]) * (math.prod(kernel) / features if features else 0)


def _reduce(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    inputs = operands[: len(operands) // 2]  # the other half are the initial values
    return sum(math.prod(shape) for shape in inputs)


def _reduce_window(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    return sum(math.prod(shape) for shape in results) * math.prod(attrs["window_dimensions"])


def _select_and_scatter(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    return math.prod(operands[1]) * (math.prod(attrs["window_dimensions"]) + 1)


def _scatter(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    updates = operands[len(operands) // 2 + 1 :]  # inputs, indices, updates
    return sum(math.prod(shape) for shape in updates)


def _sort(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    shape = operands[0]
    length = shape[attrs.get("dimension", -1)] if shape else 1
    return math.prod(shape) * math.log2(max(length, 2))


def _fft(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    shape = max(operands[0], results[0], key=math.prod)
    return 5.0 * math.prod(shape) * math.log2(max(math.prod(attrs.get("fft_length", shape[-1:])), 2))


def _cholesky(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    return math.prod(operands[0]) * operands[0][-1] / 3


def _triangular_solve(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    return math.prod(results[0]) * operands[0][-1]


def _first_operand(operands: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]) -> float:
    return math.prod(operands[0])


_COUNTERS: Mapping[str, Counter] = {
    "dot_general": _dot_general,
    "dot": _dot,
    "convolution": _convolution,
    "dynamic_conv": _convolution,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "select_and_scatter": _select_and_scatter,
    "scatter": _scatter,
    "sort": _sort,
    "top_k": _sort,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "reduce_scatter": _first_operand,
    "all_reduce": _first_operand,
}
