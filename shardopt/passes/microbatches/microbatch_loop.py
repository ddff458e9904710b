"""Write a `TimePlan` into a module: ops of `@main` stay, move behind the loop, or move into
`@microbatch`.

`StepReader` reads the step and keeps what the writer needs: the operation behind each op of the
graph, and the value behind each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from shardopt.dialect.manual import MANUAL
from shardopt.extract.manual_regions import device_numbers
from shardopt.extract.op_graph import GraphReader, free_values, identity_rule
from shardopt.extract.row_loops import ends_row_by_row
from shardopt.extract.segments import with_segments
from shardopt.graph.microbatching import (
    Accumulator,
    BodyOp,
    RegionPlan,
    Splat,
    TimePlan,
    View,
)
from shardopt.graph.op_graph import Op, Region
from shardopt.ir.loops import CONTROL_FLOW, WHILE
from shardopt.ir.rewriting import BARRIER, barrier, terminator
from shardopt.ir.splats import read_splat
from shardopt.passes.microbatches.batching import (
    Microbatch,
    blocks_type,
    combine,
    neutral,
    split_blocks,
    sum_type,
)
from shardopt.passes.microbatches.loop_frame import write_for, write_function


@dataclass
class StepReader(GraphReader):
    """A graph in which an `optimization_barrier` of k values is k ops, so that each may run in its
    own place, and in which loops, branches and manual regions have their regions; `inside` are the
    readers of those, by the number of the op."""

    inside: dict[int, tuple[StepReader, ...]] = field(default_factory=dict)

    def add_ops(self, ops: Iterable[ir.Operation], *, group: int = -1, repeat: int = 1) -> None:
        for op in ops:
            if op.name != BARRIER:
                super().add_ops([op], group=group, repeat=repeat)
                self.ops[-1] = with_segments(self.ops[-1], op)
                if op.name in (*CONTROL_FLOW, MANUAL):
                    self._add_regions(op)
                continue
            for operand, result in zip(op.operands, op.results, strict=True):
                source, target = self.tensor(operand), self.tensor(result)
                rule = identity_rule(self.tensors[source].shape)
                self.handles.append(op)
                self.ops.append(Op("optimization_barrier", (source,), (target,), rule))

    def _add_regions(self, op: ir.Operation) -> None:
        number, captured = len(self.ops) - 1, free_values(op)
        readers: list[StepReader] = []
        regions: list[Region] = []
        by_rows = op.name == WHILE and ends_row_by_row(op)
        for block in (region.blocks[0] for region in op.regions):
            reader = StepReader()
            for value in (*block.arguments, *captured):
                reader.tensor(value)
            *body, end = (view.operation for view in block.operations)
            reader.add_ops(body)
            graph = reader.graph(map(reader.tensor, end.operands))
            readers.append(reader)
            numbers = device_numbers(op) if op.name == MANUAL else {}
            regions.append(
                Region(
                    graph,
                    len(block.arguments),
                    len(op.operands),
                    reader.splats(),
                    reader.counts(),
                    {reader.tensor(value): axes for value, axes in numbers.items()},
                    by_rows and not regions,
                )
            )
        self.inside[number] = tuple(readers)
        self.ops[number] = replace(self.ops[number], regions=tuple(regions))

    def handle(self, op: int, regions: Sequence[tuple[int, int]] = ()) -> ir.Operation:
        """The operation behind an op of the graph that `regions` lead to: (op, number of its
        region), the outermost first."""
        reader = self
        for outer, number in regions:
            reader = reader.inside[outer][number]
        return reader.handles[op]

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

    def counts(self) -> dict[int, int]:
        """tensor -> dimension, for iotas."""
        return {
            op.results[0]: ir.IntegerAttr(handle.attributes["iota_dimension"]).value
            for op, handle in zip(self.ops, self.handles, strict=True)
            if op.name == "iota"
        }


class LoopWriter:
    """Rewrites `@main` (whose terminator must be intact) in place; every handle of `reader` is used
    up. With `sums_wide` sums of narrow numbers are kept in f32."""

    def __init__(
        self,
        module: ir.Module,
        main: ir.Operation,
        reader: StepReader,
        plan: TimePlan,
        sums_wide: bool,
    ) -> None:
        self.module = module
        self.block = main.regions[0].blocks[0]
        self.reader = reader
        self.plan = plan
        self.values = reader.values()
        self.loc = main.location
        self.sums_wide = sums_wide and plan.num_microbatches > 1

    def write(self) -> None:
        old_ops = [op.operation for op in self.block.operations]
        terminator = old_ops.pop()
        before = self._main_ops(self.plan.prologue, before_loop=True)
        after = self._main_ops(self.plan.epilogue)
        with ir.InsertionPoint(terminator), self.loc:
            captured = self._captured()
            initial = [self._initial(accumulator) for accumulator in self.plan.accumulators]
            self._write_body(captured, initial)
            loop = write_for(captured, initial, self.plan.num_microbatches, self.loc)
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
        if self.sums_wide and accumulator.reducer == "add":
            type_ = sum_type(type_)
        return neutral(type_, accumulator.reducer)

    def _read_results(self, loop: ir.Operation) -> None:
        """Every use outside the loop of an accumulated tensor reads the loop's result."""
        for accumulator, result in zip(self.plan.accumulators, loop.results, strict=True):
            old = self.values[accumulator.view.tensor]
            value: ir.Value = result
            if accumulator.reducer and result.type != old.type:
                value = stablehlo.ConvertOp(old.type, result).result
            elif result.type != old.type:
                value = stablehlo.ReshapeOp(old.type, result).result
            old.replace_all_uses_with(value)

    # ---- @microbatch ----

    def _write_body(self, captured: Sequence[ir.Value], initial: Sequence[ir.Value]) -> None:
        block = write_function(self.module, captured, initial, self.loc)
        arguments = list(block.arguments)
        with ir.InsertionPoint(block):
            microbatch = Microbatch(arguments[-1], self.plan.num_microbatches)
            body = _BodyWriter(microbatch, self.reader, self._entering(microbatch, arguments))
            body.write(self.plan.body)
            accumulated = arguments[len(captured) : -1]
            func.ReturnOp(
                [
                    _step(microbatch, accumulator, value, body.value(accumulator.view))
                    for accumulator, value in zip(self.plan.accumulators, accumulated, strict=True)
                ]
            )

    def _entering(
        self, microbatch: Microbatch, arguments: Sequence[ir.Value]
    ) -> dict[View, ir.Value]:
        views = [*map(View, self.plan.captures), *self.plan.slices]
        return {
            view: argument if view.split is None else microbatch.slice(argument, view.split)
            for view, argument in zip(views, arguments, strict=False)
        }


