"""The proof that the unreduced values of a fragment, or of its function, are terms of sums.

A value that says `unreduced={"x"}` stands for the sum of what the devices along x hold. Nothing at
run time can tell terms from whole values: an annotation in the wrong place doubles a loss without a
word. So each result that says so must be one of

* the result of a contraction, of which an operand is split along the axis where it is contracted,
* the result of an operation that is linear in operands which are unreduced along the axis,
* zeros.

Shardy's partitioner, which makes the terms, wants two things more of an operation with such a
result. Its operands are split in one way along each dimension that it sums over: the partitioner
ends the process otherwise. And no axis of those splits the result, too: it would count terms twice.

This looks at one operation at a time, from its operands' shardings as they are written. Values that
cross the border of a fragment have theirs in their types, which have to agree with what is inside.
So have those of the call of a function."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor
from shardopt.dialect.sharding import MHLO_SHARDING, from_mhlo, split_tuple
from shardopt.extract.op_graph import GraphReader
from shardopt.graph.linear_ops import leaves_terms, linear_modes, plain_zeros
from shardopt.graph.op_graph import MARKER, Op
from shardopt.ir.loops import CONTROL_FLOW
from shardopt.ir.rewriting import operations, terminator
from shardopt.mesh.mesh import Mesh, Sharding


def has_unreduced(op: ir.Operation, function: ir.Operation | None = None) -> bool:
    """Whether anything of a fragment, or of the call of a `function`, says that it is unreduced."""
    return any(map(is_unreduced, (*op.operands, *op.results))) or any(
        map(_says_unreduced, operations(function or op))
    )


def unproven(
    op: ir.Operation, mesh: Mesh, function: ir.Operation | None = None
) -> Iterator[tuple[ir.Operation, str]]:
    """Operations with a result that is unreduced without reason, in program order, and what was
    expected: in a fragment, or in the `function` that `op` calls. Every annotation inside must
    read; to be called inside of `sharding_rules`."""
    yield from _Proof(op, mesh, function or op).errors()


def is_unreduced(value: ir.Value) -> bool:
    """Whether the type of a value on a mesh says so."""
    return bool(_axes_of(value))


def unsummed_ends(main: ir.Operation) -> Iterator[str]:
    """A program takes and returns whole values, not terms of sums: what departs from that."""
    block = main.regions[0].blocks[0]
    for what, values in (("argument", block.arguments), ("result", terminator(block).operands)):
        for number, value in enumerate(values):
            if is_unreduced(value):
                yield (
                    f"{what} {number} of '@main': expected a value that is summed up, "
                    f"found {value.type}"
                )


def _axes_of(value: ir.Value) -> tuple[str, ...]:
    """Those along which a value on a mesh is unreduced."""
    sharding = parse_mesh_tensor(value.type).sharding if is_mesh_tensor(value.type) else None
    return () if sharding is None else sharding.unreduced


def _says_unreduced(op: ir.Operation) -> bool:
    """Whether the annotation of an operation calls a result of it unreduced."""
    return MHLO_SHARDING in op.attributes and "unreduced" in str(op.attributes[MHLO_SHARDING])


class _Proof:
    def __init__(self, op: ir.Operation, mesh: Mesh, owner: ir.Operation) -> None:
        """The border is that of `op`, what is inside of it is inside of `owner`."""
        self.op, self.owner = op, owner
        block = owner.regions[0].blocks[0]
        *body, self.end = (view.operation for view in block.operations)
        self.reader = GraphReader()
        self.reader.add_ops(body)
        self.zeros = plain_zeros(self.reader.graph())
        self.shardings: dict[int, Sharding] = {}
        for operand, argument in zip(op.operands, block.arguments, strict=True):
            self._note(argument, parse_mesh_tensor(operand.type).sharding)
        for inner in body:
            if MHLO_SHARDING in inner.attributes:
                texts = split_tuple(ir.StringAttr(inner.attributes[MHLO_SHARDING]).value)
                for text, result in zip(texts, inner.results, strict=True):
                    self._note(result, from_mhlo(text, ir.RankedTensorType(result.type).rank, mesh))

    def _note(self, value: ir.Value, sharding: Sharding | None) -> None:
        if sharding is not None:
            self.shardings[self.reader.tensor(value)] = sharding

    def errors(self) -> Iterator[tuple[ir.Operation, str]]:
        for op, handle in zip(self.reader.ops, self.reader.handles, strict=True):
            yield from _in_regions(handle)
            unproven = [
                _expected(handle, axis)
                for tensor in op.results
                for axis in self._axes(tensor)
                if not self._makes_terms(op, axis)
            ]
            yield from ((handle, message) for message in unproven or self._misfits(op, handle))
        for number, (value, result) in enumerate(
            zip(self.end.operands, self.op.results, strict=True)
        ):
            tensor = self.reader.tensor(value)
            for axis in _axes_of(result):
                if axis not in self._axes(tensor) and tensor not in self.zeros:
                    kind = "fragment" if self.op == self.owner else "function"
                    yield (
                        self.owner,
                        f"result {number} is unreduced along '{axis}' and what the {kind} "
                        "returns is not",
                    )

    def _axes(self, tensor: int) -> tuple[str, ...]:
        """Those along which a value is unreduced."""
        return self.shardings[tensor].unreduced if tensor in self.shardings else ()

    def _makes_terms(self, op: Op, axis: str) -> bool:
        if set(op.results) & self.zeros or (op.name == MARKER and op.operands[0] in self.zeros):
            return True
        if leaves_terms(op, self.zeros) and self._is_contracted(op, axis):
            return True
        return any(
            self._is_mode(op, mode, axis)
            for mode in linear_modes(op, self.reader.tensors, self.zeros)
        )

    def _is_contracted(self, op: Op, axis: str) -> bool:
        assert op.rule is not None
        return any(
            axis in self.shardings[tensor].dims[dim]
            for tensor, dims in zip(op.operands, op.rule.operands, strict=False)
            if tensor in self.shardings
            for dim, factors in enumerate(dims)
            if op.rule.reduction.intersection(factors)
        )

    def _misfits(self, op: Op, handle: ir.Operation) -> Iterator[str]:
        """What keeps the partitioner from making the terms of an operation as they are said."""
        if op.rule is None or not any(map(self._axes, op.results)):
            return
        split: dict[int, tuple[str, ...]] = {}
        for tensor, dims in zip(op.operands, op.rule.operands, strict=False):
            for dim, factors in enumerate(dims):
                for factor in op.rule.reduction.intersection(factors):
                    axes = self._split(tensor, dim)
                    if split.setdefault(factor, axes) != axes:
                        yield (
                            f"'{handle.name}' has an unreduced result: expected operands that are "
                            f"split in one way where they are summed over, found "
                            f"{_braced(split[factor])} and {_braced(axes)}"
                        )
                        return
        summed = {axis for axes in split.values() for axis in axes}
        for tensor in op.results:
            for axes in self.shardings[tensor].dims if tensor in self.shardings else ():
                for axis in summed.intersection(axes):
                    yield (
                        f"'{handle.name}' has an unreduced result: expected none of its dimensions "
                        f"split along '{axis}', along which it is summed over"
                    )

    def _split(self, tensor: int, dim: int) -> tuple[str, ...]:
        """The axes along which a dimension of a value is split."""
        return self.shardings[tensor].dims[dim] if tensor in self.shardings else ()

    def _is_mode(self, op: Op, mode: tuple[int, ...], axis: str) -> bool:
        """Whether just the operands of the mode are terms along the axis; zeros always are."""
        inside = [op.operands[k] for k in mode if op.operands[k] not in self.zeros]
        outside = [tensor for k, tensor in enumerate(op.operands) if k not in mode]
        return (
            bool(inside)
            and all(axis in self._axes(tensor) for tensor in inside)
            and not any(axis in self._axes(tensor) for tensor in outside)
        )


def _in_regions(op: ir.Operation) -> Iterator[tuple[ir.Operation, str]]:
    """Loops and branches hold whole values only: nobody takes a sum across their borders."""
    for inner in operations(op) if op.name in CONTROL_FLOW else ():
        if _says_unreduced(inner):
            yield inner, f"expected a reduced value inside of '{op.name}', found an unreduced one"


def _braced(axes: tuple[str, ...]) -> str:
    return "{" + ", ".join(axes) + "}"


def _expected(op: ir.Operation, axis: str) -> str:
    return (
        f"'{op.name}' has a result that is unreduced along '{axis}': expected an operand that is "
        f"split along '{axis}' on a contracted dimension, or operands unreduced along '{axis}' in "
        "which it is linear"
    )
