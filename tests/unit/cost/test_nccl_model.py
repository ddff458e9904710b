"""NCCL's model of its own collectives: what follows from it, and what was published of machines."""

from __future__ import annotations

import numpy as np
import pytest

from shardopt.cost.collectives import collective_curve
from shardopt.cost.nccl import GENERATIONS, Ranks, all_reduce_curve, one_way_curve
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Mesh

# All-reduces of 8 GPUs in one host, bytes and GB/s of the bus (2 (n - 1) / n of the bytes over the
# seconds), as measured by others: stas00/ml-engineering, network/README.md.
PUBLISHED = (("a100-80g", 8e9, 234.61), ("a100-80g", 512e6, 222.72), ("h100-sxm", 8e9, 477.45))


@pytest.mark.parametrize(("preset", "size", "bus"), PUBLISHED)
def test_large_all_reduces_are_as_fast_as_published(preset: str, size: float, bus: float) -> None:
    curve = collective_curve(load_cluster(preset), _mesh(8), "all_reduce", ("x",))
    assert 2 * 7 / 8 * size / curve.at(size) / 1e9 == pytest.approx(bus, rel=0.15)


# Of 8 A100 in one host, MiB and microseconds, by others than those whose shares the model has:
# stas00/ml-engineering (network/README.md).
MEDIUM = ((4, 102.0), (16, 277.0), (32, 424.0), (64, 685.0))


@pytest.mark.parametrize(("size", "micros"), MEDIUM)
def test_medium_all_reduces_take_as_long_as_published(size: int, micros: float) -> None:
    curve = collective_curve(load_cluster("dgx-a100"), _mesh(8), "all_reduce", ("x",))
    assert 1e6 * curve.at(size * 2.0**20) == pytest.approx(micros, rel=0.15)


# Of 8 to 128 bytes, by the number of A100 in a DGX: https://github.com/NVIDIA/nccl-tests/issues/123.
@pytest.mark.parametrize(("gpus", "micros"), [(2, 10.0), (4, 16.88), (6, 25.2), (8, 33.7)])
def test_the_smallest_all_reduces_take_as_long_as_published(gpus: int, micros: float) -> None:
    seconds = all_reduce_curve(Ranks("ampere", gpus, 1, 240e9, 240e9)).at(128.0)
    assert 1e6 * seconds == pytest.approx(micros, rel=0.1)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("hosts", [1, 2, 16])
def test_seconds_rise_with_size_and_with_hosts(generation: str, hosts: int) -> None:
    sizes = np.geomspace(1, 1e11, 100)
    ranks = Ranks(generation, 8 * hosts, hosts, 240e9, 240e9 if hosts == 1 else 100e9)
    for curve in (all_reduce_curve(ranks), one_way_curve(ranks, True), one_way_curve(ranks, False)):
        seconds = curve.at(sizes)
        assert (np.diff(seconds) >= 0).all() and seconds[0] > 5e-6
    more = Ranks(generation, 16 * hosts, 2 * hosts, 240e9, 100e9)
    assert all_reduce_curve(more).at(1e6) > all_reduce_curve(ranks).at(1e6)


def test_small_all_reduces_over_many_hosts_go_through_a_tree() -> None:
    """Its latency grows with the logarithm of the hosts, that of a ring with their number."""
    seconds = [
        all_reduce_curve(Ranks("ampere", 8 * hosts, hosts, 240e9, 200e9)).at(1e4)
        for hosts in (16, 32, 64)
    ]
    assert seconds[1] - seconds[0] == pytest.approx(seconds[2] - seconds[1], rel=0.01)


def test_a_switch_that_sums_is_faster_than_a_ring() -> None:
    hopper, ampere = (Ranks(name, 8, 1, 370.8e9, 370.8e9) for name in ("hopper", "ampere"))
    assert all_reduce_curve(hopper).at(1e9) < 0.9 * all_reduce_curve(ampere).at(1e9)


def test_devices_without_nccl_keep_the_formulas() -> None:
    curve = collective_curve(load_cluster("tpu-v5e"), _mesh(8), "all_reduce", ("x",))
    assert curve.at(0.0) == pytest.approx(8e-6)  # four hops on 2 x 4 chips, and back


def _mesh(size: int) -> Mesh:
    return Mesh("m", (("x", size),), tuple(range(size)))
