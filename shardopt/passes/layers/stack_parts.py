"""Write what `shardopt.extract.stacked_rows` found into `@main`: an argument and a result for each
part of a stack, and between them an operation for each part.

A part is made where its whole is made, so that it stands before all that read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.dialect.annotation import SHARDING, annotation_attr, is_marker, read_annotation
from shardopt.dialect.attributes import entries
from shardopt.dialect.donation import (
    argument_attributes,
    read_replacements,
    result_attributes,
    write_replacements,
)
from shardopt.dialect.parts import PART, part_attr
from shardopt.dialect.program import StepProgram
from shardopt.extract.op_graph import CHEAP_TO_CLONE, free_values, is_zero, read_reducer
from shardopt.extract.rows import (
    CONCATENATE,
    UPDATE,
    is_elementwise,
    operand_dims,
    padding_of,
    pieces,
    result_dims,
    sliced_rows,
    update_row,
)
from shardopt.extract.stacked_rows import Stacks, is_alike
from shardopt.ir.loops import BRANCHES
from shardopt.ir.rewriting import BARRIER, barrier, defining, return_values, shape_of, terminator
from shardopt.ir.scalars import scalar_constant
from shardopt.ir.shapes import broadcast, dimensions, reshape, slice_, tensor_like
from shardopt.ir.splats import is_splat, resized
from shardopt.mesh.parts import Part
from shardopt.passes.importing.branches import RUN_ONCE, yield_values
from shardopt.passes.microbatches.batching import clone_resized, combine

_ADD = "stablehlo.add"


class StackWriter:
    """Writes once, inside of `sharding_rules`; handles of `program` are used up."""

    def __init__(self, program: StepProgram, stacks: Stacks) -> None:
        self.program, self.stacks = program, stacks
        self.main, self.block = program.main, program.main_block
        self.dims, self.rows = dict(stacks.dims), dict(stacks.rows)
        self.made: dict[tuple[ir.Value, int], ir.Value] = {}

    def write(self) -> None:
        if not self.stacks.arguments:
            return
        arguments = list(self.block.arguments)
        wholes = [arguments[number] for number in self.stacks.arguments]
        pairs = read_replacements(self.main)
        rows = [entries(attributes) for attributes in argument_attributes(self.main)]
        results = [entries(attributes) for attributes in result_attributes(self.main)]
        numbers = {whole: self._add_arguments(whole, rows) for whole in wholes}
        # They stand in the place of wholes, once nobody reads these.
        firsts = [self._add_argument(whole, 0) for whole in wholes]
        for op in self.stacks.slices:
            op.results[0].replace_all_uses_with(self._sliced(op))
        for op, dims in self.stacks.sums.items():
            op.results[0].replace_all_uses_with(self._summed(op, dims))
        returned = self.program.returned
        for whole in (each for each in wholes if each.arg_number in pairs):
            number = pairs[whole.arg_number]
            those = self._split_result(number, whole, returned, results)
            pairs.update(zip(numbers[whole], those, strict=True))
        inner = [argument for argument in self.block.arguments if argument not in firsts]
        types = [self._argument_type(each) if each in numbers else each.type for each in inner]
        return_values(self.main, returned, types, rows, results)
        write_replacements(self.main, pairs)
        self._drop(wholes, firsts)

    # ---- the signature ----

    def _add_arguments(self, whole: ir.Value, rows: list[dict[str, ir.Attribute]]) -> list[int]:
        """Parts 1, 2, … of an argument behind all others; the numbers of all parts."""
        number, count = ir.BlockArgument(whole).arg_number, self.stacks.parts(whole)
        numbers = [number, *range(len(rows), len(rows) + count - 1)]
        for k in range(1, count):
            self._add_argument(whole, k)
        self._say_parts(numbers, whole, rows)
        return numbers

    def _add_argument(self, whole: ir.Value, k: int) -> ir.Value:
        """For part k of an argument, which is of that at the shape of a part."""
        argument = self.block.add_argument(self._argument_type(whole), whole.location)
        with ir.InsertionPoint.at_block_begin(self.block), whole.location:
            self.made[whole, k] = reshape(argument, shape_of_type(self._type(whole)))
        return argument

    def _argument_type(self, whole: ir.Value) -> ir.RankedTensorType:
        """Of an argument for a part: of one row without the dimension of rows, as a layer that has
        arguments of its own has it."""
        if self.rows[whole] > 1:
            return self._type(whole)
        return tensor_like(whole, _without(shape_of(whole), self.dims[whole]))

    def _split_result(
        self,
        number: int,
        whole: ir.Value,
        returned: list[ir.Value],
        results: list[dict[str, ir.Attribute]],
    ) -> list[int]:
        """The result that replaces `whole` as one for each part; their numbers."""
        value, dim, rows = returned[number], self.dims[whole], self.rows[whole]
        numbers = [number, *range(len(returned), len(returned) + self.stacks.parts(whole) - 1)]
        shape, parts = shape_of_type(self._argument_type(whole)), []
        for k in range(len(numbers)):
            part = self._part(value, dim, k * rows, rows)
            with ir.InsertionPoint(terminator(self.block)), whole.location:
                parts.append(reshape(part, shape))
        returned[number] = parts[0]
        returned += parts[1:]
        self._say_parts(numbers, whole, results)
        return numbers

    def _say_parts(
        self, numbers: Sequence[int], whole: ir.Value, rows: list[dict[str, ir.Attribute]]
    ) -> None:
        dim, size = self.dims[whole], self.rows[whole]
        said = rows[numbers[0]]
        if size == 1:
            said = _said_of_row(said, dim)
        rows += [said] * (len(numbers) - 1)
        for k, number in enumerate(numbers):
            part = Part(numbers[0], dim, k * size, size, shape_of(whole)[dim])
            rows[number] = {**said, PART: part_attr(part)}

    def _drop(self, wholes: Sequence[ir.Value], firsts: Sequence[ir.Value]) -> None:
        """What only wholes were made of, and the wholes themselves."""
        types = [self._argument_type(whole) for whole in wholes]
        # No handle to a value of an erased operation may stay behind.
        self.dims, self.rows, self.made = {}, {}, {}
        *ops, _ = (view.operation for view in self.block.operations)
        for op in reversed(ops):
            is_read = any(True for result in op.results for _ in result.uses)
            if len(op.results) and not is_read and op.name not in RUN_ONCE:
                op.erase()
        for whole, type_, first in zip(wholes, types, firsts, strict=True):
            whole.set_type(type_)
            first.replace_all_uses_with(whole)
        for _ in firsts:
            self.block.erase_argument(len(self.block.arguments) - 1)

    # ---- parts of values ----

    def _part(self, value: ir.Value, dim: int, start: int, count: int) -> ir.Value:
        """`count` rows of a value from `start` on."""
        if (start, count) == (0, shape_of(value)[dim]):
            return value
        if self.dims.get(value) != dim or self.rows[value] != count:
            return self._cut(value, dim, start, count)
        key = value, start // count
        if key not in self.made:
            op = defining(value)
            if op is None:
                self.made[key] = self._cut(value, dim, start, count)
            else:
                with ir.InsertionPoint(op), op.location:
                    self._make(op, value, key[1])
        return self.made[key]

    def _cut(self, value: ir.Value, dim: int, start: int, count: int) -> ir.Value:
        shape, op = list(shape_of(value)), defining(value)
        starts, limits = [0] * len(shape), shape
        starts[dim], limits[dim] = start, start + count
        if op is None:
            point = ir.InsertionPoint.at_block_begin(ir.BlockArgument(value).owner)
        else:
            point = ir.InsertionPoint.after(op)
        with point, value.location:
            return slice_(value, starts, limits)

    def _make(self, op: ir.Operation, value: ir.Value, k: int) -> None:
        """Part k of a value, and of what the same operation makes."""
        number, dim = ir.OpResult(value).result_number, self.dims[value]
        made = self._joined(op, value, k)
        if made is None and op.name == BARRIER:
            operand = self._like(value, op.operands[number], dim, k)
            made = barrier([operand], op.location).results[0]
        if made is not None:
            self.made[value, k] = made
        elif op.name in BRANCHES:
            self._make_branch(op, k)
        elif op.name in CHEAP_TO_CLONE and is_alike(op, dim):
            is_constant = op.name != "stablehlo.iota"
            self.made[value, k] = (
                resized(op, self._type(value))
                if is_constant
                else _cloned(op, [], [self._type(value)]).results[0]
            )
        else:
            self._make_of_parts(op, value, k)

    def _make_of_parts(self, op: ir.Operation, value: ir.Value, k: int) -> None:
        number, dim, count = ir.OpResult(value).result_number, self.dims[value], self.rows[value]
        dims = None if op.name in CHEAP_TO_CLONE else operand_dims(op, number, dim)
        others = None if dims is None else result_dims(op, number, dim)
        if dims is None or others is None:
            self.made[value, k] = self._cut(value, dim, k * count, count)
            return
        operands = [
            operand if d is None else self._like(value, operand, d, k)
            for operand, d in zip(op.operands, dims, strict=True)
        ]
        if op.name == _ADD:  # of rows that a padding has left to another one
            terms = [each for each in operands if not _is_zeros(each)]
            if len(terms) == 1:
                self.made[value, k] = terms[0]
                return
        if count == 1 and is_elementwise(op):
            part = self._without_row(op, operands, dims, value)
            self.made[value, k] = reshape(part, shape_of_type(self._type(value)))
            return
        types = [_resized(result, d, count) for result, d in zip(op.results, others, strict=True)]
        new = _cloned(op, operands, types)
        self.made.update(
            ((result, k), part) for result, part in zip(op.results, new.results, strict=True)
        )

    def _without_row(
        self,
        op: ir.Operation,
        operands: Sequence[ir.Value],
        dims: Sequence[int | None],
        value: ir.Value,
    ) -> ir.Value:
        """Of elements of one row each, without the dimension of rows: then what they are made of
        is read as it is, and gradients have no second shape that would be kept beside them."""
        inner = [
            operand if dim is None else _dropped(operand, dim)
            for operand, dim in zip(operands, dims, strict=True)
        ]
        shape = _without(shape_of(value), self.dims[value])
        new = _cloned(op, inner, [tensor_like(value, shape)])
        if is_marker(op) and SHARDING in op.attributes:
            said = {SHARDING: op.attributes[SHARDING]}
            new.attributes[SHARDING] = _said_of_row(said, self.dims[value])[SHARDING]
        return new.results[0]

    def _joined(self, op: ir.Operation, value: ir.Value, k: int) -> ir.Value | None:
        """Part k of what lays rows of several values side by side; None for anything else."""
        dim, count = self.dims[value], self.rows[value]
        start = k * count
        taken, padding = sliced_rows(op), padding_of(op)
        if op.name == CONCATENATE and ir.IntegerAttr(op.attributes["dimension"]).value == dim:
            for operand, rows in pieces(op):
                if rows.start <= start < rows.stop:
                    return self._part(operand, dim, start - rows.start, count)
        elif taken is not None and taken.dim == dim:
            return self._part(op.operands[0], dim, taken.start + start, count)
        elif padding is not None and padding.dim == dim:
            row = padding.row(start, shape_of(op.operands[0])[dim])
            if row is not None:
                return self._part(op.operands[0], dim, row, count)
            filler = defining(op.operands[1], "stablehlo.constant")
            if filler is not None:
                return resized(filler, self._type(value))
            return broadcast(op.operands[1], shape_of_type(self._type(value)), [])
        elif op.name == UPDATE and (begin := update_row(op, dim)) is not None:
            return self._updated(op, value, start, begin)
        return None

    def _updated(self, op: ir.Operation, value: ir.Value, start: int, begin: int) -> ir.Value:
        """Rows of what writes at row `begin` into another value."""
        old, new, *indices = op.operands
        dim, count = self.dims[value], self.rows[value]
        if not begin <= start < begin + shape_of(new)[dim]:
            return self._part(old, dim, start, count)
        rows = self._part(new, dim, start - begin, count)
        if shape_of(rows) == shape_of_type(self._type(value)):
            return rows
        indices[dim] = scalar_constant(0, indices[dim].type)
        before = self._part(old, dim, start, count)
        return stablehlo.DynamicUpdateSliceOp(before, rows, indices).result

    def _make_branch(self, op: ir.Operation, k: int) -> None:
        """Part k of all results that are had by rows, in a conditional of their own."""
        results = [result for result in op.results if result in self.dims]
        whole = op.clone()
        copied = dict(self._copied(op, whole))
        for other, value in copied.items():
            self.dims[other], self.rows[other] = self.dims[value], self.rows[value]
        attributes = {name: op.attributes[name] for name in op.attributes}
        types = [self._type(result) for result in results]
        part = ir.Operation.create(
            op.name, types, list(op.operands), attributes, regions=len(op.regions)
        )
        numbers = [ir.OpResult(result).result_number for result in results]
        yielded = []
        for old, new in zip(whole.regions, part.regions, strict=True):
            block = old.blocks[0]
            block.append_to(new)
            ends = list(terminator(block).operands)
            values = [
                self._like(result, ends[number], self.dims[result], k)
                for result, number in zip(results, numbers, strict=True)
            ]
            yielded.append((block, values))
        # No handle to a value of an erased operation may stay behind.
        for value in copied:
            del self.dims[value], self.rows[value]
            self.made.pop((value, k), None)
        copied.clear()
        for block, values in yielded:
            yield_values(block, values)
        whole.erase()
        self.made.update(
            ((result, k), made) for result, made in zip(results, part.results, strict=True)
        )

    def _copied(self, op: ir.Operation, copy: ir.Operation) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Values in regions of a copy, each with that of the original, which is had by rows."""
        for old_region, new_region in zip(op.regions, copy.regions, strict=True):
            for old, new in zip(old_region.blocks[0], new_region.blocks[0], strict=True):
                for value, other in zip(old.operation.results, new.operation.results, strict=True):
                    if value in self.dims:
                        yield other, value
                yield from self._copied(old.operation, new.operation)

    def _like(self, value: ir.Value, other: ir.Value, dim: int, k: int) -> ir.Value:
        """The rows of another value that part k of `value` is made of."""
        count = self.rows[value]
        return self._part(other, dim, k * count, count)

    # ---- what is made of parts ----

    def _sliced(self, op: ir.Operation) -> ir.Value:
        """The rows that a slice takes, of parts."""
        taken, source = sliced_rows(op), op.operands[0]
        assert taken is not None
        count = self.rows[source]
        parts = [
            self._part(source, taken.dim, start, count)
            for start in range(taken.start, taken.stop, count)
        ]
        if len(parts) == 1:
            return parts[0]
        with ir.InsertionPoint(op), op.location:
            return stablehlo.ConcatenateOp(parts, taken.dim).result

    def _summed(self, op: ir.Operation, dims: Sequence[int | None]) -> ir.Value:
        reducer = read_reducer(op)
        assert reducer is not None
        wide = next(v for v, dim in zip(op.operands, dims, strict=True) if dim is not None)
        types = [result.type for result in op.results]
        terms = []
        for k in range(self.stacks.parts(wide)):
            operands = [
                operand if dim is None else self._like(wide, operand, dim, k)
                for operand, dim in zip(op.operands, dims, strict=True)
            ]
            with ir.InsertionPoint(op), op.location:
                term = _reduced_row(op, operands, self.dims[wide]) if self.rows[wide] == 1 else None
                terms.append(term or _cloned(op, operands, types).results[0])
        with ir.InsertionPoint(op), op.location:
            return reduce(partial(combine, reducer), terms)

    def _type(self, value: ir.Value) -> ir.RankedTensorType:
        """Of a part of it."""
        return _resized(value, self.dims[value], self.rows[value])


