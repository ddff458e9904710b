"""More small modules, for the counting of FLOPs and bytes alone: rare operations, element types,
windows, regions."""

from __future__ import annotations

from tests.unit.operations.op_examples import Example


def _example(name: str, arguments: str, result: str, body: str) -> Example:
    """`body` is text whose last value is %r."""
    text = f"func.func public @main({arguments}) -> {result} {{\n{body}\nreturn %r : {result}\n}}"
    return Example(name, name.partition(":")[0], text)


def _line(name: str, sizes: str, window: str, *, groups: int = 1, batches: int = 1) -> Example:
    """A convolution along one dimension; `sizes` are those of image, kernel and result."""
    image, kernel, result = (f"tensor<{size}xf32>" for size in sizes.split())
    text = f"""%r = stablehlo.convolution(%a, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{{window}}}
      {{batch_group_count = {batches} : i64, feature_group_count = {groups} : i64}} : ({image}, {kernel}) -> {result}"""
    return _example(f"convolution:{name}", f"%a: {image}, %k: {kernel}", result, text)


_COMPLEX = "tensor<8x16xcomplex<f32>>"
_REGION = """({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    {more}
    stablehlo.return %t : tensor<f32>
}})"""
_TANH_OF_SUM = _REGION.format(more="%t = stablehlo.tanh %s : tensor<f32>")
_SUM_OF_SUM = _REGION.format(more="%t = stablehlo.add %s, %x : tensor<f32>")
_F, _G = "tensor<16xf32>", "tensor<4x8x16xf32>"

