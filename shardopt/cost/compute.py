"""Seconds that a device needs for operations of so many FLOPs and bytes: as measured, else by the roofline."""

from __future__ import annotations

from shardopt.hardware import profile as measured
from shardopt.hardware.cluster import Device, HostGroup
from shardopt.hardware.curves import Curve

# Large matrix products reach between half and three quarters of the data-sheet rate on GPUs and TPUs; small ones are
# bound by memory or dispatch, which have terms of their own.
EFFICIENCY = 0.6

# Operations whose price per element a measured curve of its own tells.
_TRANSCENDENTAL = frozenset(
    (
        *("exponential", "exponential_minus_one", "log", "log_plus_one", "power", "tanh", "logistic", "sine", "cosine"),
        *("tan", "atan2", "erf", "erf_inv", "erfc", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh"),
        *("digamma", "lgamma", "polygamma", "zeta", "bessel_i1e", "next_after", "rng", "rng_bit_generator"),
    )
)
_PRODUCTS = {
    measured.MATMUL: (measured.MATMUL,),
    measured.BATCH_MATMUL: (measured.BATCH_MATMUL, measured.MATMUL),
    measured.CONVOLUTION: (measured.CONVOLUTION, measured.MATMUL),
}
# Operations whose FLOPs are not those of elementwise work.
_OTHER = frozenset(("sort", "top_k", "fft", "cholesky", "triangular_solve"))
OTHER = "other"

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


def work_kind(name: str, batched: bool = False) -> str:
    """Which measurement prices an operation, by its name without dialect. `batched` products are many small ones."""
    if name in ("dot_general", "dot"):
        return measured.BATCH_MATMUL if batched else measured.MATMUL
    if name in ("convolution", "dynamic_conv"):
        return measured.CONVOLUTION
    if name in ("reduce", "reduce_window"):
        return measured.REDUCTION
    if name in ("scatter", "select_and_scatter"):
        return measured.SCATTER
    if name in _TRANSCENDENTAL:
        return measured.TRANSCENDENTAL
    return OTHER if name in _OTHER else measured.ELEMENTWISE


def op_seconds(
    device: Device,
    flops: float,
    bytes_accessed: float,
    dtype: str,
    *,
    kind: str = OTHER,
    in_memory: float = 1.0,
    efficiency: float = EFFICIENCY,
) -> float:
    """Seconds of one device's share of an operation, without dispatch, which a compiled call pays once.

    `bytes_accessed` is what is read and written in device memory, of which the share `in_memory` gets there: the rest
    stays inside a fused kernel. Where the device has no measurement of the `kind` of work, this is the roofline
    max(FLOPs / (peak · efficiency), bytes / memory bandwidth).
    """
    memory = memory_seconds(device, bytes_accessed, dtype) * in_memory
    family = dtype_family(dtype)
    if kind in _PRODUCTS:
        curve = _first(device, _PRODUCTS[kind], family)
        return max(memory, curve.at(flops) if curve else flops / (peak_flops(device, dtype) * efficiency))
    own = _first(device, (kind,), family, "f32") if kind in measured.COMPUTE_KINDS else None
    if own is None:
        return max(memory, flops / (peak_flops(device, dtype) * efficiency))
    # What such work takes beyond its memory traffic is not saved by fusion.
    return memory + max(0.0, own.at(bytes_accessed) - memory_seconds(device, bytes_accessed, dtype))


def memory_seconds(device: Device, bytes_accessed: float, dtype: str = "f32") -> float:
    """Seconds of elementwise work that reads and writes so many bytes."""
    curve = _first(device, (measured.ELEMENTWISE,), dtype_family(dtype), "f32")
    return curve.at(bytes_accessed) if curve else bytes_accessed / device.memory_bandwidth


def dispatch_seconds(group: HostGroup, devices: int, buffers: int) -> float:
    """Seconds of one call of a compiled function with so many arguments and results on a mesh of so many devices."""
    profile = group.device.profile
    curve = profile.nearest(measured.DISPATCH, devices) if profile else None
    return curve.at(float(buffers)) if curve else group.dispatch_seconds


def _first(device: Device, kinds: tuple[str, ...], *families: str) -> Curve | None:
    if device.profile is None:
        return None
    found = (device.profile.curve(kind, family) for kind in kinds for family in families)
    return next((curve for curve in found if curve is not None), None)
