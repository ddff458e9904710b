"""What the front end needs of JAX that has no public name: what an array can carry besides shape
and dtype (weak types, key types), the static arguments of a jitted function, which classes are
arrays, where an equation stands in the user's code, and which of its results nobody reads; and how
functions of `jax.custom_partitioning` are lowered.

No other file of the front end touches private parts of jax, but for the fields of `Exported` in
`shardopt.frontend.spmd.shard`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax._src import core, dtypes, source_info_util
from jax._src.custom_partitioning_sharding_rule import (
    sdy_sharding_rule_to_mlir,
    str_to_sdy_sharding_rule,
)
from jax._src.interpreters import mlir
from jax._src.lax.lax import _convert_element_type
from jax.experimental.custom_partitioning import custom_partitioning_p
from jax.sharding import AbstractMesh
from jaxlib.mlir import ir


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


def as_one_call(name_of: Callable[[Mapping[str, Any]], str], target: str) -> tuple[Any, ...]:
    """For `jax.export`: functions of `jax.custom_partitioning` are lowered as one custom call, with
    their rule for Shardy. `name_of` is told their parameters; what it calls "" is lowered as for
    one device."""

    def lower(ctx: Any, *values: Any, **params: Any) -> Any:
        call, name = params["call"], name_of(params)
        if not name:
            return mlir.lower_fun(core.jaxpr_as_fun(call), multiple_results=True)(ctx, *values)
        operands = [value.type for value in values]
        types: list[ir.Type] = [
            ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype))
            for aval in call.out_avals
        ]
        named = {"call_target_name": target, "backend_config": name}
        attributes: dict[str, ir.Attribute] = {
            key: ir.StringAttr.get(text) for key, text in named.items()
        }
        op = ir.Operation.create("stablehlo.custom_call", types, list(values), attributes)
        rule = _rule_of(params, operands, types)
        op.attributes["sdy.sharding_rule"] = sdy_sharding_rule_to_mlir(rule, operands, types)
        return list(op.results)

    return ((custom_partitioning_p, lower),)


def _rule_of(params: Mapping[str, Any], operands: list[Any], results: list[Any]) -> Any:
    """The rule of a function, which may be made for the types that it is called with."""
    rule, options = params["sharding_rule"], {}
    if callable(rule):
        rule = rule(*params["static_args"], AbstractMesh((), ()), operands, results)
        if isinstance(rule, list | tuple):
            rule, options = rule
    return str_to_sdy_sharding_rule(rule, **options) if isinstance(rule, str) else rule
