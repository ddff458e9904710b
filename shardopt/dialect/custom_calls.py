"""Custom calls that may be planned and run: `stablehlo.custom_call @target` runs native code, and
which code is said by nothing but the name.

    fault_of("lapack_spotrf_ffi")             ""
    fault_of("mine")                          "'@mine' is a custom call that neither XLA nor …"
    fault_of("mine", allowed=("mine",))       ""
    fault_of("xla_ffi_python_cpu_callback")   "'@…' calls a Python function of the process …"

Known are the targets that XLA handles itself, and those that jaxlib registers for a platform and
that need nothing but their operands and attributes. Whatever else a user registers
(`jax.ffi.register_ffi_target`) has to be allowed by name, as in `jax.export`. So do kernels, as
the module itself carries their machine code. Numbers of Python functions, and addresses, mean
something in one process only, in none that reads a module: no name allows these."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from jaxlib.mlir import ir

from shardopt.ir.diagnostics import DiagnosedError, diagnostic
from shardopt.ir.rewriting import operations
from shardopt.support.errors import UserError

# XLA's own, on every platform: marks for its partitioners and for placement, operations without a
# form in StableHLO, and what JAX's stable exports have.
_OF_XLA = frozenset(
    {
        *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"),
        *(
            f"xla.sdy.{name}"
            for name in (
                "FuncResultSharding",
                "GlobalToLocalShape",
                "LocalToGlobalShape",
                "PropagationBarrier",
                "Sharding",
                "ShardingGroup",
            )
        ),
        *("annotate_device_placement", "MoveToHost", "MoveToDevice", "LayoutConstraint"),
        *("AllocateBuffer", "CreateBuffer", "Pin", "Unpin", "dce_sink"),
        *("ApproxTopK", "PartialReduce", "TopK", "mhlo.erf", "mhlo.topk", "ragged_all_to_all"),
        *("shape_assertion", "stablehlo.dynamic_approx_top_k", "stablehlo.dynamic_reduce_window"),
        *("stablehlo.dynamic_rng_bit_generator", "stablehlo.dynamic_top_k"),
    }
)


def _lapack() -> Iterator[str]:
    """Routines of every type; those of symmetric and of orthogonal matrices have another name for
    complex ones."""
    for type_ in "sdcz":
        is_real = type_ in "sd"
        names = ["gees", "geev", "gehrd", "geqp3", "geqrf", "gesdd", "gesvd", "getrf", "gtsv"]
        names += ["potrf", "trsm"]
        names += ["orgqr", "ormqr", "syevd", "sytrd"] if is_real else ["ungqr", "unmqr"]
        names += [] if is_real else ["heevd", "hetrd"]
        yield from (f"lapack_{type_}{name}_ffi" for name in names)


def _of_gpus() -> Iterator[str]:
    """CUDA's libraries, and ROCm's of the same names."""
    solver = ["geev", "geqrf", "gesdd", "gesvd", "gesvdj", "gesvdp", "getrf", "orgqr", "ormqr"]
    solver += ["potrf", "syevd", "syrk", "sytrd"]
    for prefix in ("cu", "hip"):
        yield from (f"{prefix}solver_{name}_ffi" for name in solver)
        yield f"{prefix}sparse_gtsv2_ffi"
        yield from (f"{prefix}_{name}" for name in ("cholesky_update_ffi", "threefry2x32_ffi"))
        yield f"{prefix}_lu_pivots_to_permutation"
    for mask in ("", "ScaleBias"):
        for dropout in ("", "Dropout"):
            for pass_ in ("", "Backward"):
                yield f"__cudnn$fmha{mask}Softmax{dropout}{pass_}"
    yield from ("__cudnn$fmhaSoftmaxF8", "__cudnn$fmhaSoftmaxBackwardF8", "__cudnn$fusion")


# What XLA and jaxlib register, by platform ("": on all). A program for another platform is the
# compiler's to refuse.
KNOWN: Mapping[str, frozenset[str]] = {
    "": _OF_XLA,
    "cpu": frozenset({*_lapack(), "tridiagonal_solve_perturbed_ffi"}),
    "gpu": frozenset(_of_gpus()),
    "tpu": frozenset({"Eigh", "LuDecomposition", "ProductOfElementaryHouseholderReflectors", "Qr"}),
}
_KNOWN = frozenset().union(*KNOWN.values())

# Kernels of Pallas and Triton: the module says what they do, as machine code or nearly so.
_KERNELS = frozenset(
    {
        *("__gpu$xla.gpu.triton", "mosaic_gpu", "mosaic_gpu_v2", "tpu_custom_call"),
        *("triton_kernel_call", "triton_kernel_call_ffi"),
    }
)

# A function with a rule for partitioners, until it is written out (`shardopt.frontend.calls`).
PARTITIONED = "shardopt.partitioned"

# `jax.custom_partitioning` has the address of a Python object as its configuration.
_BY_ADDRESS = frozenset({"CustomSPMDPartitioning"})


def is_kernel(target: str) -> bool:
    """Whether the call brings the code that it runs with it."""
    return target in _KERNELS


def fault_of(target: str, allowed: Collection[str] = ()) -> str:
    """Why a custom call may not run, "" if it may. `allowed` are names that the user vouches
    for."""
    # Registered targets have "…_python_cpu_callback" and "…_python_gpu_callback" as their end.
    if target in _BY_ADDRESS or ("python" in target and target.endswith("callback")):
        return f"'@{target}' calls a Python function of the process that made the module"
    if target in _KNOWN or target in allowed:
        return ""
    if is_kernel(target):
        return (
            f"'@{target}' is a kernel whose code the module carries; the option "
            f"custom-calls={target} allows it, for modules that you trust"
        )
    return (
        f"'@{target}' is a custom call that neither XLA nor JAX registers; the option "
        f"custom-calls={target} allows it, where every worker registers it"
    )


def call_target(op: ir.Operation) -> str:
    """What a `stablehlo.custom_call` runs."""
    return ir.StringAttr(op.attributes["call_target_name"]).value


def custom_call_faults(module: ir.Module, allowed: str) -> Iterator[tuple[ir.Operation, str]]:
    """The custom calls of a module that may not run, in program order; `allowed` is a list of names
    with commas."""
    names = names_of(allowed)
    for op in operations(module.operation, ("stablehlo.custom_call",)):
        fault = fault_of(call_target(op), names)
        if fault:
            yield op, fault


def check_custom_calls(module: ir.Module, allowed: str) -> None:
    """Raises UserError, with the places of the custom calls that may not run."""
    faults = [diagnostic("error", op, fault) for op, fault in custom_call_faults(module, allowed)]
    if faults:
        raise DiagnosedError(*faults)


def names_of(text: str) -> tuple[str, ...]:
    """The names of a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def with_kernels(allowed: object) -> str:
    """A list with commas, and the names of kernels beside it: for a function of this process, whose
    code runs here anyway. Raises UserError for what is no text."""
    if not isinstance(allowed, str):
        raise UserError(f"expected custom_calls to be a text, found {allowed!r}")
    return ",".join(sorted({*names_of(allowed), *_KERNELS, PARTITIONED}))
