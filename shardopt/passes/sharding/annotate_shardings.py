"""Say the sharding of every value in the words of the partitioner: `mhlo.sharding`, or Shardy's
constraints.

Needs the chosen form in which all operations agree (`shardopt-insert-reshards`). Afterwards the
sharded form: every operation of a fragment carries `mhlo.sharding` and no `shardopt.strategy`. A
plain module carries it on the arguments and results of `@main` too; with `sharding-format=sdy` it
is in Shardy's form instead (`shardopt.forms.shardy`). With `sharding-format=collectives` nothing is
left to a partitioner: the module is the program of one device, with collectives
(`shardopt.passes.sharding.partition`).

    %1 = stablehlo.dot_general %a, %b … {shardopt.strategy = "[{x}, {}], [{}, {}] -> [{x}, {}]"}
 =>
    %1 = stablehlo.dot_general %a, %b … {mhlo.sharding = "{devices=[2,1]<=[2]}"}

    %1 = stablehlo.dot_general %a, %b … {shardopt.strategy = "[{}, {x}], [{x}, {}] -> [{}, {}]"}
 =>
    %1 = stablehlo.dot_general %a, %b … : (tensor<8x2xf32>, tensor<2x4xf32>) -> tensor<8x4xf32>
    %2 = stablehlo.all_reduce %1 … replica_groups = dense<[[0, 1]]>
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.batch import erase_step_loop
from shardopt.dialect.donation import drop_replacements
from shardopt.dialect.plain_mesh import PLAIN_MESH
from shardopt.dialect.strategy import STRATEGY, read_strategy
from shardopt.extract.chosen_plan import ChosenPart, read_parts
from shardopt.extract.control_flow import numbered_operations
from shardopt.forms.shardy import to_shardy
from shardopt.ir.diagnostics import shown_name
from shardopt.options.names import ShardingFormat
from shardopt.passes.base import Pass, PassContext, option
from shardopt.passes.sharding.apply.manual_regions import expand_for_gspmd
from shardopt.passes.sharding.apply.sharding_writer import (
    annotate_block,
    annotate_signature,
    write_partitions,
)
from shardopt.passes.sharding.partition.device_program import to_device_program


def _annotate(part: ChosenPart) -> None:
    annotate_block(part.block, part.values(), part.mesh)
    for op in numbered_operations(part.block):
        del op.attributes[STRATEGY]


def _is_plain(part: ChosenPart) -> bool:
    return part.holder.name == "func.func"


def _annotate_plain(module: ir.Module, part: ChosenPart) -> None:
    """The signature of `@main`, and for how many devices the module is meant."""
    main = part.holder
    drop_replacements(main)
    signature = read_strategy(main)
    annotate_signature(main, signature.operands, signature.results, part.mesh)
    write_partitions(module, part.mesh)
    del main.attributes[STRATEGY], main.attributes[PLAIN_MESH]


@dataclass(frozen=True)
class AnnotateShardings(Pass):
    """See the head of the file."""

    name = "shardopt-annotate-shardings"
    summary = "write the sharding of every value as the partitioner reads it"

    sharding_format: ShardingFormat = option(
        "mhlo", help="form of the shardings of a module without stages"
    )

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            parts = read_parts(module)
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        for op, requirement in filter(None, (part.unsettled() for part in parts)):
            raise pm.error(op, f"expected {requirement} (run shardopt-insert-reshards first)")
        for part in parts:
            if _is_plain(part):
                erase_step_loop(part.holder)
            if _is_plain(part) and self.sharding_format == "collectives":
                self._to_device_program(module, part, pm)
                continue
            _annotate(part)
            if _is_plain(part):
                self._finish_plain(module, part, pm)

    def _to_device_program(self, module: ir.Module, part: ChosenPart, pm: PassContext) -> None:
        drop_replacements(part.holder)
        main, kinds = part.holder, Counter[str]()

        def report(op: ir.Operation, reason: str) -> None:
            kinds[op.name] += 1
            message = f"every device runs {shown_name(op)} whole, on gathered operands: {reason}"
            pm.remark("runs-whole", op, message)

        try:
            to_device_program(module, part, report)
        except ValueError as error:
            raise pm.error(main, str(error)) from error
        pm.statistic("operations that run whole", kinds.total())

    def _finish_plain(self, module: ir.Module, part: ChosenPart, pm: PassContext) -> None:
        _annotate_plain(module, part)
        if self.sharding_format == "sdy":
            to_shardy(module, part.mesh)
            return
        expand_for_gspmd(part.holder, part.mesh)
        if any(sharding.unreduced for sharding in part.shardings.values()):
            message = (
                "values stay unreduced: only for Shardy's partitioner, GSPMD would drop their sums "
                "without a word"
            )
            pm.warning(part.holder, message)
