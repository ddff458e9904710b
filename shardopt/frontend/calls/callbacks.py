"""Callbacks to Python in a user's function, which no module for other processes can hold.

Those that only look at values run in this process, after the step: `jax.debug.print`,
`jax.debug.callback`, and `io_callback` without results. What they look at becomes a result.

    def step(w, x):                             recorded(w, x) -> (new, loss), (loss,)
        …                                 ─▶
        jax.debug.print("{}", loss)             and after it: print the loss
        return new, loss

They see the values of the whole batch, once, however many microbatches there are. All others,
those inside of loops and branches among them, are refused at the user's line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend import core

from shardopt.frontend.calls.jax_internals import is_dropped, line_of
from shardopt.support.errors import UserError

_LOOKING = frozenset({"debug_callback", "debug_print", "io_callback"})
_CALLBACKS = _LOOKING | {"pure_callback"}
_CALLS = frozenset({"jit", "pjit"})


@dataclass(frozen=True)
class Recorded:
    """A function of the same arguments, whose results are those of the user's function and what
    its callbacks look at; the positional arguments that the user's function donates.

    `looks` belong to the newest trace."""

    fun: Callable[..., Any]
    donate_argnums: tuple[int, ...]
    _looks: list[Any] = field(default_factory=list)

    def look(self, values: Sequence[Any]) -> None:
        """Run the callbacks, in program order, on what they look at."""
        rest = iter(values)
        for eqn in self._looks:
            eqn.primitive.bind(*(_argument(atom, rest) for atom in eqn.invars), **eqn.params)


def recorded(
    function: str, jitted: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Recorded | None:
    """The function without its callbacks; None if it has none. Raises UserError, in the name of
    `function`, for callbacks that have to run inside of the step."""
    traced = jitted.trace(*args, **kwargs)
    if not any(map(_is_callback, _all_equations(traced.jaxpr.jaxpr))):
        return None
    for eqn in _staying(traced.jaxpr.jaxpr):
        raise UserError(f"{function}: {_refusal(eqn)}")
    donated = (k for k, argument in enumerate(traced.args_info[0]) if _is_donated(argument))
    looks: list[Any] = []

    @functools.wraps(jitted)
    def fun(*args: Any, **kwargs: Any) -> Any:
        closed, shape = jax.make_jaxpr(jitted, return_shape=True)(*args, **kwargs)
        plain, looks[:] = _apart(closed)
        results = core.jaxpr_as_fun(plain)(*jax.tree.leaves((args, kwargs)))
        leaves, tree = jax.tree.flatten(shape)
        return jax.tree.unflatten(tree, results[: len(leaves)]), tuple(results[len(leaves) :])

    return Recorded(fun, tuple(donated), looks)


def callback_line(jitted: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The first callback of a function and where it stands, "" if it has none."""
    equations = _all_equations(jitted.trace(*args, **kwargs).jaxpr.jaxpr)
    return next((_place(eqn) for eqn in equations if _is_callback(eqn)), "")


def _refusal(eqn: Any) -> str:
    if not _is_look(eqn):
        why = "its results are part of the step; compute them before, and pass them to the step"
    else:
        why = (
            "it stands in a loop, a branch or a checkpoint; take it out of there, or return what "
            "it looks at"
        )
    return f"{_place(eqn)} cannot run on the workers: {why}"


def _place(eqn: Any) -> str:
    return f"'{eqn.primitive.name}' at {line_of(eqn)}"


def _is_callback(eqn: Any) -> bool:
    return eqn.primitive.name in _CALLBACKS


def _is_look(eqn: Any) -> bool:
    return eqn.primitive.name in _LOOKING and not eqn.outvars


def _is_donated(argument: Any) -> bool:
    leaves = jax.tree.leaves(argument)
    return bool(leaves) and all(leaf.donated for leaf in leaves)


def _argument(atom: Any, values: Iterator[Any]) -> Any:
    return atom.val if isinstance(atom, core.Literal) else next(values)


def _inner(eqn: Any) -> Iterator[Any]:
    """The programs in the parameters of an equation."""
    for value in eqn.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, core.ClosedJaxpr | core.Jaxpr):
                yield getattr(each, "jaxpr", each)


def _all_equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in _inner(eqn):
            yield from _all_equations(inner)


def _staying(jaxpr: Any) -> Iterator[Any]:
    """Callbacks that cannot be taken out."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _CALLS:
            yield from _staying(eqn.params["jaxpr"].jaxpr)
        elif _is_callback(eqn) and not _is_look(eqn):
            yield eqn
        else:
            for inner in _inner(eqn):
                yield from filter(_is_callback, _all_equations(inner))


def _apart(closed: Any) -> tuple[Any, list[Any]]:
    """The program without callbacks, which returns what they look at as well, and the
    callbacks."""
    flat = _Flat()
    results = flat.add(closed, list(closed.jaxpr.invars))
    looks = [eqn for eqn in flat.equations if _is_look(eqn)]
    plain = [eqn for eqn in flat.equations if not _is_look(eqn)]
    seen = [atom for eqn in looks for atom in eqn.invars if not isinstance(atom, core.Literal)]
    jaxpr = core.Jaxpr(
        list(flat.consts),
        closed.jaxpr.invars,
        [*results, *seen],
        plain,
        frozenset().union(*(eqn.effects for eqn in plain)),
        closed.jaxpr.debug_info.with_unknown_names(),
    )
    return core.ClosedJaxpr(jaxpr, list(flat.consts.values())), looks


@dataclass
class _Flat:
    """Equations with those of the calls that have callbacks in the place of these calls."""

    equations: list[Any] = field(default_factory=list)
    consts: dict[Any, Any] = field(default_factory=dict)

    def add(self, closed: Any, arguments: Sequence[Any]) -> list[Any]:
        """What the program returns for these arguments. All that it makes has new names, since one
        program may be called twice."""
        jaxpr = closed.jaxpr
        atoms = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, value in zip(jaxpr.constvars, closed.consts, strict=True):
            atoms[var] = core.Var(var.aval)
            self.consts[atoms[var]] = value

        def renamed(atom: Any) -> Any:
            return atom if isinstance(atom, core.Literal) else atoms[atom]

        for eqn in jaxpr.eqns:
            inputs = [renamed(atom) for atom in eqn.invars]
            if eqn.primitive.name in _CALLS and any(
                _is_callback(each) for inner in _inner(eqn) for each in _all_equations(inner)
            ):
                atoms.update(zip(eqn.outvars, self.add(eqn.params["jaxpr"], inputs), strict=True))
                continue
            for var in eqn.outvars:
                atoms[var] = var if is_dropped(var) else core.Var(var.aval)
            outputs = [atoms[var] for var in eqn.outvars]
            self.equations.append(eqn.replace(invars=inputs, outvars=outputs))
        return [renamed(atom) for atom in jaxpr.outvars]
