"""Small steps that rewriting passes share: walking, moving a block into another, replacing an op
with what fed it.

Everything here is native code behind thin calls, because modules have tens of thousands of
operations: a body is cloned as one operation and its operations are then moved, instead of being
built again one by one from Python."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxlib.mlir import ir

# What may vanish together with its last user: free of side effects, and made only to feed shapes
# and indices. Constants stay (rewrites share them); canonicalize drops the unused ones.
_DISPOSABLE = frozenset(
    {
        "stablehlo.add",
        "stablehlo.and",
        "stablehlo.broadcast_in_dim",
        "stablehlo.clamp",
        "stablehlo.compare",
        "stablehlo.concatenate",
        "stablehlo.convert",
        "stablehlo.dynamic_slice",
        "stablehlo.dynamic_update_slice",
        "stablehlo.iota",
        "stablehlo.maximum",
        "stablehlo.minimum",
        "stablehlo.multiply",
        "stablehlo.not",
        "stablehlo.or",
        "stablehlo.reshape",
        "stablehlo.select",
        "stablehlo.slice",
        "stablehlo.subtract",
        "stablehlo.transpose",
    }
)

BARRIER = "stablehlo.optimization_barrier"

# Attributes by which a frontend steers the compiler; an op that carries one is a statement of the
# user.
USER_ATTRIBUTES = ("mhlo.sharding", "sdy.sharding", "mhlo.frontend_attributes")


def op_name(op: ir.Operation | ir.OpView) -> str:
    """`stablehlo.add`. The views of ops that have an attribute `name` hide it behind `.name`; this
    does not."""
    return op.operation.name


def defining(value: ir.Value, name: str = "") -> ir.Operation | None:
    """The operation that makes `value` (if it is called `name`, when given), or None for a block
    argument."""
    if isinstance(value, ir.BlockArgument):
        return None
    op = ir.OpResult(value).owner.operation
    return op if not name or op.name == name else None


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The static shape of a ranked tensor."""
    return tuple(ir.RankedTensorType(value.type).shape)


def copy_of(module: ir.Module) -> ir.Module:
    """A second module in the same context, for whoever changes one; three times as fast as writing
    and reading it."""
    copy = ir.Module.create(module.operation.location)
    for name in module.operation.attributes:
        copy.operation.attributes[name] = module.operation.attributes[name]
    for op in module.body.operations:
        op.operation.clone(ip=ir.InsertionPoint(copy.body))
    return copy


def operations(
    root: ir.Operation | ir.OpView, names: Collection[str] = (), outer_first: bool = False
) -> list[ir.Operation]:
    """All operations in `root` and itself (only those called one of `names`, when given), producers
    before consumers.

    An operation comes behind those in its regions, so that a rewrite which erases it leaves no dead
    handle in the rest of the list; `outer_first` puts it before them, which is the order of the
    text."""
    matches: list[ir.Operation] = []
    on = ir.WalkResult.ADVANCE  # looked up once: visits are many

    def visit(op: ir.Operation) -> ir.WalkResult:
        if not names or op.name in names:
            matches.append(op)
        return on

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER if outer_first else ir.WalkOrder.POST_ORDER)
    return matches


def functions(module: ir.Module) -> Iterator[ir.Operation]:
    """The functions of the module in program order."""
    return (op.operation for op in module.body.operations if op_name(op) == "func.func")


def symbol_name(function: ir.Operation) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def splice_block(
    block: ir.Block, arguments: Sequence[ir.Value], anchor: ir.Operation
) -> tuple[list[ir.Operation], ir.Operation]:
    """Move the body of `block` to just before `anchor`, with its arguments replaced. `block` keeps
    its terminator.

    Returns the moved operations and the terminator, whose operands stay up to date while the moved
    operations are rewritten; the caller erases the operation that owns `block` when it has read
    them."""
    for parameter, argument in zip(block.arguments, arguments, strict=True):
        parameter.replace_all_uses_with(argument)
    *body, terminator = (op.operation for op in block.operations)
    for op in body:
        op.move_before(anchor)
    return body, terminator


def replace_op(
    op: ir.Operation, values: Sequence[ir.Value], unread: Sequence[ir.Value] = ()
) -> None:
    """Replace the results of `op` by `values`, erase it, and erase what only it kept alive, and
    those of `unread` that nothing reads now."""
    operands = list(op.operands)
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()
    erase_dead([*operands, *unread])


def replace_reads(op: ir.Operation, values: Mapping[ir.Value, ir.Value]) -> None:
    """Let `op`, and the operations in its regions, read other values."""
    for k, operand in enumerate(op.operands):
        if operand in values:
            op.operands[k] = values[operand]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                replace_reads(inner.operation, values)


def erase_dead(values: Sequence[ir.Value]) -> None:
    """Erase the disposable producers of `values` that have no use left, and so on through their
    operands."""
    pending = list(values)
    while pending:
        op = defining(pending.pop())
        if op is None or op.name not in _DISPOSABLE or any(True for _ in op.results[0].uses):
            continue
        # no handle to a value of an erased op may stay behind
        pending = [value for value in (*pending, *op.operands) if value != op.results[0]]
        op.erase()


def has_user_attribute(op: ir.Operation) -> bool:
    return any(name in op.attributes for name in USER_ATTRIBUTES)


def barrier(
    values: Sequence[ir.Value], loc: ir.Location, ip: ir.InsertionPoint | None = None
) -> ir.Operation:
    """A new `optimization_barrier`: hands `values` on once all of them are there."""
    types = [value.type for value in values]
    return ir.Operation.create(BARRIER, types, list(values), loc=loc, ip=ip)


def past_barriers(value: ir.Value) -> ir.Value:
    """What goes into the barriers that `value` comes out of."""
    while (maker := defining(value, BARRIER)) is not None:
        value = maker.operands[ir.OpResult(value).result_number]
    return value


def identity(value: ir.Value, loc: ir.Location, ip: ir.InsertionPoint) -> ir.Operation:
    """A new `@Sharding` custom call: hands `value` on, and holds whatever sharding it is annotated
    with."""
    attributes: dict[str, ir.Attribute] = {"call_target_name": ir.StringAttr.get("Sharding")}
    return ir.Operation.create(
        "stablehlo.custom_call", [value.type], [value], attributes, loc=loc, ip=ip
    )


def terminator(block: ir.Block) -> ir.Operation:
    # The list of operations counts from the front, which for each result of a large @main would
    # take seconds.
    last = ir.InsertionPoint.at_block_terminator(block).ref_operation
    assert last is not None  # at_block_terminator raises where there is none
    return last.operation


def return_values(
    function: ir.Operation,
    values: Sequence[ir.Value],
    inputs: Sequence[ir.Type],
    arguments: Sequence[Mapping[str, ir.Attribute]],
    results: Sequence[Mapping[str, ir.Attribute]],
) -> None:
    """Let a function of one block return other values, and its signature say so: the types of its
    arguments, and the attributes of arguments and results, none of results behind those given."""
    old = terminator(function.regions[0].blocks[0])
    ir.Operation.create(
        "func.return", [], list(values), loc=old.location, ip=ir.InsertionPoint(old)
    )
    old.erase()
    rows = [*results, *[{}] * (len(values) - len(results))]
    for name, dicts in (("arg_attrs", arguments), ("res_attrs", rows)):
        function.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(dict(row)) for row in dicts])
    types = list(inputs), [value.type for value in values]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
