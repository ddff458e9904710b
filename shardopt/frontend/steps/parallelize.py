"""`@shardopt.parallelize`: a train step that is planned on its first call and runs on the workers
from then on.

    @shardopt.parallelize(cluster="cpu-test:1x4", donate_argnums=(0, 1), microbatches=4, stages=2)
    def train_step(params, opt_state, tokens): ...

    with train_step:
        for tokens in batches:
            params, opt_state, loss = train_step(params, opt_state, tokens)

Each signature (structure, shapes, dtypes, static arguments) is traced, planned and started once.
Donated arguments that are handed back as the last call returned them stay on the workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, Unpack, overload

import jax

from shardopt.dialect.custom_calls import with_kernels
from shardopt.frontend.calls.arguments import check_names, path_text
from shardopt.frontend.calls.batch_names import ArgumentNames, ArgumentNumbers, batch_names
from shardopt.frontend.calls.static_arguments import (
    Names,
    Numbers,
    StaticArguments,
    argument_names,
    argument_numbers,
)
from shardopt.frontend.steps.module_calls import is_module_jit
from shardopt.frontend.steps.parallelized import Parallelized, StateOnWorkers, Tracing
from shardopt.options.keywords import StepKeywords
from shardopt.options.names import BackendName, PlatformName, TransportName
from shardopt.options.signatures import shows_options
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.options import BACKENDS, RunOptions
from shardopt.runtime.state.periodic import CheckpointOptions
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name

__all__ = ["Parallelized", "StateOnWorkers", "parallelize"]


P = ParamSpec("P")
R = TypeVar("R")


class ParallelizeKeywords(StepKeywords, total=False):
    """Options of planning, and of the run: fields of `RunOptions`."""

    cache: bool
    """Use plans, and costs of stages, that an earlier run has left, and keep new ones. Default:
    True."""

    backend: BackendName
    """Threads of this process (local), processes, or Ray's actors. Default: 'local'."""

    platform: PlatformName
    """Devices of the workers; auto: GPUs if this process sees as many as the cluster has devices.
    Default: 'auto'."""

    share_gpus: bool
    """Run on fewer GPUs than the plan has devices. Default: False."""

    transport: TransportName
    """How workers in different processes exchange messages. Default: 'auto'."""

    ray_address: str | None
    """Of the cluster of Ray; None: RAY_ADDRESS, else a new one on this machine. Default: None."""

    devices_per_host: int | None
    """Of processes and actors; None: as the cluster has them. Default: None."""

    quick_compile: bool
    """Less optimisation, less compile time. Default: False."""

    trace: bool
    """Keep times of the newest steps (`start(…).run.spans`). Default: False."""

    watchdog_seconds: float | None
    """Say on standard error where every worker stands whenever a step makes no progress for so
    long. Default: None."""

    checkpoints: CheckpointOptions | None
    """Where and how often the state is written; `start(…).load(folder)` goes on from there.
    Default: None."""

    limits: Limits
    """When a run that does not get on is given up. Default: `Limits()`."""

    memory_limit_bytes: int | None
    """Refuse a plan in which a device would hold more. Default: None."""

    compile_cache: bool
    """Keep executables on disk. Default: True."""

    restarts: int
    """Start other workers so often when a mesh fails, and repeat the step. Default: 0."""


# Of `ParallelizeKeywords`, what is said to the run.
_OF_RUN = tuple(
    name for name in ParallelizeKeywords.__annotations__ if name in RunOptions.__dataclass_fields__
)


class _Decorator(Protocol):
    def __call__(self, fun: Callable[P, R], /) -> Parallelized[P, R]: ...


@overload
def parallelize(
    fun: Callable[P, R],
    *,
    cluster: str | os.PathLike[str],
    batch_argnums: ArgumentNumbers | None = None,
    batch_argnames: ArgumentNames | None = None,
    donate_argnums: Numbers = (),
    donate_argnames: Names = (),
    static_argnums: Numbers = (),
    static_argnames: Names = (),
    lazy_state: bool = False,
    **options: Unpack[ParallelizeKeywords],
) -> Parallelized[P, R]: ...


@overload
def parallelize(
    fun: None = None,
    *,
    cluster: str | os.PathLike[str],
    batch_argnums: ArgumentNumbers | None = None,
    batch_argnames: ArgumentNames | None = None,
    donate_argnums: Numbers = (),
    donate_argnames: Names = (),
    static_argnums: Numbers = (),
    static_argnames: Names = (),
    lazy_state: bool = False,
    **options: Unpack[ParallelizeKeywords],
) -> _Decorator: ...


