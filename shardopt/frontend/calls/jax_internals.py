"""What the front end needs of JAX that has no public name: what an array can carry besides shape
and dtype (weak types, key types), the static arguments of a jitted function, which classes are
arrays, where an equation stands in the user's code, and which of its results nobody reads.

No other file of the front end touches private parts of jax, but for the fields of `Exported` in
`shardopt.frontend.spmd.shard`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src import core, dtypes, source_info_util
from jax._src.lax.lax import _convert_element_type


def like(value: np.ndarray, aval: Any, weak_type: bool) -> jax.Array:
    """A numpy array as a JAX array of an abstract value's kind: a typed key where it is one, weak
    if wanted."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.numpy.asarray(value), impl=aval.dtype._impl.name)
    array = jax.numpy.asarray(value)
    return _convert_element_type(array, weak_type=True) if weak_type else array


def is_dropped(var: Any) -> bool:
    """Whether nobody reads a result of an equation; `jax.extend.core` has the class since 0.10."""
    return isinstance(var, core.DropVar)


def register_array_like(kind: type) -> None:
    """Have functions of JAX take objects of a class with `aval` and `value` for the arrays that
    they stand for. The aval alone is used in tracing."""
    core.pytype_aval_mappings[kind] = lambda leaf: core.ShapedArray(
        leaf.shape, leaf.dtype, weak_type=bool(leaf.aval.weak_type)
    )
    dtypes.canonicalize_value_handlers[kind] = lambda leaf: leaf.value


def jitted_static(fun: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Numbers and names of the static arguments that a function was jitted with."""
    info = getattr(fun, "_jit_info", None)
    return (info.static_argnums, info.static_argnames) if info is not None else ((), ())


def line_of(equation: Any) -> str:
    """The user's line that an equation of a jaxpr comes from, with file, column and function."""
    return str(source_info_util.summarize(equation.source_info))
