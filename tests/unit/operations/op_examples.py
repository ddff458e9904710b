"""One small module for every StableHLO operation that occurs in real models, as text.

Extents are small, divide by 4 wherever a dimension may be split, and differ between the dimensions
of one tensor, so that a wrong dimension does not pass for the right one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """`name` is unique; `op` is the operation in question, the first of its name in the body of
    `@main`."""

    name: str
    op: str
    text: str


def _example(name: str, arguments: str, results: str, body: str, op: str = "") -> Example:
    """`body` is text whose last values are %r or %r#0, %r#1, …"""
    types = results.split(" * ")
    values = "%r" if len(types) == 1 else ", ".join(f"%r#{k}" for k in range(len(types)))
    listed = ", ".join(types)
    text = (
        f"func.func public @main({arguments}) -> ({listed}) {{\n{body}\nreturn {values} : "
        f"{listed}\n}}"
    )
    return Example(name, op or name.partition(":")[0], text)


def _unary(name: str, source: str = "8x16xf32", result: str = "") -> Example:
    result = result or source
    types = f"tensor<{source}>" if source == result else f"(tensor<{source}>) -> tensor<{result}>"
    return _example(
        name, f"%a: tensor<{source}>", f"tensor<{result}>", f"%r = stablehlo.{name} %a : {types}"
    )


def _binary(name: str, type_: str = "8x16xf32") -> Example:
    types = f"tensor<{type_}>"
    return _example(
        name, f"%a: {types}, %b: {types}", types, f"%r = stablehlo.{name} %a, %b : {types}"
    )


_FLOAT_UNARY = (
    *(
        "abs",
        "cbrt",
        "ceil",
        "cosine",
        "exponential",
        "exponential_minus_one",
        "floor",
        "log",
        "log_plus_one",
    ),
    *(
        "logistic",
        "negate",
        "round_nearest_afz",
        "round_nearest_even",
        "rsqrt",
        "sign",
        "sine",
        "sqrt",
        "tan",
        "tanh",
    ),
)
_FLOAT_BINARY = (
    "add",
    "atan2",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "power",
    "remainder",
    "subtract",
)
_INT_BINARY = ("and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical")

ELEMENTWISE: tuple[Example, ...] = (
    *map(_unary, _FLOAT_UNARY),
    *(_unary(name, "8x16xi32") for name in ("count_leading_zeros", "not", "popcnt")),
    *map(_binary, _FLOAT_BINARY),
    *(_binary(name, "8x16xi32") for name in _INT_BINARY),
    _unary("is_finite", "8x16xf32", "8x16xi1"),
    _unary("convert", "8x16xf32", "8x16xbf16"),
    _unary("bitcast_convert", "8x16xf32", "8x16xi32"),
    _unary("real", "8x16xcomplex<f32>", "8x16xf32"),
    _unary("imag", "8x16xcomplex<f32>", "8x16xf32"),
    _example(
        "bitcast_convert:narrower",
        "%a: tensor<8x16xf32>",
        "tensor<8x16x2xui16>",
        "%r = stablehlo.bitcast_convert %a : (tensor<8x16xf32>) -> tensor<8x16x2xui16>",
    ),
    _example(
        "complex",
        "%a: tensor<8x16xf32>, %b: tensor<8x16xf32>",
        "tensor<8x16xcomplex<f32>>",
        "%r = stablehlo.complex %a, %b : tensor<8x16xcomplex<f32>>",
    ),
    _example(
        "compare",
        "%a: tensor<8x16xf32>, %b: tensor<8x16xf32>",
        "tensor<8x16xi1>",
        "%r = stablehlo.compare LT, %a, %b : (tensor<8x16xf32>, tensor<8x16xf32>) -> "
        "tensor<8x16xi1>",
    ),
    _example(
        "select",
        "%p: tensor<8x16xi1>, %a: tensor<8x16xf32>, %b: tensor<8x16xf32>",
        "tensor<8x16xf32>",
        "%r = stablehlo.select %p, %a, %b : tensor<8x16xi1>, tensor<8x16xf32>",
    ),
    _example(
        "select:scalar predicate",
        "%p: tensor<i1>, %a: tensor<8x16xf32>, %b: tensor<8x16xf32>",
        "tensor<8x16xf32>",
        "%r = stablehlo.select %p, %a, %b : tensor<i1>, tensor<8x16xf32>",
    ),
    _example(
        "clamp",
        "%l: tensor<f32>, %a: tensor<8x16xf32>, %h: tensor<f32>",
        "tensor<8x16xf32>",
        "%r = stablehlo.clamp %l, %a, %h : (tensor<f32>, tensor<8x16xf32>, tensor<f32>) -> "
        "tensor<8x16xf32>",
    ),
    _example(
        "reduce_precision",
        "%a: tensor<8x16xf32>",
        "tensor<8x16xf32>",
        "%r = stablehlo.reduce_precision %a, format = e5m10 : tensor<8x16xf32>",
    ),
)