@shows_options("parallelize", has_others=True)
def parallelize(
    fun: Callable[P, R] | None = None,
    *,
    cluster: str | os.PathLike[str],
    batch_argnums: ArgumentNumbers | None = None,
    batch_argnames: ArgumentNames | None = None,
    donate_argnums: Numbers = (),
    donate_argnames: Names = (),
    static_argnums: Numbers = (),
    static_argnames: Names = (),
    lazy_state: bool = False,
    **options: Unpack[ParallelizeKeywords],
) -> Parallelized[P, R] | _Decorator:
    """Decorate a function of arrays so that it is planned for `cluster` and runs on its workers.

    batch_argnums,   arguments that hold the batch: numbers or names (dimension 0), or a dictionary
    batch_argnames   from such to dimensions. A dimension stands for all arrays of the argument that
                     have it; a tree of dimensions, as `in_axes` of `jax.vmap`, says it for each
                     part, with None for what has no rows: {"batch": {"tokens": 0, "table": None}}.
                     By default the planner looks for them: of a training step among those that
                     are not donated. () says that there is no batch.
    donate_argnums,  arguments that the step consumes and replaces, as of `jax.jit`: its state. The
    donate_argnames  arrays that are passed stay valid.
    static_argnums,  arguments that are part of the program, as of `jax.jit`: a plan for each of
    static_argnames  their values.
    lazy_state       return state as `StateArray`, which is fetched only when looked at; by default
                     every result is a `jax.Array`, so each step downloads the state
    options          of the run, which are fields of `RunOptions`: backend "local" (threads of this
                     process, the default), "process" (processes) or "ray" (actors), platform,
                     share_gpus, transport, ray_address, devices_per_host, quick_compile,
                     compile_cache, memory_limit_bytes, trace, watchdog_seconds, limits: when a run
                     that does not get on is given up, and checkpoints: where and how often the
                     state is written, from which `start(…).load(folder)` goes on. restarts=R: start
                     other workers up to R times when a mesh fails, and repeat the step, with
                     lazy_state from the newest checkpoint; what steps since then were given is
                     kept for that; cache=False: as of `shardopt.optimize`; and options of planning
                     (docs/reference/options.md), such as microbatches

    Steps of Flax NNX change the modules that they are given, and are passed as they are or under
    `nnx.jit`: modules are state. Steps of Equinox are passed as they are or under
    `equinox.filter_jit`.

    Raises UserError, here for wrong options and in calls for functions and arguments that cannot be
    planned."""
    check_names("parallelize", options, ("cache", "restarts", *_OF_RUN))
    told = {name: value for name, value in options.items() if name in _OF_RUN}
    run_options = RunOptions(**told)  # type: ignore[arg-type]
    if run_options.backend not in BACKENDS:
        raise UserError(f"parallelize: {unknown_name('backend', run_options.backend, BACKENDS)}")
    if not isinstance(lazy_state, bool):
        raise UserError(f"expected lazy_state to be True or False, found {lazy_state!r}")
    restarts = _restarts(options.get("restarts", 0), run_options, lazy_state=lazy_state)
    planning = {
        name: value for name, value in options.items() if name not in (*_OF_RUN, "restarts")
    }
    planning["cluster"] = path_text("cluster", cluster)
    planning["custom_calls"] = with_kernels(options.get("custom_calls", ""))
    donated = argument_numbers("donate_argnums", donate_argnums)
    donated_names = argument_names("donate_argnames", donate_argnames)
    batch = batch_names(batch_argnums, batch_argnames)

    def decorate(fun: Callable[P, R]) -> Parallelized[P, R]:
        if not callable(fun):
            raise UserError(f"parallelize: expected a function, found {type(fun).__name__}")
        static = StaticArguments.of(fun, static_argnums, static_argnames)
        jitted: object = fun
        if donated or donated_names or not hasattr(fun, "trace") or is_module_jit(fun):
            try:
                jitted = jax.jit(
                    fun, donate_argnums=donated, donate_argnames=donated_names, keep_unused=True
                )
            except ValueError as error:  # of arguments that the function has not
                raise UserError(f"parallelize: {error}") from error
        tracing = Tracing(jitted, static, donated, donated_names)
        return Parallelized(
            fun, tracing, planning, batch, run_options, lazy_state=lazy_state, restarts=restarts
        )

    return decorate if fun is None else decorate(fun)  # type: ignore[return-value]


def _restarts(restarts: object, options: RunOptions, *, lazy_state: bool) -> int:
    if type(restarts) is not int or restarts < 0:
        raise UserError(f"expected restarts to be an integer of at least 0, found {restarts!r}")
    if restarts and lazy_state and options.checkpoints is None:
        raise UserError(
            "restarts with lazy_state=True need checkpoints: the workers alone have the state"
        )
    return restarts
