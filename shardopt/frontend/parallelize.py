"""`@shardopt.parallelize`: a train step that is planned on its first call and runs on the workers
from then on.

    @shardopt.parallelize(cluster="cpu-test:1x4", donate_argnums=(0, 1), microbatches=4, stages=2)
    def train_step(params, opt_state, tokens): ...

    with train_step:
        for tokens in batches:
            params, opt_state, loss = train_step(params, opt_state, tokens)

Each signature (structure, shapes, dtypes) is traced, planned and started once. Donated arguments
that are handed back as the last call returned them stay on the workers."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import jax
from jax import export
from jax.tree_util import keystr, tree_flatten_with_path

from shardopt.frontend.arguments import check_names, path_text
from shardopt.frontend.optimize import optimize
from shardopt.frontend.session import Session, StateArray
from shardopt.options.keywords import StepKeywords
from shardopt.options.names import BackendName
from shardopt.options.signatures import shows_options
from shardopt.passes.options import unknown_name
from shardopt.runtime.driver import prepare, start_run
from shardopt.runtime.options import BACKENDS, RunOptions
from shardopt.runtime.state.periodic import CheckpointOptions
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.frontend.plan import Plan

# Numbers of positional arguments whose leaves hold the batch in dimension 0; or number ->
# dimension.
ArgumentNumbers: TypeAlias = "int | Sequence[int] | Mapping[int, int]"

# What the workers run on, whatever devices JAX has found in this process.
_PLATFORM = "cpu"


class ParallelizeKeywords(StepKeywords, total=False):
    """Options of planning, and of the run: fields of `RunOptions`."""

    cache: bool
    """Use plans, and prices of stages, that an earlier run has left, and keep new ones. Default:
    True."""

    backend: BackendName
    """Threads of this process (local), processes, or Ray's actors. Default: 'local'."""

    quick_compile: bool
    """Less optimisation, less compile time. Default: False."""

    checkpoints: CheckpointOptions | None
    """Where and how often the state is written; `start(…).load(folder)` goes on from there.
    Default: None."""


# Of `ParallelizeKeywords`, what is said to the run.
_OF_RUN = ("backend", "quick_compile", "checkpoints")


@dataclass(frozen=True)
class Signature:
    """What a call looks like: one plan serves all calls that look the same."""

    tree: Any
    avals: tuple[jax.ShapeDtypeStruct, ...]


@dataclass(frozen=True)
class Planned:
    """A traced and planned signature."""

    exported: export.Exported
    plan: Plan


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


@shows_options("parallelize", has_others=True)
def parallelize(
    fun: Callable[..., Any] | None = None,
    *,
    cluster: str | os.PathLike[str],
    batch_argnums: ArgumentNumbers | None = None,
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    lazy_state: bool = False,
    **options: Unpack[ParallelizeKeywords],
) -> Any:
    """Decorate a function of arrays so that it is planned for `cluster` and runs on its workers.

    batch_argnums    arguments that hold the batch: numbers (dimension 0), or number -> dimension.
                     By default the planner looks for them: of a training step those that are not
                     donated.
    donate_argnums,  arguments that the step consumes and replaces, as of `jax.jit`: its state. The
    donate_argnames  arrays that are passed stay valid.
    lazy_state       return state as `StateArray`, which is fetched only when looked at; by default
                     every result is a `jax.Array`, so each step downloads the state
    options          backend: "local" (threads of this process, the default), "process" (processes)
                     or "ray" (actors); quick_compile=True: less optimisation, less compile time;
                     checkpoints: where and how often the state is written, from which
                     `start(…).load(folder)` goes on; cache=False: as of `shardopt.optimize`; and
                     options of planning (docs/reference/options.md), such as microbatches

    Raises UserError, here for wrong options and in calls for functions and arguments that cannot be
    planned."""
    check_names("parallelize", options, ("cache", *_OF_RUN))
    run_options = RunOptions(**{name: value for name, value in options.items() if name in _OF_RUN})  # type: ignore[arg-type]
    if run_options.backend not in BACKENDS:
        raise UserError(f"parallelize: {unknown_name('backend', run_options.backend, BACKENDS)}")
    planning = {name: value for name, value in options.items() if name not in _OF_RUN}
    planning["cluster"] = path_text("cluster", cluster)

    def decorate(fun: Callable[..., Any]) -> Parallelized:
        if not callable(fun):
            raise UserError(f"parallelize: expected a function, found {type(fun).__name__}")
        jitted = fun
        if (
            donate_argnums not in ((), [])
            or donate_argnames not in ((), [])
            or not hasattr(fun, "trace")
        ):
            jitted = jax.jit(
                fun,
                donate_argnums=donate_argnums,
                donate_argnames=donate_argnames,
                keep_unused=True,
            )
        start = functools.partial(start_run, options=run_options)
        return Parallelized(
            fun, jitted, planning, _batch_dimensions(batch_argnums), start, lazy_state=lazy_state
        )

    return decorate if fun is None else decorate(fun)


