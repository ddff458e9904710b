"""Name an operation or value of a module from the command line.

dot_general          every operation of this name          arg3       argument 3 of @main
dot_general:2        the third of them in program order     result0    what makes result 0 of @main
anything else        a regular expression, searched in the locations of operations and the names
                     of arguments
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.ir.diagnostics import position_of
from shardopt.support.errors import UserError

_SIGNATURE = re.compile(r"(?P<which>arg|result)(?P<number>\d+)")
_NAMED = re.compile(r"(?P<name>[a-z]\w*)(?::(?P<number>\d+))?")


@dataclass(frozen=True)
class Selected:
    """An operation of the graph, or, where `op` is -1, an input tensor of it; `name` is what a user
    calls it."""

    op: int
    tensor: int
    name: str


def select(graph: MeshGraph, text: str) -> tuple[Selected, ...]:
    """What `text` names on this mesh, in program order, arguments first. Raises UserError for a bad
    expression."""
    if match := _SIGNATURE.fullmatch(text):
        return _of_signature(graph, match["which"], int(match["number"]))
    match = _NAMED.fullmatch(text)
    if match and match["name"] in {op.name for op in graph.graph.ops}:
        named = [k for k, op in enumerate(graph.graph.ops) if op.name == match["name"]]
        chosen = named if match["number"] is None else named[int(match["number"]) :][:1]
        return tuple(_op(graph, k, named.index(k)) for k in chosen)
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UserError(
            f"expected an operation, a value or a regular expression, found '{text}': {error}"
        ) from error
    return _by_location(graph, pattern)


def _of_signature(graph: MeshGraph, which: str, number: int) -> tuple[Selected, ...]:
    if which == "arg":
        tensor = graph.arguments.get(number)
        return () if tensor is None else (Selected(-1, tensor, f"arg{number}"),)
    if number >= len(graph.outputs):
        return ()
    tensor = graph.outputs[number]
    producer = graph.graph.producers()[tensor]
    return (Selected(producer, tensor, f"result{number}"),)


def _by_location(graph: MeshGraph, pattern: re.Pattern[str]) -> tuple[Selected, ...]:
    inputs = set(graph.graph.inputs)
    selected = []
    for value, tensor in graph.reader.index.items():
        if tensor in inputs and isinstance(value, ir.BlockArgument):
            name = position_of(value).name
            if name and pattern.search(name):
                inputs.discard(tensor)  # a value may be an argument of several functions
                selected.append(Selected(-1, tensor, name))
    counts: dict[str, int] = {}
    for k, (op, handle) in enumerate(zip(graph.graph.ops, graph.reader.handles, strict=True)):
        order = counts[op.name] = counts.get(op.name, -1) + 1
        if pattern.search(str(handle.location)):
            selected.append(_op(graph, k, order))
    return tuple(selected)


def _op(graph: MeshGraph, number: int, order: int) -> Selected:
    op = graph.graph.ops[number]
    return Selected(number, op.results[0] if op.results else -1, f"{op.name}:{order}")
