"""Programs for one device, run as replicas on host devices, and the collectives that they name."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from jax._src import core
from jax.extend.backend import get_compile_options
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import lapack
from jaxlib import xla_client as xc
from jaxlib.mlir import ir

from shardopt.cost.traffic import Traffic
from shardopt.dialect.plain_mesh import read_plain_mesh
from shardopt.dialect.tiles import TILE, read_tile
from shardopt.extract.op_graph import read_tensor
from shardopt.ir.rewriting import functions, operations
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.devices.clients import unshared_devices
from shardopt.runtime.devices.xla import compile_quickly

_KINDS = {"collective_permute": "permute"} | {
    kind: kind for kind in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
}


@cache
def _devices(count: int) -> list[Any]:
    return unshared_devices(count).local


def run_device_program(module: ir.Module, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Whole results from whole inputs; every device is a replica."""
    main = next(functions(module))
    mesh = read_plain_mesh(main)
    devices = _devices(mesh.size)
    arguments, results = (_tiles(main, which) for which in ("arg_attrs", "res_attrs"))
    lapack._lapack.initialize()
    ids = [[device.id] for device in devices]
    options = get_compile_options(num_replicas=mesh.size, num_partitions=1, device_assignment=ids)
    compile_quickly(options)
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    client = devices[0].client
    loaded = client.compile_and_load(buffer.getvalue(), tuple(devices), options)
    arrays = [
        _put(devices, [array[tile] for tile in _slices(mesh, sharding, array.shape)])
        for array, (_, sharding) in zip(inputs, arguments, strict=True)
    ]
    outputs = loaded.execute_sharded(arrays).disassemble_into_single_device_arrays()
    return [
        _joined(mesh, sharding, shape, [np.asarray(tile) for tile in tiles])
        for tiles, (shape, sharding) in zip(outputs, results, strict=True)
    ]


def _tiles(main: ir.Operation, which: str) -> list[tuple[tuple[int, ...], Sharding]]:
    pairs = [read_tile(ir.DictAttr(row)[TILE]) for row in ir.ArrayAttr(main.attributes[which])]
    return [(tuple(ir.RankedTensorType(type_).shape), sharding) for type_, sharding in pairs]


def _slices(mesh: Mesh, sharding: Sharding, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    return [
        tuple(slice(start, stop) for start, stop in tile) for tile in sharding.tiles(mesh, shape)
    ]


def _put(devices: Sequence[Any], tiles: Sequence[np.ndarray]) -> Any:
    mesh = JaxMesh(np.array(devices), ("replica",))
    rows = tiles[0].ndim > 0
    sharding = NamedSharding(mesh, PartitionSpec("replica") if rows else PartitionSpec())
    shape = (tiles[0].shape[0] * len(devices), *tiles[0].shape[1:]) if rows else ()
    aval = core.ShapedArray(shape, tiles[0].dtype)
    copies = [np.array(tile) for tile in tiles]
    return xc.batched_device_put(aval, sharding, copies, list(devices), enable_x64=True)


def _joined(
    mesh: Mesh, sharding: Sharding, shape: tuple[int, ...], tiles: Sequence[np.ndarray]
) -> np.ndarray:
    """The whole value; equal tiles must be equal on all their devices."""
    whole = np.zeros(shape, tiles[0].dtype)
    seen: dict[tuple[slice, ...], np.ndarray] = {}
    for place, tile in zip(_slices(mesh, sharding, shape), tiles, strict=True):
        key = tuple((each.start, each.stop) for each in place)
        np.testing.assert_array_equal(seen.setdefault(key, tile), tile)
        whole[place] = tile
    return whole


def named_traffic(module: ir.Module) -> tuple[Traffic, ...]:
    """The collectives of a program without loops by kind and axes, as the planner counts them: the
    most that one device holds, and the device's share of all-to-alls and permutes."""
    main = next(functions(module))
    mesh = read_plain_mesh(main)
    tensors: Counter[tuple[str, tuple[str, ...]]] = Counter()
    sizes: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for op in operations(main):
        kind = _KINDS.get(op.name.removeprefix("stablehlo."))
        if kind is None:
            continue
        key = kind, _axes(op, mesh)
        held = [read_tensor(value.type).size_bytes for value in (*op.operands, *op.results)]
        tensors[key] += 1
        sizes[key] += max(held)
    return tuple(Traffic(*key, tensors[key], sizes[key]) for key in sorted(tensors))


def _axes(op: ir.Operation, mesh: Mesh) -> tuple[str, ...]:
    """The axes along which the devices of a group differ."""
    coordinates = np.indices(mesh.shape).reshape(len(mesh.axes), -1).T
    name = "source_target_pairs" if "source_target_pairs" in op.attributes else "replica_groups"
    rows = np.array(ir.DenseIntElementsAttr(op.attributes[name])).reshape(
        ir.RankedTensorType(ir.DenseIntElementsAttr(op.attributes[name]).type).shape
    )
    differ = np.zeros(len(mesh.axes), dtype=bool)
    for row in rows:
        differ |= (coordinates[row] != coordinates[row[0]]).any(axis=0)
    assert prod(mesh.shape) == len(coordinates)
    return tuple(axis for axis, does in zip(mesh.axis_names, differ, strict=True) if does)
