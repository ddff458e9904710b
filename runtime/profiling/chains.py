"""Programs of one kind of work K times in a row, as StableHLO, and how to see in compiled HLO that
they still are.

Every step needs the result of the one before, so nothing runs at once, and what would be fused
stands between barriers. Where a result has another shape than the operand, one element of it is
written back into the operand, in place. A program is what one device runs; collectives talk to
replicas."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from shardopt.hardware import profile as kinds

Shape = tuple[int, ...]
# (number of the step, operand) -> (lines, result)
Link = Callable[[int, str], tuple[str, str]]

ADD = """({
^bb0(%a: tensor<T>, %b: tensor<T>):
  %s = stablehlo.add %a, %b : tensor<T>
  stablehlo.return %s : tensor<T>
})"""
# Products of this size, one a head and example, are what attention is made of.
_SMALL = 64
_CHANNELS, _IMAGES, _ROW = 32, 4, 256
# How a product is spelt in compiled HLO: left as it is, or handed to a library or to Triton.
_PRODUCTS = (
    "dot",
    "__cublas$gemm",
    "__cublas$lt$matmul",
    "__triton_gemm",
    "__triton_nested_gemm_fusion",
)
# What is no work of its own in the entry computation of compiled HLO.
_FREE = frozenset(
    (
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "opt-barrier",
        "after-all",
        "partition-id",
    )
)
_CALLEE = re.compile(r"to_apply=%?([\w.-]+)")
_OPCODE = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (?:\([^=]*?\)|\S+) ([\w-]+)\(")


@dataclass(frozen=True)
class Chain:
    """One kind of work of one size. `arguments[0]` is what is handed from step to step.

    `opcodes` name the operation in compiled HLO, in one of which spellings it must appear once a
    step."""

    kind: str
    dtype: str
    size: float
    arguments: tuple[Shape, ...]
    link: Link
    opcodes: tuple[str, ...]

    def text(self, steps: int) -> str:
        """The module of so many steps."""
        types = [type_text(shape, self.dtype) for shape in self.arguments]
        head = ", ".join(f"%x{k}: {type_}" for k, type_ in enumerate(types))
        lines, value = [], "%x0"
        for step in range(steps):
            line, value = self.link(step, value)
            lines.append(line)
        body = "\n".join(lines)
        return f"func.func @main({head}) -> {types[0]} {{\n{body}\nreturn {value} : {types[0]}\n}}"

    def count(self, hlo: str) -> tuple[int, int]:
        """(operations of this kind, kernels that the entry computation starts) in compiled HLO."""
        pattern = re.compile(
            "|".join(rf"(?<![\w-]){re.escape(opcode)}(?![\w-])" for opcode in self.opcodes)
        )
        # Metadata repeats names of the program, which may spell an opcode.
        lines = [line.split("metadata=")[0] for line in hlo.splitlines() if _OPCODE.match(line)]
        repeats = sum(bool(pattern.search(line.partition(" = ")[2])) for line in lines)
        return repeats, _kernels(hlo, hlo[hlo.index("\nENTRY ") :])


def _kernels(hlo: str, computation: str) -> int:
    """What works in a computation and in those that it calls as they are, as GPU backends do with
    recorded commands."""
    count = 0
    for line in computation.partition("\n}")[0].splitlines():
        opcode = _OPCODE.match(line)
        if opcode is None or opcode[1] in _FREE or opcode[1].endswith("-done"):
            continue
        count += 1
        callee = _CALLEE.search(line) if opcode[1] == "call" else None
        header = callee and re.search(rf"^%?{re.escape(callee[1])} \(", hlo, re.MULTILINE)
        if header:
            count += _kernels(hlo, hlo[header.start() :])
    return count


def type_text(shape: Shape, dtype: str) -> str:
    return f"tensor<{'x'.join(map(str, (*shape, dtype)))}>"


def _itemsize(dtype: str) -> int:
    return int(re.sub(r"\D", "", dtype.partition("E")[0])) // 8


def _barrier(step: int, value: str, type_: str) -> tuple[str, str]:
    return f"%o{step} = stablehlo.optimization_barrier {value} : {type_}", f"%o{step}"


def matmul(n: int, dtype: str) -> Chain:
    """Square matrices."""
    type_ = type_text((n, n), dtype)

    def link(step: int, x: str) -> tuple[str, str]:
        return (
            f"%y{step} = stablehlo.dot_general {x}, %x1, contracting_dims = [1] x [0] : ({type_}, "
            f"{type_}) -> {type_}",
            f"%y{step}",
        )

    return Chain(
        kind=kinds.MATMUL,
        dtype=dtype,
        size=2.0 * n**3,
        arguments=((n, n), (n, n)),
        link=link,
        opcodes=_PRODUCTS,
    )


def batch_matmul(batch: int, dtype: str) -> Chain:
    """Many small square matrices."""
    shape = (batch, _SMALL, _SMALL)
    type_ = type_text(shape, dtype)

    def link(step: int, x: str) -> tuple[str, str]:
        dims = "batching_dims = [0] x [0], contracting_dims = [2] x [1]"
        return (
            f"%y{step} = stablehlo.dot_general {x}, %x1, {dims} : ({type_}, {type_}) -> {type_}",
            f"%y{step}",
        )

    return Chain(
        kind=kinds.BATCH_MATMUL,
        dtype=dtype,
        size=2.0 * batch * _SMALL**3,
        arguments=(shape, shape),
        link=link,
        opcodes=_PRODUCTS,
    )


def convolution(extent: int, dtype: str) -> Chain:
    """Kernels of 3x3 on square images."""
    image, kernel = (_IMAGES, extent, extent, _CHANNELS), (3, 3, _CHANNELS, _CHANNELS)
    types = f"({type_text(image, dtype)}, {type_text(kernel, dtype)}) -> {type_text(image, dtype)}"

    def link(step: int, x: str) -> tuple[str, str]:
        return (
            f"%y{step} = stablehlo.convolution({x}, %x1) dim_numbers = [b, 0, 1, f]x[0, 1, i, "
            "o]->[b, 0, 1, f], "
            "window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = "
            "1 : i64} : "
            f"{types}",
            f"%y{step}",
        )

    flops = 2.0 * prod(image) * 9 * _CHANNELS
    return Chain(
        kind=kinds.CONVOLUTION,
        dtype=dtype,
        size=flops,
        arguments=(image, kernel),
        link=link,
        opcodes=("convolution", "__cudnn$convForward", "__onednn$convolution"),
    )


def elementwise(count: int, dtype: str) -> Chain:
    """Sums of two tensors: two reads and a write."""
    type_ = type_text((count,), dtype)

    def link(step: int, x: str) -> tuple[str, str]:
        barrier, result = _barrier(step, f"%y{step}", type_)
        return f"%y{step} = stablehlo.add {x}, %x1 : {type_}\n{barrier}", result

    return Chain(
        kind=kinds.ELEMENTWISE,
        dtype=dtype,
        size=3.0 * count * _itemsize(dtype),
        arguments=((count,), (count,)),
        link=link,
        opcodes=("add",),
    )


def transcendental(count: int, dtype: str) -> Chain:
    """Hyperbolic tangents: a read and a write."""
    type_ = type_text((count,), dtype)

    def link(step: int, x: str) -> tuple[str, str]:
        barrier, result = _barrier(step, f"%y{step}", type_)
        return f"%y{step} = stablehlo.tanh {x} : {type_}\n{barrier}", result

    return Chain(
        kind=kinds.TRANSCENDENTAL,
        dtype=dtype,
        size=2.0 * count * _itemsize(dtype),
        arguments=((count,),),
        link=link,
        opcodes=("tanh",),
    )


def reduction(rows: int, dtype: str) -> Chain:
    """Sums over the rows of a matrix: a read, and a small write."""
    matrix, column = type_text((rows, _ROW), dtype), type_text((rows,), dtype)

    def link(step: int, x: str) -> tuple[str, str]:
        lines = [
            f"%y{step} = stablehlo.reduce({x} init: %zero{step}) applies stablehlo.add across "
            "dimensions = [1] : "
            f"({matrix}, tensor<{dtype}>) -> {column}"
        ]
        lines.insert(0, f"%zero{step} = stablehlo.constant dense<0.0> : tensor<{dtype}>")
        back, result = write_back(step, x, (rows, _ROW), (rows,), dtype)
        return "\n".join((*lines, back)), result

    size = (rows * _ROW + rows) * float(_itemsize(dtype))
    return Chain(
        kind=kinds.REDUCTION,
        dtype=dtype,
        size=size,
        arguments=((rows, _ROW),),
        link=link,
        opcodes=("reduce",),
    )


def scatter(rows: int, dtype: str) -> Chain:
    """Rows added to a table, as in the gradient of an embedding. The size counts the elements of
    the rows."""
    table, updates = type_text((4 * rows, _ROW), dtype), type_text((rows, _ROW), dtype)
    region = ADD.replace("tensor<T>", f"tensor<{dtype}>")

    def link(step: int, x: str) -> tuple[str, str]:
        return (
            f"%i{step} = stablehlo.iota dim = 0 : tensor<{rows}x1xi32>\n"
            f'%y{step} = "stablehlo.scatter"({x}, %i{step}, %x1) <{{scatter_dimension_numbers = '
            "#stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], "
            "scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> "
            f"{region} : ({table}, tensor<{rows}x1xi32>, {updates}) -> {table}",
            f"%y{step}",
        )

    return Chain(
        kind=kinds.SCATTER,
        dtype=dtype,
        size=float(rows * _ROW),
        arguments=((4 * rows, _ROW), (rows, _ROW)),
        link=link,
        opcodes=("while", "scatter"),
    )


COMPUTE = {
    kinds.MATMUL: matmul,
    kinds.BATCH_MATMUL: batch_matmul,
    kinds.CONVOLUTION: convolution,
    kinds.ELEMENTWISE: elementwise,
    kinds.TRANSCENDENTAL: transcendental,
    kinds.REDUCTION: reduction,
    kinds.SCATTER: scatter,
}


def write_back(step: int, x: str, shape: Shape, result: Shape, dtype: str) -> tuple[str, str]:
    """One element of `%y` (of shape `result`) over the first of x."""
    one, reshaped = (1,) * len(result), (1,) * len(shape)
    starts = ", ".join(["0:1"] * len(result))
    zeros = ", ".join([f"%at{step}"] * len(shape))
    places = ", ".join(["tensor<i32>"] * len(shape))
    operand = type_text(shape, dtype)
    return (
        f"%e{step} = stablehlo.slice %y{step} [{starts}] : ({type_text(result, dtype)}) -> "
        f"{type_text(one, dtype)}\n"
        f"%r{step} = stablehlo.reshape %e{step} : ({type_text(one, dtype)}) -> "
        f"{type_text(reshaped, dtype)}\n"
        f"%at{step} = stablehlo.constant dense<0> : tensor<i32>\n"
        f"%w{step} = stablehlo.dynamic_update_slice {x}, %r{step}, {zeros} : "
        f"({operand}, {type_text(reshaped, dtype)}, {places}) -> {operand}",
        f"%w{step}",
    )


def calls(buffers: int) -> str:
    """A function that takes and gives half as many scalars each way, in the same buffers, and works
    on one of them."""
    count = max(buffers // 2, 1)
    head = ", ".join(
        f"%x{k}: tensor<1xf32> {{tf.aliasing_output = {k} : i32}}" for k in range(count)
    )
    types = ", ".join(["tensor<1xf32>"] * count)
    values = ", ".join(("%y", *(f"%x{k}" for k in range(1, count))))
    body = f"%y = stablehlo.add %x0, %x0 : tensor<1xf32>\nreturn {values} : {types}"
    return f"func.func @main({head}) -> ({types}) {{\n{body}\n}}"