class Parallelized:
    """A parallelized function; a context manager that stops the workers. Made by `parallelize`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        jitted: Any,
        options: Mapping[str, Any],
        batch: Mapping[int, int] | None,
        start: Callable[..., Any],
        *,
        lazy_state: bool,
    ) -> None:
        functools.update_wrapper(self, fun)
        self._jitted = jitted
        self._options = options
        self._batch = batch
        self._start = start
        self._lazy_state = lazy_state
        self._planned: dict[Signature, Planned] = {}
        self._sessions: dict[Signature, Session] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step. Raises UserError, and MeshError when a worker fails: the next call then
        starts new ones."""
        signature, leaves = _signature(args, kwargs)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            raise UserError(
                "parallelize: expected arrays, found a ShapeDtypeStruct; only plan() takes shapes"
            )
        planned = self._plan(signature)
        session = self._session(signature, planned)
        try:
            results = session.step(
                [leaves[number] for number in planned.exported.module_kept_var_idx]
            )
        except UserError:  # nothing has run yet
            raise
        except BaseException:
            del self._sessions[signature]
            session.close()
            raise
        return jax.tree.unflatten(planned.exported.out_tree, results)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for such arguments, arrays or `jax.ShapeDtypeStruct`s, without running it.
        Raises UserError."""
        return self._plan(_signature(args, kwargs)[0]).plan

    def start(self, *args: Any, **kwargs: Any) -> StateOnWorkers:
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
        signature, _ = _signature(args, kwargs)
        planned = self._plan(signature)
        return StateOnWorkers(self._session(signature, planned), signature, planned)

    def close(self) -> None:
        """Stop the workers; a later call starts them again, from the arguments that it is given."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def __enter__(self) -> Parallelized:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _plan(self, signature: Signature) -> Planned:
        if signature not in self._planned:
            args, kwargs = jax.tree.unflatten(signature.tree, signature.avals)
            exported = export.export(self._jitted, platforms=(_PLATFORM,))(*args, **kwargs)
            batch = "auto" if self._batch is None else self._flat_batch(args, kwargs, exported)
            try:
                plan = optimize(exported, batch_args=batch, **self._options)
            except UserError as error:
                if self._batch is None and "batch-args" in str(error):
                    raise UserError(
                        f"{error}; with parallelize, batch_argnums=… names them"
                    ) from error
                raise
            self._planned[signature] = Planned(exported, plan)
        return self._planned[signature]

    def _session(self, signature: Signature, planned: Planned) -> Session:
        if signature not in self._sessions:
            from shardopt.ir.context import make_context
            from shardopt.ir.io import load_module

            with make_context() as context:
                program = prepare(load_module(planned.plan.module, context))
            kept = [signature.avals[number] for number in planned.exported.module_kept_var_idx]
            self._sessions[signature] = Session(
                self._start(program), kept, planned.exported.out_avals, lazy_state=self._lazy_state
            )
        return self._sessions[signature]

    def _flat_batch(self, args: Any, kwargs: Any, exported: export.Exported) -> dict[int, int]:
        """flat argument -> batch dimension: the leaves of the batch arguments that have this
        dimension and are used."""
        assert self._batch is not None
        names = _parameter_names(self._jitted)
        owners: dict[tuple[str, int | str], int] = {
            ("args", number): dim for number, dim in self._batch.items()
        }
        owners |= {
            ("kwargs", names[number]): dim
            for number, dim in self._batch.items()
            if number < len(names)
        }
        dim_of: dict[int, int] = {}
        for number, (path, leaf) in enumerate(tree_flatten_with_path((args, kwargs))[0]):
            owner = ("kwargs", path[1].key) if path[0].idx else ("args", path[1].idx)
            dim = owners.get(owner)
            if dim is not None and dim < len(leaf.shape) and number in exported.module_kept_var_idx:
                dim_of[number] = dim
        if not dim_of:
            raise UserError(
                f"parallelize: batch_argnums={tuple(self._batch)} name no array with a batch "
                "dimension in this call, "
                f"which has {len(args)} positional arguments"
            )
        return dim_of


def _batch_dimensions(numbers: ArgumentNumbers | None) -> dict[int, int] | None:
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


def _parameter_names(fun: Callable[..., Any]) -> tuple[str, ...]:
    """Of the parameters that can be passed by position; empty for a callable without a
    signature."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except ValueError:
        return ()
    return tuple(
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )


def _signature(args: Any, kwargs: Any) -> tuple[Signature, list[Any]]:
    """The signature of a call, and its leaves. Raises UserError for a leaf that is no array."""
    pairs, tree = tree_flatten_with_path((args, kwargs))
    avals = tuple(_abstract(path, leaf) for path, leaf in pairs)
    return Signature(tree, avals), [leaf for _, leaf in pairs]


def _abstract(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
    where = f"{('args', 'kwargs')[path[0].idx]}{keystr(path[1:])}"
    if isinstance(leaf, jax.core.Tracer):
        raise UserError(
            f"parallelize: {where} is being traced; a parallelized function cannot be transformed "
            "by JAX"
        )
    if isinstance(leaf, StateArray):
        return leaf.aval
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    try:
        aval = jax.typeof(leaf)
    except TypeError as error:
        raise UserError(
            f"parallelize: expected {where} to be an array or a number, found {type(leaf).__name__}"
        ) from error
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
