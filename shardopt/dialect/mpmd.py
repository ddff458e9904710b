"""Typed access to what our IR says with the `mpmd` dialect: topologies, mesh tensors, fragments,
transfers, loops.

The dialect's own Python builders lack types and topologies, so those are built and read as text
(one place: here)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd

from shardopt.dialect.sharding import from_sdy, to_sdy, unescaped
from shardopt.mesh.mesh import Mesh, Sharding, numbered_devices

TOPOLOGY = "topology"
DEVICES = "shardopt.devices"
KIND = "shardopt.kind"
STAGE = "shardopt.stage"
# on a forward that does the backward of its stage, too
BACKWARD = "shardopt.backward"
STAGE_ID = "stage_id"  # of `mpmd.fragment`
# on the handle of an accumulator: where its sum may be closed at the latest
SUM_POINT = "shardopt.sum_point"
LAYER = "shardopt.layer"
SCHEDULE = "shardopt.schedule"
RESHARDING = "shardopt.resharding"
COST = "shardopt.cost"
IN_FLIGHT = "shardopt.in_flight"
RECOMPUTE = "shardopt.recompute"
OFFLOAD = "shardopt.offload"
INTRA_OP = "shardopt.intra_op"
# of a loop in which each iteration is so many microbatches, in pipelines of their own
STREAMS = "shardopt.streams"

# Values of `KIND` in the microbatch loop: a backward is one fragment, or an input half and a weight
# half.
BODY_KINDS = ("fwd", "bwd", "bwd_input", "bwd_weight")

_TOPOLOGY_MESH = re.compile(r'<"(?P<name>[^"]+)"\s*:\s*<\[(?P<axes>[^\]]*)\]>>')
_AXIS = re.compile(r'"(?P<name>[^"]+)"\s*=\s*(?P<size>\d+)')
_MESH_TENSOR = re.compile(
    r'!mpmd\.mesh_tensor<"(?P<mesh>[^"]+)",\s*(?P<tensor>tensor<[^<>]*(?:<[^<>]*>[^<>]*)*>)'
    r"(?:,\s*sharding=(?P<sharding><@.*?\](?:, \w+=\{[^{}]*\})*>))?"
)


@dataclass(frozen=True)
class MeshTensor:
    """A parsed `!mpmd.mesh_tensor<"m0", tensor<4x8xf32>, sharding=<@m0, [{"x"}, {}]>>`."""

    mesh: str
    tensor: ir.RankedTensorType
    sharding: Sharding | None


def mesh_tensor_type(mesh: str, tensor: ir.Type, sharding: Sharding | None = None) -> ir.Type:
    suffix = "" if sharding is None else f", sharding={to_sdy(sharding, mesh)}"
    return ir.Type.parse(f'!mpmd.mesh_tensor<"{mesh}", {tensor}{suffix}>')


def is_mesh_tensor(type_: ir.Type) -> bool:
    if isinstance(type_, ir.RankedTensorType):  # most are, and their text takes long to make
        return False
    return str(type_).startswith("!mpmd.mesh_tensor<")


def parse_mesh_tensor(type_: ir.Type) -> MeshTensor:
    """Raises ValueError when `type_` is not a mesh tensor."""
    match = _MESH_TENSOR.match(str(type_))
    if match is None:
        raise ValueError(f"expected an !mpmd.mesh_tensor type, found {type_}")
    sharding = from_sdy(match["sharding"], final=True)[1] if match["sharding"] else None
    return MeshTensor(
        match["mesh"], ir.RankedTensorType(ir.Type.parse(match["tensor"], type_.context)), sharding
    )


def write_topology(func: ir.Operation, meshes: Sequence[Mesh], *, devices: bool) -> None:
    """Attach the topology; `devices=True` (on `@main` only) also records the global device ids of
    every mesh."""
    text = ", ".join(
        f'<"{mesh.name}" : <[{", ".join(f"{_quote(name)}={size}" for name, size in mesh.axes)}]>>'
        for mesh in meshes
    )
    func.attributes[TOPOLOGY] = ir.Attribute.parse(f"#mpmd.topology<{text}>")
    if devices:
        func.attributes[DEVICES] = ir.ArrayAttr.get(
            [ir.DenseI64ArrayAttr.get(list(mesh.devices)) for mesh in meshes]
        )


def read_topology(func: ir.Operation) -> tuple[Mesh, ...]:
    """The meshes of a function, device ids from `shardopt.devices` when present, else numbered
    consecutively.

    Raises ValueError when there is no topology or when it and `shardopt.devices` disagree in
    length."""
    if TOPOLOGY not in func.attributes:
        raise ValueError(f"expected attribute '{TOPOLOGY}' on the function, found none")
    named_axes = [
        (
            unescaped(m["name"]),
            tuple((unescaped(a["name"]), int(a["size"])) for a in _AXIS.finditer(m["axes"])),
        )
        for m in _TOPOLOGY_MESH.finditer(str(func.attributes[TOPOLOGY]))
    ]
    if DEVICES in func.attributes:
        ids = [tuple(ir.DenseI64ArrayAttr(row)) for row in ir.ArrayAttr(func.attributes[DEVICES])]
        if len(ids) != len(named_axes):
            raise ValueError(
                f"expected {len(named_axes)} rows in '{DEVICES}' (one a mesh of the topology), "
                f"found {len(ids)}"
            )
    else:
        ids, start = [], 0
        for _, axes in named_axes:
            numbers = numbered_devices(axes)
            ids.append(tuple(start + number for number in numbers))
            start += len(numbers)
    return tuple(
        Mesh(name, axes, devices) for (name, axes), devices in zip(named_axes, ids, strict=True)
    )


def write_methods(loop: ir.Operation, methods: Sequence[str]) -> None:
    """Say on the microbatch loop how the inside of every stage is to be sharded, unless the solver
    decides all."""
    if set(methods) - {"ilp"}:
        loop.attributes[INTRA_OP] = ir.ArrayAttr.get(
            [ir.StringAttr.get(method) for method in methods]
        )


def read_methods(loop: ir.Operation, num_stages: int) -> tuple[str, ...]:
    """Raises ValueError where there is not one a stage."""
    if INTRA_OP not in loop.attributes:
        return ("ilp",) * num_stages
    methods = tuple(
        ir.StringAttr(method).value for method in ir.ArrayAttr(loop.attributes[INTRA_OP])
    )
    if len(methods) != num_stages:
        raise ValueError(f"expected {num_stages} names in '{INTRA_OP}', found {len(methods)}")
    return methods


def write_recompute(loop: ir.Operation, modes: Sequence[str]) -> None:
    """Say on the microbatch loop what every stage recomputes, unless none does."""
    if set(modes) - {"none"}:
        loop.attributes[RECOMPUTE] = ir.ArrayAttr.get([ir.StringAttr.get(mode) for mode in modes])


def write_offload(loop: ir.Operation, modes: Sequence[str]) -> None:
    """Say on the microbatch loop what every stage keeps on its hosts, unless none does."""
    if set(modes) - {"none"}:
        loop.attributes[OFFLOAD] = ir.ArrayAttr.get([ir.StringAttr.get(mode) for mode in modes])


def read_offload(loop: ir.Operation) -> tuple[str, ...]:
    """What every stage keeps on its hosts; nothing where no stage does."""
    if OFFLOAD not in loop.attributes:
        return ()
    return tuple(ir.StringAttr(mode).value for mode in ir.ArrayAttr(loop.attributes[OFFLOAD]))


def mesh_shape_attr(mesh: Mesh) -> ir.Attribute:
    """`#sdy.mesh<["x"=2, "y"=1]>`, the `mesh_shape` of a function that a fragment call calls."""
    return ir.Attribute.parse(
        f"#sdy.mesh<[{', '.join(f'{_quote(name)}={size}' for name, size in mesh.axes)}]>"
    )


def origin_attr(names: Sequence[str]) -> ir.Attribute:
    return ir.ArrayAttr.get(
        [ir.Attribute.parse(f"#mpmd.user_origin<{_quote(name)}>") for name in names]
    )


@dataclass(frozen=True)
class FragmentHead:
    """What stands on a fragment beside its operands: where it runs, and what it is a part of;
    whether it is a forward that does the backward of its stage, too."""

    mesh: str
    origin: tuple[str, ...]
    stage: int
    kind: str
    backward: bool = False


def fragment(
    head: FragmentHead,
    inputs: Sequence[ir.Value],
    result_types: Sequence[ir.Type],
    *,
    loc: ir.Location,
    ip: ir.InsertionPoint,
) -> tuple[ir.Operation, ir.Block]:
    """An `mpmd.fragment` with an empty body whose arguments have the global types of `inputs`."""
    origin = origin_attr(head.origin)
    op = mpmd.FragmentOp(
        result_types, inputs, origin, head.mesh, stage_id=head.stage, loc=loc, ip=ip
    ).operation
    op.attributes[KIND] = ir.StringAttr.get(head.kind)
    if head.backward:
        op.attributes[BACKWARD] = ir.UnitAttr.get()
    block = op.regions[0].blocks.append(
        *[parse_mesh_tensor(v.type).tensor for v in inputs], arg_locs=[loc] * len(inputs)
    )
    return op, block


def transfer(
    value: ir.Value, result_type: ir.Type, *, loc: ir.Location, ip: ir.InsertionPoint
) -> ir.Operation:
    return mpmd.TransferOp(result_type, value, loc=loc, ip=ip).operation


def _quote(name: str) -> str:
    return f'"{name}"'
