"""State that stays on the workers, as an array for whoever looks at it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from shardopt.frontend.calls.jax_internals import like, register_array_like
from shardopt.support.errors import UserError


class StateArray:
    """A state result that stays on the workers: fetched when looked at, fed back for free.

    `value` is the array. It can be had until the next step, and ever after once it was. Shape and
    type are known without it. Everything else that arrays can do, and functions of JAX and numpy
    that get one, fetch it first."""

    # numpy's operators leave theirs to this class.
    __array_priority__ = 100

    def __init__(self, read: Callable[[], np.ndarray], aval: jax.ShapeDtypeStruct) -> None:
        """`read` gives the value, or raises RuntimeError when it is gone."""
        self._read = read
        self.aval = aval
        self._value: jax.Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def is_here(self) -> bool:
        """Whether it was fetched."""
        return self._value is not None

    @property
    def value(self) -> jax.Array:
        """The array itself. Raises UserError if it is gone: replaced by a later step, or closed."""
        if self._value is None:
            try:
                read = self._read()
            except (RuntimeError, UserError) as error:
                raise UserError(
                    f"this state is no longer on the workers ({error}); look at it before the next "
                    "step and before close(), or use lazy_state=False"
                ) from error
            self._value = like(read, self.aval, bool(self.aval.weak_type))
        return self._value

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # protocols of copying and pickling ask for many
            raise AttributeError(f"'StateArray' object has no attribute '{name}'")
        return getattr(self.value, name)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a StateArray without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __complex__(self) -> complex:
        return complex(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else repr(self)

    def __repr__(self) -> str:
        return f"StateArray(shape={self.shape}, dtype={self.dtype})"


# Operators that Python looks up on the class; `==` compares elements, so that hashes are by
# identity.
_UNARY = ("neg", "pos", "abs", "invert", "round")
_BINARY = ("getitem", "eq", "ne", "lt", "le", "gt", "ge", "divmod")
_BOTH_SIDES = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)


def _on_value(method: str) -> Callable[..., Any]:
    def call(self: StateArray, *others: Any) -> Any:
        plain = (other.value if isinstance(other, StateArray) else other for other in others)
        return getattr(self.value, method)(*plain)

    call.__name__ = method
    return call


for _name in (*_UNARY, *_BINARY, *_BOTH_SIDES, *(f"r{name}" for name in _BOTH_SIDES)):
    setattr(StateArray, f"__{_name}__", _on_value(f"__{_name}__"))
StateArray.__hash__ = object.__hash__  # type: ignore[method-assign]
register_array_like(StateArray)