@dataclass(frozen=True)
class _BodyWriter:
    """Writes operations of the body, or of a region inside of it, at the insertion point; `values`
    holds what there is, by the view of it."""

    microbatch: Microbatch
    reader: StepReader
    values: dict[View, ir.Value]

    def write(self, body_ops: Sequence[BodyOp]) -> None:
        for handle, group in groupby(body_ops, key=lambda body_op: self.reader.handles[body_op.op]):
            if handle.name == BARRIER:
                self._write_barrier(handle, list(group))
                continue
            for body_op in group:
                with handle.location:
                    values = self._write_op(handle, body_op)
                self.values.update(zip(body_op.results, values, strict=True))

    def value(self, view: View) -> ir.Value:
        """Raises KeyError for what the body ops do not make."""
        if view in self.values:
            return self.values[view]
        whole = self.values[View(view.tensor)]
        if view.estimate:
            self.values[view] = self.microbatch.estimate(whole, view.estimate)
        else:
            assert view.split is not None
            blocks = split_blocks(whole, view.split, self.microbatch.count)
            self.values[view] = self.microbatch.slice(blocks, view.split)
        return self.values[view]

    def _write_barrier(self, handle: ir.Operation, body_ops: Sequence[BodyOp]) -> None:
        sources = [self.value(body_op.operands[0]) for body_op in body_ops]
        copies = barrier(sources, handle.location).results
        for body_op, value in zip(body_ops, copies, strict=True):
            self.values[body_op.results[0]] = value

    def _write_op(self, handle: ir.Operation, body_op: BodyOp) -> Sequence[ir.Value]:
        operands = [self.value(view) for view in body_op.operands]
        splits = [view.split for view in body_op.results]
        if not body_op.regions:
            return self.microbatch.clone(handle, operands, splits)
        types = [
            self.microbatch.block_type(result.type, split)
            for result, split in zip(handle.results, splits, strict=True)
        ]
        op = ir.Operation.create(
            handle.name,
            types,
            operands[: len(handle.operands)],
            {name: handle.attributes[name] for name in handle.attributes},
            regions=len(handle.regions),
        )
        readers = self.reader.inside[body_op.op]
        for number, (reader, plan) in enumerate(zip(readers, body_op.regions, strict=True)):
            self._write_region(handle.regions[number], op.regions[number], reader, plan)
        return list(op.results)

    def _write_region(
        self, before: ir.Region, after: ir.Region, reader: StepReader, plan: RegionPlan
    ) -> None:
        arguments, end = before.blocks[0].arguments, terminator(before.blocks[0])
        types = [
            self.microbatch.block_type(argument.type, view.split)
            for argument, view in zip(arguments, plan.arguments, strict=True)
        ]
        block = after.blocks.append(*types, arg_locs=[end.location] * len(types))
        values = {inner: self.value(outer) for inner, outer in plan.captures}
        values.update(zip(plan.arguments, block.arguments, strict=True))
        body = _BodyWriter(self.microbatch, reader, values)
        with ir.InsertionPoint(block):
            body.write(plan.body)
            results = [body.value(view) for view in plan.results]
            ir.Operation.create(end.name, [], results, loc=end.location)


def _step(
    microbatch: Microbatch, accumulator: Accumulator, accumulated: ir.Value, value: ir.Value
) -> ir.Value:
    if microbatch.count == 1:  # the sum is its one term, and the only block is all
        same = value.type == accumulated.type
        return value if same else stablehlo.ReshapeOp(accumulated.type, value).result
    if accumulator.reducer:
        if value.type != accumulated.type:
            value = stablehlo.ConvertOp(accumulated.type, value).result
        return combine(accumulator.reducer, accumulated, value)
    split = accumulator.view.split
    return value if split is None else microbatch.store(accumulated, value, split)


def _erase(op: ir.Operation) -> None:
    """Erasing an operation that is still used would corrupt the module, so a wrong plan stops
    here."""
    if any(True for result in op.results for _ in result.uses):
        raise AssertionError(f"the plan runs {op.name} only in the body, but @main still reads it")
    op.erase()
