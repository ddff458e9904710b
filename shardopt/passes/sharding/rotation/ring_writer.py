"""One turn of keys as a manual region with a loop of permutes.

    %o, … = sdy.manual_computation(%q, %k, %v, …) … {
      %1 = while (step, key block, %k, %v, sums) … { sums += those of this block
                                                    %k, %v = collective_permute to the next device }
      … the last block, for which nothing is sent; sums over rows are sent home …
      sdy.return %o, … }

A permute and the block that is computed meanwhile do not wait for each other; sums over rows, which
go round with their keys, are sent when they are added to."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from shardopt.dialect.manual import MANUAL, ManualRegion, create_region
from shardopt.extract.op_graph import GraphReader
from shardopt.ir.splats import splat_constant
from shardopt.mesh.mesh import Sharding
from shardopt.passes.sharding.partition.builder import converted, make
from shardopt.passes.sharding.rotation.block_writer import BlockWriter, Key, broadcast
from shardopt.passes.sharding.rotation.layout import Dims, RingLayout
from shardopt.solve.presets.ring_passes import BlockSum, RingAnalysis, RingPass

_CHANNEL = "#stablehlo.channel_handle<handle = 1, type = 1>"
_NARROW = frozenset({"bf16", "f16"})
Sums = dict[int, ir.Value]  # by operation


class RingWriter:
    """Writes one turn."""

    def __init__(
        self, reader: GraphReader, analysis: RingAnalysis, layout: RingLayout, turn: RingPass
    ) -> None:
        self.analysis, self.layout, self.turn = analysis, layout, turn
        self.graph = analysis.graph
        self._shell = ir.Operation.create(MANUAL, [], [], regions=1)
        self.region = self._shell.regions[0].blocks.append()
        self.blocks = BlockWriter(reader, analysis, layout, self.region)
        self.blocks.level = turn.level
        self.pairs = layout.neighbours()

    def write(self, anchor: ir.Operation) -> ir.Operation:
        """The region, before `anchor`, with a result for each sum of the turn. Raises
        Unsplittable."""
        with anchor.location:
            moving = self._find_moving()
            with ir.InsertionPoint(self.region):
                sums = self._loop(moving)
                results = self._finished(sums)
                ir.Operation.create("sdy.return", [], results)
            with ir.InsertionPoint(anchor):
                return self._region()

    # ---- the loop ----

    def _find_moving(self) -> list[Key]:
        """What goes round: found by writing a block that nobody keeps."""
        scratch = ir.Operation.create(MANUAL, [], [], regions=1)
        with ir.InsertionPoint(scratch.regions[0].blocks.append()):
            self.blocks.begin({}, self._number(0), {})
            self._add_block(self._neutral())
        return [key for key in self.blocks.captured if "keys" in key[1]]

    def _loop(self, moving: Sequence[Key]) -> Sums:
        """All blocks but the last in a loop."""
        sums, ops = self._neutral(), [each.op for each in self.turn.sums]
        start = self.blocks.position("rows")
        here = [self.blocks.captured[key] for key in moving]
        entering = [self._number(0), start, *here, *(sums[op] for op in ops)]
        types = [value.type for value in entering]
        loop = make("while", types, entering, regions=2)
        for region in loop.regions:
            region.blocks.append(*types)
        with ir.InsertionPoint(loop.regions[0].blocks[0]) as point:
            flag = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
            step = point.block.arguments[0]
            direction = ir.Attribute.parse("#stablehlo<comparison_direction LT>")
            last = self._number(self.layout.size - 1)
            more = make("compare", [flag], [step, last], comparison_direction=direction)
            make("return", [], [more.result])
        with ir.InsertionPoint(loop.regions[1].blocks[0]) as point:
            step, block, *values = point.block.arguments
            there, added = self._step(moving, block, values)
            following = make("add", [step.type], [step, self._number(1)]).result
            make("return", [], [following, self._before(block), *there, *added.values()])
        _, last_block, *left = loop.results
        return self._step(moving, last_block, left, last=True)[1]

    def _step(
        self, moving: Sequence[Key], block: ir.Value, values: Sequence[ir.Value], last: bool = False
    ) -> tuple[list[ir.Value], Sums]:
        """The values that go round as the next device has them, and the sums."""
        here, carried = values[: len(moving)], values[len(moving) :]
        there = [] if last else [self._sent(value) for value in here]
        self.blocks.begin(dict(zip(moving, here, strict=True)), block, {})
        ops = [each.op for each in self.turn.sums]
        sums = self._add_block(dict(zip(ops, carried, strict=True)))
        at_home = {e.op: self._sent(sums[e.op]) for e in self.turn.sums if e.over == "rows"}
        return there, {**sums, **at_home}

    def _sent(self, value: ir.Value) -> ir.Value:
        channel = ir.Attribute.parse(_CHANNEL)
        return make(
            "collective_permute",
            [value.type],
            [value],
            source_target_pairs=self.pairs,
            channel_handle=channel,
        ).result

    def _before(self, block: ir.Value) -> ir.Value:
        """Keys come from the device before: theirs is the block before."""
        count = self.layout.size
        raised = make("add", [block.type], [block, self._number(count - 1)]).result
        return make("remainder", [block.type], [raised, self._number(count)]).result

    @staticmethod
    def _number(value: int) -> ir.Value:
        return splat_constant(ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)), value)

    # ---- sums ----

    def _dims(self, op: int) -> Dims:
        rule = self.graph.ops[op].rule
        assert rule is not None
        return self.layout.dims(rule, rule.results[0], self.layout.roles(op))

    def _type(self, each: BlockSum) -> ir.RankedTensorType:
        """Of a sum: products of short floats are added up in f32."""
        op = self.graph.ops[each.op]
        type_ = self.blocks.type(op.results[0], self._dims(each.op))
        narrow = op.name == "dot_general" and str(type_.element_type) in _NARROW
        return ir.RankedTensorType.get(type_.shape, ir.F32Type.get()) if narrow else type_

    def _neutral(self) -> Sums:
        return {
            each.op: splat_constant(
                self._type(each),
                float("-inf") if self.graph.ops[each.op].reducer == "maximum" else 0.0,
            )
            for each in self.turn.sums
        }

    def _add_block(self, sums: Sums) -> Sums:
        """The sums with those of the block that is here."""
        factors, added = {}, dict(sums)
        maxima = {shift.maximum for shift in self.turn.shifts.values()}
        ordered = sorted(self.turn.sums, key=lambda each: (each.op not in maxima, each.op))
        for each in ordered:
            if each.op in maxima:
                added[each.op] = self._added(each, sums[each.op])
        for exponential, shift in sorted(self.turn.shifts.items()):
            factors[exponential] = self._shift(shift.row, shift.maximum, sums, added)
        for each in ordered:
            if each.op in maxima:
                continue
            before = sums[each.op]
            if each.op in self.turn.rescaled:
                exponential = self.turn.rescaled[each.op]
                row = self.turn.shifts[exponential].row
                dims = self.analysis.rows_to[row][each.op]
                factor = broadcast(factors[exponential], dims, before.type)
                before = make("multiply", [before.type], [before, factor]).result
            added[each.op] = self._added(each, before)
        return added

    def _shift(self, row: int, maximum: int, before: Sums, after: Sums) -> ir.Value:
        """Shift by what follows from the maximum so far; the factor by which sums shrink. Rows that
        have seen nothing but -infinity are not shifted: infinities must not meet."""
        old = self._row(row, maximum, before[maximum])
        new = self._row(row, maximum, after[maximum])
        type_ = new.type
        lowest, zero = splat_constant(type_, float("-inf")), splat_constant(type_, 0.0)
        flags = ir.RankedTensorType.get(
            ir.RankedTensorType(type_).shape, ir.IntegerType.get_signless(1)
        )
        direction = ir.Attribute.parse("#stablehlo<comparison_direction EQ>")
        empty = make("compare", [flags], [new, lowest], comparison_direction=direction).result
        safe = make("select", [type_], [empty, zero, new]).result
        self.blocks.known[row] = safe
        shrunk = make("subtract", [type_], [old, safe]).result
        return make("exponential", [type_], [shrunk]).result

    def _row(self, row: int, maximum: int, value: ir.Value) -> ir.Value:
        """A value of rows as it follows from a maximum."""
        blocks = self.blocks
        known, blocks.known = blocks.known, {self.graph.ops[maximum].results[0]: value}
        made, blocks._made = blocks._made, {}
        result = blocks.value(row, self._row_dims(row))
        blocks.known, blocks._made = known, made
        return result

    def _row_dims(self, row: int) -> Dims:
        maker = self.analysis.makers[row]
        op = self.graph.ops[maker]
        assert op.rule is not None
        roles = self.layout.roles(maker)
        return self.layout.dims(op.rule, op.rule.results[op.results.index(row)], roles)

    def _added(self, each: BlockSum, before: ir.Value) -> ir.Value:
        op = self.graph.ops[each.op]
        assert op.rule is not None
        place = op.operands.index(each.value)
        roles = self.layout.roles(each.op)
        value = self._core(each.value, self.layout.dims(op.rule, op.rule.operands[place], roles))
        part = self.blocks.copied(each.op, roles, {each.value: value})
        part.set_type(before.type)
        name = "maximum" if op.reducer == "maximum" else "add"
        return make(name, [before.type], [before, part]).result

    def _core(self, tensor: int, dims: Dims) -> ir.Value:
        """A block without what scales its rows behind the turn."""
        step = self.analysis.step(tensor)
        late = self.analysis.levels[tensor] > self.turn.level
        if not late or step is None:
            return self.blocks.value(tensor, dims)
        inner, _, row = step
        value = self._core(inner, dims)
        if row is not None:
            return value
        maker = self.analysis.makers[tensor]
        roles = self.layout.roles(maker)
        wide = converted(value, ir.RankedTensorType(self.blocks.values[inner].type).element_type)
        return self.blocks.copied(maker, roles, {inner: wide})

    def _finished(self, sums: Sums) -> list[ir.Value]:
        """The results: with what scales their rows, in their own type."""
        known = {self.graph.ops[op].results[0]: value for op, value in sums.items()}
        results = []
        for each in self.turn.sums:
            value = sums[each.op]
            for name, row in each.scales:
                self.blocks.begin({}, None, known)
                factor = self.blocks.value(row, self._row_dims(row))
                wide = broadcast(factor, self.analysis.rows_to[row][each.op], value.type)
                value = make(name, [value.type], [value, wide]).result
            element = ir.RankedTensorType(
                self.blocks.values[self.graph.ops[each.op].results[0]].type
            ).element_type
            results.append(converted(value, element))
        return results

    # ---- the region ----

    def _region(self) -> ir.Operation:
        blocks, layout = self.blocks, self.layout
        arguments: dict[ir.Value, tuple[ir.Value, Sharding]] = {}
        for (tensor, dims), argument in blocks.captured.items():
            arguments[argument] = blocks.values[tensor], layout.sharding(dims)
        for role, argument in blocks.positions.items():
            number = ir.IntegerType.get_signless(32)
            type_ = ir.RankedTensorType.get([layout.tiles(role)], number)
            dimension = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
            numbers = make("iota", [type_], iota_dimension=dimension).result
            arguments[argument] = numbers, layout.sharding((role,))
        operands = [arguments[argument] for argument in self.region.arguments]
        ops = [each.op for each in self.turn.sums]
        results = [blocks.values[self.graph.ops[op].results[0]].type for op in ops]
        mesh = layout.mesh
        region = ManualRegion(
            mesh.axes,
            mesh.axis_names,
            tuple(sharding for _, sharding in operands),
            tuple(layout.sharding(self._dims(each)) for each in ops),
        )
        op = create_region(region, [value for value, _ in operands], results)
        self.region.append_to(op.regions[0])
        return op
