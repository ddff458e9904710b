"""Static arguments: those of a call that are part of the program, not among its arrays."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from shardopt.frontend.calls.jax_internals import jitted_static
from shardopt.support.errors import UserError

# As `jax.jit` takes them.
Numbers: TypeAlias = int | Sequence[int]
Names: TypeAlias = str | Sequence[str]


@dataclass(frozen=True)
class StaticArguments:
    """Numbers of positional arguments that are static, negative ones from the end, and names."""

    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()

    @staticmethod
    def of(fun: Callable[..., Any], numbers: Numbers = (), names: Names = ()) -> StaticArguments:
        """As `jax.jit` was told them, with those that `fun` was jitted with. Raises UserError."""
        jitted_numbers, jitted_names = jitted_static(fun)
        return StaticArguments(
            (*argument_numbers("static_argnums", numbers), *jitted_numbers),
            (*argument_names("static_argnames", names), *jitted_names),
            parameter_names(fun),
        )

    def split(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[int | str, Any]]:
        """The arguments that are traced, positional and by name, and the others by number or
        name."""
        numbers, names = self._numbers_of(len(args)), self._all_names
        static: dict[int | str, Any] = {number: args[number] for number in numbers}
        static |= {name: kwargs[name] for name in sorted(names & set(kwargs))}
        return (
            tuple(value for number, value in enumerate(args) if number not in static),
            {name: value for name, value in kwargs.items() if name not in static},
            static,
        )

    def join(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], static: Mapping[int | str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Undo `split`."""
        rest, total = iter(args), len(args) + sum(isinstance(key, int) for key in static)
        return (
            tuple(static[k] if k in static else next(rest) for k in range(total)),
            {**kwargs, **{key: value for key, value in static.items() if isinstance(key, str)}},
        )

    def bound(self, fun: Callable[..., Any], static: Mapping[int | str, Any]) -> Callable[..., Any]:
        """The function of the arguments that are traced, under their names."""
        if not static:
            return fun

        @functools.wraps(fun)
        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.join(args, kwargs, static)
            return fun(*args, **kwargs)

        names = {
            self.parameters[k] for k in static if isinstance(k, int) and k < len(self.parameters)
        }
        with contextlib.suppress(TypeError, ValueError):
            plain = inspect.signature(fun)
            kept = [p for name, p in plain.parameters.items() if name not in {*names, *static}]
            call.__signature__ = plain.replace(parameters=kept)  # type: ignore[attr-defined]
        return call

    def traced_numbers(
        self, numbers: Sequence[int], static: Mapping[int | str, Any]
    ) -> tuple[int, ...]:
        """Positions among traced arguments of those that have these positions among all."""
        return tuple(
            number - sum(isinstance(k, int) and k < number for k in static)
            for number in numbers
            if number not in static
        )

    def passed_number(self, traced: int, static: Mapping[int | str, Any]) -> int:
        """The position among all arguments of the one with this position among the traced."""
        for number in sorted(each for each in static if isinstance(each, int)):
            traced += number <= traced
        return traced

    def _numbers_of(self, count: int) -> tuple[int, ...]:
        """Of `count` positional arguments those that are static."""
        numbers = {number % count for number in self.numbers if -count <= number < count}
        named = {k for k, name in enumerate(self.parameters[:count]) if name in self.names}
        return tuple(sorted(numbers | named))

    @property
    def _all_names(self) -> frozenset[str]:
        """Names of static parameters, for those that are passed by name."""
        count = len(self.parameters)
        numbered = (self.parameters[k] for k in self.numbers if -count <= k < count)
        return frozenset((*self.names, *numbered))


def parameter_names(fun: Callable[..., Any]) -> tuple[str, ...]:
    """Of the parameters that can be passed by position; empty for a callable without a
    signature."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )


def argument_numbers(option: str, value: Any) -> tuple[int, ...]:
    """A number of an argument or several. Raises UserError."""
    numbers = (value,) if isinstance(value, int) else value
    if not isinstance(numbers, Sequence) or not all(type(each) is int for each in numbers):
        raise UserError(f"expected {option} to be numbers of arguments, found {value!r}")
    return tuple(numbers)


def argument_names(option: str, value: Any) -> tuple[str, ...]:
    """A name of an argument or several. Raises UserError."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise UserError(f"expected {option} to be names of arguments, found {value!r}")
    return tuple(names)
