"""Element types: the MLIR spelling and the numpy name of each, `bf16` <-> `bfloat16`, `ui32` <->
`uint32`.

Names of types that numpy lacks, such as floats of eight bits and integers of four, are those of
`ml_dtypes`; `numpy_dtype` resolves both."""

from __future__ import annotations

from types import MappingProxyType

import ml_dtypes
import numpy as np

_SPECIAL = {
    "i1": "bool",
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    "f4E2M1FN": "float4_e2m1fn",
    "f8E3M4": "float8_e3m4",
    "f8E4M3": "float8_e4m3",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E5M2": "float8_e5m2",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E8M0FNU": "float8_e8m0fnu",
}
# Those of two and four bits take a byte each in numpy.
_INTEGERS = {
    f"{mlir}{bits}": f"{name}{bits}"
    for mlir, name in (("i", "int"), ("ui", "uint"))
    for bits in (2, 4, 8, 16, 32, 64)
}

NUMPY_NAMES = MappingProxyType({**_SPECIAL, **_INTEGERS})
MLIR_NAMES = MappingProxyType({name: mlir for mlir, name in NUMPY_NAMES.items()})


def numpy_name(mlir_element_type: str) -> str:
    """`bf16` -> `bfloat16`. Raises ValueError for an element type that no buffer can hold (`i7`,
    `index`, …)."""
    if mlir_element_type not in NUMPY_NAMES:
        raise ValueError(
            f"element type '{mlir_element_type}' has no array form; known are "
            f"{', '.join(NUMPY_NAMES)}"
        )
    return NUMPY_NAMES[mlir_element_type]


def mlir_name(numpy_dtype_name: str) -> str:
    """`bfloat16` -> `bf16`. Raises ValueError for a dtype StableHLO does not have."""
    if numpy_dtype_name not in MLIR_NAMES:
        raise ValueError(
            f"dtype '{numpy_dtype_name}' has no MLIR element type; known are "
            f"{', '.join(MLIR_NAMES)}"
        )
    return MLIR_NAMES[numpy_dtype_name]


def numpy_dtype(name: str) -> np.dtype:
    """The dtype behind a name of `NUMPY_NAMES`, from numpy or from ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)
