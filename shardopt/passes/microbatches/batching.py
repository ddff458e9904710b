"""Operations at the shape of one microbatch: types, attributes, slicing by the microbatch index,
accumulation.

A tensor of shape (…, D, …) split as (outer, B, rest) along its dimension D = outer·B·rest has in
microbatch i the shape (…, outer·rest, …). Only dimensions change, so an operation is cloned with
its regions and attributes; the few attributes that repeat a full extent of the split dimension
follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.extract.call_rules import fit_call
from shardopt.extract.op_graph import free_values
from shardopt.graph.microbatching import Split
from shardopt.ir.rewriting import shape_of
from shardopt.ir.splats import Splat, resized, splat_constant

# Attributes that give, dimension by dimension of operand 0, an extent: the full one where the
# dimension is split.
_EXTENTS = {
    "stablehlo.dynamic_slice": "slice_sizes",
    "stablehlo.gather": "slice_sizes",
}
# Those that give, dimension by dimension, places between segments of rows: they shrink with these.
_PLACES = {
    "stablehlo.slice": ("start_indices", "limit_indices"),
    "stablehlo.pad": ("edge_padding_low", "edge_padding_high"),
}


@dataclass(frozen=True)
class Microbatch:
    """The microbatch being built: `index` is its number, a tensor<ui32>, of `count`."""

    index: ir.Value
    count: int

    def block_type(self, type_: ir.Type, split: Split | None) -> ir.Type:
        """The type of one block of a tensor."""
        tensor = ir.RankedTensorType(type_)
        if split is None:
            return tensor
        shape = list(tensor.shape)
        shape[split.dim] //= self.count
        return ir.RankedTensorType.get(shape, tensor.element_type)

    def clone(
        self, op: ir.Operation, operands: Sequence[ir.Value], results: Sequence[Split | None]
    ) -> Sequence[ir.Value]:
        """`op` at the current insertion point with results split as given.

        `operands` are its operands at microbatch shape, then the values its regions read from
        outside."""
        if op.name == "stablehlo.constant" and results[0] is not None:
            return [resized(op, self.block_type(op.results[0].type, results[0]))]
        types = [
            self.block_type(old.type, split) for old, split in zip(op.results, results, strict=True)
        ]
        new = clone_resized(op, operands, types)
        if op.name == "stablehlo.iota" and results[0] is not None:
            return [self._advance(new, results[0])]
        return list(new.results)

    def _advance(self, iota: ir.Operation, split: Split) -> ir.Value:
        """Numbers of this block: those of block 0 plus index times the block's extent."""
        value = iota.results[0]
        # Numbers along another dimension are the same in every block.
        if ir.IntegerAttr(iota.attributes["iota_dimension"]).value != split.dim or self.count == 1:
            return value
        scalar = ir.RankedTensorType.get([], ir.RankedTensorType(value.type).element_type)
        extent = splat_constant(scalar, shape_of(value)[split.dim])
        start = stablehlo.MulOp(stablehlo.ConvertOp(scalar, self.index).result, extent).result
        return stablehlo.AddOp(
            value, stablehlo.BroadcastInDimOp(value.type, start, []).result
        ).result

    def slice(self, blocks: ir.Value, split: Split) -> ir.Value:
        """This microbatch's block of a tensor whose blocks stand along a dimension of their own
        (`split_blocks`)."""
        shape, at = list(shape_of(blocks)), _block_dim(split)
        sizes = [*shape[:at], 1, *shape[at + 1 :]]
        block = stablehlo.DynamicSliceOp(blocks, self._starts(len(shape), at), sizes).result
        merged = [*shape[: split.dim], prod(sizes[split.dim : at + 2]), *shape[at + 2 :]]
        return stablehlo.ReshapeOp(ir.RankedTensorType.get(merged, _element(blocks)), block).result

    def store(self, blocks: ir.Value, value: ir.Value, split: Split) -> ir.Value:
        """`blocks` with the block of this microbatch replaced by `value`."""
        shape, at = list(shape_of(blocks)), _block_dim(split)
        sizes = [*shape[:at], 1, *shape[at + 1 :]]
        update = stablehlo.ReshapeOp(ir.RankedTensorType.get(sizes, _element(blocks)), value).result
        return stablehlo.DynamicUpdateSliceOp(blocks, update, self._starts(len(shape), at)).result

    def _starts(self, rank: int, at: int) -> list[ir.Value]:
        zero = splat_constant(self.index.type, 0)
        return [self.index if dim == at else zero for dim in range(rank)]

    def estimate(self, value: ir.Value, reducer: str) -> ir.Value:
        """What a partial result says about the whole batch: a sum counts for every microbatch."""
        if reducer != "add" or self.count == 1:
            return value
        return stablehlo.MulOp(value, splat_constant(value.type, self.count)).result


