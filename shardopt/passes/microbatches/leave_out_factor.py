"""Write a `Factor` (`shardopt.solve.microbatches.factors`) into a step: rows compute with 1 in its
place, and what they accumulate is multiplied by it, but for zeros that a mask may have left."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.extract.element_bits import element_bits
from shardopt.ir.rewriting import BARRIER, defining, replace_reads, shape_of
from shardopt.ir.splats import splat_constant
from shardopt.passes.microbatches.microbatch_loop import StepReader
from shardopt.solve.microbatches.axis import Factor


def leave_out_factor(reader: StepReader, factor: Factor) -> None:
    """The handles of `reader` stay; it knows nothing of what is added."""
    values = reader.values()
    scalar = values[factor.scalar]
    instead: dict[ir.Value, ir.Value] = {}
    for index in sorted((*factor.copies, *factor.ops)):
        op, handle = reader.ops[index], reader.handles[index]
        if not instead:
            with ir.InsertionPoint(handle), handle.location:
                instead[scalar] = splat_constant(scalar.type, 1)
        if handle.name == BARRIER:  # of which the reader makes an operation for each value
            operand, result = values[op.operands[0]], values[op.results[0]]
            if operand in instead:
                instead[result] = instead[operand]
        elif index in factor.copies:
            copy = handle.clone(ir.InsertionPoint(handle))
            replace_reads(copy, instead)
            instead.update(zip(handle.results, copy.results, strict=True))
        else:
            replace_reads(handle, instead)
    without = {reader.handles[index] for index in factor.ops}
    for tensor in factor.scaled:
        _scale(values[tensor], scalar, without, tensor in factor.masked)


def _scale(value: ir.Value, scalar: ir.Value, without: set[ir.Operation], is_masked: bool) -> None:
    """Let all but the operations in `without` read `value` times `scalar`; if it `is_masked`, also
    0 times infinity is 0."""
    readers = [(use.owner.operation, use.operand_number) for use in value.uses]
    readers = [(op, number) for op, number in readers if not _is_within(op, without)]
    maker = defining(value)
    assert maker is not None  # rows have been summed up
    with ir.InsertionPoint.after(maker), maker.location:
        product = _product(value, scalar)
        if is_masked:
            product = _where_zero(value, product)
    for op, number in readers:
        op.operands[number] = product


def _is_within(op: ir.Operation, without: set[ir.Operation]) -> bool:
    """Whether it is one of them, or stands in a region of one."""
    inner: ir.Operation | None = op
    while inner is not None and inner not in without:
        inner = inner.parent and inner.parent.operation
    return inner is not None


def _product(value: ir.Value, scalar: ir.Value) -> ir.Value:
    """In the wider of the two types, so that a product of narrow numbers is rounded once."""
    old, number = value.type, _element(scalar)
    element = max(_element(value), number, key=lambda each: element_bits(str(each)))
    wide = ir.RankedTensorType.get(shape_of(value), element)
    single = ir.RankedTensorType.get([], element)
    if shape_of(scalar):
        scalar = stablehlo.ReshapeOp(ir.RankedTensorType.get([], number), scalar).result
    scalar, value = _converted(scalar, single), _converted(value, wide)
    factor = stablehlo.BroadcastInDimOp(wide, scalar, ir.DenseI64ArrayAttr.get([])).result
    return _converted(stablehlo.MulOp(value, factor).result, old)


def _where_zero(value: ir.Value, product: ir.Value) -> ir.Value:
    is_zero = stablehlo.compare(
        value, splat_constant(value.type, 0), stablehlo.ComparisonDirectionAttr.get("EQ")
    )
    return stablehlo.SelectOp(is_zero, value, product).result


def _converted(value: ir.Value, type_: ir.Type) -> ir.Value:
    return value if value.type == type_ else stablehlo.ConvertOp(type_, value).result


def _element(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type
