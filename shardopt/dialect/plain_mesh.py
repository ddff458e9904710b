"""`shardopt.mesh` on `@main`: the mesh of a module without stages, between the passes that choose
and apply shardings.

func.func public @main(…) attributes {shardopt.mesh = #sdy.mesh<["x"=2, "y"=2]>}
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.dialect.mpmd import mesh_shape_attr
from shardopt.mesh.mesh import MESH_NAME, Mesh, numbered_devices

PLAIN_MESH = "shardopt.mesh"


def write_plain_mesh(main: ir.Operation, mesh: Mesh) -> None:
    main.attributes[PLAIN_MESH] = mesh_shape_attr(mesh)


def read_plain_mesh(main: ir.Operation) -> Mesh:
    """The mesh over devices 0, 1, 2, … Raises ValueError where there is none."""
    if PLAIN_MESH not in main.attributes:
        raise ValueError(
            f"expected a topology or '{PLAIN_MESH}' on '@main' (run shardopt-choose-shardings "
            "first), found none"
        )
    axes = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(main.attributes[PLAIN_MESH]).axes]
    sizes = tuple((axis.name, axis.size) for axis in axes)
    return Mesh(MESH_NAME, sizes, numbered_devices(sizes))
