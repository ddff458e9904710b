"""The skeleton every form from `microbatch` on has: prologue, a rolled loop that calls
`@microbatch`, epilogue.

    func @main(…) {
      prologue
      %r = mpmd.for (%init…) {…} (%acc…, %i) { %n = mpmd.call @microbatch(…) ; mpmd.return %n }
      epilogue }

`StepProgram` finds the parts and the correspondence of values across the three levels; it changes
nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import STREAMS
from shardopt.ir.rewriting import functions, symbol_name, terminator


@dataclass(frozen=True)
class StepProgram:
    """Handles into one module; valid until a native pass runs or one of the ops is erased."""

    module: ir.Module
    main: ir.Operation
    loop: ir.Operation
    call: ir.Operation
    body: ir.Operation

    @property
    def main_block(self) -> ir.Block:
        return self.main.regions[0].blocks[0]

    @property
    def body_block(self) -> ir.Block:
        return self.body.regions[0].blocks[0]

    @property
    def loop_block(self) -> ir.Block:
        return self.loop.regions[0].blocks[0]

    @property
    def num_microbatches(self) -> int:
        return ir.IntegerAttr(self.loop.attributes["iterations"]).value

    @property
    def num_streams(self) -> int:
        """Microbatches of the batch that each iteration runs, in pipelines of their own."""
        attributes = self.loop.attributes
        return ir.IntegerAttr(attributes[STREAMS]).value if STREAMS in attributes else 1

    @cached_property
    def prologue(self) -> list[ir.Operation]:
        return self._split()[0]

    @cached_property
    def epilogue(self) -> list[ir.Operation]:
        return self._split()[1]

    @cached_property
    def body_ops(self) -> list[ir.Operation]:
        return body_of(self.body_block)

    @property
    def returned(self) -> list[ir.Value]:
        """Operands of the terminator of `@main`."""
        return list(terminator(self.main_block).operands)

    @property
    def body_returned(self) -> list[ir.Value]:
        """Operands of the terminator of `@microbatch`, in the order of the call's results."""
        return list(terminator(self.body_block).operands)

    def body_result(self, number: int) -> ir.Value:
        """One of `body_returned`, for those who ask for all of them one after the other."""
        return terminator(self.body_block).operands[number]

    @cached_property
    def captured(self) -> dict[int, ir.Value]:
        """argument of `@microbatch` -> the value of `@main` that the loop captures for it."""
        local = dict.fromkeys(self.loop_block.arguments)
        return {k: v for k, v in enumerate(self.call.operands) if v not in local}

    @cached_property
    def index_argument(self) -> int | None:
        """Argument of `@microbatch` that receives the microbatch index, if the body reads it."""
        index = self.loop_block.arguments[len(self.loop_block.arguments) - 1]
        return next((k for k, v in enumerate(self.call.operands) if v == index), None)

    @cached_property
    def carried(self) -> list[tuple[int, int]]:
        """For each loop-carried value k: (argument of `@microbatch`, result of `@microbatch`) that
        continue it."""
        passed: dict[ir.Value, int] = {value: k for k, value in enumerate(self.call.operands)}
        made: dict[ir.Value, int] = {value: k for k, value in enumerate(self.call.results)}
        yielded = terminator(self.loop_block).operands
        # the last argument of the loop, the index, is not carried
        return [
            (passed[a], made[value])
            for a, value in zip(self.loop_block.arguments, yielded, strict=False)
        ]

    def _split(self) -> tuple[list[ir.Operation], list[ir.Operation]]:
        ops = body_of(self.main_block)
        at = next(k for k, op in enumerate(ops) if op == self.loop)
        return ops[:at], ops[at + 1 :]


def read_program(module: ir.Module) -> StepProgram:
    """Raises ValueError that says which part is missing."""
    by_name = {symbol_name(func): func for func in functions(module)}
    if "main" not in by_name:
        raise ValueError("expected a function @main, found none")
    main = by_name["main"]
    loops = [op for op in body_of(main.regions[0].blocks[0]) if op.name == "mpmd.for"]
    if len(loops) != 1:
        raise ValueError(
            f"expected one mpmd.for in @main (run the microbatch phase first), found {len(loops)}"
        )
    calls = [op for op in body_of(loops[0].regions[0].blocks[0]) if op.name == "mpmd.call"]
    if len(calls) != 1:
        raise ValueError(f"expected one mpmd.call in the microbatch loop, found {len(calls)}")
    callee = ir.FlatSymbolRefAttr(calls[0].attributes["callee"]).value
    if callee not in by_name:
        raise ValueError(
            f"expected a function @{callee} for the mpmd.call in the microbatch loop, found none"
        )
    return StepProgram(module, main, loops[0], calls[0], by_name[callee])


def body_of(block: ir.Block) -> list[ir.Operation]:
    """Operations of a block without its terminator."""
    return [op.operation for op in block.operations][:-1]
