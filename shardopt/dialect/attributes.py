"""Builtin attributes from and to Python values."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir


def i64(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def i32(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)


def u32(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_unsigned(32), value)


def f64(value: float) -> ir.FloatAttr:
    return ir.FloatAttr.get(ir.F64Type.get(), value)


def entries(attributes: ir.DictAttr) -> dict[str, ir.Attribute]:
    """A dictionary attribute as a dictionary, in its order."""
    return {attributes[k].name: attributes[k].attr for k in range(len(attributes))}


def from_values(value: Any) -> ir.Attribute:
    """Texts, booleans, numbers, lists and dictionaries of these as one attribute (i1, i64, f64);
    attributes as they are."""
    if isinstance(value, ir.Attribute):
        return value
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, bool):  # before integers, which booleans are, too
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return i64(value)
    if isinstance(value, float):
        return f64(value)
    if isinstance(value, list | tuple):
        return ir.ArrayAttr.get([from_values(item) for item in value])
    if isinstance(value, dict):
        return ir.DictAttr.get({name: from_values(item) for name, item in value.items()})
    raise TypeError(
        f"expected text, a number, a list or a dictionary, found {type(value).__name__}"
    )


def to_values(attribute: ir.Attribute) -> Any:
    """The other way; an attribute of another kind is its text."""
    if isinstance(attribute, ir.BoolAttr):
        return bool(attribute.value)
    if isinstance(attribute, ir.StringAttr | ir.IntegerAttr | ir.FloatAttr):
        return attribute.value
    if isinstance(attribute, ir.ArrayAttr):
        return [to_values(item) for item in attribute]
    if isinstance(attribute, ir.DictAttr):
        return {name: to_values(item) for name, item in entries(attribute).items()}
    return str(attribute)
