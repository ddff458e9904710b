"""A parallelized function: what `@shardopt.parallelize` makes of a function, and the state of its
workers."""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax
from jax import export

from shardopt.extract.batch_arguments import IndivisibleBatch, UndecidedBatch
from shardopt.frontend.calls.batch_names import (
    ArgumentNames,
    ArgumentNumbers,
    BatchNames,
    batch_names,
)
from shardopt.frontend.calls.call_signature import export_call
from shardopt.frontend.calls.callbacks import recorded
from shardopt.frontend.calls.partitionable import Partitionables
from shardopt.frontend.calls.static_arguments import StaticArguments
from shardopt.frontend.planning.optimize import optimize
from shardopt.frontend.plans.written_out import written_out
from shardopt.frontend.steps.beside import Beside
from shardopt.frontend.steps.planning_progress import planning_progress
from shardopt.frontend.steps.replay import Replay
from shardopt.frontend.steps.session import Session
from shardopt.frontend.steps.state_array import StateArray
from shardopt.frontend.steps.step_call import (
    Signature,
    StepCall,
    flat_batch,
    step_call,
)
from shardopt.frontend.steps.undonated_state import undonated_state
from shardopt.hardware.cluster_file import load_cluster
from shardopt.options.names import PlatformName
from shardopt.runtime.backends.ray_actors import connected_gpus
from shardopt.runtime.devices.gpu_drivers import gpu_kind
from shardopt.runtime.devices.gpus import chosen_platform
from shardopt.runtime.errors import MeshError
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.ir.diagnostics import Diagnostic
    from shardopt.runtime.options import RunOptions
    from shardopt.runtime.run import Run

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
S = TypeVar("S")

