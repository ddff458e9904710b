"""Changes of a module that the reductions share. They keep types right where they can; what they
leave is verified before anything else is done with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from jaxlib.mlir import ir

from shardopt.ir.rewriting import functions, op_name, operations, symbol_name, terminator
from shardopt.ir.splats import splat_constant

CONSTANT = "stablehlo.constant"
FUNCTION = "func.func"
# An argument that shares its buffer with a result names the result by number.
ALIASING = "tf.aliasing_output"
# Ops whose regions see no value from outside: a constant for them has to be made inside.
_ISOLATED = (FUNCTION, "mpmd.fragment", "builtin.module")
# What a call names its function by, in all dialects that have one.
_CALLEE = "callee"

Preference: TypeAlias = Literal["operand", "constant", "argument"]


@dataclass
class StandIns:
    """Values in the place of results that are to go. Constants are made once for each function and
    type; new arguments get into the function's type by `finish`."""

    order: tuple[Preference, ...]
    _constants: dict[tuple[ir.Block, str], ir.Value] = field(default_factory=dict)
    _grown: list[ir.Operation] = field(default_factory=list)

    def value(self, result: ir.Value, op: ir.Operation) -> ir.Value | None:
        """A value of the same type that stands before `op`, or None."""
        for preference in self.order:
            if preference == "operand":
                made = next((each for each in op.operands if each.type == result.type), None)
            elif preference == "constant":
                made = self._constant(result.type, op)
            else:
                made = self._argument(result.type, op)
            if made is not None:
                return made
        return None

    def finish(self) -> None:
        for function in self._grown:
            sync_signature(function)

    def _constant(self, type_: ir.Type, op: ir.Operation) -> ir.Value | None:
        if not _has_zero(type_):
            return None
        block = _isolated_block(op)
        key = (block, str(type_))
        if key not in self._constants:
            with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
                self._constants[key] = splat_constant(type_, 0)
        return self._constants[key]

    def _argument(self, type_: ir.Type, op: ir.Operation) -> ir.Value | None:
        block = _isolated_block(op)
        function = block.owner.operation
        if function.name != FUNCTION or callers(function):
            return None
        if function not in self._grown:
            self._grown.append(function)
        return block.add_argument(type_, ir.Location.unknown())


def drop_ops(
    chosen: Sequence[ir.Operation], order: tuple[Preference, ...], keeps_unread: bool = False
) -> None:
    """Erase operations of one module, in the order of the text, with stand-ins for what is still
    read of them, and unless `keeps_unread` what then nobody reads any more."""
    if not chosen:
        return
    root = _root(chosen[0])
    dead_before = set(_unread(root))
    stand_ins = StandIns(order)
    for op in reversed(_outermost(chosen)):
        drop_op(op, stand_ins)
    stand_ins.finish()
    if not keeps_unread:
        erase_unread(root, dead_before)


def drop_op(op: ir.Operation, stand_ins: StandIns) -> bool:
    """Erase one operation; false where a result has no stand-in, and it stays."""
    for result in op.results:
        if is_read(result):
            value = stand_ins.value(result, op)
            if value is None:
                return False
            result.replace_all_uses_with(value)
    op.erase()
    return True


def erase_unread(root: ir.Operation, but: Collection[ir.Operation] = ()) -> None:
    """Erase operations with results that nobody reads, and so on through their operands; not those
    that had no reader to begin with, which are there for another reason."""
    for region in root.regions:
        for block in region.blocks:
            for op in reversed([each.operation for each in block.operations]):
                if len(op.results) and not any(map(is_read, op.results)) and op not in but:
                    op.erase()
                else:
                    erase_unread(op, but)


def is_read(value: ir.Value) -> bool:
    return any(True for _ in value.uses)


def callers(function: ir.Operation) -> list[ir.Operation]:
    """The operations that call a function, in all dialects."""
    return calls_in(_root(function)).get(symbol_name(function), [])


def calls_in(root: ir.Operation) -> dict[str, list[ir.Operation]]:
    """By function, who calls it."""
    calls: dict[str, list[ir.Operation]] = {}
    for op in operations(root):
        if _CALLEE in op.attributes:
            callee = op.attributes[_CALLEE]
            if isinstance(callee, ir.FlatSymbolRefAttr):
                calls.setdefault(callee.value, []).append(op)
    return calls


