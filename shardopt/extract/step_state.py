"""Which arguments of a step are its state: what a result replaces in the next step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from jaxlib.mlir import ir

from shardopt.dialect.donation import read_replacements
from shardopt.extract.batch_arguments import argument_name
from shardopt.ir.rewriting import terminator

_NAME_PART = re.compile(r"[^.\[\]]+")


def replaced_arguments(main: ir.Operation) -> dict[int, int]:
    """Argument -> the result that replaces it: as donation tells, and in a step that donates
    nothing, trees of several leaves that come back leaf by leaf."""
    return read_replacements(main) or _returned_trees(main)


def argument_trees(main: ir.Operation) -> tuple[str, ...]:
    """The tree that each argument is a leaf of: the first part of its name in which not all agree.
    Arguments without a name stand alone."""
    names = [argument_name(argument) for argument in main.regions[0].blocks[0].arguments]
    parts = [_NAME_PART.findall(name) for name in names]
    depth = 1
    while len({tuple(each[:depth]) for each in parts}) == 1 and all(
        len(each) > depth for each in parts
    ):
        depth += 1
    return tuple(".".join(each[:depth]) or f"#{number}" for number, each in enumerate(parts))


def _returned_trees(main: ir.Operation) -> dict[int, int]:
    block = main.regions[0].blocks[0]
    arguments = [argument.type for argument in block.arguments]
    results = [value.type for value in terminator(block).operands]
    replaced: dict[int, int] = {}
    for numbers in _runs(argument_trees(main)):
        types = [arguments[number] for number in numbers]
        taken = set(replaced.values())
        # One leaf alone proves nothing: some result has the type of almost any argument.
        for start in range(len(results) - len(types) + 1 if len(types) > 1 else 0):
            span = range(start, start + len(types))
            if taken.isdisjoint(span) and [results[k] for k in span] == types:
                replaced.update(zip(numbers, span, strict=True))
                break
    return replaced


def _runs(trees: Sequence[str]) -> Iterator[list[int]]:
    """The numbers of the leaves of each tree."""
    for _, group in groupby(range(len(trees)), key=lambda number: trees[number]):
        yield list(group)
