"""Read StableHLO out of the IR into `shardopt.graph.op_graph.OpGraph`: the only way planners see
operations.

Sharding rules come from the native pass `sdy-populate-op-sharding-rules`. Operations it knows no
rule for get one here where the meaning is plain (constants and iotas may be made in any sharding);
`optimization_barrier` is transparent: its results are its operands, and who reads one waits for all
of them (`Op.waits`). What is left has `rule=None` and is treated as opaque by every planner."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain

from jaxlib.mlir import ir, passmanager

from shardopt.dialect.annotation import is_marker
from shardopt.dialect.custom_calls import call_target
from shardopt.dialect.manual import MANUAL
from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor
from shardopt.extract.call_rules import CALL, call_rule
from shardopt.extract.element_bits import element_bits
from shardopt.extract.fused_attention import attention_work, is_attention
from shardopt.extract.manual_regions import collective_rule, read_island
from shardopt.extract.op_work import read_work, work_of
from shardopt.extract.shardy_rules import RULE, has_rule, is_own_rule, parse_rule
from shardopt.extract.windows import read_windows
from shardopt.graph.attention_use import AttentionUse
from shardopt.graph.op_flops import Work
from shardopt.graph.op_graph import MARKER, FactorRule, Op, OpGraph, Tensor
from shardopt.graph.windows import without_place
from shardopt.ir.loops import CONTROL_FLOW
from shardopt.ir.rewriting import BARRIER, defining, operations
from shardopt.ir.splats import read_splat

_COMBINERS = {
    "stablehlo.dot_general": "add",
    "stablehlo.convolution": "add",
    # a table split where it is looked up: every device finds its own rows, and zeros for others
    "stablehlo.gather": "add",
}
_COMBINING_REGIONS = frozenset(
    {
        "stablehlo.all_reduce",
        "stablehlo.reduce_scatter",
        "stablehlo.reduce",
        "stablehlo.scatter",
        "stablehlo.reduce_window",
        "stablehlo.select_and_scatter",
    }
)
CHEAP_TO_CLONE = frozenset({"stablehlo.constant", "stablehlo.iota"})
# Where an attribute says more of an operation than its rule and the types of its tensors: which
# one, or that nothing less than the operation says it.
_SAID_BY = {"stablehlo.dot_general": "dot_dimension_numbers"}
_BY_THEMSELVES = frozenset(
    {
        "stablehlo.all_gather",
        "stablehlo.all_to_all",
        "stablehlo.collective_permute",
        "stablehlo.constant",
        "stablehlo.convolution",
        CALL,
        "stablehlo.fft",
        "stablehlo.pad",
        "stablehlo.reverse",
        "stablehlo.slice",
    }
)
# Custom calls that hand their operand on and only say something about it.
_ANNOTATIONS = frozenset({"Sharding", "annotate_device_placement"})


@contextmanager
def sharding_rules(module: ir.Module) -> Iterator[None]:
    """Within the block every operation that Shardy knows carries its rule as an attribute;
    afterwards none does but those that had one of their own."""
    passmanager.PassManager.parse(
        "builtin.module(func.func(sdy-populate-op-sharding-rules))", module.context
    ).run(module.operation)
    try:
        yield
    finally:
        module.operation.walk(_drop_rule)


def _drop_rule(op: ir.Operation) -> ir.WalkResult:
    if has_rule(op) and not is_own_rule(op):
        del op.attributes[RULE]
    return ir.WalkResult.ADVANCE


def read_tensor(type_: ir.Type) -> Tensor:
    """Raises ValueError for anything but a ranked tensor of static shape."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise ValueError(f"expected a ranked tensor of static shape, found {type_}")
    dtype = str(type_.element_type)
    return Tensor(tuple(type_.shape), dtype, element_bits(dtype) // 8)


def find_unreadable(root: ir.Operation) -> tuple[ir.Operation, ir.Type] | None:
    """The first operation in `root` with a result or block argument that is no ranked tensor of
    static shape, and its type; values on meshes count by the tensor they hold."""
    seen: dict[ir.Type, bool] = {}
    for op in operations(root, outer_first=True):
        types = op.results.types
        if len(op.regions):
            blocks = (block for region in op.regions for block in region.blocks)
            types += [argument.type for block in blocks for argument in block.arguments]
        for type_ in types:
            is_readable = seen.get(type_)
            if is_readable is None:
                is_readable = seen[type_] = _is_readable(type_)
            if not is_readable:
                return op, type_
    return None


def _is_readable(type_: ir.Type) -> bool:
    tensor = parse_mesh_tensor(type_).tensor if is_mesh_tensor(type_) else type_
    return isinstance(tensor, ir.RankedTensorType) and tensor.has_static_shape


def read_rule(op: ir.Operation) -> FactorRule | None:
    """The rule of an operation inside `sharding_rules`, or None."""
    if op.name == CALL:
        return _custom_call_rule(op)
    if has_rule(op):
        rule = parse_rule(op.attributes[RULE])
        return _with_shifts(op, rule) if op.name == "stablehlo.pad" else rule
    if op.name in CHEAP_TO_CLONE:
        return _free_rule(tuple(ir.RankedTensorType(op.results[0].type).shape))
    return collective_rule(op)


def _custom_call_rule(op: ir.Operation) -> FactorRule | None:
    """The partitioner gathers the operands of all but a few targets, also where Shardy has a rule
    (`mhlo.topk`); what may be split is written out as code for one device."""
    if call_target(op) in _ANNOTATIONS:
        return identity_rule(tuple(ir.RankedTensorType(op.results[0].type).shape))
    return call_rule(op)


def _with_shifts(pad: ir.Operation, rule: FactorRule) -> FactorRule:
    """To Shardy a dimension passes through where padding leaves its extent as it is, even if it
    adds at one end what it takes off at the other: data moves along it."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    amounts = zip(*(ir.DenseI64ArrayAttr(pad.attributes[name]) for name in names), strict=True)
    moved = {
        factor
        for dim, padding in enumerate(amounts)
        if any(padding)
        for factor in rule.operands[0][dim]
    }
    return replace(rule, permutation=rule.permutation | (moved - rule.need_replication))


@cache
def identity_rule(shape: tuple[int, ...]) -> FactorRule:
    """The rule of an op whose one result is its one operand."""
    dims = tuple((dim,) for dim in range(len(shape)))
    return FactorRule(shape, (dims,), (dims,))


@cache
def _free_rule(shape: tuple[int, ...]) -> FactorRule:
    return FactorRule(shape, (), (tuple((dim,) for dim in range(len(shape))),))


def read_reducer(op: ir.Operation) -> str | None:
    """How contracted factors of `op` combine: the single StableHLO op of its region ("add",
    "maximum", …), or None.

    A reduction that begins from anything but the neutral element has none: partial results would
    count it repeatedly."""
    if op.name in _COMBINERS:
        return _COMBINERS[op.name]
    if op.name == CALL:  # as Shardy adds up what it makes of contracted dimensions
        return "add" if has_rule(op) and len(op.results) == 1 else None
    if op.name not in _COMBINING_REGIONS:
        return None
    block = op.regions[-1].blocks[0]
    body = [view.operation for view in block.operations]
    combines = (
        len(body) == 2
        and set(body[0].operands) == set(block.arguments)
        and list(body[1].operands) == list(body[0].results)
    )
    reducer = body[0].name.removeprefix("stablehlo.") if combines else None
    return (
        reducer
        if op.name != "stablehlo.reduce" or reducer is None or _is_neutral(op.operands[1], reducer)
        else None
    )


def _is_neutral(value: ir.Value, reducer: str) -> bool:
    """Whether a constant changes nothing when `reducer` combines it with any number of its type."""
    op = None if isinstance(value, ir.BlockArgument) else ir.OpResult(value).owner.operation
    if op is None or op.name != "stablehlo.constant":
        return False
    number = read_splat(op)
    if number is None:
        return False
    if isinstance(number, bool):
        return number == {"and": True, "or": False}.get(reducer)
    if isinstance(number, float | complex):
        neutral = {"add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}
        return reducer in neutral and number == neutral[reducer]
    bits, signed = _integer(str(ir.RankedTensorType(value.type).element_type))
    lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    full = -1 if signed else highest
    integers = {
        "add": 0,
        "or": 0,
        "xor": 0,
        "multiply": 1,
        "maximum": lowest,
        "minimum": highest,
        "and": full,
    }
    # The bindings give some unsigned values as negative numbers.
    return reducer in integers and (number - integers[reducer]) % (1 << bits) == 0


def _integer(text: str) -> tuple[int, bool]:
    """Bits of an integer type, and whether it is signed."""
    return int(text.lstrip("usi")), not text.startswith("u")


def free_values(op: ir.Operation) -> list[ir.Value]:
    """Values defined outside `op` that its regions read, in order of first use."""
    free: dict[ir.Value, None] = {}
    for region in op.regions:
        inside: set[ir.Value] = set()
        for block in region.blocks:
            _collect_free(block, inside, free)
    return list(free)


def reads(op: ir.Operation) -> list[ir.Value]:
    """Operands and the outer values its regions capture."""
    return [*op.operands, *free_values(op)] if len(op.regions) else list(op.operands)


def upstream(value: ir.Value) -> Iterator[ir.Value]:
    """The value and what it is made of, each once."""
    seen, pending = set[ir.Value](), [value]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        op = defining(value)
        if op is not None:
            pending += reads(op)


def _collect_free(block: ir.Block, inside: set[ir.Value], free: dict[ir.Value, None]) -> None:
    inside.update(block.arguments)
    for inner in block.operations:
        free.update(
            (operand, None) for operand in inner.operation.operands if operand not in inside
        )
        for region in inner.operation.regions:
            for nested in region.blocks:
                _collect_free(nested, inside, free)
        inside.update(inner.operation.results)


def attention_of(op: ir.Operation) -> AttentionUse | None:
    """What kind of kernel a call of fused attention is; None for any other operation."""
    work = attention_work(op) if is_attention(op) else None
    return None if work is None else work[1]


def is_zero(op: ir.Operation) -> bool:
    """Whether `op` is a constant of zeros."""
    number = read_splat(op) if op.name == "stablehlo.constant" else None
    return number is not None and not isinstance(number, bool) and number == 0


def _likeness(op: ir.Operation) -> tuple[object, ...] | None:
    """Equal for operations that differ in nothing but their tensors; None for one that has to be
    looked at by itself."""
    name = op.name
    if len(op.regions) or name in _BY_THEMSELVES:
        return None
    attributes = op.attributes
    rule = attributes.get(RULE, None)
    said = attributes[_SAID_BY[name]] if name in _SAID_BY else None
    return name, rule, said


@dataclass
class GraphReader:
    """Collects ops of one or several blocks into one graph; values that are the same tensor share
    an index."""

    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    handles: list[ir.Operation] = field(default_factory=list)
    index: dict[ir.Value, int] = field(default_factory=dict)
    loops: list[tuple[int, int]] = field(default_factory=list)
    carried: set[int] = field(default_factory=set)
    types: dict[ir.Type, Tensor] = field(default_factory=dict)
    alike: dict[tuple[object, ...], Op] = field(default_factory=dict)
    behind: dict[ir.Value, tuple[int, ...]] = field(default_factory=dict)
    block: int = 0
    trips: int = 1

    def tensor(self, value: ir.Value) -> int:
        """The index of a value; a value not seen before becomes a new tensor (an input until an op
        defines it)."""
        known = self.index.get(value)
        if known is None:
            type_ = value.type
            tensor = self.types.get(type_)
            if tensor is None:  # few of them, and reading one takes longer than all else here
                tensor = self.types[type_] = read_tensor(type_)
            known = self.index[value] = self.fresh(tensor)
        return known

    def fresh(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def bind(self, value: ir.Value, tensor: int) -> None:
        """Say that `value` is the tensor `tensor` (a block argument and what is passed to it,
        say)."""
        self.index[value] = tensor

    def add_ops(self, ops: Iterable[ir.Operation], *, group: int = -1, repeat: int = 1) -> None:
        """Read operations in order; terminators must not be among them."""
        for op in ops:
            self.add_op(op, group, repeat)

    def add_op(self, op: ir.Operation, group: int, repeat: int) -> None:
        if op.name == BARRIER:
            self._pass_on(op)
            return
        values = reads(op)
        operands = tuple([self.tensor(value) for value in values])
        results = tuple([self.tensor(value) for value in op.results])
        self.handles.append(op)
        self.ops.append(
            self._first_alike(op, operands, results).at(
                operands=operands,
                results=results,
                group=group,
                repeat=repeat * self.trips,
                block=self.block,
                trips=self.trips,
                waits=self._waits(values),
            )
        )

    def _first_alike(
        self, op: ir.Operation, operands: tuple[int, ...], results: tuple[int, ...]
    ) -> Op:
        """The operation, or the first one that differs from it only in its place: layers are alike,
        and what is said of an operation is read once."""
        likeness = _likeness(op)
        if likeness is None:
            return self._read_op(op, operands, results)
        # A tensor for each type, so that one stands for the other.
        tensors = [id(self.tensors[tensor]) for tensor in (*operands, *results)]
        key = (likeness, len(operands), *tensors)
        first = self.alike.get(key)
        if first is None:
            first = self.alike[key] = self._read_op(op, operands, results)
        return first

    def _read_op(self, op: ir.Operation, operands: tuple[int, ...], results: tuple[int, ...]) -> Op:
        rule, work = read_rule(op), self._work(op, operands[: len(op.operands)], results)
        return Op(
            name=MARKER if is_marker(op) else op.name.removeprefix("stablehlo."),
            operands=operands,
            results=results,
            rule=rule,
            reducer=read_reducer(op),
            flops=work.flops,
            zero=is_zero(op),
            windows=tuple(map(without_place, read_windows(op, rule))),
            transcendentals=work.transcendentals,
            island=read_island(op),
            attention=attention_of(op),
        )

    def _pass_on(self, barrier: ir.Operation) -> None:
        tensors = tuple(map(self.tensor, barrier.operands))
        for tensor, result in zip(tensors, barrier.results, strict=True):
            self.bind(result, tensor)
        behind = tuple(dict.fromkeys((*tensors, *self._waits(barrier.operands))))
        self.behind.update(dict.fromkeys(barrier.results, behind))

    def _waits(self, values: Iterable[ir.Value]) -> tuple[int, ...]:
        """What went through the barriers right before `values`."""
        if not self.behind:
            return ()
        found = [self.behind[value] for value in values if value in self.behind]
        return tuple(dict.fromkeys(chain.from_iterable(found)))

    def _work(self, op: ir.Operation, operands: tuple[int, ...], results: tuple[int, ...]) -> Work:
        if op.name in CONTROL_FLOW or op.name == MANUAL:
            return read_work(op)
        shapes = tuple(self.tensors[tensor].shape for tensor in (*operands, *results))
        return work_of(op, shapes[: len(operands)], shapes[len(operands) :])

    def graph(self, outputs: Iterable[int] = ()) -> OpGraph:
        defined = {result for op in self.ops for result in op.results}
        inputs = tuple(t for t in range(len(self.tensors)) if t not in defined)
        loops, carried = tuple(self.loops), frozenset(self.carried)
        return OpGraph(
            tensors=tuple(self.tensors),
            ops=tuple(self.ops),
            inputs=inputs,
            outputs=tuple(outputs),
            loops=loops,
            carried=carried,
        )
