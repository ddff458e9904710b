"""Give every accumulator of the microbatch loop a start of its own, and a place behind the loop to
be summed up.

Needs the staged form; a plain module has no microbatch loop and stays as it is. Afterwards no two
values that the loop carries start from one constant, and each fragment that reads a result of the
loop reads it through a *sum point*, an identity with `shardopt.sum_point`.

    %0 = mpmd.fragment … {                       %0:2 = mpmd.fragment … {
      %z = constant 0                              %z = constant 0 ; %y = constant 0
      return %z }                                  return %z, %y }
    %1:2 = mpmd.for (%0, %0) …              =>   %1:2 = mpmd.for (%0#0, %0#1) …
    mpmd.fragment … (%1#0, %1#1) (%a, %b) {      mpmd.fragment … (%1#0, %1#1) (%a, %b) {
      %m = multiply %a, %a                         %s = custom_call … {shardopt.sum_point}
                                                   %m = multiply %s, %s

It runs before shardings are chosen: accumulators that share a start would have to share a sharding,
and a value that stays unreduced in the loop would be summed once by every reader.
`shardopt-insert-reshards` removes the sum points at which nothing happens."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.options.names import Unreduced
from shardopt.passes.base import Pass, PassContext, plan_option
from shardopt.passes.sharding.apply.accumulators import add_sum_points, separate_accumulators


@dataclass(frozen=True)
class SeparateAccumulators(Pass):
    """See the head of the file."""

    name = "shardopt-separate-accumulators"
    summary = "give accumulators starts of their own and points where they are summed up"

    unreduced: Unreduced = plan_option(
        "unreduced", help="off: without sum points, before which values may stay unreduced"
    )

    def run(self, module: ir.Module, pm: PassContext) -> None:
        separated = separate_accumulators(module)
        pm.statistic("accumulators separated", separated)
        sum_points = 0 if self.unreduced == "off" else add_sum_points(module)
        if self.unreduced != "off":
            pm.statistic("sum points", sum_points)
        if not separated and not sum_points:
            pm.preserve()
