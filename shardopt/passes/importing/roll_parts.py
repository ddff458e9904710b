"""Make a loop of the copies in which a step handles one part of its batch after the other.

Needs: no calls (shardopt-inline-calls). Holds afterwards: gradients that a loop of Python, or loops
that are written out, have summed over slices of the batch are summed by a `while`, which the
microbatch phase takes for its loop; so are rows of a stack whose sum is read. Copies that are not
equal, whose results are not summed, or that read each other's stay.

    %p0 = slice %x [0:4]                         %g:3 = while(%i = 0, %y = %x, %s = %zeros)
    %g0 = …%p0…                                    cond { %i < 2 } do {
    %p1 = slice %x [4:8]                 =>          %p = dynamic_slice %y, %i * 4
    %g1 = …%p1…                                      %g0 = …%p…
    %g = add %g0, %g1                                return %i + 1, %y, %s + %g0 }

What else leaves the copies is stacked, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.extract.op_graph import reads
from shardopt.extract.part_copies import PartCopies, PartSlice, find_part_copies, owner_beside
from shardopt.ir.rewriting import (
    BARRIER,
    defining,
    functions,
    past_barriers,
    replace_reads,
    shape_of,
    terminator,
)
from shardopt.ir.shapes import reshape
from shardopt.ir.splats import splat_constant
from shardopt.passes.base import Pass, PassContext


@dataclass(frozen=True)
class RollParts(Pass):
    name = "shardopt-roll-parts"
    summary = "make a loop of copies that accumulate gradients over slices of the batch"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        rolled = 0
        for function in functions(module):
            found = find_part_copies(function)
            if found is not None:
                _Roller(function, found).write()
                rolled += found.count
        pm.statistic("copies", rolled)
        if not rolled:
            pm.preserve()


class _Roller:
    def __init__(self, function: ir.Operation, found: PartCopies) -> None:
        self.found = found
        self.end = terminator(function.regions[0].blocks[0])
        self.loc = found.copies[0][0].location
        self.counter = ir.RankedTensorType.get(
            [], ir.IntegerType.get_signless(32, function.context)
        )
        # One source for all slices of equal numbers.
        first = [each for each in found.slices if each.number == 0]
        self.sources = list(dict.fromkeys(each.source for each in first))

    def write(self) -> None:
        found = self.found
        self._part_barriers()
        with ir.InsertionPoint(self.end), self.loc:
            initial = [self._zeros(number) for number in range(len(found.leaving[0]))]
            start = splat_constant(self.counter, 0)
            operands = [start, *self.sources, *initial]
            types = [value.type for value in operands]
            loop = stablehlo.WhileOp(types, operands).operation
            self._write_condition(loop.regions[0].blocks.append(*types, arg_locs=self._locs(types)))
            self._write_body(loop.regions[1].blocks.append(*types, arg_locs=self._locs(types)))
            results = list(loop.results)[1 + len(self.sources) :]
            for number, result in enumerate(results):
                self._replace(number, result)
        for op in found.behind:
            op.move_before(self.end)
        erased = [op for copy in found.copies for op in copy]
        erased += [op for each in found.sums.values() for op in each.added]
        self._erase(erased)

    def _part_barriers(self) -> None:
        """What barriers hand on that is of no part, such as the gradient of a sum of losses, is
        read in front of them: one copy reads nothing of another."""
        for copy, leaving in zip(self.found.copies, self.found.leaving, strict=True):
            inside = set(copy)
            for op in (op for op in copy if op.name == BARRIER):
                for result in op.results:
                    for use in list(result.uses) if result not in leaving else ():
                        if owner_beside(use.owner, self.end) not in inside:
                            use.owner.operation.operands[use.operand_number] = past_barriers(result)

    def _locs(self, types: Sequence[ir.Type]) -> list[ir.Location]:
        return [self.loc] * len(types)

    def _zeros(self, number: int) -> ir.Value:
        value = self.found.leaving[0][number]
        if number in self.found.sums:
            return splat_constant(self.found.sums[number].total.type, 0)
        return splat_constant(_rows(value.type, self.found.count), 0)

    def _write_condition(self, block: ir.Block) -> None:
        with ir.InsertionPoint(block):
            last = splat_constant(self.counter, self.found.count)
            goes_on = stablehlo.compare(
                block.arguments[0], last, stablehlo.ComparisonDirectionAttr.get("LT")
            )
            stablehlo.ReturnOp([goes_on])

    def _write_body(self, block: ir.Block) -> None:
        counter, *rest = block.arguments
        sources = dict(zip(self.sources, rest, strict=False))
        carried = rest[len(sources) :]
        with ir.InsertionPoint(block):
            values: dict[ir.Value, ir.Value] = {}
            parts = {each.op: each for each in self.found.slices if each.number == 0}
            for op in self.found.copies[0]:
                if op in parts:
                    values[op.results[0]] = self._part(parts[op], sources, counter)
                    continue
                _broadcast_inside(op, values)
                copy = op.clone()
                replace_reads(copy, values)
                values.update(zip(op.results, copy.results, strict=True))
            leaving = [values[value] for value in self.found.leaving[0]]
            results = [
                stablehlo.AddOp(before, reshape(value, shape_of(before))).result
                if number in self.found.sums
                else self._store(before, value, counter)
                for number, (before, value) in enumerate(zip(carried, leaving, strict=True))
            ]
            later = stablehlo.AddOp(counter, splat_constant(self.counter, 1)).result
            stablehlo.ReturnOp([later, *sources.values(), *results])

    def _part(
        self, part: PartSlice, sources: Mapping[ir.Value, ir.Value], counter: ir.Value
    ) -> ir.Value:
        zero = splat_constant(self.counter, 0)
        start = stablehlo.MulOp(counter, splat_constant(self.counter, part.size)).result
        sizes = shape_of(part.op.results[0])
        starts = [start if dim == part.dim else zero for dim in range(len(sizes))]
        return stablehlo.DynamicSliceOp(sources[part.source], starts, sizes).result

    def _store(self, rows: ir.Value, value: ir.Value, counter: ir.Value) -> ir.Value:
        zero = splat_constant(self.counter, 0)
        row = stablehlo.ReshapeOp(_rows(value.type, 1), value).result
        starts = [counter, *[zero] * len(shape_of(value))]
        return stablehlo.DynamicUpdateSliceOp(rows, row, starts).result

    def _replace(self, number: int, result: ir.Value) -> None:
        """Who has read the sum, or what each of the copies made, reads what the loop has left."""
        total = self.found.sums.get(number)
        if total is not None:
            if total.start is not None:
                result = stablehlo.AddOp(total.start, result).result
            total.total.replace_all_uses_with(result)
            return
        for part in range(self.found.count):
            value = self.found.leaving[part][number]
            shape = shape_of(value)
            row = stablehlo.SliceOp(
                result, [part, *[0] * len(shape)], [part + 1, *shape], [1] * (1 + len(shape))
            ).result
            value.replace_all_uses_with(stablehlo.ReshapeOp(value.type, row).result)

    @staticmethod
    def _erase(ops: Sequence[ir.Operation]) -> None:
        """Readers first, which may stand in any copy."""
        pending = list(ops)
        while pending:
            kept = []
            for op in reversed(pending):
                if any(True for result in op.results for _ in result.uses):
                    kept.append(op)
                else:
                    op.erase()
            assert len(kept) < len(pending), "what is read elsewhere has been replaced"
            pending = kept[::-1]


def _broadcast_inside(op: ir.Operation, values: dict[ir.Value, ir.Value]) -> None:
    """Copy broadcasts that all parts share, such as those of a bias, to the loop: outside they hold
    memory for all of it, and hide that what is computed again of the bias itself is the same."""
    for value in reads(op):
        maker = defining(value, "stablehlo.broadcast_in_dim")
        if value not in values and maker is not None:
            values[value] = maker.clone().results[0]


def _rows(type_: ir.Type, count: int) -> ir.RankedTensorType:
    tensor = ir.RankedTensorType(type_)
    return ir.RankedTensorType.get([count, *tensor.shape], tensor.element_type)
