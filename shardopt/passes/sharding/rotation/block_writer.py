"""What one device computes of one block: its rows, and the keys that are with it.

Values are copied from the program with the extents of the block. What is no block comes in as an
operand of the region, split as the layout says; positions (`iota`) count from where the block
begins; what else has keys and cannot be made again, such as a bias that is an input, comes in with
all keys, and the block's are cut out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from shardopt.extract.op_graph import GraphReader
from shardopt.graph.op_graph import FactorRule, OpGraph
from shardopt.ir.splats import is_splat, resized, splat_constant
from shardopt.passes.sharding.partition.builder import converted, make
from shardopt.passes.sharding.rotation.layout import Dims, RingLayout, Roles
from shardopt.solve.presets.ring_passes import RingAnalysis
from shardopt.solve.presets.slots import leading_factor

Key = tuple[int, Dims]
# What can be made again of blocks of its operands, with the same attributes.
_COPIED = frozenset({
    "abs", "add", "and", "broadcast_in_dim", "compare", "convert", "cosine", "divide",
    "exponential", "exponential_minus_one", "floor", "is_finite", "log", "log_plus_one", "logistic",
    "maximum", "minimum", "multiply", "negate", "not", "or", "power", "reduce", "remainder",
    "reshape", "rsqrt", "select", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "sign", "sine", "sqrt", "subtract", "tanh", "transpose", "xor", "dot_general",
})  # fmt: skip


class Unsplittable(Exception):
    """An operation that cannot be made again for a block."""

    def __init__(self, op: int) -> None:
        super().__init__(op)
        self.op = op


class BlockWriter:
    """Writes at the current insertion point. The arguments of `region` are `captured`; `moving` are
    the values that go round, `block` the number of those that are here."""

    def __init__(
        self, reader: GraphReader, analysis: RingAnalysis, layout: RingLayout, region: ir.Block
    ) -> None:
        self.reader, self.analysis, self.layout, self.region = reader, analysis, layout, region
        self.graph: OpGraph = analysis.graph
        self.values: dict[int, ir.Value] = {}
        for value, tensor in reader.index.items():
            self.values.setdefault(tensor, value)
        self.level = 0
        self.captured: dict[Key, ir.Value] = {}
        self.positions: dict[str, ir.Value] = {}
        self.moving: dict[Key, ir.Value] = {}
        self.block: ir.Value | None = None
        self.known: dict[int, ir.Value] = {}
        self._made: dict[Key, ir.Value] = {}

    def begin(
        self, moving: Mapping[Key, ir.Value], block: ir.Value | None, known: Mapping[int, ir.Value]
    ) -> None:
        """Another block, or what stands behind all of them; `known` are values of rows."""
        self.moving, self.block, self.known = dict(moving), block, dict(known)
        self._made.clear()

    def value(self, tensor: int, dims: Dims) -> ir.Value:
        """A value of this block, or its rows."""
        if tensor in self.known:
            return self.known[tensor]
        key = tensor, dims
        if key not in self._made:
            self._made[key] = self._value(tensor, dims)
        return self._made[key]

    def copied(self, index: int, roles: Roles, replaced: Mapping[int, ir.Value]) -> ir.Value:
        """An operation on blocks of its operands; `replaced` stand in the place of tensors."""
        op, handle = self.graph.ops[index], self.reader.handles[index]
        if op.rule is None or op.name not in _COPIED or not _keeps_tiles(op.rule, roles):
            raise Unsplittable(index)
        operands = [
            replaced[tensor]
            if tensor in replaced
            else self.value(tensor, self.layout.dims(op.rule, mapping, roles))
            for tensor, mapping in zip(op.operands, op.rule.operands, strict=True)
        ]
        dims = self.layout.dims(op.rule, op.rule.results[0], roles)
        copy = handle.clone(ip=ir.InsertionPoint.current)
        for place, operand in enumerate(operands):
            copy.operands[place] = operand
        for name in list(copy.attributes):
            if name.startswith(("sdy.", "shardopt.")):
                del copy.attributes[name]
        copy.results[0].set_type(self.type(op.results[0], dims))
        return copy.results[0]

    def type(self, tensor: int, dims: Dims) -> ir.RankedTensorType:
        """Of a block of a tensor."""
        whole = ir.RankedTensorType(self.values[tensor].type)
        return ir.RankedTensorType.get(self.layout.local(whole.shape, dims), whole.element_type)

    def position(self, role: str) -> ir.Value:
        """The number of this device among those that split rows or the batch, as an integer."""
        if role not in self.positions:
            element = ir.RankedTensorType.get([1], ir.IntegerType.get_signless(32))
            self.positions[role] = self.region.add_argument(element, ir.Location.current)
        scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        return make("reshape", [scalar], [self.positions[role]]).result

    # ---- where a value comes from ----

    def _value(self, tensor: int, dims: Dims) -> ir.Value:
        maker = self.analysis.makers[tensor]
        name = self.graph.ops[maker].name if maker >= 0 else ""
        if name == "constant" and is_splat(self.reader.handles[maker]):
            return resized(self.reader.handles[maker], self.type(tensor, dims))
        if "keys" not in dims:
            is_late = self.analysis.levels[tensor] > self.level
            return self._copy_of(tensor, dims) if is_late else self._capture(tensor, dims)
        if name == "iota":
            return self._iota(tensor, dims)
        if tensor in self.analysis.blocks:
            return self._copy_of(tensor, dims)
        if self._goes_round(tensor):
            return self._rotated(tensor, dims)
        if name in _COPIED and "rows" in dims and name != "dot_general":
            return self._copy_of(tensor, dims)
        return self._cut(tensor, dims)

    def _copy_of(self, tensor: int, dims: Dims) -> ir.Value:
        index = self.analysis.makers[tensor]
        op = self.graph.ops[index]
        if op.rule is None or index < 0 or len(op.results) != 1:
            raise Unsplittable(index)
        roles = self.layout.roles(index) if index in self.analysis.ops else Roles()
        for factors, role in zip(op.rule.results[0], dims, strict=True):
            factor = leading_factor(factors, op.rule.sizes)
            if role is not None and factor is not None:
                roles[factor] = role
        return self.copied(index, roles, {})

    def _goes_round(self, tensor: int) -> bool:
        """Keys and values: operands of products with scores."""
        readers = self.graph.consumers()[tensor]
        return any(
            r in self.analysis.ops and self.graph.ops[r].name == "dot_general" for r in readers
        )

    def _capture(self, tensor: int, dims: Dims) -> ir.Value:
        key = tensor, dims
        if key not in self.captured:
            type_ = self.type(tensor, dims)
            self.captured[key] = self.region.add_argument(type_, ir.Location.current)
        return self.captured[key]

    def _rotated(self, tensor: int, dims: Dims) -> ir.Value:
        key = tensor, dims
        return self.moving[key] if key in self.moving else self._capture(tensor, dims)

    def _cut(self, tensor: int, dims: Dims) -> ir.Value:
        whole = tuple(None if role == "keys" else role for role in dims)
        type_ = self.type(tensor, dims)
        starts = [
            self._start(role, type_.shape[dim]) if role == "keys" else self._zero()
            for dim, role in enumerate(dims)
        ]
        sizes = ir.DenseI64ArrayAttr.get(list(type_.shape))
        source = self._capture(tensor, whole)
        return make("dynamic_slice", [type_], [source, *starts], slice_sizes=sizes).result

    def _iota(self, tensor: int, dims: Dims) -> ir.Value:
        handle = self.reader.handles[self.analysis.makers[tensor]]
        type_ = self.type(tensor, dims)
        copy = handle.clone(ip=ir.InsertionPoint.current)
        copy.results[0].set_type(type_)
        dim = ir.IntegerAttr(handle.attributes["iota_dimension"]).value
        role = dims[dim]
        if role is None:
            return copy.results[0]
        start = converted(self._start(role, type_.shape[dim]), type_.element_type)
        none = ir.DenseI64ArrayAttr.get([])
        wide = make("broadcast_in_dim", [type_], [start], broadcast_dimensions=none).result
        return make("add", [type_], [copy.results[0], wide]).result

    def _start(self, role: str, extent: int) -> ir.Value:
        here = self.block if role == "keys" else None
        block = self.position(role) if here is None else here
        return make("multiply", [block.type], [block, splat_constant(block.type, extent)]).result

    @staticmethod
    def _zero() -> ir.Value:
        return splat_constant(ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)), 0)


def _keeps_tiles(rule: FactorRule, roles: Roles) -> bool:
    """Whether what is split is the major part of each dimension that it is in."""
    return all(
        factor not in roles or factor == leading_factor(factors, rule.sizes)
        for mapping in (*rule.operands, *rule.results)
        for factors in mapping
        for factor in factors
    )


def broadcast(value: ir.Value, dims: Sequence[int | None], type_: ir.RankedTensorType) -> ir.Value:
    """A value at the shape of another: `dims` says which of its dimensions each dimension there
    is."""
    own = ir.RankedTensorType(value.type)
    kept = sorted({dim for dim in dims if dim is not None})
    shape = [own.shape[dim] for dim in kept]
    flat = make("reshape", [ir.RankedTensorType.get(shape, own.element_type)], [value]).result
    narrow = converted(flat, type_.element_type)
    places = ir.DenseI64ArrayAttr.get([dims.index(dim) for dim in kept])
    return make("broadcast_in_dim", [type_], [narrow], broadcast_dimensions=places).result
