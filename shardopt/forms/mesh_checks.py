"""What C++ does not check of meshes and of the values on them; the verifiers of all forms with
stages use these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh


def mesh_errors(meshes: Sequence[Mesh], cluster: Cluster) -> Iterator[str]:
    """Names must be unique, device ids disjoint and those of the cluster, and a mesh must lie in
    one host group."""
    names: set[str] = set()
    owner: dict[int, str] = {}
    for mesh in meshes:
        if mesh.name in names:
            yield f"expected unique mesh names in the topology, found '{mesh.name}' twice"
        names.add(mesh.name)
        for device in mesh.devices:
            if not 0 <= device < cluster.num_devices:
                yield (
                    f"expected devices 0 to {cluster.num_devices - 1} of cluster {cluster}, "
                    f"found device {device} in mesh '{mesh.name}'"
                )
            elif device in owner:
                yield (
                    f"expected disjoint meshes, found device {device} in '{owner[device]}' and "
                    f"in '{mesh.name}'"
                )
            owner.setdefault(device, mesh.name)
        try:
            cluster.group_of(mesh)
        except ValueError as error:
            yield str(error)


def value_error(type_: ir.Type, meshes: Mapping[str, Mesh]) -> str:
    """What is wrong with the type of a value outside of fragments, or nothing: a mesh tensor on a
    mesh that exists, with a sharding, if it has one, that fits."""
    if not is_mesh_tensor(type_):
        return f"expected a mesh tensor, found {type_}"
    try:
        value = parse_mesh_tensor(type_)
        if value.mesh not in meshes:
            return f"expected a mesh of the topology ({', '.join(meshes)}), found '{value.mesh}'"
        if value.sharding is not None:
            value.sharding.check(meshes[value.mesh], tuple(value.tensor.shape))
    except ValueError as error:
        return str(error)
    return ""
