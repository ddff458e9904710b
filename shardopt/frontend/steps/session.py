"""A running plan called with JAX arrays: what is uploaded before a step, what stays on the workers,
what comes back.

The workers hold a value for every argument. A session remembers which array each of them stands
for: the array that was uploaded, or, for state, the array that the last step returned in its place.
An argument that is that very array again is not uploaded. Numpy arrays can change behind one
identity, so they always are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from shardopt.frontend.calls.call_signature import export_call
from shardopt.frontend.calls.jax_internals import like
from shardopt.frontend.steps.replay import Replay
from shardopt.frontend.steps.state_array import StateArray
from shardopt.runtime.run import Outputs, Run

# Values that cannot change: the same object means the same contents.
_IMMUTABLE = (jax.Array, bool, int, float, complex, np.generic)


class Session:
    """One run, fed with the flat arguments of the module. `inputs` and `outputs` are their abstract
    values; the workers run what is exported for `platform`. With `replay` it can go on with other
    workers (`again`)."""

    def __init__(
        self,
        run: Run,
        inputs: Sequence[jax.ShapeDtypeStruct],
        outputs: Sequence[Any],
        *,
        lazy_state: bool = False,
        platform: str = "cpu",
        replay: Replay | None = None,
    ) -> None:
        self.run = run
        self._platform = platform
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._lazy_state = lazy_state
        self._replay = replay
        self._step = 0  # of the last call
        self._pending: dict[int, np.ndarray] = {}  # what new workers have not been given yet
        self._uploaded: dict[int, Any] = {}
        arguments = run.program.signature.arguments
        aliases = {number: argument.alias for number, argument in enumerate(arguments)}
        self._state = {number: alias for number, alias in aliases.items() if alias is not None}

    def step(self, leaves: Sequence[Any]) -> list[Any]:
        """Run one step on the arguments; its results as JAX arrays, state as `StateArray` when
        lazy.

        Raises UserError, MeshError.
        """
        self._step = self.run.steps_done
        changed = [number for number, leaf in enumerate(leaves) if not self._is_held(number, leaf)]
        values = {number: to_numpy(leaves[number], self._inputs[number]) for number in changed}
        if not self._uploaded:
            self._load([values[number] for number in range(len(leaves))])
            values = {}
        values = {**self._pending, **values}
        outputs = self.run.step(values)
        results = self._results(outputs)
        self._pending = {}
        if self._replay is not None and self._lazy_state:
            self._replay.add(self.run, values)
        self._uploaded = dict(enumerate(leaves)) | {
            number: results[alias] for number, alias in self._state.items()
        }
        return results

    def again(self, run: Run, leaves: Sequence[Any]) -> None:
        """Go on with other workers, which have done nothing yet, where the last call of `step`,
        with these `leaves`, has failed. Raises UserError, MeshError."""
        self.run = run
        if all(not isinstance(leaf, StateArray) or leaf.is_here for leaf in leaves):
            self._uploaded = {}  # the next step brings all of them
        else:
            assert self._replay is not None
            self._pending = self._replay.onto(run)
        run.steps_done = self._step

    def create(self, init: Callable[..., Any], *args: Any) -> Any:
        """Have the workers compute the state: `init(*args)` returns what the donated arguments are
        to be, in any tree.

        Each worker computes the shards that it holds, and nothing is made here. Returns the tree,
        of `StateArray`s. Raises UserError when the leaves do not fit the state in number, shape or
        type; MeshError."""
        from shardopt.ir.context import make_context
        from shardopt.ir.io import load_module
        from shardopt.ir.trial import made_here

        exported = export_call("create", jax.jit(init), self._platform, args, {})
        leaves = jax.tree.leaves(args)
        kept = exported.module_kept_var_idx
        values = [to_numpy(leaves[number], exported.in_avals[number]) for number in kept]
        data = made_here(exported.mlir_module_serialized)

        def begin(run: Run) -> None:
            with make_context() as context:
                module = load_module(data, context, name="init")
                run.initialize(module, list(self._state), values)

        self._begin(begin)
        return jax.tree.unflatten(exported.out_tree, self._hold_state())

    def hold(self, arrays: Mapping[int, Any]) -> None:
        """Say that the workers hold these, by argument, without having been given them: another
        run's state."""
        self._uploaded |= arrays

    def held_state(self) -> dict[int, int]:
        """Identity -> argument, of the arrays that stand for the state that the workers hold."""
        return {id(leaf): k for k, leaf in self._uploaded.items() if k in self._state}

    @property
    def state_numbers(self) -> tuple[int, ...]:
        """The arguments that are state, in order."""
        return tuple(self._state)

    def load(self, path: str | os.PathLike[str]) -> list[StateArray]:
        """The state of a checkpoint, or of the newest in a folder, of any plan of the model: what
        the donated arguments are to be, leaf by leaf. Raises UserError, MeshError."""
        self._begin(lambda run: run.restore(path))
        return self._hold_state()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a new folder. Raises UserError, MeshError."""
        self.run.save(path)

    def close(self) -> None:
        self.run.close()

    def _load(self, values: Sequence[np.ndarray]) -> None:
        others = {k: value for k, value in enumerate(values) if k not in self._state}
        self._begin(lambda run: run.load(values), others)

    def _begin(
        self, begin: Callable[[Run], None], others: Mapping[int, np.ndarray] | None = None
    ) -> None:
        """Give the state its first values, and remember how if that may be needed again, with what
        others were given."""
        begin(self.run)
        if self._replay is not None:
            self._replay.begin(begin, others or {})

    def _hold_state(self) -> list[StateArray]:
        """Handles of what the workers hold for the state now; they can be had until the next
        step."""
        step = self.run.steps_done

        def read(number: int) -> np.ndarray:
            if self.run.steps_done != step:
                raise RuntimeError(f"a step has replaced argument {number}")
            return self.run.argument(number)

        arrays = {
            number: StateArray(partial(read, number), self._inputs[number])
            for number in self._state
        }
        self._uploaded |= arrays
        return list(arrays.values())

    def _is_held(self, number: int, leaf: Any) -> bool:
        return isinstance(leaf, (*_IMMUTABLE, StateArray)) and self._uploaded.get(number) is leaf

    def _results(self, outputs: Outputs) -> list[Any]:
        # The state keeps the weak types of the arguments it replaces: a step must not change its
        # own signature.
        weak = {
            alias: bool(self._inputs[number].weak_type) for number, alias in self._state.items()
        }
        results: list[Any] = []
        for number, aval in enumerate(self._outputs):
            if self._lazy_state and number in weak:
                spec = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak[number])
                results.append(StateArray(partial(outputs.__getitem__, number), spec))
            else:
                results.append(like(outputs[number], aval, weak.get(number, aval.weak_type)))
        return results


def to_numpy(leaf: Any, aval: jax.ShapeDtypeStruct | jax.core.ShapedArray) -> np.ndarray:
    """The array that the module takes for an argument; typed keys become their raw data."""
    if isinstance(leaf, StateArray):
        leaf = leaf.value
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf).astype(aval.dtype, copy=False)
