"""Write the body of a microbatch slice by slice of its tokens (`shardopt-slice-tokens`), as
`shardopt.solve.tokens.token_axis` says of each operation.

Operations are taken in program order, and each is written once a slice, in the layer that its own
became for that slice. What one slice reads of others is a concatenation of their keys or values; a
gradient of keys is summed from the last slice on, of which each slice keeps its own part and hands
the rest on; sums over tokens go through the slices likewise, gradients from the last one on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.dialect.attributes import i64
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.dialect.token_slices import TokenSlices
from shardopt.extract.op_graph import GraphReader, reads
from shardopt.extract.repeated_ops import repeated_ops
from shardopt.graph.microbatching import Cut, Split
from shardopt.graph.op_graph import SHARED, Op, OpGraph
from shardopt.ir.rewriting import BARRIER, barrier, defining, shape_of, terminator
from shardopt.ir.splats import read_splat, resized, splat_constant
from shardopt.passes.microbatches.batching import clone_resized, combine
from shardopt.solve.microbatches.batch_factors import locate, moves_along, operand_split
from shardopt.solve.sharding.kernels.fusion import CHEAP
from shardopt.solve.tokens.token_axis import Kind, SlicedOp, TokenAxis, Tokens

# What makes elements from elements, or from those along other dimensions. The row of a microbatch
# is taken first, then cut.
_NARROWED = (CHEAP - {"dynamic_slice"}) | {"reduce"}
_IOTA, _CONSTANT = "stablehlo.iota", "stablehlo.constant"


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `stop` of a value that has `split.extent` of them."""

    split: Split
    start: int
    stop: int


