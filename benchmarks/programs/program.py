"""What a program of the table is: a step, its state, and the batches of three calls."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax

STEPS = 3


@dataclass(frozen=True)
class Trial:
    """A program, ready to be called: `step(*state, *batch, **keywords)` for each batch.

    `after` says what becomes of the state: the first results take its place, the step has changed
    it, or it stays as it is. `options` are those that `jax.jit` and `parallelize` share, such as
    static_argnums; `planning` those of `parallelize` alone. `tolerance` is relative to the largest
    element of an array.
    """

    step: Callable[..., Any]
    state: tuple[Any, ...]
    batches: tuple[tuple[Any, ...], ...]
    after: Literal["replaced", "mutated", "kept"] = "replaced"
    keywords: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    planning: Mapping[str, Any] = field(default_factory=dict)
    jit: Callable[..., Any] = jax.jit
    arrays: Callable[[Any], Any] = lambda state: state
    microbatches: int = 2
    tolerance: float = 1e-5


@dataclass(frozen=True)
class Program:
    """A row of the table. `make` gives equal trials whenever it is called: one for each run."""

    library: str
    feature: str
    make: Callable[[], Trial]


@dataclass(frozen=True)
class Library:
    """Programs of one module of this package, and what has to be installed for them."""

    name: str
    module: str
    needs: tuple[str, ...]

    def is_installed(self) -> bool:
        return all(importlib.util.find_spec(name) is not None for name in self.needs)

    def programs(self) -> tuple[Program, ...]:
        module = importlib.import_module(f"benchmarks.programs.{self.module}")
        return tuple(Program(self.name, feature, make) for feature, make in module.PROGRAMS.items())


LIBRARIES = (
    Library("JAX", "plain_steps", ()),
    Library("JAX", "plain_loops", ()),
    Library("JAX", "plain_arrays", ()),
    Library("JAX", "plain_losses", ()),
    Library("JAX", "plain_models", ()),
    Library("JAX", "plain_state", ()),
    Library("Optax", "optax_steps", ("optax",)),
    Library("Optax", "optax_wrappers", ("optax",)),
    Library("Flax linen", "linen_steps", ("flax", "optax")),
    Library("Flax NNX", "nnx_steps", ("flax", "optax")),
    Library("Equinox", "equinox_steps", ("equinox", "optax")),
    Library("Haiku", "haiku_steps", ("haiku", "optax")),
    Library("HF Flax", "hf_flax_steps", ("transformers", "flax", "optax")),
)


def installed_programs() -> list[Program]:
    """Of all libraries that are installed, in the order of the table."""
    return [
        program for library in LIBRARIES if library.is_installed() for program in library.programs()
    ]


def absent_libraries() -> list[str]:
    return [library.name for library in LIBRARIES if not library.is_installed()]
