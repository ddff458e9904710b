"""Leave rows in their order where a program sorts them by a key only to multiply them in groups.

Needs: constants folded (canonicalize). Holds afterwards: a mixture of experts that sorts its tokens
by expert, multiplies each group with the weights of its expert under a mask, and puts the results
back in order does so without sorting. So tokens of a batch stay rows of it: they can be sharded,
and cut into microbatches. Nothing is gathered or scattered, and the masks are statements about
experts.

    %order = sort(%expert, %iota)#1
    %sent = gather(%x, %order)                           16x4
    %ends = reduce_window(counts of %expert) add         3
    %mask = and(%starts <= %position, %position < %ends)   3x16x4
    %y = dot_general(select(%mask, %sent, 0), %w)
    %back = gather(%y, sort(%order, %iota)#1)
 =>
    %mask = and([0, 1, 2] <= %expert, %expert < [1, 2, 3])
    %back = dot_general(select(%mask, %x, 0), %w)

1. Follow the values that are made of sorted rows until all of them are summed, or in order again
   (`shardopt.passes.importing.sorted_rows`). Where something else needs the order, as an expert
   that takes so many tokens and no more, nothing is changed.
2. Say of keys what is said of positions (`shardopt.passes.importing.prefix_counts`); put the rows
   of each value in the place of those of the sorted one.
3. Gathers at what is now the coordinate of each row are left to `shardopt-batch-gathers`.

Sums over rows are taken in another order than before."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.ir.rewriting import operations
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.importing.sorted_kinds import NotSorted
from shardopt.passes.importing.sorted_rows import SortedRows, is_ascending


@dataclass(frozen=True)
class UnsortRows(Pass):
    name = "shardopt-unsort-rows"
    summary = "leave rows in their order where they are sorted only to be multiplied in groups"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        sorts = [op for op in operations(module.operation, ("stablehlo.sort",)) if is_ascending(op)]
        undone = 0
        for sort in sorts:
            # The inverse of an order that has gone is not read any more.
            if not any(True for result in sort.results for _ in result.uses):
                continue
            rows = SortedRows(sort)
            try:
                rows.prove()
            except NotSorted:
                continue
            rows.undo()
            undone += 1
        pm.statistic("sorts", len(sorts))
        pm.statistic("undone", undone)
        if not undone:
            pm.preserve()
