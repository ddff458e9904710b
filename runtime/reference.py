"""The check of a distributed run: the original module on one device, and the comparison of both
sets of outputs."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from jax.errors import JaxRuntimeError
from jaxlib.mlir import ir

from shardopt.dialect.custom_calls import check_custom_calls
from shardopt.dialect.dtypes import numpy_dtype, numpy_name
from shardopt.forms.exported_form import MAIN, find_function, function_type, static_shape
from shardopt.forms.exported_program import StageFunction, TensorSpec
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.devices.tiles import Tiling
from shardopt.runtime.devices.xla import XlaMesh
from shardopt.support.errors import UserError

# Nudged runs behind `conditioning`: one draw may miss the direction in which an output is
# sensitive.
_TRIALS = 8
# Two orders of summation may differ by more than one change of the inputs does.
_NOISE_FACTOR = 10
_ONE_DEVICE = Mesh("reference", (("device", 1),), (0,))


@dataclass(frozen=True)
class OutputDifference:
    """One output against its reference.

    max_abs: largest |output - reference|; max_rel: that over the largest |reference|. Places where
    both are the same infinity or both NaN count as equal. `unmatched` counts the places where only
    one of two floats is finite, where infinities differ, and, for integers and booleans, all that
    are not equal.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    max_rel: float
    unmatched: int

    def within(self, tolerance: float) -> bool:
        return self.unmatched == 0 and self.max_rel <= tolerance


class Reference:
    """The unpartitioned module's `@main` on one CPU device, compiled once; shardings in it have no
    effect."""

    def __init__(self, module: ir.Module, custom_calls: str = "", *, quick: bool = False) -> None:
        """`quick` compiles sooner, into slower code. Raises UserError when the module has no
        `@main` of static shapes, custom calls that neither XLA nor JAX registers and that are not
        named, or operations that XLA has for other devices only."""
        check_custom_calls(module, custom_calls)
        self._function = _whole_function(module)
        self._device = XlaMesh(_ONE_DEVICE)
        try:
            self._executable = self._device.compile(self._function, quick=quick)
        except JaxRuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"the module cannot be run as a reference on a CPU: {reason}"
            ) from error

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs. Raises UserError when the inputs do not fit."""
        specs = self._function.arguments
        if len(inputs) != len(specs):
            raise UserError(f"expected {len(specs)} inputs, found {len(inputs)}")
        arrays = []
        for number, (value, spec) in enumerate(zip(inputs, specs, strict=True)):
            if (value.shape, value.dtype) != (spec.shape, numpy_dtype(spec.dtype)):
                raise UserError(
                    f"input {number}: expected {spec}, found {value.dtype}{list(value.shape)}"
                )
            arrays.append(self._device.put(spec, Tiling(_ONE_DEVICE, spec).split(value)))
        outputs, token = self._executable(arrays)
        token.block_until_ready()
        return [np.array(self._device.shards(output)[0]) for output in outputs]


def run_reference(module: ir.Module, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of one run on one device. Raises UserError like `Reference`."""
    return Reference(module)(inputs)


def _whole_function(module: ir.Module) -> StageFunction:
    try:
        type_ = function_type(find_function(ir.SymbolTable(module.operation), MAIN))
        arguments, results = (tuple(map(_spec, types)) for types in (type_.inputs, type_.results))
    except ValueError as error:
        raise UserError(f"the module cannot be run as a reference: {error}") from error
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return StageFunction(MAIN, buffer.getvalue(), arguments, results, donates=())


def _spec(type_: ir.Type) -> TensorSpec:
    if not isinstance(type_, ir.RankedTensorType):
        raise ValueError(f"expected a ranked tensor, found {type_}")
    shape = static_shape(type_)
    return TensorSpec(shape, numpy_name(str(type_.element_type)), Sharding.replicated(len(shape)))


def conditioning(
    function: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    inputs: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
) -> list[float]:
    """Per output, the largest relative difference that the last place of the float inputs makes,
    over a few trials.

    An output that this already moves beyond a tolerance (Adam's update of a weight whose gradient
    is zero but for rounding, say) cannot be checked to that tolerance on any two machines."""
    floors = [0.0] * len(reference)
    for trial in range(_TRIALS):
        generator = np.random.default_rng(trial)
        rows = compare(function([_nudge(value, generator) for value in inputs]), reference)
        floors = [
            max(old, row.max_rel if row.unmatched == 0 else np.inf)
            for old, row in zip(floors, rows, strict=True)
        ]
    return floors


def is_noise(row: OutputDifference, floor: float, tolerance: float) -> bool:
    """Whether a difference beyond the tolerance is of the order of `floor`, what the last bit of
    the inputs changes (`conditioning`), and so tells nothing about the run."""
    return tolerance < floor and row.max_rel <= _NOISE_FACTOR * floor


def _nudge(value: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Each float one unit in the last place up or down, at random; other kinds as they are."""
    if value.dtype.kind in "biuc":
        return value
    unit = float(ml_dtypes.finfo(value.dtype).eps)
    signs = generator.choice((-1.0, 1.0), value.shape)
    return (value.astype(np.float64) * (1 + unit * signs)).astype(value.dtype)


def compare(
    outputs: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    names: Sequence[str] | None = None,
) -> list[OutputDifference]:
    """One row per output. Raises ValueError when number, shapes or dtypes differ."""
    names = names or [f"result{number}" for number in range(len(outputs))]
    return [difference(*row) for row in zip(names, outputs, reference, strict=True)]


def difference(name: str, output: np.ndarray, reference: np.ndarray) -> OutputDifference:
    """Floats and complex numbers are compared in double precision, integers and booleans
    exactly."""
    if (output.shape, output.dtype) != (reference.shape, reference.dtype):
        raise ValueError(
            f"{name}: expected {reference.dtype}{list(reference.shape)}, found "
            f"{output.dtype}{list(output.shape)}"
        )
    wide = np.complex128 if output.dtype.kind == "c" else np.float64
    left, right = output.astype(wide), reference.astype(wide)
    finite = np.isfinite(left) & np.isfinite(right)
    if output.dtype.kind in "biu":
        unmatched = output != reference
    else:
        unmatched = ~finite & (left != right) & ~(np.isnan(left) & np.isnan(right))
    max_abs = float(
        np.max(np.abs(np.where(finite, left, 0) - np.where(finite, right, 0)), initial=0.0)
    )
    scale = float(np.max(np.abs(right[finite]), initial=0.0))
    return OutputDifference(
        name,
        output.shape,
        output.dtype.name,
        max_abs,
        max_abs / max(scale, np.finfo(np.float64).tiny),
        int(np.count_nonzero(unmatched)),
    )
