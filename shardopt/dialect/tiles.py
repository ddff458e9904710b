"""`shardopt.tile` on the arguments and results of a program for one device: of which tensor each is
a tile, and how that lies on the mesh (`shardopt.mesh` on the function).

func.func public @main(%a: tensor<4x4xf32> {shardopt.tile = {type = tensor<8x4xf32>, sharding =
                       "[{x}, {}]"}}) attributes {shardopt.mesh = #sdy.mesh<["x"=2]>}
"""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.mesh.mesh import Sharding
from shardopt.mesh.sharding_text import parse_sharding, sharding_text

TILE = "shardopt.tile"


def tile_attribute(type_: ir.Type, sharding: Sharding) -> ir.DictAttr:
    text = ir.StringAttr.get(sharding_text(sharding))
    return ir.DictAttr.get({"type": ir.TypeAttr.get(type_), "sharding": text})


def read_tile(attribute: ir.Attribute) -> tuple[ir.Type, Sharding]:
    """The whole tensor and its sharding. Raises ValueError for another attribute."""
    try:
        fields = entries(ir.DictAttr(attribute))
        sharding = parse_sharding(ir.StringAttr(fields["sharding"]).value)
        return ir.TypeAttr(fields["type"]).value, sharding
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"expected '{TILE}' with the type and the sharding of a tensor, found {attribute}"
        ) from error
