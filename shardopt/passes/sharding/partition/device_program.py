"""A planned module without stages becomes the program of one device, in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i32
from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.strategy import STRATEGY, read_strategy
from shardopt.dialect.tiles import TILE, tile_attribute
from shardopt.extract.chosen_plan import ChosenPart
from shardopt.extract.control_flow import numbered_operations
from shardopt.extract.op_graph import read_rule, sharding_rules
from shardopt.ir.rewriting import shape_of, terminator
from shardopt.mesh.mesh import Sharding
from shardopt.passes.sharding.partition.builder import DeviceBuilder
from shardopt.passes.sharding.partition.partitioner import Partitioner

_SIGNATURE = frozenset({"arg_attrs", "res_attrs", STRATEGY})
# How many run the program: each device is a replica of its own.
_COUNTS = ("mhlo.num_partitions", "mhlo.num_replicas")


def to_device_program(
    module: ir.Module, part: ChosenPart, report: Callable[[ir.Operation, str], None]
) -> None:
    """Rewrite the function that `part` was read from; `report` hears of the operations that every
    device runs whole, and why. Raises ValueError for what has no form on one device."""
    main = part.holder
    signature, lies = read_strategy(main), part.values()
    for value, sharding in lies.items():
        # Padding of uneven tiles would have to be masked by every reader.
        if not sharding.is_even(part.mesh, shape_of(value)):
            raise ValueError(
                f"expected tiles without padding, found sharding {sharding} of {value.type}"
            )
    with sharding_rules(module):
        rules = {
            op.results[0]: read_rule(op)
            for op in numbered_operations(part.block)
            if len(op.results)
        }
    with module.context, main.location:
        new, block = _function(part, signature.operands)
        partitioner = Partitioner(DeviceBuilder(part.mesh, block), lies, rules)
        partitioner.enter(part.block, block)
        partitioner.add_block(part.block, block)
        end = terminator(part.block)
        with ir.InsertionPoint(block), end.location:
            pairs = zip(end.operands, signature.results, strict=True)
            tiles = [partitioner.tile(value, sharding) for value, sharding in pairs]
            ir.Operation.create(end.name, [], tiles)
        _sign(new, part, signature.results)
        for op, reason in partitioner.whole:
            report(op, reason)
        main.erase()
        for name, count in zip(_COUNTS, (1, part.mesh.size), strict=True):
            module.operation.attributes[name] = i32(count)


def _function(part: ChosenPart, arguments: Sequence[Sharding]) -> tuple[ir.Operation, ir.Block]:
    """A function behind the old one, whose arguments are tiles; nothing in it yet."""
    main = part.holder
    named = [main.attributes[k] for k in range(len(main.attributes))]
    new = ir.Operation.create(
        main.name,
        [],
        [],
        {each.name: each.attr for each in named if each.name not in _SIGNATURE},
        regions=1,
        ip=ir.InsertionPoint.after(main),
    )
    pairs = list(zip(part.block.arguments, arguments, strict=True))
    types = [_tile_type(value.type, sharding, part) for value, sharding in pairs]
    locations = [value.location for value, _ in pairs]
    rows = zip(argument_attributes(main), pairs, strict=True)
    new.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [
            ir.DictAttr.get(entries(row) | {TILE: tile_attribute(value.type, sharding)})
            for row, (value, sharding) in rows
        ]
    )
    return new, new.regions[0].blocks.append(*types, arg_locs=locations)


def _sign(new: ir.Operation, part: ChosenPart, results: Sequence[Sharding]) -> None:
    """The type of the function, and of what its results are tiles."""
    values = list(terminator(part.block).operands)
    old = (
        [entries(ir.DictAttr(row)) for row in ir.ArrayAttr(part.holder.attributes["res_attrs"])]
        if "res_attrs" in part.holder.attributes
        else [{} for _ in values]
    )
    new.attributes["res_attrs"] = ir.ArrayAttr.get(
        [
            ir.DictAttr.get(row | {TILE: tile_attribute(value.type, sharding)})
            for row, value, sharding in zip(old, values, results, strict=True)
        ]
    )
    block = new.regions[0].blocks[0]
    types = [argument.type for argument in block.arguments]
    outputs = [value.type for value in terminator(block).operands]
    new.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, outputs))


def _tile_type(type_: ir.Type, sharding: Sharding, part: ChosenPart) -> ir.Type:
    tensor = ir.RankedTensorType(type_)
    shape = sharding.local_shape(part.mesh, tuple(tensor.shape))
    return ir.RankedTensorType.get(list(shape), tensor.element_type)
