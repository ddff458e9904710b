"""Attributes that have the name of one of ours and another type.

Passes and verifiers read an attribute as the type that the vocabulary gives it. Where one of
another type ends them, the error of the reader names no place; this finds it. Nothing asks while
all is well, so modules of a hundred thousand operations pay nothing."""

from __future__ import annotations

from collections.abc import Iterator, Set

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.dialect.mpmd import COST, RESHARDING, SCHEDULE
from shardopt.forms.imported_form import Violation
from shardopt.forms.vocabulary import ATTRIBUTES
from shardopt.ir.rewriting import operations

# Dictionaries with the same entries in every module; those of others depend on the plan.
_RECORDS = (COST, RESHARDING, SCHEDULE)
# In the errors of the bindings.
_CAST = "Cannot cast attribute"


def is_of_types(error: Exception | str) -> bool:
    """Whether an error may be that of reading an attribute: one that names no operation, or that
    passes on what the bindings say."""
    raw = isinstance(error, ValueError | TypeError)
    return raw or _CAST in str(error)


def type_violations(module: ir.Module) -> Iterator[Violation]:
    """All attributes of a wrong type, in program order."""
    with module.context:
        forms = {each.name: each.form for each in ATTRIBUTES}
        examples = {name: ir.Attribute.parse(form) for name, form in forms.items()}
    for op in (module.operation, *operations(module.operation)):
        for name, attribute in _attributes(op, examples.keys()):
            fault = _fault(attribute, examples[name], whole=name not in _RECORDS)
            if fault:
                yield Violation(op, f"expected '{name}' of the form {forms[name]}, found {fault}")


def _attributes(op: ir.Operation, names: Set[str]) -> Iterator[tuple[str, ir.Attribute]]:
    """Those of an operation with these names, and of the arguments and results of a function. The
    bindings cannot hand out every other one: no complex numbers."""
    for name in op.attributes:
        if op.name == "func.func" and name in ("arg_attrs", "res_attrs"):
            for row in ir.ArrayAttr(op.attributes[name]):
                row_entries = entries(ir.DictAttr(row))
                yield from ((each, row_entries[each]) for each in row_entries if each in names)
        elif name in names:
            yield name, op.attributes[name]


def _fault(attribute: ir.Attribute, example: ir.Attribute, *, whole: bool) -> str:
    """The part that is of another type than in the example, or nothing."""
    if type(attribute) is not type(example):
        return str(attribute)
    if isinstance(attribute, ir.ArrayAttr):
        kinds = {type(item) for item in ir.ArrayAttr(example)}
        return next((str(item) for item in attribute if kinds and type(item) not in kinds), "")
    if whole or not isinstance(attribute, ir.DictAttr):
        return ""
    rows = entries(ir.DictAttr(example))
    for name, value in entries(attribute).items():
        if name in rows and type(value) is not type(rows[name]):
            return f"{value} as {name}"
    return ""
