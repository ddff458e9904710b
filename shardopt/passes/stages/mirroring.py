"""Write a microbatch loop that runs two microbatches an iteration, the second one in layers and
stages of its own (`shardopt-mirror-stages`).

What the loop carries is a sum, or rows that each microbatch writes one of: both can be made in two
halves. Of values without either the last microbatch decides, which is in the second half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from shardopt.dialect.attributes import i64
from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.mpmd import (
    IN_FLIGHT,
    LAYER,
    STREAMS,
    read_methods,
    write_methods,
)
from shardopt.dialect.program import StepProgram
from shardopt.dialect.stages import PlacedStage, write_stages
from shardopt.extract.accumulation import COMBINERS
from shardopt.graph.op_graph import SHARED
from shardopt.ir.rewriting import defining, shape_of
from shardopt.ir.splats import read_splat, splat_constant
from shardopt.passes.microbatches.batching import combine, neutral
from shardopt.passes.microbatches.loop_frame import write_for, write_function
from shardopt.passes.stages.outlining import clone_into
from shardopt.schedule.schedules import model_in_flight
from shardopt.support.errors import UserError

_SCHEDULE = "chimera"
_STREAMS = 2
_READ, _WRITE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"


class Unmirrored(Exception):
    """What cannot run in two halves of the batch, and why."""

    def __init__(self, at: ir.Operation, reason: str) -> None:
        super().__init__(f"two pipelines take one half of the microbatches each: {reason}")
        self.at = at


def mirror(program: StepProgram, stages: Sequence[PlacedStage]) -> int:
    """Rewrite `@main` and `@microbatch` of the placed form; how many operations were copied. The
    handles of `program` are used up.

    Raises UserError for stages that have no mirror image and for an odd number of microbatches, and
    Unmirrored for what the loop carries if it has no halves."""
    count = len(stages)
    if count % 2 or len({stage.mesh for stage in stages}) < count:
        homes = ", ".join(stage.mesh for stage in stages)
        raise UserError(
            "two pipelines over the same meshes: expected an even number of stages, each on a mesh "
            f"of its own, found {count} on meshes {homes}"
        )
    in_flight = model_in_flight(_SCHEDULE, count, program.num_microbatches)
    methods = read_methods(program.loop, count)
    main, copied = program.main, len(program.body_ops)
    loop = _Mirror(program, 1 + stages[-1].last).write()
    write_stages(main, [*stages, *_images(stages)])
    loop.attributes[IN_FLIGHT] = ir.DenseI64ArrayAttr.get(list(in_flight))
    # Of a mesh there is one method: that of its first stage.
    write_methods(loop, [*methods, *reversed(methods)])
    loop.attributes[STREAMS] = i64(_STREAMS)
    return copied


def _images(stages: Sequence[PlacedStage]) -> list[PlacedStage]:
    layers = 1 + stages[-1].last
    return [
        replace(stage, first=layers + stage.first, last=layers + stage.last, mesh=other.mesh)
        for stage, other in zip(stages, reversed(stages), strict=True)
    ]


@dataclass(frozen=True)
class _Carried:
    """A value that the loop carries, by the numbers of its argument and result of `@microbatch`.
    With a `reducer` it is a sum, with `rows` each microbatch writes a row along that dimension;
    with neither it is what the last microbatch makes."""

    argument: int
    result: int
    reducer: str = ""
    rows: int | None = None


@dataclass
class _Mirror:
    program: StepProgram
    num_layers: int
    half: int = field(init=False)
    index: ir.Value | None = field(init=False)

    def __post_init__(self) -> None:
        program = self.program
        number = program.index_argument
        self.half = program.num_microbatches // _STREAMS
        self.arguments = list(program.body_block.arguments)
        self.index = None if number is None else self.arguments[number]
        self.carried = [self._carried(*pair) for pair in program.carried]
        self.reads = {op: row for op in program.body_ops if (row := self._row_read(op)) is not None}

    def write(self) -> ir.Operation:
        """The new loop."""
        program, old = self.program, self.program.loop
        with ir.InsertionPoint(old), old.location:
            # Captured values as a whole, then the halves of those of which rows are read.
            whole = [k for k in program.captured if self._is_read_as_a_whole(k)]
            rows = list(dict.fromkeys(self.reads.values()))
            halves = [self._halves(program.captured[k], dim) for k, dim in rows]
            captured = [program.captured[k] for k in whole]
            captured += [value for pair in halves for value in pair]
            inits = [self._initial(each) for each in self.carried]
            initial = [value for pair in inits for value in pair]
            block = write_function(program.module, captured, initial, program.body.location)
            new: list[ir.Value] = list(block.arguments)
            position = len(whole) + _STREAMS * len(rows)
            carried = new[position:-1]
            results: list[list[ir.Value]] = []
            for copy in range(_STREAMS):
                values: dict[ir.Value, ir.Value] = dict(
                    zip((self.arguments[k] for k in whole), new, strict=False)
                )
                values.update(
                    (self.arguments[each.argument], carried[_STREAMS * k + copy])
                    for k, each in enumerate(self.carried)
                )
                of_rows = {row: new[len(whole) + _STREAMS * k + copy] for k, row in enumerate(rows)}
                results.append(self._copy(copy, block, new[-1], values, of_rows))
            pairs = zip(*results, strict=True)
            func.ReturnOp([v for pair in pairs for v in pair], ip=ir.InsertionPoint(block))
            loop = write_for(captured, initial, self.half, old.location)
            ends = list(loop.results)
            for k, each in enumerate(self.carried):
                joined = self._join(each, ends[_STREAMS * k : _STREAMS * (k + 1)])
                old.results[k].replace_all_uses_with(joined)
        for name in old.attributes:
            if name != "iterations":
                loop.attributes[name] = old.attributes[name]
        old.erase()
        program.body.erase()
        return loop

    # ---- what the loop carries ----

    def _carried(self, argument: int, result: int) -> _Carried:
        program, value = self.program, self.arguments[argument]
        out = program.body_result(result)
        readers = [use.owner.operation for use in value.uses]
        maker = defining(out)
        if not readers and maker is not None:
            return _Carried(argument, result)
        if maker is not None and readers == [maker]:
            if maker.name in COMBINERS:
                return _Carried(argument, result, maker.name.removeprefix("stablehlo."))
            dim = self._row_of(maker, shape_of(maker.operands[1]), first_start=2)
            if maker.name == _WRITE and dim is not None:
                return _Carried(argument, result, rows=dim)
        raise Unmirrored(
            maker or program.loop,
            f"expected what the loop carries to be sums, or rows of microbatches, found value "
            f"{result} to be neither",
        )

    def _initial(self, carried: _Carried) -> tuple[ir.Value, ...]:
        value = self.program.call.operands[carried.argument]
        start = self.program.loop.operands[ir.BlockArgument(value).arg_number]
        if carried.rows is not None:
            return self._halves(start, carried.rows)
        if not carried.reducer:
            return start, start
        return start, _in_layer(neutral(start.type, carried.reducer), SHARED)

    def _join(self, carried: _Carried, ends: Sequence[ir.Value]) -> ir.Value:
        maker = defining(self.program.body_result(carried.result))
        assert maker is not None  # else it would not be carried
        layer = _layer(maker)
        if carried.reducer:
            return _in_layer(combine(carried.reducer, *ends), layer)
        if carried.rows is not None:
            return _in_layer(stablehlo.ConcatenateOp(ends, carried.rows).result, layer)
        return ends[-1]

    # ---- rows of microbatches ----

    def _row_of(self, op: ir.Operation, sizes: Sequence[int], first_start: int) -> int | None:
        """The dimension of the first operand along which `op` is about the row of its
        microbatch."""
        if op.name not in (_READ, _WRITE):
            return None
        extents = shape_of(op.operands[0])
        for dim, start in enumerate(list(op.operands)[first_start:]):
            rows = sizes[dim] == 1 and extents[dim] == self.program.num_microbatches
            if rows and self._is_index(start):
                return dim
        return None

    def _row_read(self, op: ir.Operation) -> tuple[int, int] | None:
        """(argument, dimension) of which `op` takes the row of its microbatch."""
        if op.name != _READ or defining(op.operands[0]) is not None:
            return None
        number = ir.BlockArgument(op.operands[0]).arg_number
        sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
        dim = self._row_of(op, sizes, first_start=1)
        return None if dim is None or number not in self.program.captured else (number, dim)

    def _is_index(self, value: ir.Value) -> bool:
        while (maker := defining(value, "stablehlo.convert")) is not None:
            value = maker.operands[0]
        return self.index is not None and value == self.index

    def _is_read_as_a_whole(self, argument: int) -> bool:
        uses = self.arguments[argument].uses
        return any(use.owner.operation not in self.reads for use in uses)

    def _halves(self, value: ir.Value, dim: int) -> tuple[ir.Value, ...]:
        """The rows of the first microbatches, and of the others, in the layer of `value`."""
        shape, maker = list(shape_of(value)), defining(value)
        shape[dim] = self.half
        type_ = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
        constant = defining(value, "stablehlo.constant")
        splat = None if constant is None else read_splat(constant)
        if splat is not None:
            return tuple(_in_layer(splat_constant(type_, splat), SHARED) for _ in range(_STREAMS))
        if maker is not None:
            layer = _layer(maker)
        else:
            attributes = argument_attributes(self.program.main)
            layer = ir.IntegerAttr(attributes[ir.BlockArgument(value).arg_number][LAYER]).value
        parts = []
        for copy in range(_STREAMS):
            starts = [copy * self.half if k == dim else 0 for k in range(len(shape))]
            ends = [start + size for start, size in zip(starts, shape, strict=True)]
            part = stablehlo.SliceOp(value, starts, ends, [1] * len(shape)).result
            parts.append(_in_layer(part, layer))
        return tuple(parts)

    # ---- the body ----

    def _copy(
        self,
        copy: int,
        block: ir.Block,
        index: ir.Value,
        values: dict[ir.Value, ir.Value],
        rows: dict[tuple[int, int], ir.Value],
    ) -> list[ir.Value]:
        """The operations of one microbatch; what they return. `values` are what they read instead
        of the old arguments, `rows` the halves that rows are read of."""
        point = ir.InsertionPoint(block)
        if self.index is not None:
            values[self.index] = index
        own_rows = dict(values)
        if self.index is not None and copy:
            values[self.index] = self._later(index, point)
        writes = {
            defining(self.program.body_result(each.result))
            for each in self.carried
            if each.rows is not None
        }
        for op in self.program.body_ops:
            about_row = op in self.reads or op in writes
            read = dict(values)
            if about_row:
                # The row of a half has the number of the iteration.
                starts = 1 if op in self.reads else 2
                for start in list(op.operands)[starts:]:
                    if self._is_index(start):
                        read[start] = self._converted(start, own_rows, point)
            if op in self.reads:
                read[op.operands[0]] = rows[self.reads[op]]
            new = clone_into(op, read, point)
            if op in writes:
                new.results[0].set_type(new.operands[0].type)
            layer = _layer(op)
            new.attributes[LAYER] = i64(layer + copy * self.num_layers * (layer != SHARED))
            values.update(zip(op.results, new.results, strict=True))
        return [values[self.program.body_result(each.result)] for each in self.carried]

    def _later(self, index: ir.Value, point: ir.InsertionPoint) -> ir.Value:
        """The number of the microbatch of the second half."""
        with point, self.program.loop.location:
            half = _in_layer(splat_constant(index.type, self.half), SHARED)
            return _in_layer(stablehlo.AddOp(index, half).result, SHARED)

    def _converted(
        self, value: ir.Value, known: dict[ir.Value, ir.Value], point: ir.InsertionPoint
    ) -> ir.Value:
        if value in known:
            return known[value]
        with point, self.program.loop.location:
            maker = defining(value)
            assert maker is not None  # what is no index is made of one
            source = self._converted(maker.operands[0], known, point)
            return _in_layer(stablehlo.ConvertOp(value.type, source).result, SHARED)


def _layer(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[LAYER]).value


def _in_layer(value: ir.Value, layer: int) -> ir.Value:
    maker = defining(value)
    assert maker is not None  # just made
    maker.attributes[LAYER] = i64(layer)
    return value
