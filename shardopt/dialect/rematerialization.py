"""`shardopt.rematerialize` on a fragment: which values are recomputed for some of
their readers, and which of them reshard a value for themselves.

    shardopt.rematerialize = [ {chain = array<i64: 3>, strategies = ["[{x}, {}] -> [{x}, {}]"],
        readers = array<i64: 7, 9>}, {operand = 1 : i64, readers = array<i64: 8>}]

A row with a `chain` lets `readers` have the value of the chain's last operation from copies of the
chain, which run with `strategies` in front of the first reader. A row with an `operand` lets
`readers` reshard a value for themselves: the one that the first of them reads at this position.

Operations are named by their number in the fragment (or in the `@main` of a plain module), in the
order in which `shardopt.extract.control_flow.numbered_operations` lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i64
from shardopt.dialect.strategy import OpStrategy, parse_strategy

REMATERIALIZE = "shardopt.rematerialize"
_ARRAY = ir.DenseI64ArrayAttr


@dataclass(frozen=True)
class Recompute:
    """The operations `chain` run a second time, with `strategies`, and `readers` read the last
    result."""

    chain: tuple[int, ...]
    strategies: tuple[OpStrategy, ...]
    readers: tuple[int, ...]


@dataclass(frozen=True)
class SeparateCopy:
    """`readers` reshard a value, which is operand number `operand` of the first of them, once
    more."""

    operand: int
    readers: tuple[int, ...]


def write_rematerialization(
    fragment: ir.Operation, rows: Sequence[Recompute | SeparateCopy]
) -> None:
    """Nothing where there are no rows."""
    if rows:
        fragment.attributes[REMATERIALIZE] = ir.ArrayAttr.get([_attribute(row) for row in rows])


def read_rematerialization(fragment: ir.Operation) -> tuple[Recompute | SeparateCopy, ...]:
    """The rows in the order in which they apply. Raises ValueError for another form."""
    if REMATERIALIZE not in fragment.attributes:
        return ()
    attribute = fragment.attributes[REMATERIALIZE]
    if not isinstance(attribute, ir.ArrayAttr):
        raise ValueError(f"expected '{REMATERIALIZE}' to be an array, found {attribute}")
    return tuple(_row(row) for row in attribute)


def _attribute(row: Recompute | SeparateCopy) -> ir.DictAttr:
    readers = ir.DenseI64ArrayAttr.get(list(row.readers))
    if isinstance(row, SeparateCopy):
        return ir.DictAttr.get({"operand": i64(row.operand), "readers": readers})
    chain = ir.DenseI64ArrayAttr.get(list(row.chain))
    texts = ir.ArrayAttr.get([ir.StringAttr.get(str(strategy)) for strategy in row.strategies])
    return ir.DictAttr.get({"chain": chain, "readers": readers, "strategies": texts})


def _row(row: ir.Attribute) -> Recompute | SeparateCopy:
    fields = entries(row) if isinstance(row, ir.DictAttr) else {}
    kinds = {name: type(value) for name, value in fields.items()}
    if kinds == {"operand": ir.IntegerAttr, "readers": _ARRAY}:
        return SeparateCopy(ir.IntegerAttr(fields["operand"]).value, _numbers(fields["readers"]))
    if kinds == {"chain": _ARRAY, "readers": _ARRAY, "strategies": ir.ArrayAttr}:
        texts = [ir.StringAttr(text).value for text in ir.ArrayAttr(fields["strategies"])]
        strategies = tuple(map(parse_strategy, texts))
        return Recompute(_numbers(fields["chain"]), strategies, _numbers(fields["readers"]))
    raise ValueError(
        f"expected rows of '{REMATERIALIZE}' with chain, strategies and readers, or with operand "
        f"and readers, found {row}"
    )


def _numbers(attribute: ir.Attribute) -> tuple[int, ...]:
    return tuple(ir.DenseI64ArrayAttr(attribute))
