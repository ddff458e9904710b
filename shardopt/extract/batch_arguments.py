"""The batch arguments of a step as the user names them.

An argument is given by number or by name. Names are those that jax writes into the locations of a
module: `batch['x']` for the entry `x` of a parameter `batch`. In a pattern `*` stands for any text
and `?` for any character, and the name of a tree (`batch`) stands for all that is in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.dialect.batch import with_step_loop
from shardopt.dialect.donation import argument_attributes, is_donated
from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.extract.op_graph import read_tensor
from shardopt.graph.op_graph import Tensor
from shardopt.ir.diagnostics import DiagnosedError, diagnostic, position_of
from shardopt.ir.rewriting import shape_of

# At most this many candidates are listed in an error.
_MAX_LISTED = 8
_ITEM = re.compile(r"(?P<name>[^:]+)(?::(?P<dim>\d+))?")
_WILD = {"*": ".*", "?": "."}


class IndivisibleBatch(DiagnosedError):
    """A batch dimension cannot be cut into as many microbatches as were asked for."""


class UndecidedBatch(DiagnosedError):
    """It is not clear which arguments hold the batch; of those that name none, for the `reason`."""

    reason = ""

    @staticmethod
    def because(main: ir.Operation, reason: str, advice: str) -> UndecidedBatch:
        message = with_step_loop(main, f"{reason}; {advice}")
        error = UndecidedBatch(diagnostic("error", main, message))
        error.reason = reason
        return error


@dataclass(frozen=True)
class BatchArgument:
    """Argument number `index` of `@main`, split along `dim`; where the step takes that in several
    equal `parts`, one after the other, along each of them."""

    index: int
    dim: int = 0
    parts: int = 1


@dataclass(frozen=True)
class BatchItem:
    """An item of `batch-args`: the number of an argument or a pattern for names, and the batch
    dimension."""

    name: str
    dim: int = 0

    @property
    def number(self) -> int | None:
        return int(self.name) if self.name.isdecimal() else None

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        # Not `fnmatch`, which takes the brackets of `batch['x']` for a set of characters.
        text = "".join(_WILD.get(char, re.escape(char)) for char in self.name)
        return re.compile(text + r"([.\[].*)?", re.DOTALL)

    def matches(self, number: int, name: str) -> bool:
        """Whether it stands for the argument of this number and name ("" for none)."""
        return (
            number == self.number
            if self.number is not None
            else self._expression.fullmatch(name) is not None
        )


def parse_batch_arguments(texts: Sequence[str]) -> tuple[BatchItem, ...]:
    """From `INDEX`, `NAME`, `INDEX:DIM` or `NAME:DIM` each; none for `auto` and `none`. Raises
    ValueError."""
    if tuple(texts) in (("auto",), ("none",)):
        return ()
    items = []
    for text in texts:
        match = _ITEM.fullmatch(text)
        if match is None or match["name"] in ("auto", "none"):
            raise ValueError(
                "expected batch-args to be auto, none or a list of INDEX[:DIM] or NAME[:DIM], "
                f"found '{text}'"
            )
        items.append(BatchItem(match["name"], int(match["dim"] or 0)))
    return tuple(items)


def named_batch(main: ir.Operation, texts: Sequence[str]) -> tuple[BatchArgument, ...]:
    """The arguments of `@main` that items name, by number; none for `none`.

    Raises DiagnosedError for what does not exist, ValueError for malformed items."""
    arguments = dict(enumerate(main.regions[0].blocks[0].arguments))
    shapes = {number: shape_of(value) for number, value in arguments.items()}
    names = {number: argument_name(value) for number, value in arguments.items()}
    items = parse_batch_arguments(texts)
    for item in items:
        _check_item(main, item, shapes, names)
    return tuple(BatchArgument(number, dim) for number, dim in _named(items, shapes, names).items())


def argument_name(value: ir.Value) -> str:
    """What jax calls an argument, "" if its location has no name."""
    return position_of(value).name


def called(main: ir.Operation, number: int) -> str:
    """An argument of `@main` as messages call it."""
    name = argument_name(main.regions[0].blocks[0].arguments[number])
    return f"argument {number} ({name})" if name else f"argument {number}"


def _named(
    items: Sequence[BatchItem], shapes: Mapping[int, tuple[int, ...]], names: Mapping[int, str]
) -> dict[int, int]:
    """argument -> dimension, by the first item that names it; a pattern passes over those without
    its dimension."""
    dims: dict[int, int] = {}
    for number, shape in shapes.items():
        for item in items:
            if item.matches(number, names.get(number, "")) and item.dim < len(shape):
                dims[number] = item.dim
                break
    return dims


def _check_item(
    main: ir.Operation,
    item: BatchItem,
    shapes: Mapping[int, tuple[int, ...]],
    names: Mapping[int, str],
) -> None:
    """Raises DiagnosedError unless the item names an argument that has its dimension."""
    matching = [number for number in shapes if item.matches(number, names[number])]
    if not matching and item.number is not None:
        raise _error(main, f"expected a batch argument below {len(shapes)}, found {item.number}")
    if not matching:
        listed = _listed(main, brought(main) or list(shapes))
        reason = (
            "" if any(names.values()) else "; none has a name in this module, so give its number"
        )
        raise _error(
            main, f"expected a batch argument, found none called '{item.name}' ({listed}){reason}"
        )
    if all(item.dim >= len(shapes[number]) for number in matching):
        number = matching[0]
        if not shapes[number]:
            raise _error(
                main,
                f"expected a batch argument with rows, found {called(main, number)}, a scalar",
            )
        raise _error(
            main,
            f"expected a batch dimension below {len(shapes[number])} of {called(main, number)}, "
            f"found {item.dim}",
        )


def check_extent(main: ir.Operation, batch: BatchArgument, count: int) -> None:
    """Raises IndivisibleBatch unless the batch dimension can be cut into `count` blocks."""
    extent = shape_of(main.regions[0].blocks[0].arguments[batch.index])[batch.dim] // batch.parts
    if extent % count:
        divisors = ", ".join(str(n) for n in range(1, extent + 1) if extent % n == 0)
        parts = f"in each of the {batch.parts} parts that the step takes " * (batch.parts > 1)
        message = (
            f"expected a batch that divides into num-microbatches={count}, found extent {extent} "
            f"{parts}of dimension {batch.dim} of {called(main, batch.index)}; its divisors are "
            f"{divisors}"
        )
        raise IndivisibleBatch(diagnostic("error", main, message))


def _listed(main: ir.Operation, numbers: Sequence[int]) -> str:
    """Arguments with their names and types, as many as an error can hold."""
    arguments = main.regions[0].blocks[0].arguments
    listed = [
        f"{k}: {argument_name(arguments[k])} {arguments[k].type}".replace("  ", " ")
        for k in numbers
    ]
    more = len(listed) - _MAX_LISTED
    return ", ".join(listed[:_MAX_LISTED]) + (f", and {more} more" if more > 0 else "")


def brought(main: ir.Operation) -> list[int]:
    """Arguments with dimensions that the caller brings anew in each step: those that are not
    donated, and no raw random keys."""
    arguments = main.regions[0].blocks[0].arguments
    donated = [is_donated(entries(row)) for row in argument_attributes(main)]
    return [
        k
        for k, value in enumerate(arguments)
        if shape_of(value) and not donated[k] and not is_key(read_tensor(value.type))
    ]


def is_key(tensor: Tensor) -> bool:
    """Whether a value looks like a raw random key of JAX's generators (threefry 2, rbg 4)."""
    return tensor.dtype == "ui32" and tensor.shape in ((2,), (4,))


