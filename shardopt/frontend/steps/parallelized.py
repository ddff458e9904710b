"""A parallelized function: what `@shardopt.parallelize` makes of a function, and the state of its
workers."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax
from jax import export

from shardopt.frontend.calls.call_signature import Leaves, export_call, flat_call, type_of
from shardopt.frontend.calls.callbacks import recorded
from shardopt.frontend.calls.device_cluster import export_platform
from shardopt.frontend.calls.static_arguments import StaticArguments
from shardopt.frontend.planning.optimize import optimize
from shardopt.frontend.steps.module_calls import ModuleCall, module_call
from shardopt.frontend.steps.planning_progress import planning_progress
from shardopt.frontend.steps.session import Session
from shardopt.frontend.steps.state_array import StateArray
from shardopt.hardware.cluster_file import load_cluster
from shardopt.options.names import PlatformName
from shardopt.runtime.devices.gpus import chosen_platform, visible_gpus
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.runtime.options import RunOptions
    from shardopt.runtime.run import Run

P = ParamSpec("P")
R = TypeVar("R")


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


@dataclass(frozen=True)
class Planned:
    """A traced and planned signature; `finish` makes what the user gets of the results of a
    call."""

    exported: export.Exported
    plan: Plan
    finish: Callable[[Any, StepCall], Any]


@dataclass(frozen=True)
class StateOnWorkers:
    """The state of a started function: its donated arguments, which never need to be whole in this
    process."""

    _session: Session
    _signature: Signature
    _planned: Planned

    def create(self, init: Callable[..., Any], *args: Any) -> Any:
        """Have the workers compute `init(*args)`, which returns the donated arguments in their
        order, each worker its own shards; the same tree, of `StateArray`s. Raises UserError,
        MeshError."""
        return self._session.create(init, *args)

    def load(self, path: str | os.PathLike[str]) -> tuple[Any, ...]:
        """The donated arguments as a checkpoint has them, or the newest in a folder of any plan of
        this function, as trees of `StateArray`s. Raises UserError, MeshError."""
        leaves: list[Any] = [None] * len(self._signature.avals)
        arrays = self._session.load(path)
        kept = self._planned.exported.module_kept_var_idx
        for number, array in zip(self._session.state_numbers, arrays, strict=True):
            leaves[kept[number]] = array
        args, kwargs = jax.tree.unflatten(self._signature.tree, leaves)
        return tuple(each for each in (*args, *kwargs.values()) if jax.tree.leaves(each))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a new folder, each worker its own shards. Raises UserError,
        MeshError."""
        self._session.save(path)

    def fetch(self, tree: Any) -> Any:
        """A tree of `StateArray`s as one of `jax.Array`s, which are whole. Raises UserError for
        those that are gone."""
        return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, StateArray) else leaf, tree)

    @property
    def run(self) -> Run:
        """The run itself, with its spans (`trace=True`), metrics and state."""
        return self._session.run


@dataclass(frozen=True)
class Tracing:
    """How a function is traced: as `jitted`, where calls have neither static arguments nor modules,
    else with these donated."""

    jitted: Any
    static: StaticArguments
    donate_argnums: tuple[int, ...]
    donate_argnames: tuple[str, ...]