@dataclass
class TokenSlicer:
    """Writes one body. The handles of `program` are used up."""

    program: StepProgram
    reader: GraphReader
    graph: OpGraph
    axis: TokenAxis
    slices: TokenSlices
    sliced: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)
    wholes: dict[ir.Value, ir.Value] = field(default_factory=dict)
    constants: dict[object, ir.Value] = field(default_factory=dict)
    prefixes: dict[object, ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lengths, self.count = self.slices.lengths, self.slices.count
        self.extent = sum(self.lengths)
        self.ends = [sum(self.lengths[: k + 1]) for k in range(self.count)]
        self.number = {handle: k for k, handle in enumerate(self.reader.handles)}
        self.repeats = repeated_ops(self.program.body_ops)
        self.position = {op: k for k, op in enumerate(self.program.body_ops)}

    def write(self) -> None:
        """Replace the operations of the body by those of its slices."""
        old, end = self.program.body_ops, terminator(self.program.body_block)
        with ir.InsertionPoint(end):
            for op in old:
                with op.location:
                    self._barrier(op) if op.name == BARRIER else self._op(op)
            returned = [self._whole(value) for value in end.operands]
        for k, value in enumerate(returned):
            end.operands[k] = value
        for op in reversed(old):
            op.erase()

    # ---- operations ----

    def _tokens(self, value: ir.Value) -> Tokens:
        return self.axis.tokens[self.reader.index[value]]

    def _layer(self, op: ir.Operation, k: int) -> int:
        layer = ir.IntegerAttr(op.attributes[LAYER]).value
        return SHARED if layer == SHARED else self.slices.layer(layer, k)

    def _at(self, op: ir.Operation, k: int) -> _Layered:
        return _Layered(self._layer(op, k))

    def _op(self, handle: ir.Operation) -> None:
        index = self.number[handle]
        how = self.axis.ops[index]
        if how.kind is Kind.CONST:
            return  # made where it is read
        if how.kind is Kind.WHOLE:
            self._write_once(handle, how)
        elif how.once is not None:
            self._write_sum(handle, how, how.once)
        else:
            for k in range(self.count):
                self._write_slice(handle, index, how, k)
            if how.joins:
                self._join(handle)

    def _write_once(self, handle: ir.Operation, how: SlicedOp) -> None:
        at = self._at(handle, self._end(how))
        values = [self._whole(value, self._end(how)) for value in reads(handle)]
        new = at.mark(clone_resized(handle, values, [result.type for result in handle.results]))
        self.wholes.update(zip(handle.results, new.results, strict=True))

    def _end(self, how: SlicedOp) -> int:
        """The slice in which sums over slices are complete."""
        return 0 if how.backwards else self.count - 1

    def _order(self, how: SlicedOp) -> list[int]:
        """The slices in the order in which they are summed up."""
        order = list(range(self.count))
        return order[::-1] if how.backwards else order

    def _write_sum(self, handle: ir.Operation, how: SlicedOp, once: int) -> None:
        """A sum of terms and of a value that counts once, behind the last slice: one task reads
        what the loop carries, and replaces it."""
        other, term = handle.operands[once], handle.operands[1 - once]
        at = self._end(how)
        for k in range(self.count):
            value = self.sliced[term, k]
            if k == at:
                layered = self._at(handle, k)
                total = combine("add", self._whole(other, k), value)
                value = layered.value(total)
            self.sliced[handle.results[0], k] = value

    def _write_slice(self, handle: ir.Operation, index: int, how: SlicedOp, k: int) -> None:
        op = self.graph.ops[index]
        at = self._at(handle, k)
        values = [
            self._operand(op, how, number, value, k, at)
            for number, value in enumerate(reads(handle))
        ]
        types = [self._type(result, k) for result in handle.results]
        new = at.mark(clone_resized(handle, values, types))
        self.sliced.update(
            ((old, k), result) for old, result in zip(handle.results, new.results, strict=True)
        )

    def _type(self, value: ir.Value, k: int) -> ir.Type:
        tokens = self._tokens(value)
        if tokens.kind is Kind.TERM:
            return value.type
        assert tokens.rows is not None
        maker = self.axis.ops[self.number[_owner(value)]]
        # Of what joins a slice has terms of all keys that it saw.
        rows = self.ends[k] if maker.joins else self.lengths[k]
        type_ = self._resized(value.type, tokens.rows, rows)
        return type_ if tokens.keys is None else self._resized(type_, tokens.keys, self.ends[k])

    def _resized(self, type_: ir.Type, split: Split, count: int) -> ir.Type:
        tensor = ir.RankedTensorType(type_)
        shape = list(tensor.shape)
        shape[split.dim] = shape[split.dim] // self.extent * count
        return ir.RankedTensorType.get(shape, tensor.element_type)

    def _operand(
        self, op: Op, how: SlicedOp, number: int, value: ir.Value, k: int, at: _Layered
    ) -> ir.Value:
        tokens = self._tokens(value)
        if tokens.kind is Kind.CONST:
            return self._constant(value, k, self._windows(op, how, number, k), at)
        is_cut = how.rows is not None or how.keys is not None
        if is_cut and tokens.kind in (Kind.WHOLE, Kind.TERM):
            return self._part(self._whole(value, k), self._windows(op, how, number, k), at)
        if tokens.kind is Kind.ROWS and how.keys is not None:
            split = operand_split(op, number, how.keys)
            if split is not None and split == tokens.rows:
                return self._prefix(value, split, k, at, how.backwards)
        return self.sliced[value, k]

    def _windows(self, op: Op, how: SlicedOp, number: int, k: int) -> tuple[Window, ...]:
        """What a slice sees of an operand that all slices have."""
        end = self.ends[k]
        cuts = ((how.rows, end - self.lengths[k]), (how.keys, 0))
        splits = [(operand_split(op, number, cut), start) for cut, start in cuts]
        return tuple(Window(split, start, end) for split, start in splits if split is not None)

    def _prefix(
        self, value: ir.Value, split: Split, k: int, at: _Layered, backwards: bool
    ) -> ir.Value:
        """The keys of all slices up to k: once for the forward pass, and once for the backward, so
        that only the parts are kept in between. Where the backward computes keys again, it does so
        for its own slice: backwards of earlier ones come later."""
        if k == 0:
            return self.sliced[value, 0]
        key = (value, k, at.layer, backwards)
        if key not in self.prefixes:
            earlier = self._original(value)
            parts = [self.sliced[earlier, each] for each in range(k)]
            parts.append(self.sliced[value, k])
            self.prefixes[key] = at.concatenate(parts, split)
        return self.prefixes[key]

    def _original(self, value: ir.Value) -> ir.Value:
        """What a value is that is computed again, as the forward pass had it."""
        while (op := defining(value)) is not None and (op.name == BARRIER or op in self.repeats):
            number = ir.OpResult(value).result_number
            value = op.operands[number] if op.name == BARRIER else self.repeats[op].results[number]
        return value

    def _join(self, handle: ir.Operation) -> None:
        """Sum up what slices have for the keys that they saw, from the last one on."""
        [result] = handle.results
        split = self._tokens(result).rows
        assert split is not None
        rest: ir.Value | None = None
        for k in reversed(range(self.count)):
            at, total = self._at(handle, k), self.sliced[result, k]
            if rest is not None:
                total = at.value(combine("add", total, rest))
            before = self.ends[k] - self.lengths[k]
            if before:
                rest = at.slice(total, Window(_of(split, self.ends[k]), 0, before))
                total = at.slice(total, Window(_of(split, self.ends[k]), before, self.ends[k]))
            self.sliced[result, k] = total

    def _barrier(self, op: ir.Operation) -> None:
        """What is cut waits for the slices of the others; what is not, for nothing."""
        cut = [k for k, value in enumerate(op.operands) if self._tokens(value).is_sliced]
        for k in range(self.count):
            values = [self.sliced[op.operands[number], k] for number in cut]
            if values:
                new = self._at(op, k).mark(barrier(values, op.location))
                for number, result in zip(cut, new.results, strict=True):
                    self.sliced[op.results[number], k] = result
        for value, result in zip(op.operands, op.results, strict=True):
            if self._tokens(value).kind is Kind.WHOLE:
                self.wholes[result] = self.wholes[value]

    # ---- values of all tokens ----

    def _whole(self, value: ir.Value, k: int = 0) -> ir.Value:
        """A value of all tokens, for an operation in slice k."""
        tokens = self._tokens(value)
        if tokens.kind is Kind.CONST:
            return self._whole_constant(value, k)
        if value not in self.wholes:
            maker = self.axis.ops[self.graph.producers()[self.reader.index[value]]]
            owner = _owner(value)
            parts = [self.sliced[value, each] for each in range(self.count)]
            if tokens.kind is Kind.TERM:
                total = self._sum(owner, maker, tokens.reducer, parts)
            else:
                assert tokens.rows is not None  # scores are refused
                total = self._at(owner, self._end(maker)).concatenate(parts, tokens.rows)
            self.wholes[value] = total
        return self.wholes[value]

    def _sum(
        self, owner: ir.Operation, maker: SlicedOp, reducer: str, parts: Sequence[ir.Value]
    ) -> ir.Value:
        first, *others = self._order(maker)
        total = parts[first]
        for k in others:
            at = self._at(owner, k)
            total = at.value(combine(reducer, total, parts[k]))
        return total

    # ---- what all slices have ----

    def _constant(
        self, value: ir.Value, k: int, windows: tuple[Window, ...], at: _Layered
    ) -> ir.Value:
        """A window of it, for a reader in slice k: operations on elements are made at its size, of
        others a slice is taken, of arguments by the reader."""
        windows = tuple(w for w in windows if (w.start, w.stop) != (0, self.extent))
        op = defining(value)
        if op is not None and op.name == BARRIER:
            source = op.operands[ir.OpResult(value).result_number]
            return self._constant(source, k, windows, at)
        if not windows:
            return self._whole_constant(value, k)
        at = at if op is None else self._at(op, k)
        key = (value, k, windows, at.layer)
        if key not in self.constants:
            made = None if op is None else self._narrowed(op, value, k, windows)
            self.constants[key] = made or self._cut_out(value, k, windows, at)
        return self.constants[key]

    def _cut_out(
        self, value: ir.Value, k: int, windows: Sequence[Window], at: _Layered
    ) -> ir.Value:
        return self._part(self._whole_constant(value, k), windows, at)

    def _part(self, whole: ir.Value, windows: Sequence[Window], at: _Layered) -> ir.Value:
        for window in windows:
            if (window.start, window.stop) != (0, self.extent):
                whole = at.slice(whole, window)
        return whole

    def _narrowed(
        self, op: ir.Operation, value: ir.Value, k: int, windows: tuple[Window, ...]
    ) -> ir.Value | None:
        node = self.graph.ops[self.number[op]]
        makes_elements = op.name in (_IOTA, _CONSTANT) or node.name in _NARROWED
        if not makes_elements or len(op.results) > 1 or node.rule is None:
            return None
        type_, at = value.type, self._at(op, k)
        cuts: list[tuple[Cut, Window]] = []
        for window in windows:
            mapping = node.rule.results[0][window.split.dim]
            cut = locate(mapping, node.rule.sizes, window.split)
            if cut is None or cut.extent != self.extent or moves_along(node, cut):
                return None
            if op.name == _IOTA and shape_of(value)[window.split.dim] != self.extent:
                return None
            cuts.append((cut, window))
            type_ = self._resized(type_, window.split, window.stop - window.start)
        if op.name == _CONSTANT:
            return None if read_splat(op) is None else at.value(resized(op, type_))
        if op.name == _IOTA:
            return at.iota(op, type_, windows)
        values = []
        for number, operand in enumerate(op.operands):
            splits = [(operand_split(node, number, cut), window) for cut, window in cuts]
            own = tuple(Window(s, w.start, w.stop) for s, w in splits if s is not None)
            values.append(self._constant(operand, k, own, at))
        return at.mark(clone_resized(op, values, [type_])).results[0]

    def _whole_constant(self, value: ir.Value, k: int) -> ir.Value:
        """As it is, with all that it is made of."""
        needed: dict[ir.Operation, None] = {}
        pending = [value]
        while pending:
            op = defining(pending.pop())
            if op is not None and op not in needed and self._known(op, k) is None:
                needed[op] = None
                pending += reads(op)
        for op in sorted(needed, key=self.position.__getitem__):
            values = [self._copied(each, k) for each in reads(op)]
            with op.location:
                if op.name == BARRIER:
                    results = values
                else:
                    types = [result.type for result in op.results]
                    results = list(self._at(op, k).mark(clone_resized(op, values, types)).results)
            for old, new in zip(op.results, results, strict=True):
                self.constants[old, self._copy(op, k)] = new
        return self._copied(value, k)

    def _copy(self, op: ir.Operation, k: int) -> int:
        """Operations of no layer have one copy, those of others one for each slice."""
        return SHARED if self._layer(op, 0) == SHARED else k

    def _known(self, op: ir.Operation, k: int) -> ir.Value | None:
        return self.constants.get((op.results[0], self._copy(op, k)))

    def _copied(self, value: ir.Value, k: int) -> ir.Value:
        op = defining(value)
        return value if op is None else self.constants[value, self._copy(op, k)]


@dataclass(frozen=True)
class _Layered:
    """Makes operations of one layer, at the current insertion point."""

    layer: int

    def mark(self, op: ir.Operation) -> ir.Operation:
        op.attributes[LAYER] = i64(self.layer)
        return op

    def value(self, value: ir.Value) -> ir.Value:
        """One that was just made."""
        self.mark(_owner(value))
        return value

    def slice(self, value: ir.Value, window: Window) -> ir.Value:
        split = window.split
        blocks, dim = self._blocks(value, split)
        shape = list(shape_of(blocks))
        each = shape[dim] // split.extent
        starts, ends = [0] * len(shape), list(shape)
        starts[dim], ends[dim] = window.start * each, window.stop * each
        part = self.value(stablehlo.SliceOp(blocks, starts, ends, [1] * len(shape)).result)
        return self._merged(part, value, dim)

    def concatenate(self, parts: Sequence[ir.Value], split: Split) -> ir.Value:
        blocks = [self._blocks(part, split) for part in parts]
        dim = blocks[0][1]
        joined = self.value(stablehlo.ConcatenateOp([each for each, _ in blocks], dim).result)
        return self._merged(joined, parts[0], dim)

    def _blocks(self, value: ir.Value, split: Split) -> tuple[ir.Value, int]:
        """With what stands before the tokens along a dimension of its own; that of the tokens."""
        if split.outer == 1:
            return value, split.dim
        shape = list(shape_of(value))
        shape[split.dim : split.dim + 1] = [split.outer, shape[split.dim] // split.outer]
        return self._reshaped(value, shape), split.dim + 1

    def _merged(self, value: ir.Value, like: ir.Value, dim: int) -> ir.Value:
        shape = list(shape_of(value))
        if len(shape) == len(shape_of(like)):
            return value
        shape[dim - 1 : dim + 1] = [shape[dim - 1] * shape[dim]]
        return self._reshaped(value, shape)

    def _reshaped(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        type_ = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
        return self.value(stablehlo.ReshapeOp(type_, value).result)

    def iota(self, op: ir.Operation, type_: ir.Type, windows: Sequence[Window]) -> ir.Value:
        """The numbers of a window of `op`."""
        value = self.mark(clone_resized(op, [], [type_])).results[0]
        along = ir.IntegerAttr(op.attributes["iota_dimension"]).value
        for window in windows:
            if window.split.dim == along and window.start:
                start = self.value(splat_constant(type_, window.start))
                value = self.value(stablehlo.AddOp(value, start).result)
        return value


def _of(split: Split, extent: int) -> Split:
    return Split(split.dim, split.outer, extent)


def _owner(value: ir.Value) -> ir.Operation:
    maker = defining(value)
    assert maker is not None  # an argument is the same in every slice
    return maker
