"""Sums that the microbatch loop carries, and the loop with more or fewer of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import mpmd, stablehlo

from shardopt.dialect.attributes import i64
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.ir.rewriting import defining, symbol_name, terminator

ADD = "stablehlo.add"


def read_once(value: ir.Value) -> bool:
    return sum(1 for _ in value.uses) == 1


def layer_of(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes[LAYER]).value


def in_layer(value: ir.Value, layer: int) -> ir.Value:
    maker = defining(value)
    assert maker is not None, "just made"
    maker.attributes[LAYER] = i64(layer)
    return value


def accumulation(program: StepProgram, number: int) -> tuple[ir.Operation, ir.Value] | None:
    """What adds to carried value `number`, and the term that it adds; None where the body does
    anything else with it."""
    argument, result = program.carried[number]
    accumulator, returned = program.body_block.arguments[argument], program.body_result(result)
    root = defining(returned, ADD)
    outside = program.loop_block.arguments[number], program.call.results[result]
    if root is None or not all(map(read_once, (accumulator, returned, *outside))):
        return None
    terms = [value for value in root.operands if value != accumulator]
    return (root, terms[0]) if len(terms) == 1 else None


def leaves(value: ir.Value) -> list[ir.Value]:
    """The terms of a sum, in the order in which they stand."""
    found, stack = [], [value]
    while stack:
        value = stack.pop()
        added = defining(value, ADD)
        if added is None or not read_once(value):
            found.append(value)
        else:
            stack += reversed(list(added.operands))
    return found


def additions(root: ir.Operation) -> list[ir.Operation]:
    """The additions of a sum, readers first."""
    found, stack = [], [root]
    while stack:
        op = stack.pop()
        found.append(op)
        for value in op.operands:
            maker = defining(value, ADD)
            if maker is not None and read_once(value):
                stack.append(maker)
    return found


def total(terms: Sequence[ir.Value], layer: int) -> ir.Value:
    """The sum of `terms`, from the first to the last, at the current insertion point."""
    first, *others = terms
    for term in others:
        first = in_layer(stablehlo.AddOp(first, term).result, layer)
    return first


def return_from_body(
    program: StepProgram,
    returned: Sequence[ir.Value],
    dead: Sequence[ir.Operation],
    dropped: Collection[int] = (),
) -> None:
    """Let the body return these, without operations that are read no more, readers first, and
    without arguments `dropped`; and let its signature say so."""
    block, old = program.body_block, terminator(program.body_block)
    func_dialect.ReturnOp(returned, loc=old.location, ip=ir.InsertionPoint(old))
    for op in (old, *dead):
        op.erase()
    for argument in sorted(dropped, reverse=True):
        block.erase_argument(argument)
    types = [value.type for value in block.arguments], [v.type for v in program.body_returned]
    program.body.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


def rewrite_loop(
    program: StepProgram, dropped: Collection[int], new: Sequence[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """The loop once more before the old one, without carried values `dropped`, and with others
    that start from `new`; the body takes and returns them already, the new ones last. Returns what
    stands for the results of the old loop, which may be erased then, and the new results under
    their starts."""
    old, call = program.loop, program.call
    gone_in = {program.carried[number][0] for number in dropped}
    gone_out = {program.carried[number][1] for number in dropped}
    kept = [k for k in range(len(old.operands)) if k not in dropped]
    start = [*(old.operands[k] for k in kept), *new]
    types = [value.type for value in start]
    loop = mpmd.ForOp(types, start, ir.IntegerAttr(old.attributes["iterations"])).operation
    for name in old.attributes:
        loop.attributes[name] = old.attributes[name]
    *carried, index = program.loop_block.arguments
    kinds = [*types, index.type]
    block = loop.regions[0].blocks.append(*kinds, arg_locs=[old.location] * len(kinds))
    *now, now_index = block.arguments
    values: dict[ir.Value, ir.Value] = {index: now_index}
    values |= {carried[k]: value for k, value in zip(kept, now, strict=False)}
    operands = [values.get(v, v) for k, v in enumerate(call.operands) if k not in gone_in]
    results = [value for k, value in enumerate(call.results) if k not in gone_out]
    result_types = [*(value.type for value in results), *(value.type for value in new)]
    with ir.InsertionPoint(block), call.location:
        passed = [*operands, *now[len(kept) :]]
        again = mpmd.CallOp(result_types, passed, symbol_name(program.body)).operation
        for name in call.attributes:
            again.attributes[name] = call.attributes[name]
        made: dict[ir.Value, ir.Value] = dict(zip(results, again.results, strict=False))
        yielded = list(terminator(program.loop_block).operands)
        mpmd.ReturnOp([*(made[yielded[k]] for k in kept), *list(again.results)[len(results) :]])
    after: dict[ir.Value, ir.Value] = {
        old.results[k]: value for k, value in zip(kept, loop.results, strict=False)
    }
    return after | dict(zip(new, list(loop.results)[len(kept) :], strict=True))
