"""Values under names of their own, and who reads them: `--mlir-print-unique-ssa-ids` and
`--mlir-print-value-users` of mlir-opt, which the printer behind the bindings has no switch for.

It can name values after their locations. So a copy gets locations that say a name for each value:
the one that the printer would choose, where no other region has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from jaxlib.mlir import ir

# A name begins with a letter for the printer; numbers get theirs back.
_NUMBER = "_ssa_id_"
_SUFFIX = re.compile(r"_\d+$")


def text_with_unique_names(
    op: ir.Operation | ir.OpView, print_: Callable[[ir.Operation], str], *, users: bool
) -> str:
    """What `print_` makes of a copy whose values have unique names; with `users`, who reads them
    stands behind operations, as `%name` or, without results, by operation."""
    with op.operation.context:
        copy = op.operation.clone(ip=False)
        names = _Names(copy)
        names.give(copy)
        text = re.sub(rf"%{_NUMBER}(\d+)", r"%\1", print_(copy))
        return _with_users(text, names, copy) if users else text


class _Names:
    def __init__(self, op: ir.Operation) -> None:
        self.printed = ir.AsmState(op)
        self.of: dict[ir.Value, str] = {}  # results, by the name of their operation
        self.taken: set[str] = set()
        self.next = 0

    def give(self, op: ir.Operation) -> None:
        if len(op.results):
            name = self._unique(op.results[0].get_name(self.printed).partition("#")[0])
            for result in op.results:
                self.of[result] = f"%{name}"
            op.location = _location(name)
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    name = self._unique(argument.get_name(self.printed))
                    argument.set_location(_location(name))
                for view in block.operations:
                    self.give(view.operation)

    def _unique(self, printed: str) -> str:
        name = printed.removeprefix("%")
        if name.isdecimal():
            self.next += 1
            return str(self.next - 1)
        stem, number = _SUFFIX.sub("", name), 0
        match = re.fullmatch(r"arg\d+", name)
        if match:
            stem = "arg"
            name = "arg0"
        while name in self.taken:
            name = f"{stem}{number}" if match else f"{stem}_{number}"
            number += 1
        self.taken.add(name)
        return name


def _location(name: str) -> ir.Location:
    return ir.Location.name(f"{_NUMBER}{name}" if name.isdecimal() else name)


def _with_users(text: str, names: _Names, op: ir.Operation) -> str:
    lines = text.split("\n")
    starts = {
        match[1]: number
        for number, line in enumerate(lines)
        if (match := re.match(r" *(%[\w$.-]+)(?::\d+)? = ", line))
    }
    for each in _walk(op):
        if not len(each.results):
            continue
        number = starts.get(names.of[each.results[0]])
        if number is None:  # printed inside of another operation
            continue
        readers = [use.owner.operation for result in each.results for use in result.uses]
        lines[_end(lines, number)] += " // " + _listed(readers, names)
    return "\n".join(lines)


def _end(lines: list[str], first: int) -> int:
    """The last line of the operation that begins there."""
    indent = len(lines[first]) - len(lines[first].lstrip())
    last = first
    while lines[last].endswith("{"):
        last += 1
        while len(lines[last]) - len(lines[last].lstrip()) > indent:
            last += 1
    return last


def _listed(readers: list[ir.Operation], names: _Names) -> str:
    if not readers:
        return "unused"
    texts = dict.fromkeys(
        names.of[each.results[0]] if len(each.results) else each.name for each in readers
    )
    return f"user{'s' if len(texts) > 1 else ''}: {', '.join(sorted(texts))}"


def _walk(op: ir.Operation) -> Iterator[ir.Operation]:
    yield op
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                yield from _walk(view.operation)