# How `optimize` is told the batch, in messages; functions have arguments with names.
_BATCH_ARGS = re.compile(r"batch_args='INDEX\[:DIM\]' or NAME\[:DIM\]")


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
        batch: BatchNames | None,
        run_options: RunOptions,
        *,
        lazy_state: bool,
        restarts: int = 0,
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._tracing = tracing
        self._planning = planning
        self._batch = batch
        self._run_options = run_options
        self._lazy_state = lazy_state
        self._restarts = restarts  # that are left
        self._planned: dict[Signature, Planned] = {}
        self._sessions: dict[Signature, Session] = {}

    def __repr__(self) -> str:
        function = getattr(self._fun, "__qualname__", None) or type(self._fun).__name__
        plans = f"{len(self._planned)} plan{'s' if len(self._planned) != 1 else ''}"
        running = ", running" if self._sessions else ""
        return f"Parallelized({function} on {self._planning['cluster']}: {plans}{running})"

    @functools.cached_property
    def _platform(self) -> PlatformName:
        """What the workers run on, known before the function is traced for it."""
        devices = load_cluster(self._planning["cluster"]).num_devices
        options = self._run_options
        if options.backend == "ray":
            return chosen_platform(options.platform, devices, *connected_gpus())
        return chosen_platform(options.platform, devices, share=options.share_gpus)

    @property
    def export_platform(self) -> str:
        """What functions are exported for."""
        if self._platform == "cpu":
            return "cpu"
        return gpu_kind() or "cuda"  # a driver of workers on other machines may have no plugin

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one step. Raises UserError, and MeshError when a worker fails once more than is to be
        restarted: the next call then starts new ones."""
        call = step_call(self._fun, self._tracing.static, args, kwargs)
        leaves = call.arrays
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            raise UserError(
                "parallelize: expected arrays, found a ShapeDtypeStruct; only plan() takes shapes"
            )
        planned = self._plan(call)
        session = self._session(call, planned)
        kept = [leaves[number] for number in planned.exported.module_kept_var_idx]
        try:
            results = self._step(session, planned, kept)
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
        return self._plan(step_call(self._fun, self._tracing.static, args, kwargs)).plan

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
        call = step_call(self._fun, self._tracing.static, args, kwargs)
        planned = self._plan(call)
        session = self._session(call, planned)
        return StateOnWorkers(session, call.signature, planned)

    def beside(
        self,
        fun: Callable[Q, S],
        *,
        batch_argnums: ArgumentNumbers | None = None,
        batch_argnames: ArgumentNames | None = None,
        microbatches: int | None = None,
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
    ) -> Beside[Q, S]:
        """A function on the workers of this one, such as an evaluation step, that reads the state
        where these hold it:

            evaluate = train_step.beside(loss)
            params, opt, loss = train_step(params, opt, tokens)
            validation_loss = evaluate(params, other_tokens)

        Its arguments are told by what they are: arrays that this function has returned, or that
        `start` has made or loaded, are not moved; all others are brought. `batch_argnums` and
        `batch_argnames` name the batch, of any size; by default it is all that is brought.
        `microbatches` are as many as those of this function, or fewer where the batch is not
        divisible.

        Calls raise UserError where no argument is state, where weights are read in another order
        than the stages hold them, or where modules would be changed; MeshError."""
        static = StaticArguments.of(fun, static_argnums, static_argnames)
        batch = batch_names(batch_argnums, batch_argnames)
        return Beside(fun, self, static, batch, microbatches)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """What runs, one for each signature that was called."""
        return tuple(self._sessions.values())

    def plan_of(self, session: Session) -> Plan:
        signature = next(key for key, each in self._sessions.items() if each is session)
        return self._planned[signature].plan

    @property
    def quick_compile(self) -> bool:
        return self._run_options.quick_compile

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

    def _plan(self, call: StepCall) -> Planned:
        signature = call.signature
        if signature not in self._planned:
            args, kwargs = jax.tree.unflatten(signature.tree, signature.avals)
            jitted, finish = self._looked_at(*self._program(call), args, kwargs)
            platform = self.export_platform
            own = Partitionables(platform)
            exported = export_call("parallelize", jitted, platform, args, kwargs, own)
            plan = written_out(self._optimize(call, exported), own)
            self._planned[signature] = Planned(exported, plan, finish)
        return self._planned[signature]

    def _warn_of_undonated(self, call: StepCall, planned: Planned, session: Session) -> None:
        exported, static = planned.exported, self._tracing.static
        donated = {exported.module_kept_var_idx[number] for number in session.state_numbers}
        number_of = partial(static.passed_number, static=call.static)
        found = undonated_state(exported, donated, number_of)
        if found is not None:
            advice = found.advice(static.parameters)
            warnings.warn(f"parallelize: {exported.fun_name} {advice}", stacklevel=4)

    def _optimize(self, call: StepCall, exported: export.Exported) -> Plan:
        """Plan the call; a batch of another size than before, such as the last one, with fewer
        microbatches where it cannot be cut into as many. Raises UserError."""
        batch: Any = "auto"
        if self._batch is not None:
            static = self._tracing.static
            batch = flat_batch("parallelize", self._batch, static, call, exported)
        try:
            with planning_progress(exported.fun_name) as on_phase:
                return optimize(exported, batch_args=batch, on_phase=on_phase, **self._planning)
        except IndivisibleBatch as error:
            fewer = self._microbatches_of_rest(call.signature)
            if fewer is not None:
                warnings.warn(
                    f"parallelize: {exported.fun_name} takes a batch of another size with "
                    f"microbatches={fewer} instead of {self._planning['microbatches']}",
                    stacklevel=2,
                )
                options = {**self._planning, "microbatches": fewer}
                return optimize(exported, batch_args=batch, **options)
            avals = call.signature.avals
            if self._batch and len({avals[k].shape[dim] for k, dim in batch.items()}) > 1:
                raise error.changed(_with_tree_advice) from error
            raise
        except UndecidedBatch as error:
            raise error.changed(_in_names) from error

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

    def _step(self, session: Session, planned: Planned, leaves: Sequence[Any]) -> list[Any]:
        """One step, with other workers where it fails, as long as that may be."""
        failure: MeshError | None = None
        while True:
            try:
                if failure is not None:
                    self._start_again(session, planned, leaves, failure)
                return session.step(leaves)
            except (MeshError, RuntimeError) as error:
                # What has failed beside this function is the cause of the other kind.
                failure = error if isinstance(error, MeshError) else _failure_behind(error)
                if failure is None or not self._restarts:
                    raise
                self._restarts -= 1
                warnings.warn(f"{failure}; starting again", RuntimeWarning, stacklevel=3)

    def _start_again(
        self, session: Session, planned: Planned, leaves: Sequence[Any], failure: MeshError
    ) -> None:
        session.close()
        try:
            session.again(self._start(planned), leaves)
        except UserError as error:  # such as too few devices: no other attempt will do
            raise failure from error

    def _start(self, planned: Planned) -> Run:
        from shardopt.runtime.driver import start_run

        options = replace(self._run_options, platform=self._platform)
        return start_run(planned.plan.program(), options)

    def _session(self, call: StepCall, planned: Planned) -> Session:
        signature = call.signature
        if signature not in self._sessions:
            kept = [signature.avals[number] for number in planned.exported.module_kept_var_idx]
            self._sessions[signature] = Session(
                self._start(planned),
                kept,
                planned.exported.out_avals,
                lazy_state=self._lazy_state,
                platform=self.export_platform,
                replay=Replay(self._run_options.checkpoints) if self._restarts else None,
            )
            self._warn_of_undonated(call, planned, self._sessions[signature])
        return self._sessions[signature]


def _failure_behind(error: RuntimeError) -> MeshError | None:
    return error.__cause__ if isinstance(error.__cause__, MeshError) else None


def _with_tree_advice(diagnostic: Diagnostic) -> Diagnostic:
    advice = (
        "a tree of dimensions has None for leaves without rows, such as "
        "batch_argnums={1: {'tokens': 0, 'table': None}}"
    )
    return replace(diagnostic, message=f"{diagnostic.message}; {advice}")


def _in_names(diagnostic: Diagnostic) -> Diagnostic:
    names = "batch_argnames=NAME or {NAME: DIM}"
    return replace(diagnostic, message=_BATCH_ARGS.sub(names, diagnostic.message))


def _unchanged(results: Any, call: StepCall) -> Any:
    return results
