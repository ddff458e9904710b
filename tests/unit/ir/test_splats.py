"""Constants of one element, complex ones among them, for which the bindings have no class."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from jaxlib.mlir import ir

from shardopt.extract.op_graph import is_zero
from shardopt.ir.context import make_context
from shardopt.ir.splats import is_splat, read_splat, resized, splat_constant

CASES = [
    ("dense<false> : tensor<2xi1>", False),
    ("dense<3> : tensor<2xui8>", 3),
    ("dense<-1.5> : tensor<bf16>", -1.5),
    ("dense<[1.0, 2.0]> : tensor<2xf32>", None),
    ("dense<(0.0, -0.0)> : tensor<2xcomplex<f32>>", 0j),
    ("dense<(1.5e-3, -2.0)> : tensor<4x16xcomplex<f64>>", 1.5e-3 - 2j),
    ("dense<[(1.0, 0.0), (2.0, 0.0)]> : tensor<2xcomplex<f32>>", None),
    ("dense<(0x7FC00000, 0.0)> : tensor<2xcomplex<f32>>", None),
]


@pytest.fixture
def block() -> Iterator[ir.Block]:
    text = "func.func @main() { return }"
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        body = module.body.operations[0].regions[0].blocks[0]
        with ir.InsertionPoint.at_block_terminator(body):
            yield body


def parsed(value: str) -> ir.Operation:
    op = ir.Operation.parse(f"%0 = stablehlo.constant {value}").operation
    ir.InsertionPoint.current.insert(op)
    return op


@pytest.mark.parametrize(("value", "number"), CASES)
def test_the_element_is_read(block: ir.Block, value: str, number: object) -> None:
    op = parsed(value)
    assert read_splat(op) == number
    assert type(read_splat(op)) is type(number)
    assert is_zero(op) == (number == 0 and number is not False)
    assert is_splat(op) == ("[" not in value)


@pytest.mark.parametrize("value", [value for value, _ in CASES if "[" not in value])
def test_constants_keep_their_element_at_another_shape(block: ir.Block, value: str) -> None:
    op = parsed(value)
    type_ = ir.RankedTensorType.get([3], ir.RankedTensorType(op.results[0].type).element_type)
    made = resized(op, type_)
    assert made.type == type_
    assert is_splat(made.owner)
    assert read_splat(made.owner) == read_splat(op)


@pytest.mark.parametrize("element", ["complex<f32>", "f32", "si32", "i1"])
def test_made_constants_are_read_back(block: ir.Block, element: str) -> None:
    type_ = ir.Type.parse(f"tensor<2x3x{element}>")
    for number in (0, 1):
        op = splat_constant(type_, number).owner
        assert read_splat(op) == number
    if "f32" in element and "complex" not in element:
        assert read_splat(splat_constant(type_, -math.inf).owner) == -math.inf
