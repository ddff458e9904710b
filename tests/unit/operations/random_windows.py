"""Operations of random extents that move data along dimension 1 of their operand: the borders that
they need are anything from none to far away."""

from __future__ import annotations

from random import Random

from tests.unit.operations.op_examples import Example


def random_window(rng: Random) -> Example:
    """A slice, padding, reversal, pooling or convolution of 9 to 40 elements."""
    kinds = (_slice, _pad, _reverse, _pool, _convolution)
    return rng.choice(kinds)(rng, rng.randint(9, 40))


def _example(name: str, op: str, arguments: str, result: str, body: str) -> Example:
    text = f"func.func @main({arguments}) -> {result} {{\n{body}\nreturn %r : {result}\n}}"
    return Example(name, op, text)


def _slice(rng: Random, extent: int) -> Example:
    start = rng.randint(0, extent - 9)
    limit, stride = rng.randint(start + 6, extent), rng.choice([1, 1, 1, 2, 3])
    source, result = f"tensor<3x{extent}xf32>", f"tensor<3x{-(-(limit - start) // stride)}xf32>"
    slices = f"[0:3, {start}:{limit}:{stride}]"
    body = f"%r = stablehlo.slice %a {slices} : ({source}) -> {result}"
    return _example(f"slice {slices} of {extent}", "slice", f"%a: {source}", result, body)


def _pad(rng: Random, extent: int) -> Example:
    low, high, interior = rng.randint(-3, 6), rng.randint(-3, 6), rng.choice([0, 0, 0, 1, 2])
    longer = extent + low + high + interior * (extent - 1)
    source, result = f"tensor<3x{extent}xf32>", f"tensor<3x{longer}xf32>"
    body = (
        f"%r = stablehlo.pad %a, %z, low = [0, {low}], high = [0, {high}], "
        f"interior = [0, {interior}] : ({source}, tensor<f32>) -> {result}"
    )
    name = f"pad {low}, {high}, {interior} of {extent}"
    return _example(name, "pad", f"%a: {source}, %z: tensor<f32>", result, body)


def _reverse(rng: Random, extent: int) -> Example:
    return reversal(extent)


def reversal(extent: int) -> Example:
    type_ = f"tensor<3x{extent}xf32>"
    body = f"%r = stablehlo.reverse %a, dims = [1] : {type_}"
    return _example(f"reverse of {extent}", "reverse", f"%a: {type_}", type_, body)


def _pool(rng: Random, extent: int) -> Example:
    size, stride, dilation = rng.randint(1, 4), rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
    span = (size - 1) * dilation + 1
    low, high = (rng.randint(0, min(3, span - 1)) for _ in range(2))
    source = f"tensor<2x{extent}xf32>"
    result = f"tensor<2x{(extent + low + high - span) // stride + 1}xf32>"
    body = f"""%i = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %r = "stablehlo.reduce_window"(%a, %i) ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %m = stablehlo.maximum %x, %y : tensor<f32>
          stablehlo.return %m : tensor<f32>
      }}) {{window_dimensions = array<i64: 1, {size}>, window_strides = array<i64: 1, {stride}>,
          window_dilations = array<i64: 1, {dilation}>,
          padding = dense<[[0, 0], [{low}, {high}]]> : tensor<2x2xi64>}}
        : ({source}, tensor<f32>) -> {result}"""
    name = f"pool of {size} by {stride}, dilated {dilation}, {low} and {high} around {extent}"
    return _example(name, "reduce_window", f"%a: {source}", result, body)


def _convolution(rng: Random, extent: int) -> Example:
    size, stride, dilation = rng.randint(1, 4), rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
    low, high, spacing = rng.randint(0, 3), rng.randint(0, 3), rng.choice([1, 1, 2])
    span = (size - 1) * dilation + 1
    longer = ((extent - 1) * spacing + 1 + low + high - span) // stride + 1
    source, kernel = f"tensor<2x{extent}x4xf32>", f"tensor<{size}x4x4xf32>"
    result = f"tensor<2x{longer}x4xf32>"
    body = f"""%r = stablehlo.convolution(%a, %w)
        dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
        window = {{stride = [{stride}], pad = [[{low}, {high}]], lhs_dilate = [{spacing}],
                  rhs_dilate = [{dilation}]}}
        {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : ({source}, {kernel}) -> {result}"""
    name = f"convolution of {size} by {stride}, dilated {spacing} and {dilation}, over {extent}"
    return _example(name, "convolution", f"%a: {source}, %w: {kernel}", result, body)
