"""`shardopt.shardings`: the shardings of a function on the user's mesh, for the user's own
`jax.jit`.

    mesh = jax.make_mesh((2, 4), ("data", "model"))
    plan = shardopt.shardings(train_step, params, opt_state, batch, mesh=mesh)
    params, opt_state = jax.device_put((params, opt_state), plan.in_shardings[:2])
    train_step = jax.jit(plan.constrained, donate_argnums=(0, 1))

`plan.constrained` is the function with the plan's sharding on every value inside. With the
shardings of arguments and results alone, the compiler decides about what lies between, and
exchanges more."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import jax
from jax import export
from jax.sharding import AxisType, NamedSharding

from shardopt.dialect.custom_calls import with_kernels
from shardopt.frontend.calls.arguments import options_of
from shardopt.frontend.calls.call_signature import export_call, types_of
from shardopt.frontend.calls.device_cluster import cluster_text, export_platform, logical_mesh
from shardopt.frontend.calls.phase_options import INTRA, phase_text
from shardopt.frontend.calls.python_words import errors_for_python, python_handler
from shardopt.frontend.calls.static_arguments import Names, Numbers, StaticArguments
from shardopt.frontend.spmd.shard import automatic_mesh, check_exported, shard_over
from shardopt.options.keywords import ShardKeywords
from shardopt.options.signatures import shows_options
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.ir.diagnostics import Handler


@dataclass(frozen=True, repr=False)
class Shardings:
    """Where the arguments and results of a function lie on a mesh.

    in_shardings     of the positional arguments that are not static, as `jax.jit` takes them:
                     trees of `NamedSharding`
    kwarg_shardings  of the keyword arguments, by name
    out_shardings    of the results; state has those of the arguments that it replaces
    exported         the function with all shardings inside, to be looked at or serialized
    """

    mesh: jax.sharding.Mesh
    in_shardings: tuple[Any, ...]
    kwarg_shardings: dict[str, Any]
    out_shardings: Any
    exported: export.Exported
    _static: StaticArguments
    _static_values: dict[int | str, Any]

    def constrained(self, *args: Any, **kwargs: Any) -> Any:
        """The function, of arguments as it was planned for, with the plan's sharding on every
        value: to be called inside `jax.jit`.

        It can stand between other operations, and the jit can donate what it likes; it cannot be
        differentiated or mapped. Raises UserError for other arguments than those planned for."""
        args, kwargs, static = self._static.split(args, kwargs)
        if static != self._static_values:
            raise UserError(
                f"'{self.exported.fun_name}' was planned for other static arguments: expected "
                f"{self._static_values}, found {static}"
            )
        try:
            return self._call(args, kwargs)
        except ValueError as error:  # of `Exported.call`, about trees, shapes and types
            raise UserError(
                f"'{self.exported.fun_name}' was planned for other arguments: {error}"
            ) from error

    def __repr__(self) -> str:
        leaves = jax.tree.leaves((self.in_shardings, self.kwarg_shardings, self.out_shardings))
        split = sum(not sharding.is_fully_replicated for sharding in leaves)
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        return (
            f"Shardings(of '{self.exported.fun_name}' on mesh {axes}: {split} of {len(leaves)} "
            "arguments and results are split)"
        )

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        explicit = tuple(
            name
            for name, kind in zip(self.mesh.axis_names, self.mesh.axis_types, strict=True)
            if kind == AxisType.Explicit
        )
        placed = (self.in_shardings, self.kwarg_shardings)
        if not explicit:
            args, kwargs = jax.lax.with_sharding_constraint((args, kwargs), placed)
            results = self._undifferentiated(args, kwargs)
            return jax.lax.with_sharding_constraint(results, self.out_shardings)
        args, kwargs = jax.sharding.reshard((args, kwargs), placed)
        call = jax.sharding.auto_axes(
            self._undifferentiated, axes=explicit, out_sharding=self.out_shardings
        )
        return call(args, kwargs)

    def _undifferentiated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What JAX says of gradients through an exported function names neither it nor them."""

        def refuse(*_: Any) -> Any:
            raise UserError(
                f"the planned '{self.exported.fun_name}' cannot be differentiated; plan the whole "
                "step, with its gradients"
            )

        call = jax.custom_vjp(lambda args, kwargs: self.exported.call(*args, **kwargs))
        call.defvjp(refuse, refuse)
        return call(args, kwargs)


@shows_options("shard", has_others=True)
def shardings(
    fun: Callable[..., Any],
    *args: Any,
    mesh: jax.sharding.Mesh,
    kwargs: Mapping[str, Any] | None = None,
    cluster: str | os.PathLike[str] | None = None,
    static_argnums: Numbers = (),
    static_argnames: Names = (),
    donate_argnums: Numbers = (),
    handler: Handler | None = None,
    **options: Unpack[ShardKeywords],
) -> Shardings:
    """Choose a sharding for every value of `fun(*args, **kwargs)` on a mesh of the user's.

    The arguments are arrays or `jax.ShapeDtypeStruct`s, in trees; static ones are as of `jax.jit`,
    which `fun` may come from. `cluster` says how fast devices and links are; by default it is
    described from the devices of `mesh`. State is a result that has the key paths, shapes and
    types of an argument, or replaces a donated one: it gets the sharding of that argument, so that
    the next step begins as this one ended. The `options` are those of `shardopt.shard`. `handler`
    gets warnings and remarks. Raises UserError."""
    if not callable(fun):
        raise UserError(f"shardings: expected a function, found {type(fun).__name__}")
    if not isinstance(mesh, jax.sharding.Mesh):
        raise UserError(f"shardings: expected a jax.sharding.Mesh, found {type(mesh).__name__}")
    static = StaticArguments.of(fun, static_argnums, static_argnames)
    jitted: Any = fun
    if not hasattr(fun, "trace") or (static_argnums, static_argnames, donate_argnums) != ((),) * 3:
        jitted = jax.jit(
            fun,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
        )
    traced, by_name, static_values = static.split(args, kwargs or {})
    types = types_of("shardings", traced, by_name)
    args, kwargs = static.join(*types, static_values)
    platform = export_platform(mesh.devices.flat[0])
    exported = export_call("shardings", jitted, platform, args, kwargs)
    check_exported(exported)
    described = cluster_text(list(mesh.devices.flat)) if cluster is None else cluster
    options = {**options, "custom_calls": with_kernels(options.get("custom_calls", ""))}
    options_text = phase_text(options_of("shard", described, options, exported), INTRA)
    whole = automatic_mesh(tuple(mesh.shape.values()), mesh.axis_names)
    with errors_for_python():
        sharded = shard_over(
            exported, logical_mesh(mesh), whole, options_text, python_handler(handler)
        )
    inputs = [_on(mesh, named) for named in sharded._in_named_shardings]
    positional, by_name = jax.tree.unflatten(sharded.in_tree, inputs)
    outputs = [_on(mesh, named) for named in sharded._out_named_shardings]
    return Shardings(
        mesh=mesh,
        in_shardings=positional,
        kwarg_shardings=by_name,
        out_shardings=jax.tree.unflatten(sharded.out_tree, outputs),
        exported=sharded,
        _static=static,
        _static_values=static_values,
    )


def _on(mesh: jax.sharding.Mesh, named: NamedSharding | None) -> NamedSharding:
    """A planned sharding on the user's mesh; what the function does not use is replicated."""
    return NamedSharding(mesh, jax.sharding.PartitionSpec() if named is None else named.spec)
