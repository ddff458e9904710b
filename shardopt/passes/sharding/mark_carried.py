"""Put an identity where a value enters the buffer of a loop or branch, so that it may be resharded
there.

Needs the staged form, or a plain imported module. Afterwards what a `stablehlo.while` carries
enters it, and is yielded by its body, through a `@Sharding` custom call of its own; so is what each
branch of a `case` or `if` yields.

    %r = stablehlo.while(%a = %x) do {         %s = custom_call @Sharding(%x)
      %b = stablehlo.dot_general %a, %w   =>   %r = stablehlo.while(%a = %s) do {
      return %b }                                %b = stablehlo.dot_general %a, %w
                                                 %t = custom_call @Sharding(%b)
                                                 return %t }

A carried value is one buffer with one sharding. The identity is an operation that can have another
on each side: the value may be resharded once before the loop, and once in every iteration. Scalars
get none, nor does what the body changes in its place, because nothing is won by resharding there.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.extract.control_flow import mark_carried
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class MarkCarried(Pass):
    """See the head of the file."""

    name = "shardopt-mark-carried"
    summary = "put an identity where values enter loops and branches"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        marked = mark_carried(module.operation)
        pm.statistic("carried values marked", marked)
        if not marked:
            pm.preserve()