_ADD = """({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
})"""
_MAX = _ADD.replace("stablehlo.add", "stablehlo.maximum")
_ZERO = "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
_LOWEST = "%z = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"


def _conv(name: str, source: str, kernel: str, result: str, window: str, groups: str) -> Example:
    return _example(
        f"convolution:{name}",
        f"%a: tensor<{source}>, %k: tensor<{kernel}>",
        f"tensor<{result}>",
        f"""%r = stablehlo.convolution(%a, %k)
  dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
  window = {{{window}}} {{{groups}}} : (tensor<{source}>, tensor<{kernel}>) -> tensor<{result}>""",
    )


_ONE_GROUP = "batch_group_count = 1 : i64, feature_group_count = 1 : i64"

_CONTRACTIONS = (
    _example(
        "dot_general",
        "%a: tensor<8x16xf32>, %b: tensor<16x4xf32>",
        "tensor<8x4xf32>",
        "%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]"
        " : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>",
    ),
    _example(
        "dot_general:batched",
        "%a: tensor<4x8x16xf32>, %b: tensor<4x16x12xf32>",
        "tensor<4x8x12xf32>",
        "%r = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1]"
        " : (tensor<4x8x16xf32>, tensor<4x16x12xf32>) -> tensor<4x8x12xf32>",
    ),
    _example(
        "dot_general:two contractions",
        "%a: tensor<8x4x16xf32>, %b: tensor<4x16x12xf32>",
        "tensor<8x12xf32>",
        "%r = stablehlo.dot_general %a, %b, contracting_dims = [1, 2] x [0, 1]"
        " : (tensor<8x4x16xf32>, tensor<4x16x12xf32>) -> tensor<8x12xf32>",
    ),
    _example(
        "reduce:two dimensions",
        "%a: tensor<4x8x16xf32>",
        "tensor<16xf32>",
        _ZERO
        + "%r = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0, 1]"
        " : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>",
    ),
    _example(
        "reduce:and",
        "%a: tensor<8x16xi1>",
        "tensor<8xi1>",
        "%z = stablehlo.constant dense<true> : tensor<i1>\n"
        "%r = stablehlo.reduce(%a init: %z) applies stablehlo.and across dimensions = [1]"
        " : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>",
    ),
    _example(
        "reduce:add",
        "%a: tensor<4x8x16xf32>",
        "tensor<4x16xf32>",
        _ZERO + "%r = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1]"
        " : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x16xf32>",
    ),
    _example(
        "reduce:max",
        "%a: tensor<4x8x16xf32>",
        "tensor<4x16xf32>",
        _LOWEST
        + "%r = stablehlo.reduce(%a init: %z) applies stablehlo.maximum across dimensions = [1]"
        " : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x16xf32>",
    ),
    _example(
        "reduce:nonzero init",
        "%a: tensor<8x16xf32>",
        "tensor<8xf32>",
        "%z = stablehlo.constant dense<1.0> : tensor<f32>\n"
        "%r = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1]"
        " : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>",
    ),
    _example(
        "reduce:argmax",
        "%a: tensor<8x16xf32>",
        "tensor<8xf32> * tensor<8xi32>",
        _LOWEST
        + """%j = stablehlo.constant dense<0> : tensor<i32>
%i = stablehlo.iota dim = 1 : tensor<8x16xi32>
%r:2 = stablehlo.reduce(%a init: %z), (%i init: %j) across dimensions = [1]
  : (tensor<8x16xf32>, tensor<8x16xi32>, tensor<f32>, tensor<i32>) -> (tensor<8xf32>, tensor<8xi32>)
  reducer(%x: tensor<f32>, %y: tensor<f32>) (%n: tensor<i32>, %m: tensor<i32>) {
    %p = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v = stablehlo.select %p, %x, %y : tensor<i1>, tensor<f32>
    %w = stablehlo.select %p, %n, %m : tensor<i1>, tensor<i32>
    stablehlo.return %v, %w : tensor<f32>, tensor<i32>
  }""",
    ),
    _conv(
        "same", "4x8x8x8xf32", "3x3x8x16xf32", "4x8x8x16xf32", "pad = [[1, 1], [1, 1]]", _ONE_GROUP
    ),
    _conv(
        "strided",
        "4x8x8x8xf32",
        "3x3x8x16xf32",
        "4x4x4x16xf32",
        "stride = [2, 2], pad = [[1, 1], [1, 1]]",
        _ONE_GROUP,
    ),
    _conv("pointwise", "4x8x8x8xf32", "1x1x8x16xf32", "4x8x8x16xf32", "", _ONE_GROUP),
    _conv("patches", "4x8x8x8xf32", "2x2x8x16xf32", "4x4x4x16xf32", "stride = [2, 2]", _ONE_GROUP),
    _conv(
        "depthwise",
        "4x8x8x8xf32",
        "3x3x1x8xf32",
        "4x8x8x8xf32",
        "pad = [[1, 1], [1, 1]]",
        "batch_group_count = 1 : i64, feature_group_count = 8 : i64",
    ),
    _conv("valid", "4x10x10x8xf32", "3x3x8x16xf32", "4x8x8x16xf32", "", _ONE_GROUP),
    _conv(
        "transposed",
        "4x4x4x8xf32",
        "3x3x8x16xf32",
        "4x8x8x16xf32",
        "pad = [[1, 2], [1, 2]], lhs_dilate = [2, 2]",
        _ONE_GROUP,
    ),
    _example(
        "convolution:kernel gradient",
        "%a: tensor<4x8x8x8xf32>, %g: tensor<4x8x8x16xf32>",
        "tensor<3x3x8x16xf32>",
        """%r = stablehlo.convolution(%a, %g)
  dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f],
  window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
  : (tensor<4x8x8x8xf32>, tensor<4x8x8x16xf32>) -> tensor<3x3x8x16xf32>""",
    ),
    _example(
        "reduce_window:max pool",
        "%a: tensor<4x8x8x8xf32>",
        "tensor<4x4x4x8xf32>",
        _LOWEST
        + f"""%r = "stablehlo.reduce_window"(%a, %z) <{{window_dimensions = array<i64: 1, 2, 2, 1>,
  window_strides = array<i64: 1, 2, 2, 1>}}> {_MAX} : (tensor<4x8x8x8xf32>, tensor<f32>) -> tensor<4x4x4x8xf32>""",
    ),
    _example(
        "reduce_window:padded max pool",
        "%a: tensor<4x8x8x8xf32>",
        "tensor<4x4x4x8xf32>",
        _LOWEST
        + f"""%r = "stablehlo.reduce_window"(%a, %z) <{{window_dimensions = array<i64: 1, 3, 3, 1>,
  window_strides = array<i64: 1, 2, 2, 1>, padding = dense<[[0, 0], [1, 1], [1, 1], [0, 0]]> : tensor<4x2xi64>}}> {_MAX}
  : (tensor<4x8x8x8xf32>, tensor<f32>) -> tensor<4x4x4x8xf32>""",
    ),
    _example(
        "reduce_window:cumsum",
        "%a: tensor<8x16xf32>",
        "tensor<8x16xf32>",
        _ZERO
        + f"""%r = "stablehlo.reduce_window"(%a, %z) <{{window_dimensions = array<i64: 1, 16>,
  padding = dense<[[0, 0], [15, 0]]> : tensor<2x2xi64>}}> {_ADD}
  : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>""",
    ),
    _example(
        "select_and_scatter:disjoint",
        "%a: tensor<4x8x8x8xf32>, %g: tensor<4x4x4x8xf32>",
        "tensor<4x8x8x8xf32>",
        _ZERO
        + """%r = "stablehlo.select_and_scatter"(%a, %g, %z) <{window_dimensions = array<i64: 1, 2, 2, 1>,
  window_strides = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %p = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }, {
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x8x8x8xf32>, tensor<4x4x4x8xf32>, tensor<f32>) -> tensor<4x8x8x8xf32>""",
    ),
    _example(
        "select_and_scatter:overlapping",
        "%a: tensor<4x8x8x8xf32>, %g: tensor<4x4x4x8xf32>",
        "tensor<4x8x8x8xf32>",
        _ZERO
        + """%r = "stablehlo.select_and_scatter"(%a, %g, %z) <{window_dimensions = array<i64: 1, 3, 3, 1>,
  padding = dense<[[0, 0], [1, 1], [1, 1], [0, 0]]> : tensor<4x2xi64>, window_strides = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %p = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }, {
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x8x8x8xf32>, tensor<4x4x4x8xf32>, tensor<f32>) -> tensor<4x8x8x8xf32>""",
    ),
)