def batch_of(graph: MeshGraph, texts: Sequence[str]) -> dict[int, int]:
    """Tensors of a mesh that hold the batch, and the dimension it lies on: as named, or with `auto`
    as an earlier pass has marked them. Raises ValueError."""
    numbers = {tensor: number for number, tensor in graph.arguments.items()}
    names = {
        numbers[tensor]: argument_name(value)
        for value, tensor in graph.reader.index.items()
        if tensor in numbers and isinstance(value, ir.BlockArgument) and argument_name(value)
    }
    shapes = {
        number: graph.graph.tensors[tensor].shape for number, tensor in graph.arguments.items()
    }
    batch = batch_numbers(shapes, names, graph.batch, texts)
    return {graph.arguments[number]: dim for number, dim in batch.items()}


def batch_numbers(
    shapes: Mapping[int, tuple[int, ...]],
    names: Mapping[int, str],
    marked: Mapping[int, int],
    texts: Sequence[str],
) -> dict[int, int]:
    """As `batch_of`, of arguments of `@main` by their numbers."""
    if tuple(texts) == ("auto",):
        return {number: dim for number, dim in marked.items() if number in shapes}
    return _named(parse_batch_arguments(texts), shapes, names)


def _error(main: ir.Operation, message: str) -> DiagnosedError:
    return DiagnosedError(diagnostic("error", main, message))
