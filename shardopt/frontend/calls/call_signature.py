"""What a call of a user's function looks like: the types of its arrays, by their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import export
from jax.tree_util import KeyPath, keystr, tree_flatten_with_path

from shardopt.frontend.calls.callbacks import callback_line
from shardopt.frontend.calls.partitionable import Partitionables
from shardopt.support.errors import UserError

# How the message of `jax.export` about programs that it does not take begins.
_NOT_EXPORTED = "serialization of host_callbacks"

# A tree (args, kwargs), flat: the paths of its leaves with these.
Leaves = list[tuple[KeyPath, Any]]


def flat_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Leaves, Any]:
    """The leaves of a call with their paths, and its tree."""
    return tree_flatten_with_path((tuple(args), dict(kwargs)))


def type_of(function: str, path: KeyPath, leaf: Any) -> jax.ShapeDtypeStruct:
    """The type of a leaf of a call, an array, a number or a type already. Raises UserError, in the
    name of `function`, for anything else."""
    where = f"{('args', 'kwargs')[path[0].idx]}{keystr(path[1:])}"
    if isinstance(leaf, jax.core.Tracer):
        raise UserError(
            f"{function}: {where} is being traced; a planned function cannot be transformed by JAX"
        )
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    try:
        aval = leaf.aval if hasattr(leaf, "aval") else jax.typeof(leaf)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    except (TypeError, AttributeError) as error:
        raise UserError(
            f"{function}: expected {where} to be an array or a number, found "
            f"{type(leaf).__name__}; static arguments are named by static_argnums"
        ) from error


def types_of(
    function: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with types in place of arrays. Raises UserError."""
    leaves, tree = flat_call(args, kwargs)
    types = [type_of(function, path, leaf) for path, leaf in leaves]
    return jax.tree.unflatten(tree, types)


def export_call(
    function: str,
    jitted: Any,
    platform: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    partitionables: Partitionables | None = None,
) -> export.Exported:
    """The module of a jitted function for arguments of these types, with custom calls that only
    this version of jaxlib knows, such as kernels of Pallas and cuDNN's attention: this version
    plans and runs it. With `partitionables`, functions that say how they may be split are one call
    there. Raises UserError, in the name of `function`, for callbacks to Python. What
    the user's function raises itself goes through."""
    rules = None if partitionables is None else partitionables.lowering_rules()
    unchecked = [export.DisabledSafetyCheck.custom_call("ALL")]
    try:
        return export.export(
            jitted,
            platforms=(platform,),
            disabled_checks=unchecked,
            _override_lowering_rules=rules,
        )(*args, **kwargs)
    except (NotImplementedError, ValueError) as error:
        if not str(error).startswith(_NOT_EXPORTED):
            raise
        callback = callback_line(jitted, args, kwargs)
        why = f"{callback} is a callback to Python" if callback else error
        raise UserError(f"{function}: the function cannot be exported: {why}") from error
