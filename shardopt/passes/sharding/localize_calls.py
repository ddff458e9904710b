"""Write custom calls that are split as code for one device, which no partitioner has to know.

Needs the chosen form in which all operations agree (`shardopt-insert-reshards`), which holds
afterwards, too. Each custom call with a rule (`shardopt.extract.call_rules`) whose operands or
results are split stands in a manual region, and works on tiles; what it says of extents is said of
them. Rules are gone.

    %0 = custom_call @mine(%x) {sdy.sharding_rule = …}   : 8x4 -> 8x4      [{x}, {}] -> [{x}, {}]
 =>
    %0 = sdy.manual_computation(%x) in_shardings=[[{x}, {}]] out_shardings=[[{x}, {}]] (%a) {
      %1 = custom_call @mine(%a) : 4x4 -> 4x4
      sdy.return %1 }

Where a dimension that is split is contracted, each device makes a term of the result. The terms
stand beside each other, and their sum is an operation like any other:

    %0 = custom_call @sum(%x) {sdy.sharding_rule = …}    : 8x4 -> 4         [{x}, {}] -> [{}]
 =>
    %0 = sdy.manual_computation(%x) … out_shardings=[[{x}, {}]] …           : 8x4 -> 2x4
    %1 = reduce(%0) add across dimensions = [0]          : 2x4 -> 4         [{x}, {}], [] -> [{}]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.dialect.custom_calls import PARTITIONED, call_target
from shardopt.dialect.manual import ManualRegion, create_region
from shardopt.dialect.strategy import CLONE, STRATEGY, OpStrategy, read_strategy, write_strategy
from shardopt.extract.call_rules import CALL, call_rule, fit_call
from shardopt.extract.chosen_plan import find_holders
from shardopt.extract.shardy_rules import RULE, is_own_rule
from shardopt.ir.rewriting import defining
from shardopt.ir.splats import splat_constant
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.passes.base import Pass, PassContext
from shardopt.passes.sharding.partition.splits import CannotSplit, read_split

Axes = tuple[str, ...]


def _localize(op: ir.Operation, mesh: Mesh) -> bool:
    """Whether the call is split. Raises CannotSplit where shardings do not follow its rule."""
    strategy, rule = read_strategy(op), call_rule(op)
    if rule is None:
        return False
    split = read_split(rule, strategy.operands, strategy.results, mesh)
    if not split.axes:
        return False
    if split.terms:
        raise CannotSplit("an operand is a term of a sum")
    tiles = [_tiles(mapping, split.axes) for mapping in rule.results]
    numbers = range(len(op.results))
    read = [k for k in numbers if any(True for _ in op.results[k].uses)]
    if not read or call_target(op) == PARTITIONED:  # which is written out for all of its results
        read = list(numbers)
    with ir.InsertionPoint(op), op.location:
        lies = OpStrategy.plain(strategy.operands, tiles)
        if split.reduced:
            values = [_sum_of_terms(op, lies, split.reduced, strategy.results[0], mesh)]
        else:
            values = list(_region(op, lies, read, mesh).results)
    for number, value in zip(read, values, strict=True):
        op.results[number].replace_all_uses_with(value)
    op.erase()
    return True


def _tiles(mapping: Sequence[Sequence[int]], axes: Mapping[int, Axes]) -> Sharding:
    return Sharding(
        tuple(tuple(axis for factor in dim for axis in axes.get(factor, ())) for dim in mapping)
    )


def _region(
    op: ir.Operation, lies: OpStrategy, read: Sequence[int], mesh: Mesh, terms: Axes = ()
) -> ir.Operation:
    """The call on tiles, with its results that are `read`; terms along axes lie as tiles of a first
    dimension of their own."""
    made = [_local_type(value.type, how, mesh) for value, how in _pairs(op.results, lies.results)]
    results = [(op.results[number].type, lies.results[number]) for number in read]
    if terms:
        results = [
            (_stacked(type_, prod(map(mesh.axis_size, terms))), Sharding((terms, *how.dims)))
            for type_, how in results
        ]
    region = create_region(
        ManualRegion(mesh.axes, mesh.axis_names, lies.operands, tuple(how for _, how in results)),
        list(op.operands),
        [type_ for type_, _ in results],
    )
    write_strategy(region, OpStrategy.plain(lies.operands, [how for _, how in results]))
    taken = [_local_type(v.type, how, mesh) for v, how in _pairs(op.operands, lies.operands)]
    block = region.regions[0].blocks.append(*taken, arg_locs=[op.location] * len(taken))
    with ir.InsertionPoint(block):
        call = op.clone(ip=ir.InsertionPoint.current)
        for position, argument in enumerate(block.arguments):
            call.operands[position] = argument
        for result, type_ in zip(call.results, made, strict=True):
            result.set_type(type_)
        fit_call(call)
        _forget(call)
        values: list[ir.Value] = [call.results[number] for number in read]
        if terms:
            values = [stablehlo.ReshapeOp(_stacked(v.type, 1), v).result for v in values]
        ir.Operation.create("sdy.return", [], values)
    return region


def _sum_of_terms(
    op: ir.Operation, lies: OpStrategy, terms: Axes, result: Sharding, mesh: Mesh
) -> ir.Value:
    """The one result of a call that contracts a dimension which is split."""
    region = _region(op, lies, [0], mesh, terms)
    type_ = ir.RankedTensorType(op.results[0].type)
    scalar = ir.RankedTensorType.get([], type_.element_type)
    zero = splat_constant(scalar, 0)
    constant = defining(zero)
    assert constant is not None
    write_strategy(constant, OpStrategy.plain((), (Sharding(()),)))
    total = stablehlo.ReduceOp([type_], [region.results[0]], [zero], [0])
    block = total.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])
    stacked = read_strategy(region).results[0]
    write_strategy(total.operation, OpStrategy.plain((stacked, Sharding(())), (result,)))
    return total.results[0]


def _pairs(
    values: Sequence[ir.Value], shardings: Sequence[Sharding]
) -> Iterator[tuple[ir.Value, Sharding]]:
    return zip(values, shardings, strict=True)


def _local_type(type_: ir.Type, sharding: Sharding, mesh: Mesh) -> ir.Type:
    tensor = ir.RankedTensorType(type_)
    shape = sharding.local_shape(mesh, tuple(tensor.shape))
    return ir.RankedTensorType.get(list(shape), tensor.element_type)


def _stacked(type_: ir.Type, count: int) -> ir.Type:
    tensor = ir.RankedTensorType(type_)
    return ir.RankedTensorType.get([count, *tensor.shape], tensor.element_type)


def _forget(call: ir.Operation) -> None:
    """What no partitioner is to read."""
    for name in (STRATEGY, CLONE, RULE):
        if name in call.attributes:
            del call.attributes[name]


@dataclass(frozen=True)
class LocalizeCalls(Pass):
    """See the head of the file."""

    name = "shardopt-localize-calls"
    summary = "write custom calls that are split as code for one device"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            holders = find_holders(module)
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        calls = [(op, each.mesh) for each in holders for op in each.numbered if op.name == CALL]
        split = 0
        for op, mesh in calls:
            try:
                is_split = _localize(op, mesh)
            except CannotSplit as error:
                raise pm.error(
                    op, f"'@{call_target(op)}' cannot be split as chosen: {error}"
                ) from error
            split += is_split
            if not is_split and is_own_rule(op):
                del op.attributes[RULE]
        pm.statistic("split calls", split)
        if not calls:
            pm.preserve()
