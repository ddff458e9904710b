"""Clusters as values: what a device and a link can do, and which devices share a host.

A cluster is one or more *host groups*; a group is `hosts` equal machines of `devices_per_host`
equal devices. Device ids run host by host and group by group, so a group's devices are contiguous.
Descriptions are read by `shardopt.hardware.cluster_file`; where a mesh lies and how fast its axes
are, `shardopt.hardware.topology` tells; where the stages of a pipeline go,
`shardopt.solve.stages.search.placement`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from shardopt.hardware.profile import ELEMENTWISE, MATMUL, Profile
from shardopt.hardware.torus import Torus
from shardopt.mesh.mesh import Mesh

# Generations of GPUs for which NCCL has constants of its own (`shardopt.cost.nccl`).
NCCL_GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
# Of products while NCCL's collectives run beside them, which take their multiprocessors and memory:
# 2.08 ms for 1.18 on an A100 (NVIDIA/nccl#1428), 47 % of the peak for 80 on an H100
# (forums.developer.nvidia.com/t/337991). Whole steps agree: of GPT and LLaMA models on four A100,
# H100, MI210 and MI250 all computing is 18.9 % longer, and steps one after the other 10.2 % longer
# than beside each other (Lee et al., arXiv 2507.03114, abstract). If all collectives are beside f
# seconds of computing, they take 1.102 * 1.189 f - f = 0.31 f, of which 0.19 f are lost.
_OVERLAP_SLOWDOWN = 1.73
# Multiprocessors that exchanges in pieces take from products at most, which are not NCCL's: num_sm
# (NVIDIA/NeMo, nemo/collections/llm/recipes/tp_overlap_configs/userbuffers.py).
_PIECES_CORES = 24
# Tensors that one collective combines at most (XLA, service/gpu/gpu_compiler.cc).
COMBINED_TENSORS = 256
# Platforms whose compiler planners know by rules of their own (`sharding.compilers.host`).
PLATFORMS = ("cpu",)
DTYPE_FAMILIES = ("f64", "f32", "bf16", "f16", "f8", "i8")


@dataclass(frozen=True)
class AttentionRate:
    """Attention in one kernel forward and one backward (`shardopt.cost.attention`), with heads of
    `head` numbers.

    `forward` and `backward` are the shares of `Device.peak_flops` that their products reach over
    long sequences, counting none that a mask hides. A block of queries takes as long as if it saw
    so many keys more (`forward_fill`, `backward_fill`)."""

    head: int
    forward: float
    backward: float
    forward_fill: float
    backward_fill: float


@dataclass(frozen=True)
class Fusing:
    """What of a program becomes one kernel beside what any compiler fuses: kernels over the same
    elements (`merged`), those among them that take what they have reduced rows to (`rows`) and that
    compute exponentials and the like again rather than read them (`recomputes`), and attention with
    its softmax (`attention`). `for_hosts`: memory is that of programs by XLA's
    backend for hosts (`shardopt.solve.sharding.compilers.host`)."""

    merged: bool = False
    attention: bool = False
    for_hosts: bool = False
    rows: bool = True
    recomputes: bool = True


UNFUSED = Fusing()


@dataclass(frozen=True)
class KernelRates:
    """How close kernels come to what the data sheet of a device says, as measured on such devices.

    `products` is the share of `Device.peak_flops` that the largest matrix products reach, by dtype
    family (`f32` always present), and `convolutions` the share of that which convolutions reach.
    `memory` is the share of `Device.memory_bandwidth` that a large copy reaches. `least_seconds`
    pass from the start of one kernel to the start of the next, however little it does. `merged`
    says whether the compiler makes one kernel of those over the same elements
    (`shardopt.solve.sharding.kernels.merged_kernels`), as it does for GPUs; `rows` whether such a
    kernel may reduce rows and read the result, as a softmax has to; `recomputes` whether it
    computes exponentials and the like again rather than read them, which takes less time where
    nothing else needs them in memory.

    Smaller products reach less (`shardopt.cost.products`): on a GPU with so many `cores`
    (multiprocessors), of which each computes one tile at a time, or on a systolic array of side
    `matrix_unit`; None where that is not modelled. Products whose rows do not fill words of 16
    bytes reach the share `unaligned` of what others do. `across` are the shares that products in
    f32 reach of which one operand, or both, lie across what they are multiplied along: the units of
    some GPUs take operands of 32 bits in one order alone. `vector_flops` are the FLOP/s in f32
    beside the units for products, which compute convolutions of single channels; None where that is
    not modelled. `row_blocks` says whether a kernel that holds rows takes many of them at once, as
    those do that XLA makes today, which costs it time beside its bytes (`held_seconds` in
    `shardopt.cost.compute`).

    `attention` are the rates of fused attention, by head size; None where programs write the scores
    of attention to memory, as XLA's do unless they call a library for it."""

    products: Mapping[str, float] = field(hash=False)
    convolutions: float
    memory: float
    least_seconds: float
    merged: bool
    cores: int | None = None
    matrix_unit: int | None = None
    unaligned: float = 1.0
    attention: tuple[AttentionRate, ...] | None = None
    rows: bool = True
    recomputes: bool = True
    across: tuple[float, float] = (1.0, 1.0)
    vector_flops: float | None = None
    row_blocks: bool = True