class Parallelized(Generic[P, R]):
    """A parallelized function; a context manager that stops the workers. Made by `parallelize`."""

    def __init__(
        self,
        fun: Callable[P, R],
        tracing: Tracing,
        planning: Mapping[str, Any],
        batch: Mapping[int, int] | None,
        run_options: RunOptions,
        *,
        lazy_state: bool,
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._tracing = tracing
        self._planning = planning
        self._batch = batch
        self._run_options = run_options
        self._lazy_state = lazy_state
        self._planned: dict[Signature, Planned] = {}
        self._sessions: dict[Signature, Session] = {}

    @functools.cached_property
    def _platform(self) -> PlatformName:
        """What the workers run on, known before the function is traced for it."""
        devices = load_cluster(self._planning["cluster"]).num_devices
        return chosen_platform(self._run_options.platform, devices)

    @property
    def _export_platform(self) -> str:
        if self._platform == "cpu":
            return "cpu"
        gpus = visible_gpus()  # a driver of workers on other machines may have none
        return export_platform(gpus[0]) if gpus else "cuda"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one step. Raises UserError, and MeshError when a worker fails: the next call then
        starts new ones."""
        call = self._call(args, kwargs)
        leaves = call.arrays
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            raise UserError(
                "parallelize: expected arrays, found a ShapeDtypeStruct; only plan() takes shapes"
            )
        planned = self._plan(call)
        session = self._session(call.signature, planned)
        try:
            results = session.step(
                [leaves[number] for number in planned.exported.module_kept_var_idx]
            )
        except UserError:  # nothing has run yet
            raise
        except BaseException:
            del self._sessions[call.signature]
            session.close()
            raise
        returned: R = planned.finish(jax.tree.unflatten(planned.exported.out_tree, results), call)
        return returned

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """The plan for such arguments, arrays or `jax.ShapeDtypeStruct`s, without running it.
        Raises UserError."""
        return self._plan(self._call(args, kwargs)).plan

    def start(self, *args: P.args, **kwargs: P.kwargs) -> StateOnWorkers:
        """Plan for such arguments, arrays or `jax.ShapeDtypeStruct`s, and start the workers without
        a step.

        What is returned makes, saves and loads their state, which is then given to calls like
        arrays:

            state = train_step.start(params_shapes, opt_shapes, tokens_shape)
            params, opt = state.create(init, key)       # or state.load(path)
            params, opt, loss = train_step(params, opt, tokens)
            state.save(path)

        Raises UserError, MeshError.
        """
        call = self._call(args, kwargs)
        planned = self._plan(call)
        session = self._session(call.signature, planned)
        return StateOnWorkers(session, call.signature, planned)

    def close(self) -> None:
        """Stop the workers; a later call starts them again, from the arguments that it is given."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def __enter__(self) -> Parallelized[P, R]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepCall:
        """Take a call apart. Raises UserError for a leaf that is no array."""
        traced, named, static = self._tracing.static.split(args, kwargs)
        bind = functools.partial(self._tracing.static.bound, static=static)
        modules = module_call(self._fun, bind, traced, named)
        if modules is not None:
            traced, named = modules.args, modules.kwargs
        leaves, tree = flat_call(traced, named)
        avals = tuple(type_of("parallelize", path, leaf) for path, leaf in leaves)
        key = (tuple(static.items()), None if modules is None else modules.key)
        try:
            hash(key)
        except TypeError as error:
            raise UserError(
                f"parallelize: expected static arguments to have a hash: {error}"
            ) from error
        return StepCall(Signature(tree, avals, key), len(args), leaves, static, modules)

    def _plan(self, call: StepCall) -> Planned:
        signature = call.signature
        if signature not in self._planned:
            args, kwargs = jax.tree.unflatten(signature.tree, signature.avals)
            jitted, finish = self._looked_at(*self._program(call), args, kwargs)
            exported = export_call("parallelize", jitted, self._export_platform, args, kwargs)
            self._planned[signature] = Planned(exported, self._optimize(call, exported), finish)
        return self._planned[signature]

    def _optimize(self, call: StepCall, exported: export.Exported) -> Plan:
        """Plan the call; a batch of another size than before, such as the last one, with fewer
        microbatches where it cannot be cut into as many. Raises UserError."""
        batch = "auto" if self._batch is None else self._flat_batch(call, exported)
        try:
            with planning_progress(exported.fun_name) as on_phase:
                return optimize(exported, batch_args=batch, on_phase=on_phase, **self._planning)
        except UserError as error:
            fewer = self._microbatches_of_rest(call.signature)
            if fewer is not None and "expected a batch that divides into" in str(error):
                warnings.warn(
                    f"parallelize: {exported.fun_name} takes a batch of another size with "
                    f"microbatches={fewer} instead of {self._planning['microbatches']}",
                    stacklevel=2,
                )
                options = {**self._planning, "microbatches": fewer}
                return optimize(exported, batch_args=batch, **options)
            if self._batch is None and "batch_args" in str(error):
                raise UserError(f"{error}; with parallelize, batch_argnums=… names them") from error
            raise

    def _microbatches_of_rest(self, signature: Signature) -> int | None:
        """The largest number of microbatches, of at most as many as were asked for, that divides
        what differs from an earlier call of the same arguments; None if there was none."""
        most = self._planning.get("microbatches")
        extents = {
            after
            for earlier in self._planned
            if (earlier.tree, earlier.key) == (signature.tree, signature.key)
            for old, new in zip(earlier.avals, signature.avals, strict=True)
            if len(old.shape) == len(new.shape)
            for before, after in zip(old.shape, new.shape, strict=True)
            if before != after
        }
        if not isinstance(most, int) or not extents:
            return None
        return max(number for number in range(1, most + 1) if gcd(*extents) % number == 0)

    def _program(self, call: StepCall) -> tuple[Any, Callable[[Any, StepCall], Any]]:
        """The function of arrays, jitted, and what makes the user's results of its own."""
        tracing, modules = self._tracing, call.modules
        if modules is None and not call.static:
            return tracing.jitted, _unchanged
        state: tuple[int, ...] = ()
        if modules is None:
            fun, finish = tracing.static.bound(self._fun, call.static), _unchanged
        else:
            fun, finish_modules = modules.program()
            state = modules.state

            def finish(results: Any, call: StepCall) -> Any:
                return finish_modules(results, call.modules)

        numbers = tracing.static.traced_numbers(tracing.donate_argnums, call.static)
        jitted = jax.jit(
            fun,
            donate_argnums=tuple(sorted({*numbers, *state})),
            donate_argnames=tracing.donate_argnames,
            keep_unused=True,
        )
        return jitted, finish

    def _looked_at(
        self,
        jitted: Any,
        finish: Callable[[Any, StepCall], Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, Callable[[Any, StepCall], Any]]:
        """The same where callbacks that look at values run in this process, after the step."""
        step = recorded("parallelize", jitted, args, kwargs)
        if step is None:
            return jitted, finish

        def finish_and_look(results: Any, call: StepCall) -> Any:
            returned, values = results
            step.look(values)
            return finish(returned, call)

        looked_at = jax.jit(
            step.fun,
            donate_argnums=step.donate_argnums,
            donate_argnames=self._tracing.donate_argnames,
            keep_unused=True,
        )
        return looked_at, finish_and_look

    def _session(self, signature: Signature, planned: Planned) -> Session:
        if signature not in self._sessions:
            from shardopt.runtime.driver import start_run

            kept = [signature.avals[number] for number in planned.exported.module_kept_var_idx]
            self._sessions[signature] = Session(
                start_run(
                    planned.plan.program(), replace(self._run_options, platform=self._platform)
                ),
                kept,
                planned.exported.out_avals,
                lazy_state=self._lazy_state,
                platform=self._export_platform,
            )
        return self._sessions[signature]

    def _flat_batch(self, call: StepCall, exported: export.Exported) -> dict[int, int]:
        """flat argument -> batch dimension: the leaves of the batch arguments that have this
        dimension and are used."""
        assert self._batch is not None
        names, static = self._tracing.static.parameters, self._tracing.static
        owners: dict[tuple[int, int | str], int] = {
            (0, number): dim
            for owner, dim in self._batch.items()
            for number in static.traced_numbers((owner,), call.static)
        }
        owners |= {
            (1, names[number]): dim for number, dim in self._batch.items() if number < len(names)
        }
        dim_of: dict[int, int] = {}
        for number, (path, _) in enumerate(call.leaves):
            dim = owners.get((path[0].idx, getattr(path[1], "key" if path[0].idx else "idx")))
            shape = call.signature.avals[number].shape
            if dim is not None and dim < len(shape) and number in exported.module_kept_var_idx:
                dim_of[number] = dim
        if not dim_of:
            raise UserError(
                f"parallelize: batch_argnums={tuple(self._batch)} name no array with a batch "
                f"dimension in this call, which has {call.positional} positional arguments"
            )
        return dim_of


def _unchanged(results: Any, call: StepCall) -> Any:
    return results