def _cloned(
    op: ir.Operation, operands: Sequence[ir.Value], types: Sequence[ir.Type]
) -> ir.Operation:
    """The operation on other operands, which are not those that its regions read."""
    return clone_resized(op, [*operands, *free_values(op)], types)


def _resized(value: ir.Value, dim: int, count: int) -> ir.RankedTensorType:
    shape = list(shape_of(value))
    shape[dim] = count
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)


def _said_of_row(attributes: Mapping[str, ir.Attribute], dim: int) -> dict[str, ir.Attribute]:
    """Attributes of what is without the dimension of rows, which they do not split."""
    if SHARDING not in attributes:
        return dict(attributes)
    annotation = read_annotation(attributes[SHARDING]).without(dim)
    return {**attributes, SHARDING: annotation_attr(annotation)}


def _reduced_row(op: ir.Operation, operands: Sequence[ir.Value], dim: int) -> ir.Value | None:
    """What a reduction makes of one row, without the dimension of rows; None where that is all it
    reduces, and for other operations."""
    reduced = dimensions(op, "dimensions") if op.name == "stablehlo.reduce" else ()
    others = [each - (each > dim) for each in reduced if each != dim]
    if not others:
        return None
    new = _cloned(op, [_dropped(operands[0], dim), operands[1]], [op.results[0].type])
    new.attributes["dimensions"] = ir.DenseI64ArrayAttr.get(others)
    return new.results[0]


def _dropped(value: ir.Value, dim: int) -> ir.Value:
    """A value of one row without that dimension."""
    shape = _without(shape_of(value), dim)
    constant = defining(value, "stablehlo.constant")
    if constant is not None and is_splat(constant):
        return resized(constant, tensor_like(value, shape))
    return reshape(value, shape)


def _without(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def shape_of_type(type_: ir.RankedTensorType) -> tuple[int, ...]:
    return tuple(type_.shape)


def _is_zeros(value: ir.Value) -> bool:
    op = defining(value)
    return op is not None and is_zero(op)
