"""A call of a planned function, taken apart."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export

from shardopt.frontend.calls.batch_names import BatchNames, Dims, leaf_dims
from shardopt.frontend.calls.call_signature import Leaves, flat_call, type_of
from shardopt.frontend.calls.static_arguments import StaticArguments
from shardopt.frontend.steps.module_calls import ModuleCall, module_call
from shardopt.support.counts import counted
from shardopt.support.errors import UserError


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
    batch: BatchNames,
    static: StaticArguments,
    call: StepCall,
    exported: export.Exported,
) -> dict[int, int]:
    """flat argument -> batch dimension: the leaves that have one and are used. Raises UserError, in
    the name of `function`, for trees of dimensions that do not fit, and if there are none."""
    dim_of: dict[int, int] = {}
    for numbers, dims, where in _named(batch, static, call):
        for number, dim, place in leaf_dims(dims, numbers, where):
            aval = call.signature.avals[number]
            if place and dim >= aval.ndim:
                raise UserError(
                    f"{function}: expected {place} of the batch to have dimension {dim}, found "
                    f"shape {aval.shape}; None stands for what has no rows"
                )
            if dim < aval.ndim and number in exported.module_kept_var_idx:
                dim_of[number] = dim
    if not dim_of and batch:
        _, kwargs = jax.tree.unflatten(call.signature.tree, range(len(call.leaves)))
        names = ", ".join((*static.parameters[: call.positional], *kwargs))
        which = f"; its arguments are {names}" if names else ""
        raise UserError(
            f"{function}: {batch} name no array with a batch dimension in this call, which has "
            f"{counted(call.positional, 'positional argument')}{which}"
        )
    return dim_of


def _named(
    batch: BatchNames, static: StaticArguments, call: StepCall
) -> Iterator[tuple[Any, Dims, str]]:
    """The arguments of a call that are named, as trees of leaf numbers, with their dimensions and
    what messages call them. Those that this call has not, or has as static, are passed over."""
    args, kwargs = jax.tree.unflatten(call.signature.tree, range(len(call.leaves)))
    names = dict(enumerate(static.parameters))
    numbers = {name: number for number, name in names.items()}
    by_number = {**batch.numbers, **{numbers[n]: d for n, d in batch.names.items() if n in numbers}}
    for number, dims in by_number.items():
        for traced in static.traced_numbers((number,), call.static):
            if traced < len(args):
                yield args[traced], dims, names.get(number, f"args[{number}]")
    by_name = {names[number]: dims for number, dims in by_number.items() if number in names}
    for name, dims in {**by_name, **batch.names}.items():
        if name in kwargs:
            yield kwargs[name], dims, name
