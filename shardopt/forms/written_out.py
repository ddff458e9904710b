"""Calls of functions with fragments, and loops of fragments, in programs that others wrote.

    %r = mpmd.for (%x) {iterations = 2} (%c, %i) {      %1 = mpmd.fragment … (%x)
      %1 = mpmd.fragment … (%c)                     =>  %r = mpmd.fragment … (%1)
      mpmd.return %1 }

Only our microbatch loop, which calls one function, is there at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd, stablehlo

from shardopt.dialect.mpmd import is_mesh_tensor, origin_attr, parse_mesh_tensor
from shardopt.ir.diagnostics import DiagnosedError, diagnostic
from shardopt.ir.rewriting import splice_block

_CALL, _LOOP, _RETURN = "mpmd.call", "mpmd.for", "mpmd.return"
# Programs are of this many operations at most when they are written out.
_MAX_WRITTEN_OUT = 1 << 16


def has_plain(function: ir.Operation) -> bool:
    """Whether a value of its body is on no mesh."""
    block = function.regions[0].blocks[0]
    values = [*block.arguments, *(value for op in block for value in op.operation.results)]
    return not all(is_mesh_tensor(value.type) for value in values)


def write_out(main: ir.Operation, by_name: Mapping[str, ir.Operation]) -> bool:
    """Put the bodies of calls, and of loops but the microbatch loop, into `main`, from the
    functions of the module by name. Whether there were any. Raises DiagnosedError for more
    operations than anybody runs."""
    ops = [op.operation for op in main.regions[0].blocks[0]]
    if not any(_is_call(op) or _is_foreign_loop(op) for op in ops):
        return False
    _Writer(by_name).write_out(ops)
    return True


def _is_call(op: ir.Operation) -> bool:
    """Of a function of fragments; what `func.call` hands plain values to is a part of a program."""
    if op.name != "func.call":
        return op.name == _CALL
    return any(is_mesh_tensor(value.type) for value in (*op.operands, *op.results))


def _is_foreign_loop(op: ir.Operation) -> bool:
    """Ours is a call of the function that does a microbatch, with values on meshes."""
    if op.name != _LOOP:
        return False
    if not all(is_mesh_tensor(value.type) for value in op.operands):
        return True
    return [each.operation.name for each in op.regions[0].blocks[0]] != [_CALL, _RETURN]


class _Writer:
    """Puts the bodies of calls and loops in their place. MLIR's verifier knows no calls in called
    functions."""

    def __init__(self, by_name: Mapping[str, ir.Operation]) -> None:
        self.by_name = by_name
        self.written = 0

    def write_out(self, ops: Sequence[ir.Operation]) -> None:
        for op in ops:
            if _is_call(op):
                name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                _replace(op, self._splice(self.by_name[name], list(op.operands), op))
            elif _is_foreign_loop(op):
                self._write_loop(op)

    def _write_loop(self, loop: ir.Operation) -> None:
        block = loop.regions[0].blocks[0]
        iterations = ir.IntegerAttr(loop.attributes["iterations"]).value
        self._check(loop, iterations * len(block.operations))
        index, values = block.arguments[-1], list(loop.operands)
        for number in range(iterations):
            # nobody reads what stands for an index that nobody reads
            counter = _number(index, number, loop) if list(index.uses) else index
            values = self._splice(loop, [*values, counter], loop)
        _replace(loop, values)

    def _splice(
        self,
        owner: ir.Operation,
        arguments: Sequence[ir.Value],
        anchor: ir.Operation,
    ) -> list[ir.Value]:
        """What a copy of the body of `owner`, put before `anchor`, returns."""
        copy = owner.clone(ip=False)
        block = copy.regions[0].blocks[0]
        body, end = splice_block(block, arguments, anchor)
        self.written += len(body)
        self._check(anchor, 0)
        self.write_out(body)
        values = list(end.operands)
        copy.erase()
        return values

    def _check(self, op: ir.Operation, more: int) -> None:
        if self.written + more > _MAX_WRITTEN_OUT:
            raise DiagnosedError(
                diagnostic(
                    "error",
                    op,
                    f"expected loops and calls of at most {_MAX_WRITTEN_OUT} operations in all "
                    "when they are written out, found more",
                )
            )


def _number(index: ir.Value, number: int, loop: ir.Operation) -> ir.Value:
    """The number of an iteration, made where the loop wants it."""
    if not is_mesh_tensor(index.type):
        with loop.location, ir.InsertionPoint(loop):
            return _constant(ir.RankedTensorType(index.type), number)
    wanted = parse_mesh_tensor(index.type)
    with loop.location, ir.InsertionPoint(loop):
        fragment = mpmd.FragmentOp(
            [index.type], [], origin_attr(["iteration"]), wanted.mesh
        ).operation
        tensor = ir.RankedTensorType(wanted.tensor)
        with ir.InsertionPoint(fragment.regions[0].blocks.append()):
            mpmd.ReturnOp([_constant(tensor, number)])
    return fragment.results[0]


def _constant(tensor: ir.RankedTensorType, number: int) -> ir.Value:
    value = ir.IntegerAttr.get(tensor.element_type, number)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(tensor, value))


def _replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()
