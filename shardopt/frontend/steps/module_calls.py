"""Calls of functions of modules, as calls of functions of arrays: steps of Flax NNX, which change
the modules that they are given, and of Equinox, whose modules hold more than arrays.

    @nnx.jit                                   pure(state, batch) -> (state, loss)
    def step(model, optimizer, batch): …  ─▶   state: all arrays of model and optimizer, donated

    @eqx.filter_jit                            pure(arrays of model, batch) -> arrays of the results
    def step(model, batch): …             ─▶   all else of model is part of the program

Both libraries are looked for among those that the program has imported: neither is needed here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax

from shardopt.frontend.steps.state_array import StateArray
from shardopt.support.errors import UserError


def module_call(
    fun: Callable[..., Any],
    bind: Callable[[Callable[..., Any]], Callable[..., Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> ModuleCall | None:
    """The call if it is one of a function of modules, else None. `bind` makes of the user's
    function the one of these arguments. Raises UserError for modules in places where they cannot
    be taken apart."""
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if nnx is not None:
        modules = [k for k, arg in enumerate(args) if nnx.graph.is_graph_node(arg)]
        if any(map(nnx.graph.is_graph_node, kwargs.values())):
            raise UserError("parallelize: expected modules of Flax to be positional arguments")
        if modules:
            return NnxCall.of(nnx, bind(_unwrapped(fun, "flax.nnx")), modules, args, kwargs)
    if equinox is not None and (
        type(fun).__module__.startswith("equinox")
        or any(_has_module(equinox, each) for each in (*args, *kwargs.values()))
    ):
        return EquinoxCall.of(equinox, bind(_unwrapped(fun, "equinox")), args, kwargs)
    return None


def is_module_jit(fun: object) -> bool:
    """Whether a function was wrapped by the `jit` of one of these libraries, and is not to be
    jitted again."""
    return type(fun).__module__.startswith(("flax.nnx", "equinox"))


def _unwrapped(fun: Any, library: str) -> Callable[..., Any]:
    while type(fun).__module__.startswith(library) and hasattr(fun, "__wrapped__"):
        fun = fun.__wrapped__
    return fun


def _has_module(equinox: Any, tree: Any) -> bool:
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, equinox.Module))
    return any(isinstance(leaf, equinox.Module) for leaf in leaves)


# One call. `args` and `kwargs` are trees of arrays; with their types, `key` tells which program it
# is. `state` are positional arguments that the step replaces. `program()` is the function of
# arrays, and what makes the user's results of its results and the call that gave them.
ModuleCall: TypeAlias = "NnxCall | EquinoxCall"


@dataclass(frozen=True)
class NnxCall:
    """Modules are taken apart together, since they may share variables: all their arrays stand in
    the place of the first of them, as nested dictionaries, and None in those of the others."""

    nnx: Any
    fun: Callable[..., Any]
    modules: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: tuple[int, ...]
    graph: Any

    @staticmethod
    def of(
        nnx: Any,
        fun: Callable[..., Any],
        places: Sequence[int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> NnxCall:
        modules = tuple(args[k] for k in places)
        graph, state = nnx.split(modules)
        plain = [None if k in places else arg for k, arg in enumerate(args)]
        plain[places[0]] = nnx.to_pure_dict(state)
        return NnxCall(
            nnx=nnx,
            fun=fun,
            modules=modules,
            args=tuple(plain),
            kwargs=dict(kwargs),
            places=tuple(places),
            graph=graph,
        )

    @property
    def key(self) -> Hashable:
        return self.graph

    @property
    def state(self) -> tuple[int, ...]:
        return self.places[:1]

    def program(self) -> tuple[Callable[..., Any], Callable[[Any, Any], Any]]:
        nnx, fun, places, graph = self.nnx, self.fun, self.places, self.graph

        def pure(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            modules = nnx.merge(graph, args[places[0]])
            arguments = list(args)
            for place, module in zip(places, modules, strict=True):
                arguments[place] = module
            results = fun(*arguments, **kwargs)
            return nnx.to_pure_dict(nnx.state(modules)), results

        def finish(results: Any, call: NnxCall) -> Any:
            state, returned = results
            nnx.update(call.modules, state)
            return returned

        pure.__name__ = getattr(fun, "__name__", "step")
        return pure, finish

    def reading(self) -> tuple[Callable[..., Any], Callable[[Any, Any], Any]]:
        """The same, of a function that only reads its modules: without their state among the
        results. Tracing raises UserError where it changes one."""
        pure, place = self.program()[0], self.places[0]

        def read(*args: Any, **kwargs: Any) -> Any:
            state, returned = pure(*args, **kwargs)
            pairs = zip(jax.tree.leaves(args[place]), jax.tree.leaves(state), strict=True)
            if any(before is not after for before, after in pairs):
                raise UserError(
                    "beside: expected a function that only reads its modules, found one that "
                    "changes them; model.eval() stops layers from counting and averaging"
                )
            return returned

        read.__name__ = pure.__name__
        return read, lambda results, call: results


@dataclass(frozen=True)
class EquinoxCall:
    """Arrays are arguments; all else is part of the program, and so must have a hash."""

    equinox: Any
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static: Any = field(repr=False)
    key: Hashable
    state: tuple[int, ...] = ()

    @staticmethod
    def of(
        equinox: Any, fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> EquinoxCall:
        (arrays, named), static = equinox.partition((tuple(args), dict(kwargs)), _is_array)
        leaves, tree = jax.tree.flatten(static)
        key = (tree, tuple(leaves))
        try:
            hash(key)
        except TypeError as error:
            raise UserError(
                f"parallelize: expected what is no array in the arguments to have a hash: {error}"
            ) from error
        return EquinoxCall(equinox, fun, arrays, named, static, key)

    def program(self) -> tuple[Callable[..., Any], Callable[[Any, Any], Any]]:
        equinox, fun, static = self.equinox, self.fun, self.static
        static_results: list[Any] = []  # of the newest trace

        def pure(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = equinox.combine((args, kwargs), static)
            arrays, rest = equinox.partition(fun(*args, **kwargs), _is_array)
            static_results[:] = [rest]
            return arrays

        def finish(results: Any, call: EquinoxCall) -> Any:
            return equinox.combine(results, static_results[0])

        pure.__name__ = getattr(fun, "__name__", "step")
        return pure, finish

    def reading(self) -> tuple[Callable[..., Any], Callable[[Any, Any], Any]]:
        """The same: what is no result is not changed."""
        return self.program()


def _is_array(leaf: object) -> bool:
    """What is traced: arrays of any kind and their types; numbers of Python are not, as for
    `equinox.filter_jit`."""
    import numpy as np

    kinds = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, StateArray)
    return isinstance(leaf, kinds)
