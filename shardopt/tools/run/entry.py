"""Modules that others wrote, as the runtime reads them: one function `@main`, with calls of
functions for XLA instead of fragments. Calls of functions with fragments, and loops of fragments,
which only our microbatch loop is a use for, are written out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd, stablehlo

from shardopt.dialect.mpmd import origin_attr, parse_mesh_tensor
from shardopt.ir.diagnostics import DiagnosedError, diagnostic
from shardopt.ir.rewriting import (
    functions,
    operations,
    splice_block,
    symbol_name,
)
from shardopt.pipeline.manager import run_pipeline
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name

_MAIN = "main"
_TOPOLOGY = "topology"
_CALL, _LOOP, _RETURN = "mpmd.call", "mpmd.for", "mpmd.return"
# Of loops that are written out: programs are of this many operations at most.
_MAX_WRITTEN_OUT = 1 << 16
_SYMBOL = re.compile(r"@([\w$.-]+)")


def make_runnable(module: ir.Module, entry: str | None = None) -> None:
    """Let `entry` be `@main`, write out its calls and loops, and lower fragments. Without a name
    the entry is `@main`, or the only function with a topology. Raises UserError."""
    _select(module, entry)
    _write_out_all(module)
    if operations(module.operation, ("mpmd.fragment",)):
        run_pipeline(module, "shardopt-lower-to-fragment-calls")


def _select(module: ir.Module, entry: str | None) -> None:
    by_name = {symbol_name(each): each for each in functions(module)}
    chosen = by_name.get(entry or _default(by_name))
    if chosen is None:
        raise UserError(unknown_name("function", str(entry), tuple(by_name)))
    if symbol_name(chosen) == _MAIN:
        return
    reached = _reached(symbol_name(chosen), by_name)
    if _MAIN in reached:
        raise UserError(f"@{entry} cannot be run: it calls @{_MAIN}")
    for name, function in by_name.items():
        if name not in reached:
            function.erase()
    chosen.attributes["sym_name"] = ir.StringAttr.get(_MAIN)
    chosen.attributes["sym_visibility"] = ir.StringAttr.get("public")


def _default(by_name: dict[str, ir.Operation]) -> str:
    if _MAIN in by_name:
        return _MAIN
    programs = [name for name, each in by_name.items() if _TOPOLOGY in each.attributes]
    if len(programs) == 1:
        return programs[0]
    known = ", ".join(programs or by_name) or "none"
    raise UserError(f"expected a function @main, or --entry with one of: {known}")


def _write_out_all(module: ir.Module) -> None:
    by_name = {symbol_name(each): each for each in functions(module)}
    block = by_name[_MAIN].regions[0].blocks[0]
    if not any(op.operation.name == _CALL or _is_foreign_loop(op.operation) for op in block):
        return
    _Writer(by_name).write_out([op.operation for op in block])
    reached = _reached(_MAIN, by_name)
    for name, function in by_name.items():
        if name not in reached:
            function.erase()


def _is_foreign_loop(op: ir.Operation) -> bool:
    """Ours is a call of the function that does a microbatch."""
    if op.name != _LOOP:
        return False
    return [each.operation.name for each in op.regions[0].blocks[0]] != [_CALL, _RETURN]


class _Writer:
    """Puts the bodies of calls and loops in their place. MLIR's verifier knows no calls in called
    functions."""

    def __init__(self, by_name: Mapping[str, ir.Operation]) -> None:
        self.by_name = by_name
        self.written = 0

    def write_out(self, ops: Sequence[ir.Operation]) -> None:
        for op in ops:
            if op.name == _CALL:
                name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                _replace(op, self._splice(self.by_name[name], list(op.operands), op))
            elif _is_foreign_loop(op):
                self._write_loop(op)

    def _write_loop(self, loop: ir.Operation) -> None:
        index = loop.regions[0].blocks[0].arguments[-1]
        values = list(loop.operands)
        for number in range(ir.IntegerAttr(loop.attributes["iterations"]).value):
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
        if self.written > _MAX_WRITTEN_OUT:
            raise _error(
                anchor,
                f"expected loops and calls of at most {_MAX_WRITTEN_OUT} operations in all when "
                "they are written out, found more",
            )
        self.write_out(body)
        values = list(end.operands)
        copy.erase()
        return values


def _number(index: ir.Value, number: int, loop: ir.Operation) -> ir.Value:
    """The number of an iteration, made where the loop wants it."""
    wanted = parse_mesh_tensor(index.type)
    with loop.location, ir.InsertionPoint(loop):
        fragment = mpmd.FragmentOp(
            [index.type], [], origin_attr(["iteration"]), wanted.mesh
        ).operation
        tensor = ir.RankedTensorType(wanted.tensor)
        with ir.InsertionPoint(fragment.regions[0].blocks.append()):
            value = ir.IntegerAttr.get(tensor.element_type, number)
            splat = ir.DenseElementsAttr.get_splat(tensor, value)
            mpmd.ReturnOp([stablehlo.constant(splat)])
    return fragment.results[0]


def _replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _error(op: ir.Operation, message: str) -> DiagnosedError:
    return DiagnosedError(diagnostic("error", op, message))


def _reached(name: str, by_name: dict[str, ir.Operation]) -> set[str]:
    """The function and those that it names, over any number of calls."""
    reached, pending = set[str](), [name]
    while pending:
        current = pending.pop()
        if current in reached:
            continue
        reached.add(current)
        text = by_name[current].get_asm(enable_debug_info=False, assume_verified=True)
        pending += [each for each in _SYMBOL.findall(str(text)) if each in by_name]
    return reached
