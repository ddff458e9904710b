"""The grid of tensor and data parallelism inside of a stage: which presets a logical shape stands
for.

A logical shape (rows, columns) is read as data parallelism over the rows and tensor parallelism
over the columns, which are neighbouring devices. Tensor parallelism stays inside a host, as its
collectives are in the way of every layer (Narayanan et al., SC'21, arXiv 2104.04473, takeaway 1).
One axis alone appears as (1, n); it stands for either."""

from __future__ import annotations

from collections.abc import Iterable

from shardopt.solve.stages.stage_problem import StageConfig


def is_flat(config: StageConfig) -> bool:
    """Whether the devices are one axis."""
    return config.logical_shape[0] == 1


def is_hosts_by_devices(config: StageConfig) -> bool:
    """Whether the rows are the hosts of the submesh."""
    return config.logical_shape == (config.submesh.hosts, config.submesh.devices_per_host)


def data_or_tensor(config: StageConfig) -> Iterable[str]:
    """(dp, tp) as presets: `data` for tp = 1, `megatron` for any other tp inside a host."""
    if is_flat(config):
        yield "data"
    columns = config.logical_shape[1]
    if columns > 1 and config.submesh.devices_per_host % columns == 0:
        yield "megatron"
