"""The body of a microbatch as rows (`shardopt.graph.layered_body`), with the handles to
write back what was found in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.extract.op_graph import read_tensor, reads
from shardopt.extract.op_work import read_work
from shardopt.graph.layered_body import LayeredBody
from shardopt.ir.rewriting import operations

_RNG = "stablehlo.rng"  # its results differ from run to run


@dataclass(frozen=True)
class BodyRows:
    """Row i of `body` is operation `ops[i]`, value k is `values[k]`."""

    body: LayeredBody
    ops: tuple[ir.Operation, ...]
    values: tuple[ir.Value, ...]


def read_body(program: StepProgram, priced: bool = False) -> BodyRows:
    """The body of a clustered program; `priced` with the work of its rows, and the bytes of what
    they make."""
    number: dict[ir.Value, int] = {}

    def numbered(values: Sequence[ir.Value]) -> tuple[int, ...]:
        return tuple(number.setdefault(value, len(number)) for value in values)

    ops = tuple(program.body_ops)
    body = LayeredBody(
        layers=tuple(ir.IntegerAttr(op.attributes[LAYER]).value for op in ops),
        reads=tuple(numbered(reads(op)) for op in ops),
        makes=tuple(numbered(op.results) for op in ops),
        returned=frozenset(numbered(program.body_returned)),
        random=frozenset(row for row, op in enumerate(ops) if _is_random(op)),
        work=tuple(read_work(op).weighted_flops for op in ops) if priced else (),
        sizes=_sizes(ops, number) if priced else {},
    )
    return BodyRows(body, ops, tuple(number))


def _sizes(ops: Sequence[ir.Operation], number: Mapping[ir.Value, int]) -> dict[int, int]:
    of_type = cache(lambda type_: read_tensor(type_).size_bytes)
    return {number[value]: of_type(value.type) for op in ops for value in op.results}


def _is_random(op: ir.Operation) -> bool:
    return op.name == _RNG or (len(op.regions) > 0 and bool(operations(op, (_RNG,))))
