"""Recompute values for their last readers, and let readers reshard a value for themselves, as
was decided.

Needs the chosen form. Afterwards no fragment has `shardopt.rematerialize`: its rows are obeyed, and
the copies have the strategies that the rows gave them. A fragment without rows stays as it is.

    mpmd.fragment …
        {shardopt.rematerialize = [{chain = array<i64: 1>, readers = array<i64: 3>, …}]} … {
      %y = stablehlo.tanh %z                           %y = stablehlo.tanh %z
      %h = stablehlo.dot_general %y, %w                %h = stablehlo.dot_general %y, %w
      …                                         =>     …
      %g = stablehlo.multiply %y, %d                   %b:2 = stablehlo.optimization_barrier %z, %d
                                                       %y2 = stablehlo.tanh %b#0
                                                       %g = stablehlo.multiply %y2, %b#1

The barrier keeps the compiler from merging the copies with their originals, and from running them
early. It runs before `shardopt-insert-reshards`, because copies change who reads what."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.rematerialization import REMATERIALIZE, SeparateCopy, read_rematerialization
from shardopt.extract.chosen_plan import ChosenPart, read_parts
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.sharding.apply.rematerializer import Rematerializer


def _obey(part: ChosenPart) -> int:
    """Carry out the rows of a fragment; how many there are."""
    rows = read_rematerialization(part.holder)
    rematerializer = Rematerializer(part.reader, part.values())
    for row in rows:
        if isinstance(row, SeparateCopy):
            tensor = part.reader.ops[row.readers[0]].operands[row.operand]
            rematerializer.copy_separately(tensor, row.readers)
        else:
            rematerializer.recompute(row.chain, row.readers, row.strategies)
    del part.holder.attributes[REMATERIALIZE]
    return len(rows)


@dataclass(frozen=True)
class Rematerialize(Pass):
    """See the head of the file."""

    name = "shardopt-rematerialize"
    summary = "recompute values for their last readers, as was decided"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            parts = read_parts(module, with_attribute=REMATERIALIZE)
            count = sum(map(_obey, parts))
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        pm.statistic("values recomputed or copied once more", count)
        if not parts:
            pm.preserve()
