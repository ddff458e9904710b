"""Modules that others wrote, as the runtime reads them: one function `@main`, with calls of
functions for XLA instead of fragments. Calls of functions with fragments, and loops of fragments,
which only our microbatch loop is a use for, are written out."""

from __future__ import annotations

import re

from jaxlib.mlir import ir

from shardopt.forms.written_out import has_plain, write_out
from shardopt.ir.rewriting import functions, operations, symbol_name
from shardopt.passes.registry import pass_class
from shardopt.pipeline.manager import run_pipeline
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name

_MAIN = "main"
_TOPOLOGY = "topology"
_SYMBOL = re.compile(r"@([\w$.-]+)")


def make_runnable(
    module: ir.Module, entry: str | None = None, name_to_mesh: tuple[str, ...] = ()
) -> None:
    """Let `entry` be `@main`, write out its calls and loops, put what is on no mesh on those that
    `name_to_mesh` says, and lower fragments. Without a name the entry is `@main`, or the only
    function with a topology. Raises UserError."""
    _select(module, entry)
    _write_out(module)
    main = next(each for each in functions(module) if symbol_name(each) == _MAIN)
    if has_plain(main):
        assign = pass_class("shardopt-assign-meshes")
        run_pipeline(module, str(assign(name_to_mesh=name_to_mesh)))  # type: ignore[call-arg]
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


def _write_out(module: ir.Module) -> None:
    by_name = {symbol_name(each): each for each in functions(module)}
    if write_out(by_name[_MAIN], by_name):
        reached = _reached(_MAIN, by_name)
        for name, function in by_name.items():
            if name not in reached:
                function.erase()


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
