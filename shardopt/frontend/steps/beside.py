"""Functions beside a parallelized one, such as an evaluation step: on its workers, with the state
that these hold, which does not move.

    train_step(params, opt, tokens) ─▶ session: argument 0 holds `params`, argument 1 `opt`
    evaluate(params, other_tokens)  ─▶ `params` is what argument 0 holds: planned to read it there

Which arguments are state is seen from the arrays of a call: those that the other function has
returned, or its workers have made or loaded, and no others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax
from jax import export

from shardopt.extract.batch_arguments import IndivisibleBatch
from shardopt.frontend.calls.batch_names import BatchNames
from shardopt.frontend.calls.call_signature import export_call
from shardopt.frontend.calls.static_arguments import StaticArguments
from shardopt.frontend.planning.follow import follow
from shardopt.frontend.steps.session import Session
from shardopt.frontend.steps.step_call import Signature, StepCall, flat_batch, step_call
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.frontend.steps.parallelized import Parallelized
    from shardopt.runtime.run import Run

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Attached:
    """A signature that is planned and on the workers. `finish` makes what the user gets."""

    exported: export.Exported
    plan: Plan
    session: Session
    finish: Callable[[Any, StepCall], Any]


class Beside(Generic[P, R]):
    """A function on the workers of a parallelized one. Made by `Parallelized.beside`."""

    def __init__(
        self,
        fun: Callable[P, R],
        main: Parallelized[..., Any],
        static: StaticArguments,
        batch: BatchNames | None,
        microbatches: int | None,
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun, self._main, self._static = fun, main, static
        self._batch, self._microbatches = batch, microbatches
        self._attached: dict[tuple[Run, Signature, tuple[Any, ...]], Attached] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run once, for arguments of which some are state on the workers. Raises UserError,
        MeshError."""
        call = step_call(self._fun, self._static, args, kwargs)
        main, held = self._held(call)
        attached = self._attach(call, main, held)
        kept = attached.exported.module_kept_var_idx
        leaves = [call.arrays[number] for number in kept]
        shared = {k: leaves[k] for k, number in enumerate(kept) if number in held}
        attached.session.hold(shared)
        results = attached.session.step(leaves)
        tree = jax.tree.unflatten(attached.exported.out_tree, results)
        returned: R = attached.finish(tree, call)
        return returned

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """The plan for such arguments; they have to be arrays, as the state among them is known by
        what it is. Raises UserError, MeshError."""
        call = step_call(self._fun, self._static, args, kwargs)
        return self._attach(call, *self._held(call)).plan

    def _held(self, call: StepCall) -> tuple[Session, dict[int, int]]:
        """The workers that hold most of a call's arrays as their state: leaf -> argument there.
        Raises UserError if none does."""
        best, held = None, dict[int, int]()
        for session in self._main.sessions:
            numbers = session.held_state()
            here = {k: numbers[id(a)] for k, a in enumerate(call.arrays) if id(a) in numbers}
            if len(here) >= max(len(held), 1):
                best, held = session, here
        if best is None:
            raise UserError(f"beside: {self._nothing_held()}")
        return best, held

    def _nothing_held(self) -> str:
        """Why no argument is state."""
        name = getattr(self._main, "__name__", "the function")
        sessions = self._main.sessions
        if sessions and not any(session.state_numbers for session in sessions):
            return f"{name} leaves no state on its workers; name its state with donate_argnums"
        if not any(session.held_state() for session in sessions):
            return (
                f"the workers of {name} hold no state yet; call it first, or make its state with "
                f"{name}.start(…).create or load"
            )
        return (
            f"no argument is state on the workers of {name}; expected what its last step has "
            "returned, or start(…).create or load have made"
        )

    def _attach(self, call: StepCall, main: Session, held: Mapping[int, int]) -> Attached:
        # Workers that have ended take what was beside them along.
        running = {session.run for session in self._main.sessions}
        self._attached = {key: each for key, each in self._attached.items() if key[0] in running}
        key = main.run, call.signature, tuple(held.items())
        if key not in self._attached:
            self._attached[key] = self._plan(call, main, held)
        return self._attached[key]

    def _plan(self, call: StepCall, main: Session, held: Mapping[int, int]) -> Attached:
        args, kwargs = jax.tree.unflatten(call.signature.tree, call.signature.avals)
        fun, finish = self._program(call)
        # All arguments are kept: what is state is known by number.
        jitted = jax.jit(fun, keep_unused=True)
        exported = export_call("beside", jitted, self._main.export_platform, args, kwargs)
        kept = exported.module_kept_var_idx
        shares = {k: held[number] for k, number in enumerate(kept) if number in held}
        plan = self._follow(call, main, exported, shares)
        run = main.run.attach(plan.program(), shares, quick_compile=self._main.quick_compile)
        inputs = [call.signature.avals[number] for number in kept]
        session = Session(run, inputs, exported.out_avals, platform=self._main.export_platform)
        return Attached(exported, plan, session, finish)

    def _program(self, call: StepCall) -> tuple[Callable[..., Any], Callable[[Any, StepCall], Any]]:
        if call.modules is None:
            return self._static.bound(self._fun, call.static), lambda results, _: results
        fun, finish = call.modules.reading()
        return fun, lambda results, each: finish(results, each.modules)

    def _follow(
        self,
        call: StepCall,
        main: Session,
        exported: export.Exported,
        shares: Mapping[int, int],
    ) -> Plan:
        plan = self._main.plan_of(main)
        batch = self._batch_text(call, exported, shares)
        most = self._microbatches or plan.summary.num_microbatches
        # A batch of another size may not divide into as many.
        counts = (most,) if self._microbatches else range(most, 0, -1)
        for count in counts:
            try:
                return follow(plan, exported, shares, batch_args=batch, microbatches=count)
            except IndivisibleBatch:
                if count == counts[-1]:
                    raise
        raise AssertionError("one microbatch always divides")

    def _batch_text(
        self, call: StepCall, exported: export.Exported, shares: Mapping[int, int]
    ) -> str:
        """The batch as options say it: what the caller names, or all that is brought, if its rows
        are as many."""
        if self._batch is not None:
            named = flat_batch("beside", self._batch, self._static, call, exported)
            return ",".join(f"{number}:{dim}" for number, dim in named.items()) or "none"
        kept = exported.module_kept_var_idx
        avals = {k: call.signature.avals[number] for k, number in enumerate(kept)}
        rows = {k: a.shape[0] for k, a in avals.items() if k not in shares and _may_be_rows(a)}
        return ",".join(map(str, rows)) if len({*rows.values()}) == 1 else "auto"


def _may_be_rows(aval: jax.ShapeDtypeStruct) -> bool:
    is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) or aval.dtype == "uint32"
    return bool(aval.shape) and not is_key