def clone_resized(
    op: ir.Operation, operands: Sequence[ir.Value], types: Sequence[ir.Type]
) -> ir.Operation:
    """`op` at the current insertion point with results of other extents, made of `operands`: its
    operands at these extents, then the values its regions read from outside."""
    new = op.clone()
    _replace_operands(new, op, operands)
    for result, type_ in zip(new.results, types, strict=True):
        result.set_type(type_)
    if op.name in _EXTENTS:
        _shrink_extents(new, shape_of(op.operands[0]))
    for name in _PLACES.get(op.name, ()):
        _shrink_places(new, name, shape_of(op.operands[0]))
    fit_call(new)
    return new


def blocks_type(type_: ir.Type, split: Split, count: int) -> ir.RankedTensorType:
    """(…, D, …) as (…, B, D/B, …), or (…, outer, B, rest, …) where the batch is not the major part
    of D."""
    tensor = ir.RankedTensorType(type_)
    shape = list(tensor.shape)
    extent = shape[split.dim]
    major = [split.outer] if split.outer > 1 else []
    shape[split.dim : split.dim + 1] = [*major, count, extent // (split.outer * count)]
    return ir.RankedTensorType.get(shape, tensor.element_type)


def split_blocks(value: ir.Value, split: Split, count: int) -> ir.Value:
    """`value` with the blocks of its split dimension along a dimension of their own."""
    return stablehlo.ReshapeOp(blocks_type(value.type, split, count), value).result


def combine(reducer: str, accumulated: ir.Value, value: ir.Value) -> ir.Value:
    """One step of an accumulation; `reducer` is the name of an elementwise StableHLO op."""
    return ir.Operation.create(
        f"stablehlo.{reducer}", [accumulated.type], [accumulated, value]
    ).results[0]


def sum_type(type_: ir.Type) -> ir.RankedTensorType:
    """What to add up values of a type in: bf16 has 8 digits, so that of 300 equal terms the last 44
    would change nothing."""
    tensor = ir.RankedTensorType(type_)
    element = tensor.element_type
    is_narrow = isinstance(element, ir.FloatType) and element.width < 32
    return ir.RankedTensorType.get(tensor.shape, ir.F32Type.get()) if is_narrow else tensor


def neutral(type_: ir.Type, reducer: str) -> ir.Value:
    """The neutral element of `reducer`. Zeros for "", whose blocks overwrite them all."""
    element = ir.RankedTensorType(type_).element_type
    if reducer in ("maximum", "minimum"):
        return splat_constant(type_, _extreme(element, lowest=reducer == "maximum"))
    if reducer == "and":
        # -1 has all bits set; i1 and types without a sign need their largest value for that.
        ones = str(element) == "i1" or (isinstance(element, ir.IntegerType) and element.is_unsigned)
        return splat_constant(type_, _extreme(element, lowest=False) if ones else -1)
    return splat_constant(type_, 1 if reducer == "multiply" else 0)


def _extreme(element: ir.Type, *, lowest: bool) -> Splat:
    if not isinstance(element, ir.IntegerType):
        return float("-inf") if lowest else float("inf")
    if element.width == 1:
        return not lowest
    if element.is_unsigned:
        return 0 if lowest else 2**element.width - 1
    return -(2 ** (element.width - 1)) if lowest else 2 ** (element.width - 1) - 1


def _replace_operands(new: ir.Operation, old: ir.Operation, values: Sequence[ir.Value]) -> None:
    count = len(old.operands)
    for k in range(count):
        new.operands[k] = values[k]
    if not len(old.regions):
        return
    moved = dict(zip(free_values(old), values[count:], strict=True))

    def visit(inner: ir.Operation) -> ir.WalkResult:
        for k, operand in enumerate(inner.operands):
            if operand in moved:
                inner.operands[k] = moved[operand]
        return ir.WalkResult.ADVANCE

    for region in new.regions if moved else ():
        for block in region:
            for inner in block.operations:
                inner.operation.walk(visit)


def _shrink_extents(op: ir.Operation, before: tuple[int, ...]) -> None:
    name = _EXTENTS[op.name]
    after = shape_of(op.operands[0])
    extents = list(ir.DenseI64ArrayAttr(op.attributes[name]))
    op.attributes[name] = ir.DenseI64ArrayAttr.get(
        [
            new if extent == old else extent
            for extent, old, new in zip(extents, before, after, strict=True)
        ]
    )


def _shrink_places(op: ir.Operation, name: str, before: tuple[int, ...]) -> None:
    op.attributes[name] = ir.DenseI64ArrayAttr.get(
        [
            place * new // old if new != old else place
            for place, old, new in zip(
                ir.DenseI64ArrayAttr(op.attributes[name]),
                before,
                shape_of(op.operands[0]),
                strict=True,
            )
        ]
    )


def _block_dim(split: Split) -> int:
    """The dimension of `blocks_type` that counts blocks."""
    return split.dim + (split.outer > 1)


def _element(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type
