"""Write a `TimePlan` into a module: ops of `@main` stay, move behind the loop, or move into
`@microbatch`.

`StepReader` reads the step and keeps what the writer needs: the operation behind each op of the
graph, and the value behind each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, mpmd, stablehlo

from shardopt.extract.op_graph import GraphReader, identity_rule
from shardopt.forms.microbatched_form import MICROBATCH
from shardopt.graph.microbatching import Accumulator, BodyOp, Splat, TimePlan, View
from shardopt.graph.op_graph import Op
from shardopt.ir.rewriting import BARRIER, barrier
from shardopt.ir.splats import read_splat
from shardopt.passes.microbatches.batching import (
    Microbatch,
    blocks_type,
    combine,
    neutral,
    split_blocks,
)


class StepReader(GraphReader):
    """A graph in which an `optimization_barrier` of k values is k ops, so that each may run in its
    own place."""

    def add_ops(self, ops: Iterable[ir.Operation], *, group: int = -1, repeat: int = 1) -> None:
        for op in ops:
            if op.name != BARRIER:
                super().add_ops([op], group=group, repeat=repeat)
                continue
            for operand, result in zip(op.operands, op.results, strict=True):
                source, target = self.tensor(operand), self.tensor(result)
                rule = identity_rule(self.tensors[source].shape)
                self.handles.append(op)
                self.ops.append(Op("optimization_barrier", (source,), (target,), rule))

    def values(self) -> list[ir.Value]:
        """The value behind each tensor."""
        return list(self.index)

    def splats(self) -> dict[int, Splat]:
        """tensor -> element, for constants whose elements are all equal."""
        elements = {
            op.results[0]: read_splat(handle)
            for op, handle in zip(self.ops, self.handles, strict=True)
            if op.name == "constant"
        }
        return {tensor: value for tensor, value in elements.items() if value is not None}


class LoopWriter:
    """Rewrites `@main` (whose terminator must be intact) in place; every handle of `reader` is used
    up."""

    def __init__(
        self, module: ir.Module, main: ir.Operation, reader: StepReader, plan: TimePlan
    ) -> None:
        self.module = module
        self.block = main.regions[0].blocks[0]
        self.reader = reader
        self.plan = plan
        self.values = reader.values()
        self.loc = main.location
        self.body_values: dict[View, ir.Value] = {}

    def write(self) -> None:
        old_ops = [op.operation for op in self.block.operations]
        terminator = old_ops.pop()
        before = self._main_ops(self.plan.prologue, before_loop=True)
        after = self._main_ops(self.plan.epilogue)
        with ir.InsertionPoint(terminator), self.loc:
            captured = self._captured()
            initial = [self._initial(accumulator) for accumulator in self.plan.accumulators]
            function = self._write_body(captured, initial)
            loop = self._write_loop(function, captured, initial)
            self._read_results(loop)
        for op in after:
            op.move_before(terminator)
        kept = {*before, *after}
        # Readers first: an operation that is still used cannot be erased.
        for op in reversed(old_ops):
            if op not in kept:
                _erase(op)

    # ---- @main ----

    def _main_ops(self, indices: Sequence[int], before_loop: bool = False) -> list[ir.Operation]:
        """The operations of ops of the graph; of a barrier that runs in several places, the part
        that runs here. None runs before the loop, where there is no backward pass to wait for."""
        handles = []
        for handle, group in groupby(indices, key=lambda k: self.reader.handles[k]):
            if handle.name != BARRIER:
                handles.append(handle)
                continue
            ops = [self.reader.ops[k] for k in group]
            values = [self.values[op.operands[0]] for op in ops]
            if not before_loop or len(ops) == len(handle.results):
                handles.append(barrier(values, handle.location, ir.InsertionPoint(handle)))
                values = list(handles[-1].results)
            for op, value in zip(ops, values, strict=True):
                self.values[op.results[0]].replace_all_uses_with(value)
                self.values[op.results[0]] = value
        return handles

    def _captured(self) -> list[ir.Value]:
        whole = [self.values[tensor] for tensor in self.plan.captures]
        count = self.plan.num_microbatches
        return whole + [
            split_blocks(self.values[v.tensor], v.split, count) for v in self.plan.slices if v.split
        ]

    def _initial(self, accumulator: Accumulator) -> ir.Value:
        type_ = self.values[accumulator.view.tensor].type
        # Blocks of rows stand along a dimension of their own, so that each is stored in one piece.
        if accumulator.view.split is not None and not accumulator.reducer:
            type_ = blocks_type(type_, accumulator.view.split, self.plan.num_microbatches)
        return neutral(type_, accumulator.reducer)

    def _write_loop(
        self, callee: str, captured: Sequence[ir.Value], initial: Sequence[ir.Value]
    ) -> ir.Operation:
        types = [value.type for value in initial]
        index = ir.RankedTensorType.get([], _ui32())
        loop = mpmd.ForOp(types, initial, _counter(self.plan.num_microbatches)).operation
        block = loop.regions[0].blocks.append(*types, index, arg_locs=[self.loc] * (len(types) + 1))
        with ir.InsertionPoint(block):
            call = mpmd.CallOp(types, [*captured, *block.arguments], callee).operation
            call.attributes["call_counter"] = _counter(0)
            mpmd.ReturnOp(list(call.results))
        return loop

    def _read_results(self, loop: ir.Operation) -> None:
        """Every use outside the loop of an accumulated tensor reads the loop's result."""
        for accumulator, result in zip(self.plan.accumulators, loop.results, strict=True):
            old = self.values[accumulator.view.tensor]
            value: ir.Value = result
            if result.type != old.type:
                value = stablehlo.ReshapeOp(old.type, result).result
            old.replace_all_uses_with(value)

    # ---- @microbatch ----

    def _write_body(self, captured: Sequence[ir.Value], initial: Sequence[ir.Value]) -> str:
        results = [value.type for value in initial]
        types = [
            *(value.type for value in captured),
            *results,
            ir.RankedTensorType.get([], _ui32()),
        ]
        signature = ir.FunctionType.get(types, results)
        point = ir.InsertionPoint(self.module.body)
        function = func.FuncOp(MICROBATCH, signature, ip=point).operation
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        block = function.regions[0].blocks.append(*types, arg_locs=[self.loc] * len(types))
        arguments = list(block.arguments)
        with ir.InsertionPoint(block):
            microbatch = Microbatch(arguments[-1], self.plan.num_microbatches)
            self._bind_captured(microbatch, arguments)
            for handle, group in groupby(
                self.plan.body, key=lambda body_op: self.reader.handles[body_op.op]
            ):
                self._write_ops(microbatch, handle, list(group))
            accumulated = arguments[len(captured) : -1]
            func.ReturnOp(
                [
                    self._step(microbatch, *pair)
                    for pair in zip(self.plan.accumulators, accumulated, strict=True)
                ]
            )
        return MICROBATCH

    def _bind_captured(self, microbatch: Microbatch, arguments: Sequence[ir.Value]) -> None:
        views = [*map(View, self.plan.captures), *self.plan.slices]
        for view, argument in zip(views, arguments, strict=False):
            value = argument if view.split is None else microbatch.slice(argument, view.split)
            self.body_values[view] = value

    def _write_ops(
        self, microbatch: Microbatch, handle: ir.Operation, body_ops: Sequence[BodyOp]
    ) -> None:
        if handle.name == BARRIER:
            sources = [self._operand(microbatch, body_op.operands[0]) for body_op in body_ops]
            for body_op, value in zip(
                body_ops, barrier(sources, handle.location).results, strict=True
            ):
                self.body_values[body_op.results[0]] = value
            return
        for body_op in body_ops:
            operands = [self._operand(microbatch, view) for view in body_op.operands]
            with handle.location:
                values = microbatch.clone(
                    handle, operands, [view.split for view in body_op.results]
                )
            self.body_values.update(zip(body_op.results, values, strict=True))

    def _operand(self, microbatch: Microbatch, view: View) -> ir.Value:
        if view.estimate and view not in self.body_values:
            self.body_values[view] = microbatch.estimate(
                self.body_values[View(view.tensor)], view.estimate
            )
        return self.body_values[view]

    def _step(
        self, microbatch: Microbatch, accumulator: Accumulator, accumulated: ir.Value
    ) -> ir.Value:
        value = self.body_values[accumulator.view]
        if accumulator.reducer:
            return combine(accumulator.reducer, accumulated, value)
        return (
            value
            if accumulator.view.split is None
            else microbatch.store(accumulated, value, accumulator.view.split)
        )


def _erase(op: ir.Operation) -> None:
    """Erasing an operation that is still used would corrupt the module, so a wrong plan stops
    here."""
    if any(True for result in op.results for _ in result.uses):
        raise AssertionError(f"the plan runs {op.name} only in the body, but @main still reads it")
    op.erase()


def _ui32() -> ir.IntegerType:
    return ir.IntegerType.get_unsigned(32)


def _counter(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(_ui32(), value)
