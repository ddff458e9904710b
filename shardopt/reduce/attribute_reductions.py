"""Fewer attributes: by name everywhere first, which is what most need, then one by one."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.ir.rewriting import operations
from shardopt.reduce.candidate import Subject
from shardopt.reduce.edits import named

# Of functions, one dictionary for each argument and result.
_ARRAYS = ("arg_attrs", "res_attrs")


class DropAttributeNames:
    """All attributes of one name on all operations of one name, or on all arguments."""

    name = "attributes by name"

    def places(self, subject: Subject) -> int:
        return len(_names(subject.module))

    def apply(self, subject: Subject, chosen: range) -> None:
        names = _names(subject.module)
        dropped = {names[k] for k in chosen}
        for op in operations(subject.module.operation):
            _drop(op, [name for name in _own(op) if (op.name, name) in dropped])
            for array in _ARRAYS:
                _drop_in_array(op, array, {k for o, k in dropped if o == f"{op.name} {array}"})


class DropAttributes:
    """Single attributes of a dialect, which operations can do without."""

    name = "attributes"

    def places(self, subject: Subject) -> int:
        return len(_single(subject.module))

    def apply(self, subject: Subject, chosen: range) -> None:
        single = _single(subject.module)
        for k in chosen:
            op, name = single[k]
            _drop(op, [name])


def _names(module: ir.Module) -> list[tuple[str, str]]:
    """(operation, attribute), and (operation and array, attribute), in the order of the text."""
    names: dict[tuple[str, str], None] = {}
    for op in operations(module.operation, outer_first=True):
        names.update(((op.name, name), None) for name in _own(op))
        for array in _ARRAYS:
            for entry in _array(op, array):
                names.update(((f"{op.name} {array}", each.name), None) for each in named(entry))
    return list(names)


def _single(module: ir.Module) -> list[tuple[ir.Operation, str]]:
    return [
        (op, name)
        for op in operations(module.operation, outer_first=True)
        for name in _own(op)
        if "." in name
    ]


def _own(op: ir.Operation) -> list[str]:
    return [name for name in op.attributes if name not in _ARRAYS]


def _drop(op: ir.Operation, names: list[str]) -> None:
    for name in names:
        del op.attributes[name]


def _array(op: ir.Operation, array: str) -> Iterator[ir.DictAttr]:
    if array in op.attributes:
        for entry in ir.ArrayAttr(op.attributes[array]):
            yield ir.DictAttr(entry)


def _entries(attributes: ir.DictAttr) -> dict[str, ir.Attribute]:
    return {each.name: each.attr for each in named(attributes)}


def _drop_in_array(op: ir.Operation, array: str, names: set[str]) -> None:
    if names and array in op.attributes:
        left = [
            ir.DictAttr.get(
                {each.name: each.attr for each in named(entry) if each.name not in names}
            )
            for entry in _array(op, array)
        ]
        op.attributes[array] = ir.ArrayAttr.get(left)
