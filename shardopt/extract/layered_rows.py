"""Which arguments have weights of several layers: rows of them are read one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.program import StepProgram
from shardopt.extract.op_graph import reads
from shardopt.extract.rows import Rows, source_of
from shardopt.ir.rewriting import defining

# An argument, and a dimension of it.
Place = tuple[int, int]


def read_by_layers(program: StepProgram) -> dict[int, int]:
    """The arguments of which the body reads rows, with the dimension: rows each of which, but the
    first, meets activations that were made with another one. So do those of layers; those of
    experts, or of queries, keys and values, meet the same ones."""
    rows_of: dict[Place, dict[Rows, list[ir.Value]]] = {}
    for k, value in program.captured.items():
        source, rows = source_of(value)
        if rows is not None and defining(source) is None:
            place = ir.BlockArgument(source).arg_number, rows.dim
            inside = rows_of.setdefault(place, {}).setdefault(rows, [])
            inside.append(program.body_block.arguments[k])
    several = {place: list(found.values()) for place, found in rows_of.items() if len(found) > 1}
    if not several or program.index_argument is None:
        return {}
    bits: dict[ir.Value, int] = {}
    of_place: dict[Place, list[int]] = {}
    for place, rows_read in several.items():
        for values in rows_read:
            of_place.setdefault(place, []).append(1 << sum(map(len, of_place.values())))
            bits.update(dict.fromkeys(values, of_place[place][-1]))
    index = program.body_block.arguments[program.index_argument]
    met = _met(program.body_ops, bits, index)
    return {
        place[0]: place[1]
        for place, own in of_place.items()
        if _is_in_layers([(bit, met[bit]) for bit in own if bit in met], sum(own))
    }


def _is_in_layers(met: Sequence[tuple[int, int]], own: int) -> bool:
    """Whether of these rows, of which `own` are all, one meets activations made with none of them,
    and each other those made with some."""
    return len(met) > 1 and sum(not made_with & own & ~bit for bit, made_with in met) == 1


def _met(
    ops: Sequence[ir.Operation], bits: Mapping[ir.Value, int], index: ir.Value
) -> dict[int, int]:
    """For each row (a bit) with which rows the activations were made that it first meets.
    Activations are what depends on the index of the microbatch."""
    met: dict[int, int] = {}
    activations, weights = {index: 0}, dict(bits)
    known = 0
    for op in ops:
        operands = reads(op)
        made_with = of_weights = 0
        is_activation = False
        for value in operands:
            if value in activations:
                is_activation = True
                made_with |= activations[value]
            else:
                of_weights |= weights.get(value, 0)
        if not is_activation:
            if of_weights:
                weights.update(dict.fromkeys(op.results, of_weights))
            continue
        new = of_weights & ~known
        known |= new
        while new:
            bit = new & -new
            met[bit] = made_with
            new ^= bit
        activations.update(dict.fromkeys(op.results, made_with | of_weights))
    return met