def bodies(module: ir.Module) -> Iterator[ir.Operation]:
    """Functions that are not only declared."""
    return (each for each in functions(module) if len(each.regions[0].blocks))


def entry(function: ir.Operation) -> ir.Block:
    return function.regions[0].blocks[0]


def sync_signature(
    function: ir.Operation,
    arguments: Sequence[int] | None = None,
    kept: Sequence[int] | None = None,
) -> None:
    """Let the type and the attributes of a function follow its body: `arguments` and `kept` are the
    old numbers of the arguments and results that are left; new arguments come last."""
    old = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    arguments = range(len(old.inputs)) if arguments is None else arguments
    kept = range(len(old.results)) if kept is None else kept
    inputs = [argument.type for argument in entry(function).arguments]
    results = [old.results[k] for k in kept]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
    moved = {old_number: number for number, old_number in enumerate(kept)}
    if "arg_attrs" in function.attributes:
        attributes = ir.ArrayAttr(function.attributes["arg_attrs"])
        left = [_with_aliasing(attributes[k], moved) for k in arguments]
        left += [ir.DictAttr.get({})] * (len(inputs) - len(left))
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(left)
    if "res_attrs" in function.attributes:
        attributes = ir.ArrayAttr(function.attributes["res_attrs"])
        function.attributes["res_attrs"] = ir.ArrayAttr.get([attributes[k] for k in kept])


def rebuilt(
    op: ir.Operation, operands: Iterable[ir.Value], results: Sequence[int] | None = None
) -> ir.Operation:
    """The operation with other operands and only these of its results, which nobody may read
    otherwise; its regions move."""
    kept = range(len(op.results)) if results is None else results
    attributes = {name: op.attributes[name] for name in op.attributes}
    made = ir.Operation.create(
        op.name,
        [op.results[k].type for k in kept],
        list(operands),
        attributes,
        regions=len(op.regions),
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, new in zip(op.regions, made.regions, strict=True):
        for block in list(old.blocks):
            block.append_to(new)
    for number, k in enumerate(kept):
        op.results[k].replace_all_uses_with(made.results[number])
    op.erase()
    return made


def without(values: Iterable[ir.Value], dropped: Collection[int]) -> list[ir.Value]:
    return [value for k, value in enumerate(values) if k not in dropped]


def named(entries: ir.DictAttr) -> list[ir.NamedAttribute]:
    return [entries[k] for k in range(len(entries))]


def is_inside(op: ir.Operation, roots: Collection[ir.Operation]) -> bool:
    """Whether one of the roots holds the operation in its regions."""
    parent = op.parent
    while parent is not None:
        if parent.operation in roots:
            return True
        parent = parent.operation.parent
    return False


def end_of(block: ir.Block) -> ir.Operation:
    return terminator(block)


def _unread(root: ir.Operation) -> list[ir.Operation]:
    return [
        op
        for op in operations(root)
        if len(op.results) and not any(is_read(result) for result in op.results)
    ]


def _outermost(chosen: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Those that no other holds in its regions: erasing one takes what is inside along."""
    roots = set(chosen)
    return [op for op in chosen if not is_inside(op, roots)]


def _root(op: ir.Operation) -> ir.Operation:
    while op.parent is not None:
        op = op.parent.operation
    return op


def _isolated_block(op: ir.Operation) -> ir.Block:
    """The first block of the region around `op` that sees nothing from outside."""
    parent = op.parent
    while parent is not None and op_name(parent) not in _ISOLATED:
        parent = parent.operation.parent
    assert parent is not None  # a module is around everything
    return parent.operation.regions[0].blocks[0]


def _has_zero(type_: ir.Type) -> bool:
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return False
    return isinstance(type_.element_type, (ir.IntegerType, ir.FloatType, ir.ComplexType))


def _with_aliasing(attributes: ir.Attribute, moved: dict[int, int]) -> ir.Attribute:
    entries = {each.name: each.attr for each in named(ir.DictAttr(attributes))}
    if ALIASING in entries:
        number = ir.IntegerAttr(entries[ALIASING])
        if number.value in moved:
            entries[ALIASING] = ir.IntegerAttr.get(number.type, moved[number.value])
        else:
            del entries[ALIASING]
    return ir.DictAttr.get(entries)
