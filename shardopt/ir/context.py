"""Contexts with every dialect and native pass registered, made from `jaxlib.mlir` alone: jax itself
is never imported.

Importing this module costs about 0.15 s; a further context costs 4 ms.
"""

from __future__ import annotations

from functools import cache

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, mpmd, sdy, stablehlo

# The bindings cannot list a registry; these are looked up in it, so that the list is right for
# other wheels too.
_DIALECT_NAMES = [
    "affine",
    "arith",
    "builtin",
    "cf",
    "chlo",
    "complex",
    "func",
    "gpu",
    "linalg",
    "llvm",
    "math",
    "memref",
    "mhlo",
    "mpmd",
    "nvgpu",
    "nvvm",
    "quant",
    "scf",
    "sdy",
    "shape",
    "sparse_tensor",
    "stablehlo",
    "tensor",
    "tosa",
    "ub",
    "vector",
    "vhlo",
]


def available_dialects(context: ir.Context) -> tuple[str, ...]:
    """Names of the dialects whose ops parse in `context`."""
    return tuple(name for name in _DIALECT_NAMES if _has_dialect(context, name))


def _has_dialect(context: ir.Context, name: str) -> bool:
    try:
        context.get_dialect_descriptor(name)
    except ValueError:
        return False
    return True


def make_context() -> ir.Context:
    """A fresh context in which StableHLO, CHLO, MHLO, Shardy, MPMD and the upstream dialects parse.

    Threading is off: the manager prints IR between passes, which MLIR forbids while its thread pool
    is active, and the gain on one module is small."""
    register_native_passes()
    context = ir.Context()
    context.enable_multithreading(False)
    context.append_dialect_registry(_upstream_dialects())
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    sdy.register_dialect(context)
    mpmd.register_dialect(context)
    return context


@cache
def register_native_passes() -> None:
    """Make the C++ passes known to `PassManager.parse`; registration is global to the process."""
    stablehlo.register_stablehlo_passes()
    mhlo.register_mhlo_passes()


@cache
def _upstream_dialects() -> ir.DialectRegistry:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    return registry