_MOVEMENT = (
    _example(
        "constant", "", "tensor<8x16xf32>", "%r = stablehlo.constant dense<1.5> : tensor<8x16xf32>"
    ),
    _example("iota", "", "tensor<8x16xi32>", "%r = stablehlo.iota dim = 1 : tensor<8x16xi32>"),
    _example(
        "broadcast_in_dim",
        "%a: tensor<16xf32>",
        "tensor<8x16x4xf32>",
        "%r = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<16xf32>) -> tensor<8x16x4xf32>",
    ),
    _example(
        "transpose",
        "%a: tensor<4x8x16xf32>",
        "tensor<16x4x8xf32>",
        "%r = stablehlo.transpose %a, dims = [2, 0, 1] : (tensor<4x8x16xf32>) -> "
        "tensor<16x4x8xf32>",
    ),
    _example(
        "reshape:merge",
        "%a: tensor<4x8x16xf32>",
        "tensor<32x16xf32>",
        "%r = stablehlo.reshape %a : (tensor<4x8x16xf32>) -> tensor<32x16xf32>",
    ),
    _example(
        "reshape:split",
        "%a: tensor<8x16xf32>",
        "tensor<8x4x4xf32>",
        "%r = stablehlo.reshape %a : (tensor<8x16xf32>) -> tensor<8x4x4xf32>",
    ),
    _example(
        "reshape:tangled",
        "%a: tensor<12x8xf32>",
        "tensor<8x12xf32>",
        "%r = stablehlo.reshape %a : (tensor<12x8xf32>) -> tensor<8x12xf32>",
    ),
    _example(
        "slice",
        "%a: tensor<8x16xf32>",
        "tensor<8x8xf32>",
        "%r = stablehlo.slice %a [0:8, 4:12] : (tensor<8x16xf32>) -> tensor<8x8xf32>",
    ),
    _example(
        "slice:front",
        "%a: tensor<8x16xf32>",
        "tensor<8x8xf32>",
        "%r = stablehlo.slice %a [0:8, 0:8] : (tensor<8x16xf32>) -> tensor<8x8xf32>",
    ),
    _example(
        "slice:shift",
        "%a: tensor<8x17xf32>",
        "tensor<8x16xf32>",
        "%r = stablehlo.slice %a [0:8, 1:17] : (tensor<8x17xf32>) -> tensor<8x16xf32>",
    ),
    _example(
        "slice:strided",
        "%a: tensor<8x16xf32>",
        "tensor<8x8xf32>",
        "%r = stablehlo.slice %a [0:8, 0:16:2] : (tensor<8x16xf32>) -> tensor<8x8xf32>",
    ),
    _example(
        "concatenate",
        "%a: tensor<8x16xf32>, %b: tensor<8x16xf32>",
        "tensor<8x32xf32>",
        "%r = stablehlo.concatenate %a, %b, dim = 1 : (tensor<8x16xf32>, tensor<8x16xf32>) -> "
        "tensor<8x32xf32>",
    ),
    _example(
        "concatenate:stack",
        "%a: tensor<1x16xf32>, %b: tensor<1x16xf32>",
        "tensor<2x16xf32>",
        "%r = stablehlo.concatenate %a, %b, dim = 0 : (tensor<1x16xf32>, tensor<1x16xf32>) -> "
        "tensor<2x16xf32>",
    ),
    _example(
        "pad",
        "%a: tensor<8x16xf32>",
        "tensor<8x20xf32>",
        _ZERO
        + "%r = stablehlo.pad %a, %z, low = [0, 1], high = [0, 3], interior = [0, 0]"
        + " : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x20xf32>",
    ),
    _example(
        "pad:shift",
        "%a: tensor<8x16xf32>, %p: tensor<f32>",
        "tensor<8x16xf32>",
        "%r = stablehlo.pad %a, %p, low = [0, 1], high = [0, -1], interior = [0, 0] : "
        "(tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>",
    ),
    _example(
        "pad:interior",
        "%a: tensor<8x16xf32>",
        "tensor<8x32xf32>",
        _ZERO
        + "%r = stablehlo.pad %a, %z, low = [0, 0], high = [0, 1], interior = [0, 1]"
        + " : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x32xf32>",
    ),
    _example(
        "reverse",
        "%a: tensor<8x16xf32>",
        "tensor<8x16xf32>",
        "%r = stablehlo.reverse %a, dims = [1] : tensor<8x16xf32>",
    ),
    _example(
        "dynamic_slice",
        "%a: tensor<8x16xf32>, %i: tensor<i32>, %j: tensor<i32>",
        "tensor<8x4xf32>",
        "%r = stablehlo.dynamic_slice %a, %i, %j, sizes = [8, 4]"
        " : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>",
    ),
    _example(
        "dynamic_slice:of a stack",
        "%a: tensor<4x8x16xf32>, %i: tensor<i32>, %j: tensor<i32>",
        "tensor<1x8x16xf32>",
        "%r = stablehlo.dynamic_slice %a, %i, %j, %j, sizes = [1, 8, 16]"
        " : (tensor<4x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x16xf32>",
    ),
    _example(
        "dynamic_update_slice",
        "%a: tensor<8x16xf32>, %u: tensor<8x4xf32>, %i: tensor<i32>, %j: tensor<i32>",
        "tensor<8x16xf32>",
        "%r = stablehlo.dynamic_update_slice %a, %u, %i, %j"
        " : (tensor<8x16xf32>, tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x16xf32>",
    ),
    _example(
        "dynamic_update_slice:into a stack",
        "%a: tensor<4x8x16xf32>, %u: tensor<1x8x16xf32>, %i: tensor<i32>, %j: tensor<i32>",
        "tensor<4x8x16xf32>",
        "%r = stablehlo.dynamic_update_slice %a, %u, %i, %j, %j : (tensor<4x8x16xf32>, "
        "tensor<1x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x8x16xf32>",
    ),
    _example(
        "gather:rows",
        "%a: tensor<16x8xf32>, %i: tensor<4x12x1xi32>",
        "tensor<4x12x8xf32>",
        """%r = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2],
  collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 8>}>
  : (tensor<16x8xf32>, tensor<4x12x1xi32>) -> tensor<4x12x8xf32>""",
    ),
    _example(
        "gather:batched",
        "%a: tensor<4x16xf32>, %i: tensor<4x12x1xi32>",
        "tensor<4x12xf32>",
        """%r = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<
  collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0],
  start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}>
  : (tensor<4x16xf32>, tensor<4x12x1xi32>) -> tensor<4x12xf32>""",
    ),
    _example(
        "scatter:add rows",
        "%a: tensor<16x8xf32>, %i: tensor<4x12x1xi32>, %u: tensor<4x12x8xf32>",
        "tensor<16x8xf32>",
        f"""%r = "stablehlo.scatter"(%a, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<
  update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>}}>
  {_ADD} : (tensor<16x8xf32>, tensor<4x12x1xi32>, tensor<4x12x8xf32>) -> tensor<16x8xf32>""",
    ),
    _example(
        "scatter:batched",
        "%a: tensor<4x16xf32>, %i: tensor<4x12x1xi32>, %u: tensor<4x12xf32>",
        "tensor<4x16xf32>",
        f"""%r = "stablehlo.scatter"(%a, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<
  inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0],
  scatter_dims_to_operand_dims = [1], index_vector_dim = 2>}}>
  {_ADD} : (tensor<4x16xf32>, tensor<4x12x1xi32>, tensor<4x12xf32>) -> tensor<4x16xf32>""",
    ),
    _example(
        "scatter:set",
        "%a: tensor<16x8xf32>, %i: tensor<1xi32>, %u: tensor<8xf32>",
        "tensor<16x8xf32>",
        """%r = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<
  update_window_dims = [0], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<16x8xf32>, tensor<1xi32>, tensor<8xf32>) -> tensor<16x8xf32>""",
    ),
    _example(
        "sort",
        "%a: tensor<8x16xf32>, %b: tensor<8x16xi32>",
        "tensor<8x16xf32> * tensor<8x16xi32>",
        """%r:2 = "stablehlo.sort"(%a, %b) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>, %n: tensor<i32>, %m: tensor<i32>):
    %p = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) : (tensor<8x16xf32>, tensor<8x16xi32>) -> (tensor<8x16xf32>, tensor<8x16xi32>)""",
    ),
    _example(
        "optimization_barrier",
        "%a: tensor<8x16xf32>, %b: tensor<8x4xf32>",
        "tensor<8x16xf32> * tensor<8x4xf32>",
        "%r:2 = stablehlo.optimization_barrier %a, %b : tensor<8x16xf32>, tensor<8x4xf32>",
    ),
)