@dataclass(frozen=True)
class Device:
    """One accelerator: peak FLOP/s by dtype family (`f32` always present), memory in bytes and
    bytes/s, how close kernels come to these rates, if that is known, what was measured on such
    devices, if anything was (`with_profile`), and the platform for which XLA compiles, if planners
    have rules for it."""

    name: str
    # A dict has no hash; equal devices still hash equally.
    peak_flops: Mapping[str, float] = field(hash=False)
    memory_bytes: int
    memory_bandwidth: float
    # Plan files hold hashes of the text without it.
    kernels: KernelRates | None = field(default=None, repr=False)
    profile: Profile | None = None
    platform: str | None = field(default=None, repr=False)

    def with_measured(self, profile: Profile | None) -> Device:
        """The device with what was measured on it. Where its kernels are described, they reach what
        the largest products and the largest sum of two arrays reached; sizes, merging and the least
        time of a kernel count as described, for equal small kernels in a row, as they are measured,
        take half of what those of a step do. What was faster than the data sheet is the data
        sheet's rate then."""
        if self.kernels is None or profile is None:
            return replace(self, profile=profile)
        measured = {name: profile.rate(MATMUL, name) for name in self.peak_flops}
        rates = {name: rate for name, rate in measured.items() if rate is not None}
        peaks = {name: max(peak, rates.get(name, 0.0)) for name, peak in self.peak_flops.items()}
        shares = {name: rate / peaks[name] for name, rate in rates.items()}
        kernels = replace(self.kernels, products={**self.kernels.products, **shares})
        bandwidth = self.memory_bandwidth
        if (reached := profile.rate(ELEMENTWISE, "f32")) is not None:
            bandwidth = max(bandwidth, reached)
            kernels = replace(kernels, memory=reached / bandwidth)
        return replace(
            self, peak_flops=peaks, memory_bandwidth=bandwidth, kernels=kernels, profile=profile
        )

    @property
    def fusing(self) -> Fusing:
        kernels, for_hosts = self.kernels, self.platform == "cpu"
        if kernels is None:
            return Fusing(for_hosts=for_hosts)
        return Fusing(
            kernels.merged,
            kernels.attention is not None,
            for_hosts,
            kernels.rows,
            kernels.recomputes,
        )


@dataclass(frozen=True)
class Link:
    """Latency of one message and bandwidth in one direction."""

    latency_seconds: float
    bandwidth_bytes_per_second: float


