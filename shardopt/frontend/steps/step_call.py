"""A call of a planned function, taken apart."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax import export

from shardopt.frontend.calls.call_signature import Leaves, flat_call, type_of
from shardopt.frontend.calls.static_arguments import StaticArguments
from shardopt.frontend.steps.module_calls import ModuleCall, module_call
from shardopt.support.errors import UserError

# Numbers of positional arguments whose leaves hold the batch in dimension 0; or number ->
# dimension.
ArgumentNumbers: TypeAlias = "int | Sequence[int] | Mapping[int, int]"


@dataclass(frozen=True)
class Signature:
    """What a call looks like: one plan serves all calls that look the same. `key` is what is no
    array: static arguments, and what modules hold besides arrays."""

    tree: Any
    avals: tuple[jax.ShapeDtypeStruct, ...]
    key: Hashable


@dataclass(frozen=True)
class StepCall:
    """A call taken apart: the leaves of its arrays with their paths, static arguments by number or
    name, and the call of a function of modules that it stands for, if it does."""

    signature: Signature
    positional: int
    leaves: Leaves
    static: Mapping[int | str, Any]
    modules: ModuleCall | None

    @property
    def arrays(self) -> list[Any]:
        return [leaf for _, leaf in self.leaves]


def step_call(
    fun: Callable[..., Any],
    static: StaticArguments,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> StepCall:
    """Take a call apart. Raises UserError for a leaf that is no array."""
    traced, named, fixed = static.split(args, kwargs)
    modules = module_call(fun, functools.partial(static.bound, static=fixed), traced, named)
    if modules is not None:
        traced, named = modules.args, modules.kwargs
    leaves, tree = flat_call(traced, named)
    avals = tuple(type_of("parallelize", path, leaf) for path, leaf in leaves)
    key = (tuple(fixed.items()), None if modules is None else modules.key)
    try:
        hash(key)
    except TypeError as error:
        raise UserError(
            f"parallelize: expected static arguments to have a hash: {error}"
        ) from error
    return StepCall(Signature(tree, avals, key), len(args), leaves, fixed, modules)


def flat_batch(
    function: str,
    batch: Mapping[int, int],
    static: StaticArguments,
    call: StepCall,
    exported: export.Exported,
) -> dict[int, int]:
    """flat argument -> batch dimension: the leaves of the batch arguments that have this dimension
    and are used. Raises UserError, in the name of `function`, if there are none."""
    owners: dict[tuple[int, int | str], int] = {
        (0, number): dim
        for owner, dim in batch.items()
        for number in static.traced_numbers((owner,), call.static)
    }
    names = static.parameters
    owners |= {(1, names[number]): dim for number, dim in batch.items() if number < len(names)}
    dim_of: dict[int, int] = {}
    for number, (path, _) in enumerate(call.leaves):
        dim = owners.get((path[0].idx, getattr(path[1], "key" if path[0].idx else "idx")))
        shape = call.signature.avals[number].shape
        if dim is not None and dim < len(shape) and number in exported.module_kept_var_idx:
            dim_of[number] = dim
    if not dim_of:
        raise UserError(
            f"{function}: batch_argnums={tuple(batch)} name no array with a batch dimension in "
            f"this call, which has {call.positional} positional arguments"
        )
    return dim_of


def batch_dimensions(numbers: ArgumentNumbers | None) -> dict[int, int] | None:
    if numbers is None:
        return None
    if isinstance(numbers, int):
        numbers = (numbers,)
    dims = dict(numbers) if isinstance(numbers, Mapping) else dict.fromkeys(numbers, 0)
    if not all(type(value) is int and value >= 0 for pair in dims.items() for value in pair):
        raise UserError(
            f"parallelize: expected batch_argnums to be argument numbers, found {numbers!r}"
        )
    return dims
