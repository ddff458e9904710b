"""Write every change of a value's sharding as an operation, where its reader wants another than its
maker gives.

Needs the chosen form without `shardopt.rematerialize`. Afterwards the strategies of operations
agree: each reads its operands as they lie and makes its results as they stay.

1. Behind a reduce-scatter stands the part that each device keeps, behind an operation on terms
   their sum (`shardopt.passes.sharding.apply.resharding_stops`).
2. What has `shardopt.clone` is made once more for each reader that wants another sharding
   (`shardopt.passes.sharding.apply.clones`).
3. Other operands go to their reader through stops, one for each collective on the way. XLA looks
   for a way of one step, and would otherwise gather the whole value on every device.
4. Sum points where nothing is summed are removed.
5. Values that enter regions or leave loops are pinned, as the partitioner takes their sharding from
   their neighbours.

Each step by itself, with the strategies that change (`@Sharding` stands for the custom call):

    // 1
    %1 = dot_general %a, %b                       %1 = dot_general %a, %b
         {"[{}, {x}], [{x}, {}] -> [{x}, {}]"}  =>     {"[{}, {x}], [{x}, {}] -> [{}, {}]"}
                                                  %p = @Sharding(%1) {"[{}, {}] -> [{x}, {}]"}
    // 2
    %c = constant {"-> [{x}, {}]", clone}         %c = constant {"-> [{x}, {}]"}
    %1 = add %a, %c                            => %d = constant {"-> [{}, {x}]"}
         {"[{}, {x}], [{}, {x}] -> …"}            %1 = add %a, %d
    // 3
    %1 = tanh %a {"… -> [{x, y}, {}]"}            %1 = tanh %a
    %2 = negate %1 {"[{}, {x}] -> …"}          => %s = @Sharding(%1) {"[{x, y}, {}] -> [{x}, {}]"}
                                                  %t = @Sharding(%s) {"[{x}, {}] -> [{}, {x}]"}
                                                  %2 = negate %t
    // 4
    %s = @Sharding(%w)                         => (readers of %s read %w)
         {"[{x}] -> [{x}]", sum_point}
    // 5
    while(%q = %p) do {                           while(%q = %p) do {
      %1 = add %q, %w }                        =>   %k = @Sharding(%q) {"[{x}] -> [{x}]"}
                                                    %1 = add %k, %w }

The order matters: a clone needs no stop, and a pin must not stand between a value and its stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jaxlib.mlir import ir

from shardopt.dialect.rematerialization import REMATERIALIZE
from shardopt.extract.chosen_plan import ChosenPart, read_parts
from shardopt.extract.control_flow import pin_values
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.sharding.apply.accumulators import drop_idle_sum_points
from shardopt.passes.sharding.apply.clones import clone_for_readers
from shardopt.passes.sharding.apply.resharding_stops import insert_scatters, insert_stops


class _Written(NamedTuple):
    """How many operations each step has added, or removed."""

    parts: int
    clones: int
    stops: int
    idle_sums: int
    pins: int


def _insert(part: ChosenPart) -> _Written:
    """Rewrite a fragment, by the steps at the head of the file and in their order."""
    reader, required, values = part.reader, part.required, part.values()
    scattered = {
        k: (s.made[0], s.results[0]) for k, s in enumerate(part.strategies) if s.is_scattered
    }
    parts = insert_scatters(reader, part.mesh, scattered)
    clones = clone_for_readers(reader, part.clones, part.shardings, required)
    stops = insert_stops(reader, part.mesh, part.shardings, required, part.clones)
    values |= parts | clones | stops
    idle_sums = drop_idle_sum_points(reader, values)
    pins = pin_values(part.holder, values)
    part.settle(values | pins)
    return _Written(len(scattered), len(clones), len(stops), idle_sums, len(pins))


@dataclass(frozen=True)
class InsertReshards(Pass):
    """See the head of the file."""

    name = "shardopt-insert-reshards"
    summary = "write every change of a value's sharding as an operation"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            parts = read_parts(module)
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        for part in parts:
            if REMATERIALIZE in part.holder.attributes:
                message = (
                    f"expected no '{REMATERIALIZE}' (run shardopt-rematerialize first), found some"
                )
                raise pm.error(part.holder, message)
        written = [_insert(part) for part in parts]
        pm.statistic("parts behind reduce-scatters", sum(each.parts for each in written))
        pm.statistic("values cloned for readers", sum(each.clones for each in written))
        pm.statistic("resharding stops", sum(each.stops for each in written))
        pm.statistic("idle sum points removed", sum(each.idle_sums for each in written))
        pm.statistic("values pinned", sum(each.pins for each in written))