@dataclass(frozen=True)
class HostGroup:
    """Equal hosts of equal devices. `intra_host` is per device; `inter_host` is per host, shared by
    its devices.

    `fabric_bandwidth`, bytes/s in one direction, bounds what all hosts of the group send to each
    other at once; None where the network between them carries what their NICs can send.

    `nccl` is the generation of GPUs between which NCCL runs collectives, one of `NCCL_GENERATIONS`;
    None where others do.

    `device_links` are the numbers of links between each two devices of a host, all of which
    together `intra_host` is; None where a switch joins them, so that all serve any group.

    `overlap` says that programs run collectives beside computing
    (`shardopt.solve.sharding.intra_op.overlap`); with `windowed_products` also those that a product
    waits for, or that wait for one, in pieces. None of the kinds that are `awaited`
    (`shardopt.cost.collectives`) runs beside anything as a whole. Those that do, and reshardings
    behind all products of their program, are combined up to `combined_bytes`, None for each alone.
    In pieces products get on by `windowed_share` of the seconds of collectives, None for what the
    cores that these take leave.

    `host_link` is between a device and the memory of its host, in one direction, while all devices
    of the host use theirs; `host_memory_bytes` is that memory. None where nobody said.

    `torus` says how the chips of all hosts are joined; `intra_host` are then the two links of a
    chip along one dimension. None where hosts are joined by a network. `between_slices` is a
    host's NIC, for collectives over several slices of it; None where that is `inter_host`.

    `price_per_hour` is what one host costs an hour, in any currency; None where nobody said."""

    name: str
    hosts: int
    devices_per_host: int
    device: Device
    intra_host: Link
    inter_host: Link
    dispatch_seconds: float
    fabric_bandwidth: float | None = None
    nccl: str | None = field(default=None, repr=False)
    device_links: tuple[tuple[int, ...], ...] | None = field(default=None, repr=False)
    overlap: bool | None = field(default=None, repr=False)
    windowed_products: bool | None = field(default=None, repr=False)
    windowed_share: float | None = field(default=None, repr=False)
    combined_bytes: float | None = field(default=None, repr=False)
    awaited: tuple[str, ...] | None = field(default=None, repr=False)
    price_per_hour: float | None = field(default=None, repr=False)
    host_link: Link | None = field(default=None, repr=False)
    host_memory_bytes: int | None = field(default=None, repr=False)
    torus: Torus | None = field(default=None, repr=False)
    between_slices: Link | None = field(default=None, repr=False)

    @property
    def num_devices(self) -> int:
        return self.hosts * self.devices_per_host

    @property
    def link_rate(self) -> float:
        """Bytes/s of one of the `device_links`, in one direction; without them of a device's."""
        count = max(map(sum, self.device_links)) if self.device_links else 1
        return self.intra_host.bandwidth_bytes_per_second / count

    @property
    def over_host_rate(self) -> float:
        """Bytes/s of a message that goes through the memory of the host, as fast as one link where
        nobody said how fast that is."""
        return self.host_link.bandwidth_bytes_per_second if self.host_link else self.link_rate

    @property
    def overlap_share(self) -> float:
        """How many seconds computing gets on in a second of collectives beside it, 0 where these
        run one after the other. Those of GPUs run on the cores that compute, and share their
        memory."""
        kernels = self.device.kernels
        on_cores = self.nccl is not None or (kernels is not None and kernels.cores is not None)
        return float(bool(self.overlap)) / (_OVERLAP_SLOWDOWN if on_cores else 1.0)

    def overlap_share_of(self, kind: str) -> float:
        """That of a collective of this kind as a whole."""
        return 0.0 if kind in (self.awaited or ()) else self.overlap_share

    @property
    def pieces_share(self) -> float:
        """That of collectives in pieces, which leave products the other cores."""
        if not self.overlap:
            return 0.0
        if self.windowed_share is not None:
            return self.windowed_share
        cores = self.device.kernels.cores if self.device.kernels else None
        return 1 - _PIECES_CORES / cores if cores else 1.0

    def __str__(self) -> str:
        return f"{self.name}:{self.hosts}x{self.devices_per_host}"


@dataclass(frozen=True)
class GroupLink:
    """The link from a host of one group to a host of another, both ways. A host's messages share
    its NIC."""

    groups: tuple[str, str]
    link: Link


