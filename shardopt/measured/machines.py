"""The machine of a row of measurements: a preset by the name of the device, with what the row
states of its own."""

from __future__ import annotations

import re
from dataclasses import replace

from shardopt.hardware.cluster import HostGroup
from shardopt.hardware.cluster_file import load_cluster
from shardopt.measured.frameworks import Framework, attention_rates
from shardopt.measured.rows import Row
from shardopt.measured.unstated import InexpressibleRow

# The first pattern found in the name decides.
_PRESETS = (
    (r"v100.*16 ?gb", "p3.16xlarge"),
    (r"v100", "v100"),
    (r"a100", "dgx-a100"),
    (r"gh200", "gh200"),
    (r"h100.*(96 ?gb|2\.4 ?tb/s)", "h100-96gb"),
    (r"h100", "h100-sxm"),
    (r"h200", "h200"),
    (r"b200", "b200"),
    (r"mi300x", "mi300x"),
    (r"tpu ?v4", "tpu-v4"),
    (r"v5e", "tpu-v5e"),
    (r"v5p", "tpu-v5p"),
    (r"v6e|trillium", "tpu-v6e"),
)

# Megatron-LM's options by which a row says that collectives run beside computing; and the one for
# tensor parallelism in pieces. PyTorch's async TP gains 20 to 29 % of a forward pass, but 8 % of a
# step of 70B and of 7B (discuss.pytorch.org, topic 209487). Collectives of tensor parallelism are
# predicted to take 22 and 32 % of these: products get on by a third and a quarter of that.
_OVERLAPS = re.compile(r"\boverlap-(grad-reduce|param-gather)\b")
_WINDOWED = re.compile(r"\btp-comm-overlap\b")
_ASYNC = re.compile(r"\basync ?tp\b", re.IGNORECASE)
_ASYNC_SHARE = 0.28


def preset_of(hardware: str) -> str:
    """The preset whose device a name means. Raises InexpressibleRow where there is none."""
    for pattern, preset in _PRESETS:
        if re.search(pattern, hardware.lower()):
            return preset
    raise InexpressibleRow(f"no preset for '{hardware}'")


def machine_of(row: Row, framework: Framework) -> HostGroup:
    """One host of the machine, with the kernels of the framework. Raises InexpressibleRow for a
    device without a preset."""
    name, preset = row.hardware.lower(), preset_of(row.hardware)
    group = load_cluster(preset).groups[0]
    device = group.device
    if device.kernels is not None:
        rates = attention_rates(framework.attention, preset, device.kernels)
        merged = device.kernels.merged and framework.merges
        # Libraries have kernels of their own for normalisations and softmax. XLA is taken to be as
        # slow as today's: before it held rows in blocks, it read them once for each reduction.
        kernels = replace(
            device.kernels,
            merged=merged,
            attention=rates,
            recomputes=bool(framework.compiler) and not framework.loops,
            row_blocks=framework.compiler == "xla",
        )
        device = replace(device, kernels=kernels)
    if stated := re.search(r"(\d+) ?gb\b", name):
        device = replace(device, memory_bytes=_memory(device.memory_bytes, int(stated[1])))
    if stated := re.search(r"([\d.]+) ?tb/s", name):
        device = replace(device, memory_bandwidth=1e12 * float(stated[1]))
    is_async = bool(_ASYNC.search(row.note))
    inter = group.inter_host
    if row.inter_Gbps_per_host:
        inter = replace(inter, bandwidth_bytes_per_second=1e9 / 8 * row.inter_Gbps_per_host)
    return replace(
        group,
        device=device,
        inter_host=inter,
        overlap=_overlaps(row, framework, group),
        windowed_products=_is_windowed(row, framework) or is_async or group.windowed_products,
        windowed_share=_ASYNC_SHARE if is_async else group.windowed_share,
        devices_per_host=row.devices_per_host or group.devices_per_host,
    )


def states_overlap(row: Row) -> bool:
    """Whether sums of gradients, or gathers of weights, run beside computing by what it notes."""
    return bool(_OVERLAPS.search(row.note))


def _overlaps(row: Row, framework: Framework, group: HostGroup) -> bool | None:
    if states_overlap(row) or _is_windowed(row, framework) or _ASYNC.search(row.note):
        return True
    return group.overlap if framework.overlaps is None else framework.overlaps


def _is_windowed(row: Row, framework: Framework) -> bool:
    return framework.windowed or bool(_WINDOWED.search(row.note))


def _memory(preset_bytes: int, stated: int) -> int:
    """What the preset has, where the name means that; data sheets round."""
    return preset_bytes if abs(preset_bytes / 2**30 / stated - 1) < 0.1 else stated * 2**30