_LINEAR_ALGEBRA = (
    _example(
        "cholesky",
        "%a: tensor<4x8x8xf32>",
        "tensor<4x8x8xf32>",
        "%r = stablehlo.cholesky %a, lower = true : tensor<4x8x8xf32>",
    ),
    _example(
        "triangular_solve",
        "%a: tensor<4x8x8xf32>, %b: tensor<4x8x16xf32>",
        "tensor<4x8x16xf32>",
        """%r = "stablehlo.triangular_solve"(%a, %b) <{left_side = true, lower = true, transpose_a =
  #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = true}>
  : (tensor<4x8x8xf32>, tensor<4x8x16xf32>) -> tensor<4x8x16xf32>""",
    ),
    _example(
        "fft",
        "%a: tensor<4x16xcomplex<f32>>",
        "tensor<4x16xcomplex<f32>>",
        "%r = stablehlo.fft %a, type = FFT, length = [16] : (tensor<4x16xcomplex<f32>>) -> "
        "tensor<4x16xcomplex<f32>>",
    ),
    _example(
        "batch_norm_inference",
        "%a: tensor<4x8x16xf32>, %s: tensor<16xf32>, %o: tensor<16xf32>, %m: tensor<16xf32>, %v: "
        "tensor<16xf32>",
        "tensor<4x8x16xf32>",
        '%r = "stablehlo.batch_norm_inference"(%a, %s, %o, %m, %v) <{epsilon = 1.0 : f32, '
        "feature_index = 2 : i64}> : (tensor<4x8x16xf32>, tensor<16xf32>, tensor<16xf32>, "
        "tensor<16xf32>, tensor<16xf32>) -> tensor<4x8x16xf32>",
    ),
    _example(
        "batch_norm_training",
        "%a: tensor<4x8x16xf32>, %s: tensor<16xf32>, %o: tensor<16xf32>",
        "tensor<4x8x16xf32> * tensor<16xf32> * tensor<16xf32>",
        '%r:3 = "stablehlo.batch_norm_training"(%a, %s, %o) <{epsilon = 1.0 : f32, feature_index = '
        "2 : i64}> : (tensor<4x8x16xf32>, tensor<16xf32>, tensor<16xf32>) -> (tensor<4x8x16xf32>, "
        "tensor<16xf32>, tensor<16xf32>)",
    ),
)

