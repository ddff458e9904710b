"""Seconds that a device needs for operations of so many FLOPs and bytes: as measured, else by the
roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from shardopt.cost.attention import attention_seconds
from shardopt.cost.products import Processors, Product, arithmetic_seconds
from shardopt.graph.attention_use import AttentionUse
from shardopt.hardware import profile as measured
from shardopt.hardware.cluster import Device, HostGroup, KernelRates
from shardopt.hardware.curves import Curve

# What is expected of large matrix products where a device's description says nothing of its
# kernels: they reach between half and three quarters of the data-sheet rate on GPUs and TPUs; small
# ones are bound by memory or dispatch, which have terms of their own.
EFFICIENCY = 0.6


@dataclass(frozen=True)
class HeldRows:
    """What a kernel keeps on the chip that reduces rows and takes the result: rows of so many
    `tensors`, with `exponentials` or without. `read_again` are the bytes, for each of their
    elements, that a second kernel reads to reduce the same rows for others: one that holds rows
    writes one result."""

    tensors: int
    exponentials: bool = False
    read_again: float = 0.0


# Operations whose seconds per element have a measured curve of their own: they take tens of
# instructions an element, where other elementwise operations wait for memory.
_TRANSCENDENTAL = frozenset({
    "exponential", "exponential_minus_one", "log", "log_plus_one", "power", "tanh", "logistic",
    "sine", "cosine", "tan", "atan2", "erf", "erf_inv", "erfc", "acos", "acosh", "asin", "asinh",
    "atan", "atanh", "cosh", "sinh", "digamma", "lgamma", "polygamma", "zeta", "bessel_i1e",
    "next_after", "rng", "rng_bit_generator",
})  # fmt: skip
_PRODUCTS = {
    measured.MATMUL: (measured.MATMUL,),
    measured.BATCH_MATMUL: (measured.BATCH_MATMUL, measured.MATMUL),
    measured.CONVOLUTION: (measured.CONVOLUTION, measured.MATMUL),
}
# Operations whose FLOPs are not those of elementwise work.
_OTHER = frozenset(("sort", "top_k", "fft", "cholesky", "triangular_solve"))
OTHER = "other"

# What convolutions of single channels reach of the FLOP/s beside the units for products: 10 to 14
# of 67 TFLOP/s on an H200 (benchmarks/one_device/h200).
_SINGLE_CHANNELS = 0.18
# Seconds of an element on one multiprocessor that a kernel takes on top of its bytes which holds
# the rows of a tensor, without and with exponentials, times the square of how many tensors: rows
# are kept in registers, and the more of them one block takes, the fewer blocks run beside it.
# Normalisations take 0.2 to 1.6 ps an element more than their bytes, softmax forward 0.3 to 0.8;
# backward, with two tensors, these are 1.2 to 1.4 and 1.6 to 3.8 (the same measurements; 132
# multiprocessors).
_HELD_SECONDS = (40e-12, 80e-12)

# Where to look, in this order, for the rate of a dtype family a device does not list: the next
# family that can hold its values.
_FALLBACK = {"f8": ("bf16", "f16"), "bf16": ("f16",), "f16": ("bf16",), "i8": ("f16", "bf16")}


def dtype_family(dtype: str) -> str:
    """Family of an MLIR element type (`f32`, `bf16`, `f8E4M3FN`, `i32`, `complex<f32>`) in
    `Device.peak_flops`."""
    dtype = dtype.removeprefix("complex<").removesuffix(">")
    if dtype.startswith("f8"):
        return "f8"
    if dtype in ("i8", "ui8", "i4", "ui4"):
        return "i8"
    return dtype if dtype in ("f64", "f32", "bf16", "f16") else "f32"


def peak_flops(device: Device, dtype: str) -> float:
    """FLOP/s for an element type; a family the device does not list runs at the rate of the next
    wider one it does, and f64 at half of f32."""
    families = _families(dtype)
    for name in families:
        if name in device.peak_flops:
            return device.peak_flops[name]
    return device.peak_flops["f32"] / (2 if families[0] == "f64" else 1)


def _families(dtype: str) -> tuple[str, ...]:
    """Where to look for a rate of the element type, in this order."""
    family = dtype_family(dtype)
    return family, *_FALLBACK.get(family, ())


def work_kind(name: str, batched: bool = False) -> str:
    """The kind of measurement that tells an operation's seconds, by its name without dialect.
    `batched` products are many small ones."""
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
    kernels: int = 1,
    product: Product | None = None,
    attention: Sequence[AttentionUse] = (),
) -> float:
    """Seconds of one device's share of an operation, without dispatch, which a compiled call pays
    once. Of a `product` whose sizes are not known, no less than if they were the best ones. What
    kernels of `attention` compute takes as long as in these.

    `bytes_accessed` is what is read and written in device memory, of which the share `in_memory`
    gets there: the rest stays inside a fused kernel. It starts `kernels` kernels. Where the device
    has no measurement of the `kind` of work, this is the roofline max(FLOPs / rate, bytes / memory
    bandwidth). Where its `kernels` are described, it is that with the rates that they reach
    (measured ones, `Device.with_measured`, where there are), each kernel takes the least a kernel
    does, and a product loads tiles while it multiplies others, and hides the shorter of the two
    less well the closer they are: the quadratic mean of both lies within 5 % of half of the
    products measured on an H100 (benchmarks/one_device/h100)."""
    memory = memory_seconds(device, bytes_accessed, dtype) * in_memory
    family = dtype_family(dtype)
    rates = device.kernels.attention if device.kernels else None
    if not rates:  # blocks that a mask hides are left out all the same
        flops *= min((use.visible for use in attention), default=1.0)
    elif device.kernels is not None and attention and kind in _PRODUCTS:
        peak = peak_flops(device, dtype)
        arithmetic = sum(attention_seconds(rates, peak, flops, use) for use in attention)
        return kernels * device.kernels.least_seconds + hypot(arithmetic, memory)
    if device.kernels is not None and (
        kind != measured.SCATTER or _first(device, (kind,), family, "f32") is None
    ):
        least = kernels * device.kernels.least_seconds
        if kind not in _PRODUCTS:
            return least + memory
        arithmetic = _arithmetic_seconds(device.kernels, device, flops, dtype, kind, product)
        turned = _turning_seconds(device, dtype, product)
        return least + turned + hypot(arithmetic, memory)
    if kind in _PRODUCTS:
        curve = _first(device, _PRODUCTS[kind], family)
        return max(
            memory, curve.at(flops) if curve else flops / (peak_flops(device, dtype) * EFFICIENCY)
        )
    curve = _first(device, (kind,), family, "f32") if kind in measured.COMPUTE_KINDS else None
    if curve is None:
        return max(memory, flops / (peak_flops(device, dtype) * EFFICIENCY))
    # What such work takes beyond its memory traffic is not saved by fusion.
    return memory + max(
        0.0, curve.at(bytes_accessed) - memory_seconds(device, bytes_accessed, dtype)
    )


def memory_seconds(device: Device, bytes_accessed: float, dtype: str = "f32") -> float:
    """Seconds of elementwise work that reads and writes so many bytes."""
    if device.kernels is not None:
        return bytes_accessed / (device.memory_bandwidth * device.kernels.memory)
    curve = _first(device, (measured.ELEMENTWISE,), dtype_family(dtype), "f32")
    return curve.at(bytes_accessed) if curve else bytes_accessed / device.memory_bandwidth


def copy_seconds(device: Device, bytes_moved: float, kernels: int, dtype: str) -> float:
    """Seconds of so many kernels that read and write so many bytes, and compute nothing."""
    least = device.kernels.least_seconds if device.kernels else 0.0
    return kernels * least + memory_seconds(device, bytes_moved, dtype)


def held_seconds(device: Device, elements: float, held: HeldRows) -> float:
    """Seconds that a kernel takes on top of its bytes which holds rows, of so many elements of each
    tensor, while it reduces them, and those of the second one, where there is one."""
    kernels = device.kernels
    if kernels is None or kernels.cores is None or not kernels.row_blocks:
        return 0.0
    each = _HELD_SECONDS[held.exponentials] / kernels.cores
    seconds = each * held.tensors**2 * elements
    if not held.read_again:
        return seconds
    return 2 * seconds + copy_seconds(device, held.read_again * elements, 1, "f32")


def _turning_seconds(device: Device, dtype: str, product: Product | None) -> float:
    """Seconds of copies of operands in 8 bits that lie across what is contracted. Units that take
    other than 16-bit operands in one order alone are slower in 32 bits; in 8 bits libraries have
    products in that order alone (cuBLAS, "Using the cublasLt API": on Ada and Hopper the first
    operand must be transposed and the second must not)."""
    kernels = device.kernels
    if product is None or kernels is None or kernels.across == (1.0, 1.0):
        return 0.0
    if dtype_family(dtype) != "f8":
        return 0.0
    moved = 2.0 * product.across_elements * product.itemsize
    return copy_seconds(device, moved, product.across, dtype)


def _arithmetic_seconds(
    kernels: KernelRates,
    device: Device,
    flops: float,
    dtype: str,
    kind: str,
    product: Product | None,
) -> float:
    share = next(
        (kernels.products[name] for name in _families(dtype) if name in kernels.products),
        kernels.products["f32"],
    )
    rate = peak_flops(device, dtype) * share
    if kind == measured.CONVOLUTION:
        rate *= kernels.convolutions
        if product is not None and product.columns == 1 and kernels.vector_flops is not None:
            rate = min(rate, _SINGLE_CHANNELS * kernels.vector_flops)
    if product is None or product.columns == 1:
        return flops / rate
    if product.across and dtype_family(dtype) == "f32":
        rate *= kernels.across[product.across - 1]
    processors = Processors(
        rate,
        kernels.cores or 0,
        kernels.matrix_unit or 0,
        kernels.unaligned,
        kernels.least_seconds,
        device.memory_bandwidth * kernels.memory,
    )
    return arithmetic_seconds(product, processors)


def dispatch_seconds(group: HostGroup, devices: int, buffers: int) -> float:
    """Seconds of one call of a compiled function with so many arguments and results on a mesh of so
    many devices."""
    profile = group.device.profile
    curve = profile.nearest(measured.DISPATCH, devices) if profile else None
    return curve.at(float(buffers)) if curve else group.dispatch_seconds


def _first(device: Device, kinds: tuple[str, ...], *families: str) -> Curve | None:
    if device.profile is None:
        return None
    curves = (device.profile.curve(kind, family) for kind in kinds for family in families)
    return next((curve for curve in curves if curve is not None), None)
