"""What a loop over microbatches need not do in each of them: what is the same in all, and putting
together what could be summed up piece by piece.

    %c = convert %w                                 once, before the loop
    %t = concatenate %g0, %g1                       %s0 += %g0, %s1 += %g1, and behind the loop
    %s = add %s, %t                                 %s = concatenate %s0, %s1

Both are so where the loop is made of a step that has none (`shardopt.solve.microbatches`); here
they are where a step brings its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.extract.op_graph import reads
from shardopt.extract.rows import CONCATENATE
from shardopt.ir.rewriting import defining, has_user_attribute, shape_of
from shardopt.ir.shapes import broadcast, dimensions, reshape, tensor_like, transpose
from shardopt.ir.splats import is_splat, resized
from shardopt.passes.microbatches.batching import clone_resized

# Those that make large values of small ones are cheaper to run in each microbatch than to keep, and
# others draw numbers or have effects.
_HOISTED = frozenset(
    f"stablehlo.{name}" for name in ("convert", "reshape", "slice", "transpose", "multiply", "add")
)
_ELEMENTWISE = frozenset(
    f"stablehlo.{name}" for name in ("convert", "divide", "multiply", "negate")
)
_SPREAD = "stablehlo.broadcast_in_dim"


def hoist_invariants(loop: ir.Operation, kept: Collection[int]) -> int:
    """Move casts, slices and sums of what does not change in front of a `while`, whose carried
    values `kept` do not; how many."""
    block = loop.regions[1].blocks[0]
    same: dict[ir.Value, ir.Value] = {
        block.arguments[number]: loop.operands[number] for number in kept
    }
    changing: set[ir.Value] = {argument for argument in block.arguments if argument not in same}
    count = 0
    for op in [view.operation for view in block.operations]:
        values = reads(op)
        is_same = (
            op.name in _HOISTED
            and not has_user_attribute(op)
            and not any(value in changing for value in values)
            and any(value in same for value in values)
        )
        if not is_same:
            changing.update(op.results)
            continue
        for number, value in enumerate(op.operands):
            op.operands[number] = same.get(value, value)
        op.move_before(loop)
        same.update((result, result) for result in op.results)
        count += 1
    return count


@dataclass(frozen=True)
class Pieces:
    """Values that `join` puts together, in the place of each what replaces it."""

    values: tuple[ir.Value, ...]
    join: Callable[[Sequence[ir.Value]], ir.Value]


def pieces_of(value: ir.Value) -> Pieces:
    """What a value is put together of by operations that only lay pieces side by side; of one
    piece where it is not. What is done to each element, with constants, is done to pieces, in front
    of the operation that does it to all."""
    found = _joined(value)
    return Pieces((value,), lambda values: values[0]) if found is None else found


def _joined(value: ir.Value) -> Pieces | None:
    op = defining(value)
    if op is None or has_user_attribute(op) or not len(op.operands):
        return None
    if op.name == CONCATENATE:
        return _concatenated(op)
    if op.name in ("stablehlo.reshape", "stablehlo.transpose", _SPREAD):
        inner = _joined(op.operands[0])
        return None if inner is None else _moved(op, inner)
    return _scaled(op)


def _concatenated(op: ir.Operation) -> Pieces:
    dim = ir.IntegerAttr(op.attributes["dimension"]).value
    parts = [pieces_of(operand) for operand in op.operands]

    def join(values: Sequence[ir.Value]) -> ir.Value:
        rest, joined = list(values), []
        for part in parts:
            own, rest = rest[: len(part.values)], rest[len(part.values) :]
            joined.append(part.join(own))
        return stablehlo.ConcatenateOp(joined, dim).result

    return Pieces(tuple(value for part in parts for value in part.values), join)


def _moved(op: ir.Operation, inner: Pieces) -> Pieces | None:
    shape = shape_of(op.results[0])
    if op.name == "stablehlo.reshape":
        return Pieces(inner.values, lambda values: reshape(inner.join(values), shape))
    if op.name == "stablehlo.transpose":
        permutation = dimensions(op, "permutation")
        return Pieces(inner.values, lambda values: transpose(inner.join(values), permutation))
    dims = dimensions(op, "broadcast_dimensions")
    if prod(shape) != prod(shape_of(op.operands[0])):
        return None
    return Pieces(inner.values, lambda values: broadcast(inner.join(values), shape, dims))


def _scaled(op: ir.Operation) -> Pieces | None:
    """Of what makes each element of the one in its place and of constants."""
    if len(op.results) != 1 or op.name not in _ELEMENTWISE:
        return None
    others = [_constant(operand) for operand in op.operands]
    changed = [number for number, constant in enumerate(others) if constant is None]
    if len(changed) != 1 or shape_of(op.operands[changed[0]]) != shape_of(op.results[0]):
        return None
    inner = _joined(op.operands[changed[0]])
    if inner is None:
        return None
    with ir.InsertionPoint(op), op.location:
        made = tuple(_alike(op, value, others) for value in inner.values)
    return Pieces(made, inner.join)


def _alike(op: ir.Operation, value: ir.Value, others: Sequence[ir.Operation | None]) -> ir.Value:
    """What the operation makes of a piece."""
    operands = [
        value if constant is None else resized(constant, tensor_like(operand, shape_of(value)))
        for operand, constant in zip(op.operands, others, strict=True)
    ]
    return clone_resized(op, operands, [tensor_like(op.results[0], shape_of(value))]).results[0]


def _constant(value: ir.Value) -> ir.Operation | None:
    """A constant whose elements are all equal, spread or not."""
    op = defining(value)
    while op is not None and op.name == _SPREAD:
        op = defining(op.operands[0])
    return op if op is not None and op.name == "stablehlo.constant" and is_splat(op) else None
