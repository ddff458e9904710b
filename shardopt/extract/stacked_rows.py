"""Weights that stand in one argument, layer behind layer, and all that can be had row by row with
them.

    %w0 = slice %stack [0:1, …]        %g = concatenate %g0, %g1
    @microbatch(… %w0 …)               %new = subtract %stack, %g        replaces %stack

A scan over layers reads such stacks. `find_stacks` says which arguments can be an argument for each
row: rows are read of them, and what replaces them is made of rows of others, operation by
operation. All of the state of an optimizer that goes with a weight is found so. Sums over rows
(norms of gradients) are sums of the rows' own. An argument that something needs as a whole stays
whole, and so does what replaces it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from jaxlib.mlir import ir

from shardopt.dialect.annotation import SHARDING, is_marker
from shardopt.dialect.attributes import entries
from shardopt.dialect.batch import BATCH
from shardopt.dialect.donation import (
    argument_attributes,
    read_replacements,
    result_attributes,
)
from shardopt.dialect.program import StepProgram
from shardopt.extract.op_graph import (
    CHEAP_TO_CLONE,
    free_values,
    read_reducer,
    read_rule,
    reads,
)
from shardopt.extract.rows import (
    CONCATENATE,
    NEVER_BY_ROWS,
    UPDATE,
    dim_of,
    operand_dims,
    padding_of,
    pieces,
    result_dims,
    sliced_rows,
    splits_along,
    update_row,
)
from shardopt.ir.loops import BRANCHES
from shardopt.ir.rewriting import BARRIER, defining, shape_of, terminator
from shardopt.ir.splats import is_splat

_SUMS = ("stablehlo.reduce", "stablehlo.dot_general")


@dataclass(frozen=True)
class Stacks:
    """What is to be had by rows: `dims` says along which dimension each value is, `rows` how many
    of them are one part. `arguments` are those, by number, to be cut into parts; `slices` take rows
    of such values, and `sums` are the operations that sum over rows, with the dimension of each
    operand or None. `whole` says why other arguments of which layers read rows are not cut."""

    arguments: tuple[int, ...]
    dims: Mapping[ir.Value, int]
    rows: Mapping[ir.Value, int]
    slices: tuple[ir.Operation, ...]
    sums: Mapping[ir.Operation, tuple[int | None, ...]]
    whole: Mapping[int, str]

    def parts(self, value: ir.Value) -> int:
        """Of how many parts a value is."""
        return shape_of(value)[self.dims[value]] // self.rows[value]


def find_stacks(program: StepProgram, read: Mapping[int, int], most_parts: int) -> Stacks:
    """What of `@main`, inside of `sharding_rules`, can be had by rows, with the arguments of which
    layers `read` rows (`shardopt.extract.layered_rows`), and what is replaced with these."""
    replaced = read_replacements(program.main)
    whole: dict[int, str] = {}
    while True:
        search = _Search(program, replaced, {k: dim for k, dim in read.items() if k not in whole})
        search.run(whole.keys())
        needed = {
            k: reason for k in search.arguments if (reason := search.why_whole(k, most_parts))
        }
        if not needed:
            return search.found({k: whole[k] for k in read if k in whole})
        whole |= needed


@dataclass
class _Search:
    """What is needed by rows, and what as a whole, if `arguments` are cut, along a dimension
    each."""

    program: StepProgram
    replaced: Mapping[int, int]
    arguments: dict[int, int]
    dims: dict[ir.Value, int] = field(default_factory=dict)
    whole: set[ir.Value] = field(default_factory=set)
    slices: dict[ir.Operation, None] = field(default_factory=dict)
    sums: dict[ir.Operation, tuple[int | None, ...]] = field(default_factory=dict)
    readers: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    links: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    places: dict[ir.Value, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.block, self.loop = self.program.main_block, self.program.loop
        self.returned = self.program.returned

    def run(self, kept: Collection[int]) -> None:
        """Until no further argument is found, other than `kept` ones."""
        self.kept = kept
        known: dict[ir.Value, int] = {}
        while True:
            self.stacked = self._reach({**known, **self._of_arguments()})
            self._mark()
            found = {**known, **self.dims, **self._of_arguments()}
            if found == known:
                return
            known = found

    def why_whole(self, number: int, most_parts: int) -> str:
        """Why an argument cannot be cut; "" where it can."""
        argument, dim = self.block.arguments[number], self.arguments[number]
        said = [entries(argument_attributes(self.program.main)[number])]
        if number in self.replaced:
            said.append(entries(result_attributes(self.program.main)[self.replaced[number]]))
        if BATCH in said[0]:
            return "it holds the batch"
        if any(splits_along(each.get(SHARDING), dim) for each in said):
            return "its sharding splits the rows"
        if argument in self.whole:
            by = self.readers.get(argument)
            return "all of it is read" if by is None else f"'{by.name}' reads all of it"
        parts = self.found({}).parts(argument) if argument in self.dims else 1
        if parts > most_parts:
            return f"it has {parts} parts, more than {most_parts}"
        return "" if parts > 1 else "no rows of it are read"

    def found(self, whole: Mapping[int, str]) -> Stacks:
        rows = _rows(self.dims, self.links, self.places)
        return Stacks(
            tuple(sorted(self.arguments)), self.dims, rows, tuple(self.slices), self.sums, whole
        )

    def _of_arguments(self) -> dict[ir.Value, int]:
        return {self.block.arguments[number]: dim for number, dim in self.arguments.items()}

    def _reach(self, known: Mapping[ir.Value, int]) -> dict[ir.Value, int]:
        """What is stacked because it is made of stacks, row by row."""
        reached = dict(known)
        for op in (view.operation for view in self.block.operations):
            if op == self.loop or (op.name in NEVER_BY_ROWS and not is_marker(op)):
                continue
            if op.name == BARRIER:
                pairs = zip(op.operands, op.results, strict=True)
                reached.update((r, reached[o]) for o, r in pairs if o in reached)
                continue
            dims = [reached.get(operand) for operand in op.operands]
            if any(dim is not None for dim in dims):
                for result, dim in _passed_on(op, dims):
                    reached.setdefault(result, dim)
        return reached

    def _mark(self) -> None:
        self.dims, self.whole, self.slices, self.sums = {}, set(), {}, {}
        self.links, self.places = [], {}
        self.pending: list[tuple[ir.Value, int | None]] = []
        of_result = {
            result: self.arguments[number]
            for number, result in self.replaced.items()
            if number in self.arguments
        }
        self._need((value, of_result.get(k)) for k, value in enumerate(self.returned))
        self._need((value, None) for value in reads(self.loop))
        for number, result in self.replaced.items():
            if number in self.arguments:  # one part replaces the other
                self.links.append((self.block.arguments[number], self.returned[result]))
        while self.pending:
            value, dim = self.pending.pop()
            if dim is None or self.dims.get(value, dim) != dim:
                if value not in self.whole:
                    self.whole.add(value)
                    self._need_operands(value)
            elif value not in self.dims:
                self.dims[value] = dim
                self._need_rows(value, dim)

    def _need(self, places: Iterable[tuple[ir.Value, int | None]]) -> None:
        self.pending += places

    def _need_operands(self, value: ir.Value) -> None:
        """What a value that is needed as a whole needs."""
        op = defining(value)
        if op is None or op == self.loop:
            return
        taken = sliced_rows(op)
        operands = reads(op)
        if taken is not None and self.stacked.get(operands[0]) == taken.dim:
            self.slices[op] = None
            self._at(operands[0], taken.start, taken.stop)
            self._need([(operands[0], taken.dim)])
            return
        dims = self._summed(op)
        if dims is not None:
            self.sums[op] = dims
            self._link([(v, d) for v, d in zip(op.operands, dims, strict=True) if d is not None])
            self._need(zip(op.operands, dims, strict=True))
            self._need((v, None) for v in free_values(op))
            return
        for operand in operands:
            self.readers.setdefault(operand, op)
        self._need((operand, None) for operand in operands)
        for end in (terminator(region.blocks[0]) for region in op.regions if op.name in BRANCHES):
            self._need((each, None) for each in end.operands)

    def _need_rows(self, value: ir.Value, dim: int) -> None:
        """What a value of which rows are needed needs."""
        op = defining(value)
        if op is None:
            self._argument(value, dim)
        elif op == self.loop:
            self._need([(value, None)])
        elif op.name == BARRIER:
            operand = op.operands[ir.OpResult(value).result_number]
            self._same(value, [(operand, dim)])
        elif op.name in CHEAP_TO_CLONE:
            if not is_alike(op, dim):
                self._need([(value, None)])
        elif not self._joins(op, value, dim):
            self._made_of_rows(op, value, dim)

    def _argument(self, value: ir.Value, dim: int) -> None:
        number = ir.BlockArgument(value).arg_number
        if (
            ir.BlockArgument(value).owner != self.block
            or number in self.kept
            or self.arguments.setdefault(number, dim) != dim
        ):
            self._need([(value, None)])

    def _joins(self, op: ir.Operation, value: ir.Value, dim: int) -> bool:
        """Whether it is an operation that lays rows of several values side by side."""
        extent = shape_of(value)[dim]
        taken, padding = sliced_rows(op), padding_of(op)
        if op.name == CONCATENATE and ir.IntegerAttr(op.attributes["dimension"]).value == dim:
            for operand, rows in pieces(op):
                self._at(value, rows.start, rows.stop)
                self._part_of(value, operand, dim)
        elif taken is not None and taken.dim == dim:
            self._at(op.operands[0], taken.start, taken.stop)
            self._same(value, [(op.operands[0], dim)])
            self.slices.pop(op, None)
        elif padding is not None and padding.dim == dim:
            count = shape_of(op.operands[0])[dim]
            self._at(value, padding.low, padding.low + (count - 1) * padding.stride + 1)
            self._at(value, *[padding.stride] * (count > 1 and padding.stride > 1))
            self._part_of(value, op.operands[0], dim)
            self._need([(op.operands[1], None)])
        elif op.name == UPDATE and (start := update_row(op, dim)) is not None:
            size = shape_of(op.operands[1])[dim]
            self._at(value, start, start + size)
            self._same(value, [(op.operands[0], dim)])
            self._part_of(value, op.operands[1], dim)
            self._need((index, None) for index in list(op.operands)[2:])
        else:
            return False
        self._at(value, extent, extent)
        return True

    def _part_of(self, value: ir.Value, piece: ir.Value, dim: int) -> None:
        """What stands in `value` from some row on: if that may be of several parts, by rows."""
        if shape_of(piece)[dim] > 1:
            self._same(value, [(piece, dim)])
        else:
            self._need([(piece, None)])

    def _made_of_rows(self, op: ir.Operation, value: ir.Value, dim: int) -> None:
        number = ir.OpResult(value).result_number
        if op.name in BRANCHES:
            self._need((operand, None) for operand in op.operands)
            ends = [terminator(region.blocks[0]).operands[number] for region in op.regions]
            self._same(value, [(each, dim) for each in ends])
            return
        dims = operand_dims(op, number, dim)
        others = None if dims is None else result_dims(op, number, dim)
        if dims is None or others is None:
            self._need([(value, None)])
            return
        self._same(value, zip(op.results, others, strict=True))
        self._same(value, [(v, d) for v, d in zip(op.operands, dims, strict=True) if d is not None])
        self._need((v, d) for v, d in zip(op.operands, dims, strict=True) if d is None)
        self._need((v, None) for v in free_values(op))

    def _summed(self, op: ir.Operation) -> tuple[int | None, ...] | None:
        """Along which dimension to take the operands of an operation that sums over rows of a
        stack."""
        rule = read_rule(op) if op.name in _SUMS and read_reducer(op) is not None else None
        if rule is None or len(op.results) != 1:
            return None
        for mapping, operand in zip(rule.operands, op.operands, strict=True):
            dim = self.stacked.get(operand)
            if dim is None or len(mapping[dim]) != 1 or mapping[dim][0] not in rule.reduction:
                continue
            [factor] = mapping[dim]
            if not any(factor in dim_ and len(dim_) > 1 for each in rule.operands for dim_ in each):
                return tuple(dim_of(factor, each) for each in rule.operands)
        return None

    def _same(self, value: ir.Value, others: Iterable[tuple[ir.Value, int]]) -> None:
        """Need rows of others, of which as many are a part as of `value`."""
        others = list(others)
        self.links += [(value, other) for other, _ in others]
        self._need(others)

    def _link(self, others: Sequence[tuple[ir.Value, int]]) -> None:
        self.links += [(others[0][0], other) for other, _ in others[1:]]

    def _at(self, value: ir.Value, *rows: int) -> None:
        self.places.setdefault(value, []).extend(rows)


def is_alike(op: ir.Operation, dim: int) -> bool:
    """Whether all rows of a constant, or of an iota, are equal."""
    if op.name == "stablehlo.iota":
        return bool(ir.IntegerAttr(op.attributes["iota_dimension"]).value != dim)
    return is_splat(op)


def _passed_on(op: ir.Operation, dims: Sequence[int | None]) -> Iterator[tuple[ir.Value, int]]:
    """The results of which rows are made of rows of operands that are stacked along `dims`."""
    if op.name == UPDATE:
        if dims[0] is not None:
            yield op.results[0], dims[0]
        return
    if op.name in BRANCHES:
        return
    rule = read_rule(op)
    if rule is None:
        return
    for mapping, dim in zip(rule.operands, dims, strict=False):
        if dim is None or len(mapping[dim]) != 1:
            continue
        for number, result in enumerate(op.results):
            there = dim_of(mapping[dim][0], rule.results[number])
            if there is not None and operand_dims(op, number, there) is not None:
                yield result, there


def _rows(
    dims: Mapping[ir.Value, int],
    links: Sequence[tuple[ir.Value, ir.Value]],
    places: Mapping[ir.Value, Sequence[int]],
) -> dict[ir.Value, int]:
    """How many rows are a part of each value: of linked ones equally many, and so many that all
    places are borders of parts."""
    root = {value: value for value in dims}
    size = {value: gcd(shape_of(value)[dim], *places.get(value, ())) for value, dim in dims.items()}

    def find(value: ir.Value) -> ir.Value:
        while root[value] != value:
            root[value] = value = root[root[value]]
        return value

    for first, second in links:
        if first in root and second in root:
            one, other = find(first), find(second)
            if one != other:
                root[other] = one
                size[one] = gcd(size[one], size[other])
    return {value: size[find(value)] for value in dims}
