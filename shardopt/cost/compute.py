"""Seconds that a device needs for operations of so many FLOPs and bytes (roofline)."""

from __future__ import annotations

from shardopt.cost.cluster import Device

# Large matrix products reach between half and three quarters of the data-sheet rate on GPUs and TPUs; small ones are
# bound by memory or dispatch, which have terms of their own.
EFFICIENCY = 0.6

# Where to look, in this order, for the rate of a dtype family a device does not list: the next family that can hold
# its values.
_FALLBACK = {"f8": ("bf16", "f16"), "bf16": ("f16",), "f16": ("bf16",), "i8": ("f16", "bf16")}


def dtype_family(dtype: str) -> str:
    """Family of an MLIR element type (`f32`, `bf16`, `f8E4M3FN`, `i32`, `complex<f32>`) in `Device.peak_flops`."""
    dtype = dtype.removeprefix("complex<").removesuffix(">")
    if dtype.startswith("f8"):
        return "f8"
    if dtype in ("i8", "ui8", "i4", "ui4"):
        return "i8"
    return dtype if dtype in ("f64", "f32", "bf16", "f16") else "f32"


def peak_flops(device: Device, dtype: str) -> float:
    """FLOP/s for an element type; a family the device does not list runs at the rate of the next wider one it does,
    and f64 at half of f32."""
    family = dtype_family(dtype)
    for name in (family, *_FALLBACK.get(family, ())):
        if name in device.peak_flops:
            return device.peak_flops[name]
    return device.peak_flops["f32"] / (2 if family == "f64" else 1)


def op_seconds(
    device: Device,
    flops: float,
    bytes_accessed: float,
    dtype: str,
    dispatch_seconds: float = 0.0,
    efficiency: float = EFFICIENCY,
) -> float:
    """max(FLOPs / (peak · efficiency), bytes / memory bandwidth) + dispatch, for one device's share of an operation.

    `bytes_accessed` is what is read and written in device memory; pass the dispatch overhead once for a compiled
    call, not for each operation inside it.
    """
    compute = flops / (peak_flops(device, dtype) * efficiency)
    return max(compute, bytes_accessed / device.memory_bandwidth) + dispatch_seconds