_OTHERS = (
    _example(
        "rng_bit_generator:philox",
        "%s: tensor<2xui64>",
        "tensor<2xui64> * tensor<8x16xui32>",
        "%r:2 = stablehlo.rng_bit_generator %s, algorithm = PHILOX"
        " : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8x16xui32>)",
    ),
    _example(
        "rng_bit_generator:threefry",
        "%s: tensor<2xui64>",
        "tensor<2xui64> * tensor<8x16xui32>",
        "%r:2 = stablehlo.rng_bit_generator %s, algorithm = THREE_FRY"
        " : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8x16xui32>)",
    ),
    _example(
        "custom_call:annotation",
        "%a: tensor<8x16xf32>",
        "tensor<8x16xf32>",
        "%r = stablehlo.custom_call @annotate_device_placement(%a) {has_side_effect = true,"
        ' mhlo.frontend_attributes = {_xla_buffer_placement = "device"}} : (tensor<8x16xf32>) -> '
        "tensor<8x16xf32>",
    ),
    _example(
        "custom_call:top_k",
        "%a: tensor<8x16xf32>",
        "tensor<8x4xf32> * tensor<8x4xi32>",
        """%r:2 = stablehlo.custom_call @mhlo.topk(%a)
  {mhlo.attributes = {k = 4 : i64, largest = true}, mhlo.version = 1 : i64} 
  : (tensor<8x16xf32>) -> (tensor<8x4xf32>, tensor<8x4xi32>)""",
    ),
)

EXAMPLES: tuple[Example, ...] = (
    *ELEMENTWISE,
    *_CONTRACTIONS,
    *_MOVEMENT,
    *_LINEAR_ALGEBRA,
    *_OTHERS,
)
