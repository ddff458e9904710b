"""NCCL on one GPU: a communicator of one rank sends to itself, from a slice of an array to one of a
new array."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from shardopt.forms.exported_program import TensorSpec
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.devices.cuda import Cuda, load_cupy
from shardopt.runtime.devices.gpus import mesh_gpus
from shardopt.runtime.devices.xla import XlaMesh
from shardopt.support.errors import UserError

SHAPE = (64, 96)


@pytest.mark.parametrize("index", [np.s_[8:40, :], np.s_[3:50, 5:77], np.s_[:, :]])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_a_slice_comes_back(dtype: str, index: tuple[slice, slice]) -> None:
    try:
        cupy = load_cupy()
    except UserError as error:
        pytest.skip(str(error))
    nccl, cuda = cupy.cuda.nccl, Cuda(cupy, 0)
    with cuda.here():
        comm = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    mesh = XlaMesh(Mesh("m", (("x", 1),), (0,)), mesh_gpus("m", [0]))
    spec = TensorSpec(SHAPE, dtype, Sharding(((), ())))
    element = np.dtype(getattr(ml_dtypes, dtype, dtype))
    value = (np.arange(SHAPE[0] * SHAPE[1]) % 7).astype(element).reshape(SHAPE)
    source, stream = mesh.put(spec, [value]), cuda.stream()
    (shard,) = mesh.device_shards(source)
    target = cuda.take(SHAPE, element)
    cuda.write(target, cuda.view(shard, stream), stream)
    tile = cuda.compact(cuda.view(shard, stream)[index], stream)
    window = target[tuple(slice(SHAPE[k] - tile.shape[k], None) for k in range(2))]
    landed = window if window.flags.c_contiguous else cuda.empty_like(window, stream)
    nccl.groupStart()
    with cuda.here():
        comm.send(tile.data.ptr, tile.nbytes, nccl.NCCL_UINT8, 0, stream.ptr)
        comm.recv(landed.data.ptr, landed.nbytes, nccl.NCCL_UINT8, 0, stream.ptr)
    nccl.groupEnd()
    if landed is not window:
        cuda.write(window, landed, stream)
    done = cuda.event(stream)
    result = mesh.adopt(spec, [lambda consumer: cuda.give(target, element, [done], consumer)])
    expected = value.copy()
    part = value[index]
    expected[SHAPE[0] - part.shape[0] :, SHAPE[1] - part.shape[1] :] = part
    (result_shard,) = mesh.shards(result)
    np.testing.assert_array_equal(result_shard, expected)
    comm.check_async_error()
    comm.destroy()