@dataclass(frozen=True)
class Cluster:
    """Host groups with the links between them.

    Hosts of two groups talk over the link of `links` that names both groups, else over
    `between_groups`, else over the worse of their groups' `inter_host` links, in latency and in
    bandwidth."""

    name: str
    groups: tuple[HostGroup, ...]
    between_groups: Link | None = None
    links: tuple[GroupLink, ...] = ()

    @staticmethod
    def uniform(
        name: str,
        hosts: int,
        devices_per_host: int,
        device: Device,
        intra_host: Link,
        inter_host: Link,
        dispatch_seconds: float,
    ) -> Cluster:
        """A cluster of one host group, which has its name."""
        group = HostGroup(
            name, hosts, devices_per_host, device, intra_host, inter_host, dispatch_seconds
        )
        return Cluster(name, (group,))

    @property
    def num_devices(self) -> int:
        return self.first_devices[-1]

    @cached_property
    def first_devices(self) -> tuple[int, ...]:
        """The first device of every group, and the number of all devices."""
        return (0, *accumulate(group.num_devices for group in self.groups))

    @property
    def fusing(self) -> Fusing:
        """What is fused on the devices of all groups."""
        each = [group.device.fusing for group in self.groups]
        return Fusing(
            all(f.merged for f in each),
            all(f.attention for f in each),
            all(f.for_hosts for f in each),
            all(f.rows for f in each),
            all(f.recomputes for f in each),
        )

    @cached_property
    def _first_hosts(self) -> tuple[int, ...]:
        return (0, *accumulate(group.hosts for group in self.groups))

    @cached_property
    def groups_of_devices(self) -> np.ndarray:
        """The group of every device, int64 `[devices]`."""
        return np.repeat(np.arange(len(self.groups)), [group.num_devices for group in self.groups])

    @cached_property
    def hosts_of_devices(self) -> np.ndarray:
        """The host of every device, counted over all groups, int64 `[devices]`."""
        widths = np.repeat(
            [group.devices_per_host for group in self.groups],
            [group.hosts for group in self.groups],
        )
        return np.repeat(np.arange(len(widths)), widths)

    def group_index(self, device: int) -> int:
        """The group that a device of the cluster belongs to."""
        return min(bisect_right(self.first_devices, device), len(self.groups)) - 1

    def host_of(self, device: int) -> int:
        """The host of a device, counted over all groups."""
        index = self.group_index(device)
        return (
            self._first_hosts[index]
            + (device - self.first_devices[index]) // self.groups[index].devices_per_host
        )

    def group_of(self, mesh: Mesh) -> HostGroup:
        """The group that a mesh lies in. Raises ValueError for a mesh over devices of several
        groups."""
        first, last = self.group_index(min(mesh.devices)), self.group_index(max(mesh.devices))
        if first != last:
            raise ValueError(
                f"expected mesh '{mesh.name}' inside one host group of cluster {self}, "
                f"found devices of '{self.groups[first].name}' and of '{self.groups[last].name}'"
            )
        return self.groups[first]

    def link_between(self, first: int, second: int) -> Link:
        """The link from a host of one group to a host of another."""
        ends = self.groups[first], self.groups[second]
        named = [link.link for link in self.links if set(link.groups) == {end.name for end in ends}]
        if named or self.between_groups is not None:
            return [*named, self.between_groups][0]  # type: ignore[return-value]
        nics = [end.inter_host for end in ends]
        return Link(
            max(nic.latency_seconds for nic in nics),
            min(nic.bandwidth_bytes_per_second for nic in nics),
        )

    def __str__(self) -> str:
        return f"{self.name}:" + "+".join(
            f"{group.hosts}x{group.devices_per_host}" for group in self.groups
        )


@dataclass(frozen=True)
class Submesh:
    """A physical rectangle of devices of one group: part of one host (`hosts == 1`) or several
    whole hosts."""

    hosts: int
    devices_per_host: int

    @property
    def num_devices(self) -> int:
        return self.hosts * self.devices_per_host

    def __str__(self) -> str:
        return f"{self.hosts}x{self.devices_per_host}"
