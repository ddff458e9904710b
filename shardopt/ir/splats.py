"""Constants, and those whose elements are all equal: read, made, and made at another shape."""

from __future__ import annotations

import re

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

Splat = complex | float | int | bool

_COMPLEX = re.compile(r"dense<\(([^,()]+), *([^()]+)\)>")


def constant_value(op: ir.Operation) -> ir.Attribute | str:
    """The value of a constant; what is printed of it where the bindings cannot hand it out, as of
    complex numbers. Equal for equal constants."""
    if isinstance(_element(op.results[0].type), ir.ComplexType):
        text = str(op.get_asm(use_local_scope=True))
        return text[text.index("dense") :]
    return op.attributes["value"]


def read_splat(op: ir.Operation) -> Splat | None:
    """The element of a constant whose elements are all equal, or None."""
    if isinstance(_element(op.results[0].type), ir.ComplexType):
        match = _complex_text(op)
        return None if match is None else _complex(match[1], match[2])
    attr = op.attributes["value"]
    if not isinstance(attr, ir.DenseElementsAttr) or not attr.is_splat:
        return None
    element = attr.get_splat_value()
    if isinstance(element, (ir.IntegerAttr, ir.FloatAttr, ir.BoolAttr)):
        return element.value
    return None


def is_splat(op: ir.Operation) -> bool:
    """Whether all elements of a constant are equal."""
    if isinstance(_element(op.results[0].type), ir.ComplexType):
        return _complex_text(op) is not None
    return ir.DenseElementsAttr(op.attributes["value"]).is_splat


def resized(op: ir.Operation, type_: ir.Type) -> ir.Value:
    """A constant like this one, whose elements are all equal, at the shape of another type."""
    if isinstance(_element(type_), ir.ComplexType):
        match = _complex_text(op)
        assert match is not None
        return _parsed_constant(match[0], type_)
    value = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(type_, value)).result


def splat_constant(type_: ir.Type, value: Splat) -> ir.Value:
    """A constant whose elements are all `value`."""
    element = _element(type_)
    if isinstance(element, ir.ComplexType):
        number = complex(value)
        return _parsed_constant(f"dense<({number.real!r}, {number.imag!r})>", type_)
    assert not isinstance(value, complex)
    if isinstance(element, ir.IntegerType):
        scalar: ir.Attribute = ir.IntegerAttr.get(element, int(value))
    else:
        scalar = ir.FloatAttr.get(element, float(value))
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(type_, scalar)).result


def _parsed_constant(value: str, type_: ir.Type) -> ir.Value:
    op = ir.Operation.parse(f"%0 = stablehlo.constant {value} : {type_}").operation
    ir.InsertionPoint.current.insert(op)
    return op.results[0]


def _complex(real: str, imaginary: str) -> complex | None:
    """None for what is printed as bits: infinities, and what is no number."""
    try:
        return complex(float(real), float(imaginary))
    except ValueError:
        return None


def _complex_text(op: ir.Operation) -> re.Match[str] | None:
    """What is printed of one element: the bindings cannot even hand such an attribute out."""
    return _COMPLEX.search(str(op.get_asm(large_elements_limit=1)))


def _element(type_: ir.Type) -> ir.Type:
    return ir.RankedTensorType(type_).element_type
