"""Builtin attributes from and to Python values."""

from __future__ import annotations

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
