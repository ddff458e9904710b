"""An exported module on one device: what its calls compute, in program order, as if every value
were whole.

Transfers hand on what they get, loops run their microbatches one after the other, and each function
is compiled once, for one device. So a run of the module is held against something that knows
nothing of schedules, messages and shardings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.forms.exported_program import Body, Call, ExportedProgram, Loop, Transfer
from shardopt.ir.context import make_context
from shardopt.runtime.reference import Reference

Arrays = list[np.ndarray]


class Interpretation:
    """The function from inputs to outputs."""

    def __init__(self, exported: ExportedProgram) -> None:
        """Compiles all functions. Raises UserError for one that does not run on its own."""
        self._main = exported.main
        self._functions: dict[str, Callable[[Sequence[np.ndarray]], Arrays]] = {}
        with make_context() as context:
            for function in exported.functions:
                module = ir.Module.parse(function.bytecode, context)
                self._functions[function.name] = Reference(module)

    def __call__(self, inputs: Sequence[np.ndarray]) -> Arrays:
        return self._body(self._main, list(inputs))

    def _body(self, body: Body, arguments: Arrays) -> Arrays:
        values = dict(enumerate(arguments))
        for op in body.ops:
            if isinstance(op, Call):
                results = self._functions[op.function]([values[k] for k in op.inputs])
                values.update(zip(op.outputs, results, strict=True))
            elif isinstance(op, Transfer):
                values[op.output] = values[op.input]
            else:
                values.update(zip(op.outputs, self._loop(op, values), strict=True))
        return [values[k] for k in body.results]

    def _loop(self, loop: Loop, values: dict[int, np.ndarray]) -> Arrays:
        carried = [values[k] for k in loop.initial]
        for microbatch in range(loop.iterations):
            arguments = []
            for number, argument in enumerate(loop.arguments):
                if argument.kind == "captured":
                    arguments.append(values[argument.number])
                elif argument.kind == "carried":
                    arguments.append(carried[argument.number])
                else:
                    dtype = numpy_dtype(loop.body.values[number].spec.dtype)
                    arguments.append(np.array(microbatch, dtype))
            results = self._body(loop.body, arguments)
            carried = [
                old if source is None else results[source]
                for old, source in zip(carried, loop.yields, strict=True)
            ]
        return carried
