"""Seconds of NCCL's collectives by size: of its algorithms and protocols, the fastest.

This is the model by which NCCL itself chooses. Its constants are the ones in NCCL 2.19,
`src/graph/tuning.cc` (https://github.com/NVIDIA/nccl, BSD-3): base latencies, latencies of a step
over NVLink and over the network, the share of a link that each protocol leaves for data, caps of a
channel by generation of GPU, and the factors by which trees fall short at medium sizes. NVLS, the
sums that a switch makes, has the efficiencies of NCCL 2.27. What that model leaves out is how long
channels take to fill: of 4 to 64 MiB, all-reduces inside a host with a switch reach 0.7 to 0.86 of
it (`_REACHED`), whatever the generation. Rings that gather or scatter take the same steps. What
moves over NVLink moves at the rate that NCCL gives a link of the generation (`topo.h`: 20 GB/s on
V100 and A100, 20.6 on H100, 40.1 on B200), which is what presets say of links inside a host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import log2

import numpy as np

from shardopt.hardware.curves import Curve, rising

_LL, _LL128, _SIMPLE = range(3)
# Microseconds, by protocol (LL, LL128, Simple).
_TREE_BASE, _RING_BASE = (6.8, 14.0, 0.0), (6.6, 14.0, 8.4)
_TREE_NVLINK, _RING_NVLINK = (0.6, 1.25, 28.0), (0.6, 1.9, 3.4)
_TREE_NET, _RING_NET = (5.0, 8.5, 28.0), (2.7, 4.0, 14.0)
_NVLS_LATENCY = 23.0
# A step of a ring over several hosts costs its host one post to the network, and Simple three.
_NET_POST = (1.0, 1.0, 3.0)
# The rate of one channel, GB/s: a channel is one of a link's worth of rings.
_CHANNEL = 20.0
# Trees, by power of two from 64 bytes on: LL, LL128, Simple.
_TREE_SHARE = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9),
    (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
# From here on a ring in Simple over several hosts takes longer to fill.
_PLATEAU_BYTES, _PLATEAU, _PLATEAU_VOLTA = 64, 1.4, 1.9
_SIZES = 2.0 ** np.arange(6, 37)
# Shares of the model that nccl-tests found, by power of two from 2 MiB to 1 GiB, in the mean over
# eight A100, eight H100, eight H200 and four GB200 (Azure/AI-benchmarking-guide, Azure_Results).
# Below, what is measured differs from host to host more than from the model.
_REACHED_FROM_BYTES = 2**21
_REACHED = (0.81, 0.72, 0.71, 0.71, 0.76, 0.86, 0.87, 0.92, 0.94, 0.98)


@dataclass(frozen=True)
class Generation:
    """Caps in GB/s for one, two, and more hosts: of LL, and of a channel's tree in Simple and in
    LL128; and of NVLS the share of the links that it reaches, 0 where there is none. `ll_step` are
    microseconds of a step over NVLink in LL. `reached` is the share of this model that was measured
    inside a host; none on cube meshes, of which nothing was published."""

    ll: tuple[float, float, float]
    tree: tuple[float, float, float]
    tree_ll128: tuple[float, float, float]
    ring_ll128: float
    nvls: float = 0.0
    ll_step: float = 0.6
    reached: tuple[float, ...] = _REACHED


GENERATIONS = {
    "volta": Generation(
        (39.0, 39.0, 20.4), (26.5, 18.5, 10.0), (20.0, 20.0, 20.0), 20.0, reached=()
    ),
    # NCCL has 0.6 for all. Rings of 2 to 8 A100 of a DGX take 6.05 us and 1.975 a step, in all
    # 10.0 to 33.7 (https://github.com/NVIDIA/nccl-tests/issues/123).
    "ampere": Generation(
        (87.7, 22.5, 19.0), (24.0, 23.6, 17.8), (20.0, 20.0, 20.0), 20.0, ll_step=1.975
    ),
    "hopper": Generation((87.7, 22.5, 19.0), (38.7, 41.4, 36.0), (36.7, 36.7, 29.0), 36.7, 0.85),
    "blackwell": Generation((87.7, 22.5, 19.0), (38.7, 41.4, 36.0), (36.7, 36.7, 29.0), 36.7, 0.74),
}


@dataclass(frozen=True)
class Ranks:
    """A communicator: `size` GPUs of a generation on `hosts` hosts. `inside` is what one GPU sends
    inside a host, `between` what a ring over the hosts passes on, both in bytes/s."""

    generation: str
    size: int
    hosts: int
    inside: float
    between: float

    @property
    def caps(self) -> int:
        """Which of the caps of a generation holds."""
        return min(self.hosts, 3) - 1


@lru_cache(maxsize=4096)
def all_reduce_curve(ranks: Ranks) -> Curve:
    """By the bytes that each GPU holds."""
    n, hosts = ranks.size, ranks.hosts
    crossing = 2 * hosts if hosts > 1 else 0
    lines = [*_rings(ranks, 2 * (n - 1), crossing, summed=True), *_trees(ranks)]
    nvls = GENERATIONS[ranks.generation].nvls
    if nvls and hosts == 1 and n > 2:  # two GPUs have nothing to gain from a switch that sums
        lines.append(_NVLS_LATENCY + _micros(nvls * ranks.inside / 1e9 * 5 / 6))
    return _fastest(lines, _reached(ranks))


@lru_cache(maxsize=4096)
def one_way_curve(ranks: Ranks, summed: bool) -> Curve:
    """All-gather, or reduce-scatter where `summed`: by the bytes of the whole value."""
    rings = [*_rings(ranks, ranks.size - 1, ranks.hosts - 1, summed)]
    return _fastest(rings, _reached(ranks))


def _reached(ranks: Ranks) -> np.ndarray:
    """The share of the model that a communicator reaches, by size."""
    shares, share = GENERATIONS[ranks.generation].reached, np.ones(len(_SIZES))
    if ranks.hosts > 1 or not shares:
        return share
    first = int(log2(_REACHED_FROM_BYTES / _SIZES[0]))
    share[first : first + len(shares)] = shares
    share[first + len(shares) :] = shares[-1]
    return share


def _rings(ranks: Ranks, steps: int, crossing: int, summed: bool) -> Iterator[np.ndarray]:
    """Microseconds by size, of each protocol: the rates and latencies of `ncclTopoTuneModel`."""
    generation = GENERATIONS[ranks.generation]
    several, channels = ranks.hosts > 1, ranks.inside / 1e9 / _CHANNEL
    bus = ranks.between / 1e9 if several else ranks.inside / 1e9
    ll = bus / 4 if several or (summed and steps > ranks.size) else bus / 3
    rates = (
        min(generation.ll[ranks.caps], ll),
        min(0.92 * bus, channels * generation.ring_ll128),
        bus,
    )
    for protocol, rate in enumerate(rates):
        nvlink = generation.ll_step if protocol == _LL else _RING_NVLINK[protocol]
        step = max(nvlink, _NET_POST[protocol] if several else 0.0)
        latency = _RING_BASE[protocol]
        latency += (steps - crossing) * step + crossing * _RING_NET[protocol]
        fill: np.ndarray | float = 1.0
        # "Plateau effect of ring" in NCCL's own words (`ncclTopoGetAlgoTime`).
        if protocol == _SIMPLE and several and summed:
            plateau = _PLATEAU_VOLTA if ranks.generation == "volta" else _PLATEAU
            fill = np.where(_PLATEAU_BYTES * channels * ranks.size <= _SIZES, plateau, 1.0)
        yield latency * fill + _micros(rate * ranks.size / steps)


def _trees(ranks: Ranks) -> Iterator[np.ndarray]:
    """The same of all-reduces over a tree: up to the root and down again."""
    generation = GENERATIONS[ranks.generation]
    several, channels = ranks.hosts > 1, ranks.inside / 1e9 / _CHANNEL
    bus = ranks.between / 1e9 if several else ranks.inside / 1e9
    bus = min(0.92 * bus, channels * generation.tree[ranks.caps])
    ll128 = bus * (120 / 128 if several else 7 / 9)
    rates = (
        min(bus / 3.8, generation.ll[ranks.caps]),
        min(ll128, channels * generation.tree_ll128[ranks.caps]),
        bus,
    )
    for protocol, rate in enumerate(rates):
        nvlink = generation.ll_step if protocol == _LL else _TREE_NVLINK[protocol]
        inside = (ranks.size / ranks.hosts - 1) * nvlink
        latency = _TREE_BASE[protocol] + 2 * (inside + log2(ranks.hosts) * _TREE_NET[protocol])
        share = np.ones(len(_SIZES))
        share[: len(_TREE_SHARE[protocol])] = _TREE_SHARE[protocol]
        yield latency + _micros(0.5 * rate) / share


def _micros(rate: float) -> np.ndarray:
    """Of every size at so many GB/s."""
    return _SIZES / (1e3 * rate)


def _fastest(lines: list[np.ndarray], reached: np.ndarray) -> Curve:
    seconds = 1e-6 * np.min(lines, axis=0) / reached
    return Curve.through(_SIZES.tolist(), rising(seconds.tolist()))
