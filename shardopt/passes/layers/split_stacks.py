"""Give every layer weights of its own, where one argument has those of several: rows of a stack, as
a scan over layers reads them, become arguments.

Needs the microbatched form. Holds afterwards: of such arguments, and of all state that is replaced
row by row with them, each part is an argument, replaced by a result (`shardopt.part` says which
part of which argument it is). Operations of prologue and epilogue that were on stacks are on parts.

    %w0 = slice %stack [0:1]                     @main(%s0, …, %s1)
    %w1 = slice %stack [1:2]                       call @microbatch(%s0, %s1)
    call @microbatch(%w0, %w1)             =>      %n0 = subtract %s0, %g0
    %new = subtract %stack, (%g0 ++ %g1)           %n1 = subtract %s1, %g1
    return %new, …                                 return %n0, …, %n1

An argument lies on the mesh of one stage. So a stack would lie there with the state of all layers,
its rows be sent to the others in every step, and their gradients back."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.program import read_program
from shardopt.extract.layered_rows import read_by_layers
from shardopt.extract.op_graph import sharding_rules
from shardopt.extract.stacked_rows import find_stacks
from shardopt.ir.diagnostics import position_of
from shardopt.passes.base import Pass, PassContext, option
from shardopt.passes.layers.row_forms import plain_rows
from shardopt.passes.layers.stack_parts import StackWriter


@dataclass(frozen=True)
class SplitStacks(Pass):
    """See the head of the file."""

    name = "shardopt-split-stacks"
    summary = "make an argument of each row of stacked weights that layers read one by one"

    max_parts: int = option(128, help="arguments of more parts stay whole")

    def __post_init__(self) -> None:
        if self.max_parts < 1:
            raise ValueError(f"max-parts: expected at least 1, found {self.max_parts}")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            program = read_program(module)
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        rewritten = plain_rows(program.prologue)
        program = read_program(module)  # without handles to what is erased
        arguments = parts = 0
        # Rules of all operations are read only where they are needed.
        if read := read_by_layers(program):
            rewritten += plain_rows(program.epilogue)
            program = read_program(module)
            with sharding_rules(module):
                stacks = find_stacks(program, read, self.max_parts)
                inner = program.main_block.arguments
                for number, reason in stacks.whole.items():
                    name = position_of(inner[number]).name or f"argument {number}"
                    message = f"the rows of {name} that layers read stay in one argument: {reason}"
                    pm.remark("whole-stack", inner[number], message)
                arguments = len(stacks.arguments)
                parts = sum(stacks.parts(inner[number]) for number in stacks.arguments)
                StackWriter(program, stacks).write()
        pm.statistic("arguments", arguments)
        pm.statistic("parts", parts)
        if not arguments and not rewritten:
            pm.preserve()
