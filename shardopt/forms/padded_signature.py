"""Arguments and results with uneven tiles, made even at the border of a module.

    func.func public @main(%a: tensor<10xf32>) -> tensor<10xf32> {
      %0 = stablehlo.negate %a }
 => (10 over 4: tiles of 3)
    func.func public @main(%p: tensor<12xf32>) -> tensor<12xf32> {
      %s = stablehlo.slice %p [0:10]
      %a = sdy.sharding_constraint %s <@mesh, [{"x"}]>
      %0 = stablehlo.negate %a
      %z = stablehlo.pad %0, 0, low = [0], high = [2] }

Shardy splits arguments and results over as many devices as divide them, and leaves the others
without work. Inside it takes uneven tiles, which XLA pads in the same way: the slice and the pad
move nothing, and every device's shard is that of the sharding of the smaller tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.ir.padding import with_padding, without_padding
from shardopt.ir.rewriting import defining, terminator
from shardopt.mesh.mesh import Mesh, Sharding


def pad_signature(
    main: ir.Operation,
    mesh: Mesh,
    arguments: Sequence[Sharding],
    results: Sequence[Sharding],
    attribute: Callable[[Sharding], sdy.TensorShardingAttr],
) -> None:
    """Rewrite a function in place: its arguments and results lie on `mesh` so; `attribute` is the
    sharding in the module's words."""
    border = _Border(mesh, attribute)
    block = main.regions[0].blocks[0]
    with main.context, main.location:
        with ir.InsertionPoint.at_block_begin(block):
            for argument, sharding in zip(block.arguments, arguments, strict=True):
                border.enter(argument, sharding)
        end = terminator(block)
        with ir.InsertionPoint(end):
            for number, sharding in enumerate(results):
                end.operands[number] = border.leave(end.operands[number], sharding)
        types = ([a.type for a in block.arguments], [value.type for value in end.operands])
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


@dataclass(frozen=True)
class _Border:
    mesh: Mesh
    attribute: Callable[[Sharding], sdy.TensorShardingAttr]

    def enter(self, argument: ir.Value, sharding: Sharding) -> None:
        """Pad an argument, and give its readers what is in it."""
        type_ = ir.RankedTensorType(argument.type)
        padded = sharding.padded_shape(self.mesh, tuple(type_.shape))
        if list(padded) == type_.shape:
            return
        argument.set_type(ir.RankedTensorType.get(padded, type_.element_type))
        inside = without_padding(argument, type_.shape)
        cut = defining(inside)
        assert cut is not None
        argument.replace_all_uses_except(self._constrained(inside, sharding), cut)

    def leave(self, value: ir.Value, sharding: Sharding) -> ir.Value:
        """A result with padding."""
        type_ = ir.RankedTensorType(value.type)
        padded = sharding.padded_shape(self.mesh, tuple(type_.shape))
        if list(padded) == type_.shape:
            return value
        return self._constrained(with_padding(value, padded), sharding)

    def _constrained(self, value: ir.Value, sharding: Sharding) -> ir.Value:
        return sdy.ShardingConstraintOp(value, self.attribute(sharding)).result