MORE: tuple[Example, ...] = (
    _line("same", "4x16x8 3x8x16 4x16x16", "pad = [[1, 1]]"),
    _line("feature groups", "4x16x8 3x4x16 4x16x16", "pad = [[1, 1]]", groups=2),
    _line("batch groups", "4x16x8 3x8x16 2x16x16", "pad = [[1, 1]]", batches=2),
    _line("kernel dilated", "4x16x8 3x8x16 4x12x16", "rhs_dilate = [2]"),
    _line(
        "nothing but padding",
        "4x16x8 3x8x16 4x17x16",
        "pad = [[3, 3]], stride = [2], lhs_dilate = [2], rhs_dilate = [2]",
    ),
    _line(
        "all at once",
        "4x16x8 5x8x16 4x11x16",
        "pad = [[3, 2]], stride = [3], lhs_dilate = [2], rhs_dilate = [1]",
    ),
    _line("cropped", "4x16x8 3x8x16 4x12x16", "pad = [[-1, -1]]"),
    _line("wide padding", "4x16x8 3x8x16 4x34x16", "pad = [[10, 10]]"),
    *(
        _example(
            f"{name}:complex",
            f"%a: {_COMPLEX}, %b: {_COMPLEX}",
            _COMPLEX,
            f"%r = stablehlo.{name} %a, %b : {_COMPLEX}",
        )
        for name in ("add", "multiply", "divide")
    ),
    _example(
        "dot_general:complex",
        f"%a: {_COMPLEX}, %b: tensor<16x4xcomplex<f32>>",
        "tensor<8x4xcomplex<f32>>",
        "%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]"
        f" : ({_COMPLEX}, tensor<16x4xcomplex<f32>>) -> tensor<8x4xcomplex<f32>>",
    ),
    _example(
        "power:integers",
        "%a: tensor<8x16xi32>",
        "tensor<8x16xi32>",
        "%r = stablehlo.power %a, %a : tensor<8x16xi32>",
    ),
    _example(
        "fft:of reals",
        "%a: tensor<4x16xf32>",
        "tensor<4x9xcomplex<f32>>",
        "%r = stablehlo.fft %a, type = RFFT, length = [16] : (tensor<4x16xf32>) -> "
        "tensor<4x9xcomplex<f32>>",
    ),
    _example(
        "fft:to reals",
        "%a: tensor<4x9xcomplex<f32>>",
        "tensor<4x16xf32>",
        "%r = stablehlo.fft %a, type = IRFFT, length = [16] : (tensor<4x9xcomplex<f32>>) -> "
        "tensor<4x16xf32>",
    ),
    _example(
        "fft:two dimensions",
        "%a: tensor<4x12x16xcomplex<f32>>",
        "tensor<4x12x16xcomplex<f32>>",
        "%r = stablehlo.fft %a, type = FFT, length = [12, 16]"
        " : (tensor<4x12x16xcomplex<f32>>) -> tensor<4x12x16xcomplex<f32>>",
    ),
    _example(
        "map",
        "%a: tensor<8x16xf32>, %b: tensor<8x16xf32>",
        "tensor<8x16xf32>",
        f"""%r = "stablehlo.map"(%a, %b) <{{dimensions = array<i64: 0, 1>}}> {_TANH_OF_SUM}
  : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>""",
    ),
    _example(
        "reduce:long body",
        "%a: tensor<8x128xf32>, %z: tensor<f32>",
        "tensor<8xf32>",
        f"""%r = "stablehlo.reduce"(%a, %z) <{{dimensions = array<i64: 1>}}> {_TANH_OF_SUM}
  : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>""",
    ),
    _example(
        "reduce_window:long body",
        "%a: tensor<8x128xf32>, %z: tensor<f32>",
        "tensor<8x125xf32>",
        f"""%r = "stablehlo.reduce_window"(%a, %z) <{{window_dimensions = array<i64: 1, 4>}}> {_TANH_OF_SUM}
  : (tensor<8x128xf32>, tensor<f32>) -> tensor<8x125xf32>""",
    ),
    _example(
        "scatter:long body",
        "%a: tensor<16x8xf32>, %i: tensor<12x1xi32>, %u: tensor<12x8xf32>",
        "tensor<16x8xf32>",
        f"""%r = "stablehlo.scatter"(%a, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<
  update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}>
  {_SUM_OF_SUM} : (tensor<16x8xf32>, tensor<12x1xi32>, tensor<12x8xf32>) -> tensor<16x8xf32>""",
    ),
    _example(
        "all_reduce",
        "%a: tensor<8x128xf32>",
        "tensor<8x128xf32>",
        f"""%r = "stablehlo.all_reduce"(%a) <{{replica_groups = dense<[[0]]> : tensor<1x1xi64>}}>
  {_REGION.format(more="%t = stablehlo.add %s, %s : tensor<f32>").replace("%s, %s", "%x, %y")}
  : (tensor<8x128xf32>) -> tensor<8x128xf32>""",
    ),
    *(
        _example(
            f"rng:{kind.lower()}",
            "%l: tensor<f32>, %h: tensor<f32>",
            "tensor<8x16xf32>",
            f"""%s = stablehlo.constant dense<[8, 16]> : tensor<2xi64>
%r = stablehlo.rng %l, %h, %s, distribution = {kind} : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<8x16xf32>""",
        )
        for kind in ("UNIFORM", "NORMAL")
    ),
    _example(
        "batch_norm_grad",
        f"%a: {_G}, %s: {_F}, %m: {_F}, %v: {_F}, %g: {_G}",
        _G,
        f"""%r, %p, %q = "stablehlo.batch_norm_grad"(%a, %s, %m, %v, %g)
  <{{epsilon = 1.0 : f32, feature_index = 2 : i64}}> : ({_G}, {_F}, {_F}, {_F}, {_G}) -> ({_G}, {_F}, {_F})""",
    ),
    _example(
        "case",
        "%i: tensor<i32>, %a: tensor<8x16xf32>",
        "tensor<8x16xf32>",
        """%r = "stablehlo.case"(%i) ({
  %y = stablehlo.tanh %a : tensor<8x16xf32>
  stablehlo.return %y : tensor<8x16xf32>
}, {
  %y = stablehlo.multiply %a, %a : tensor<8x16xf32>
  %z = stablehlo.add %y, %a : tensor<8x16xf32>
  stablehlo.return %z : tensor<8x16xf32>
}) : (tensor<i32>) -> tensor<8x16xf32>""",
    ),
    _example(
        "while",
        "%a: tensor<8x16xf32>",
        "tensor<8x16xf32>",
        """%c = stablehlo.constant dense<0> : tensor<i32>
%n = stablehlo.constant dense<7> : tensor<i32>
%o = stablehlo.constant dense<1> : tensor<i32>
%w:2 = stablehlo.while(%i = %c, %x = %a) : tensor<i32>, tensor<8x16xf32>
  cond {
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %j = stablehlo.add %i, %o : tensor<i32>
    %y = stablehlo.multiply %x, %x : tensor<8x16xf32>
    stablehlo.return %j, %y : tensor<i32>, tensor<8x16xf32>
  }
%r = stablehlo.negate %w#1 : tensor<8x16xf32>""",
    ),
)
