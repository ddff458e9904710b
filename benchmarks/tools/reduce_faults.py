"""How small `shardopt reduce` makes modules in which faults are seeded, and how long that takes.

    python -m benchmarks.tools.reduce_faults [--only NAME] [--keep DIR]

The modules are training steps of GPT and of a mixture of experts, of more than 2,000 operations
each, traced from shapes. A fault is a pass that fails where a pattern stands in the module, as
faults of compilers do: it crashes, hangs, raises, leaves an invalid module, or diagnoses an error.
The pipeline around it is that of the import phase, and some faults show only behind one of its
passes. Seconds of the children are in the CPU seconds."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the first import of jaxlib

from jaxlib.mlir import ir
from rich.console import Console
from rich.table import Table

from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import defining, functions, operations, shape_of
from shardopt.models.specs import GptSpec, MoeSpec, Spec
from shardopt.passes.base import Pass, PassContext, option
from shardopt.passes.registry import PASSES
from shardopt.pipeline.parser import parse_pipeline
from shardopt.reduce.candidate import Candidate, Subject, pass_texts
from shardopt.reduce.failure import Failure, failure_of, preload
from shardopt.reduce.interest import SameFailure
from shardopt.reduce.reductions import REDUCTIONS
from shardopt.reduce.search import Search

_PASS = "shardopt-seeded-fault"
_HANG_SECONDS = 2.0
_TRIAL_SECONDS = 30.0

MODELS: dict[str, Spec] = {
    "gpt": GptSpec(hidden=256, layers=12, heads=8, sequence=128, vocab=1024, batch=16),
    "moe": MoeSpec(hidden=256, layers=8, experts=4, sequence=128, vocab=1024, batch=16, group=256),
}

Pattern = Callable[[ir.Module], "ir.Operation | None"]


# ---- patterns: the first operation at which the fault shows ----


def _readers(value: ir.Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def _transposed_batched_product(module: ir.Module) -> ir.Operation | None:
    for op in operations(module.operation, ("stablehlo.dot_general",)):
        batched = "lhs_batching_dimensions = [0" in str(op.attributes["dot_dimension_numbers"])
        if batched and any(_readers_named(op, "stablehlo.transpose")):
            return op
    return None


def _readers_named(op: ir.Operation, name: str) -> Iterator[ir.Operation]:
    return (reader for result in op.results for reader in _readers(result) if reader.name == name)


def _two_products(module: ir.Module) -> ir.Operation | None:
    for op in operations(module.operation):
        if op.name == "stablehlo.constant":
            continue
        if len(op.results) == 1 and len(list(_readers_named(op, "stablehlo.dot_general"))) > 1:
            return op
    return None


def _masked_by_position(module: ir.Module) -> ir.Operation | None:
    for op in operations(module.operation, ("stablehlo.select",)):
        maker = _through(op.operands[0], "stablehlo.broadcast_in_dim")
        if maker is not None and maker.name == "stablehlo.compare":
            sources = [_through(each, "stablehlo.broadcast_in_dim") for each in maker.operands]
            if any(source is not None and source.name == "stablehlo.iota" for source in sources):
                return op
    return None


def _through(value: ir.Value, name: str) -> ir.Operation | None:
    maker = defining(value)
    while maker is not None and maker.name == name:
        maker = defining(maker.operands[0])
    return maker


def _read_by_five(module: ir.Module) -> ir.Operation | None:
    for op in operations(module.operation):
        if op.name != "stablehlo.constant" and len(op.results) == 1:
            names = {reader.name for reader in _readers(op.results[0])}
            if len(_readers(op.results[0])) >= 5 and len(names) >= 3:
                return op
    return None


def _exponential_of_difference(module: ir.Module) -> ir.Operation | None:
    for op in operations(module.operation, ("stablehlo.exponential",)):
        maker = defining(op.operands[0], "stablehlo.subtract")
        if maker is not None and _through(maker.operands[1], "stablehlo.broadcast_in_dim"):
            return op
    return None


def _lookup(module: ir.Module) -> ir.Operation | None:
    both = {op.name for op in operations(module.operation)}
    if "stablehlo.scatter" not in both:
        return None
    return next(iter(operations(module.operation, ("stablehlo.gather",))), None)


def _donated_difference(module: ir.Module) -> ir.Operation | None:
    for function in functions(module):
        attributes = function.attributes
        if "arg_attrs" not in attributes or "tf.aliasing_output" not in str(
            attributes["arg_attrs"]
        ):
            continue
        for op in operations(function, ("stablehlo.subtract",)):
            if any(reader.name == "func.return" for reader in _readers(op.results[0])):
                return op
    return None


def _inlined_root(module: ir.Module) -> ir.Operation | None:
    """Shows only where no call is left."""
    if any(operations(module.operation, ("func.call",))):
        return None
    for op in operations(module.operation, ("stablehlo.multiply",)):
        maker = _through(op.operands[1], "stablehlo.broadcast_in_dim")
        if maker is not None and maker.name == "stablehlo.rsqrt":
            return op
    return None


def _long_chain(module: ir.Module) -> ir.Operation | None:
    """Twelve elementwise operations of one type behind each other."""
    depth: dict[ir.Value, int] = {}
    for op in operations(module.operation):
        if len(op.results) != 1 or op.name not in _ELEMENTWISE:
            continue
        same = [value for value in op.operands if value.type == op.results[0].type]
        depth[op.results[0]] = 1 + max((depth.get(value, 0) for value in same), default=0)
        if depth[op.results[0]] >= 12:
            return op
    return None


_ELEMENTWISE = {
    f"stablehlo.{name}"
    for name in ("add", "subtract", "multiply", "divide", "exponential", "tanh", "sqrt", "negate")
}


def _wide_contraction(module: ir.Module) -> ir.Operation | None:
    """A contracted dimension of more than 96 elements, and a result that is not square."""
    for op in operations(module.operation, ("stablehlo.dot_general",)):
        result = shape_of(op.results[0])
        contracted = set(shape_of(op.operands[0])) & set(shape_of(op.operands[1]))
        if max(contracted, default=0) > 96 and len(set(result[-2:])) == 2:
            return op
    return None


# ---- faults ----


def _crash(op: ir.Operation, context: PassContext) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(op: ir.Operation, context: PassContext) -> None:
    time.sleep(3600)


def _raise(op: ir.Operation, context: PassContext) -> None:
    raise AssertionError(f"nobody thought of {op.name}")


def _invalidate(op: ir.Operation, context: PassContext) -> None:
    """A result of another type than the operation gives."""
    op.results[0].set_type(ir.Type.parse("tensor<7x7x7xi3>", op.context))


def _refuse(op: ir.Operation, context: PassContext) -> None:
    shape = "x".join(map(str, shape_of(op.results[0])))
    raise context.error(op, f"expected another shape, found {shape} in '{op.name}'")


@dataclass(frozen=True)
class Fault:
    model: str
    pattern: Pattern
    happens: Callable[[ir.Operation, PassContext], None]
    trial_seconds: float = _TRIAL_SECONDS


FAULTS: dict[str, Fault] = {
    "transposed-product": Fault("gpt", _transposed_batched_product, _crash),
    "two-products": Fault("gpt", _two_products, _raise),
    "mask": Fault("gpt", _masked_by_position, _raise),
    "five-readers": Fault("moe", _read_by_five, _crash),
    "softmax": Fault("gpt", _exponential_of_difference, _hang, _HANG_SECONDS),
    "lookup": Fault("gpt", _lookup, _invalidate),
    "donated-difference": Fault("gpt", _donated_difference, _refuse),
    "inlined-root": Fault("moe", _inlined_root, _raise),
    "long-chain": Fault("moe", _long_chain, _raise),
    "wide-contraction": Fault("moe", _wide_contraction, _refuse),
}


@dataclass(frozen=True)
class SeededFault(Pass):
    """Fails where its pattern is."""

    name = _PASS
    summary = "fail at a pattern"
    fault: str = option("", help="which")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        fault = FAULTS[self.fault]
        op = fault.pattern(module)
        if op is not None:
            fault.happens(op, pm)


# ---- runs ----


@dataclass(frozen=True)
class Result:
    name: str
    failure: Failure
    before: Candidate
    after: Candidate
    trials: int
    seconds: float
    cpu_seconds: float


@cache
def _module(model: str) -> bytes:
    """Traced in a process of its own: JAX has threads, which forks do not get along with."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_traced, model).result()


def _traced(model: str) -> bytes:
    from shardopt.models.build import bytecode

    return bytecode(MODELS[model], "f32")


def run(name: str) -> Result:
    fault = FAULTS[name]
    pipeline = f"shardopt-import,cse,{_PASS}{{fault={name}}},canonicalize"
    module = load_module(_module(fault.model), make_context())
    candidate = Subject(module, pass_texts(parse_pipeline(pipeline))).candidate()
    started, cpu = perf_counter(), _cpu_seconds()
    failure = failure_of(candidate, fault.trial_seconds, on_modules=preload)
    if failure is None:
        raise ValueError(f"the pattern of {name} is not in its model")
    test = SameFailure(failure, fault.trial_seconds)
    search = Search(test, REDUCTIONS, _TRIAL_SECONDS)
    after = search.run(candidate)
    seconds = perf_counter() - started
    return Result(name, failure, candidate, after, search.trials, seconds, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=tuple(FAULTS), action="append")
    parser.add_argument("--keep", type=Path, help="folder for what is left of each")
    args = parser.parse_args(argv)
    PASSES[_PASS] = "benchmarks.tools.reduce_faults:SeededFault"
    console = Console(width=120)
    table = Table("fault", "shows as", "operations", "left", "passes", "left", "characters left")
    for column in ("trials", "seconds", "CPU s"):
        table.add_column(column, justify="right")
    for name in args.only or FAULTS:
        result = run(name)
        console.print(f"{name}: {result.seconds:.1f} s", highlight=False)
        before, after = result.before.size, result.after.size
        table.add_row(
            name,
            result.failure.kind,
            f"{before.operations:,}",
            str(after.operations),
            str(before.passes),
            str(after.passes),
            str(after.characters),
            str(result.trials),
            f"{result.seconds:.1f}",
            f"{result.cpu_seconds:.1f}",
        )
        if args.keep is not None:
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / f"{name}.mlir").write_text(result.after.file_text, encoding="utf-8")
    console.print(table)
    return 0


if __name__ == "__main__":
    # Under its own name, since the pass is looked up there.
    from benchmarks.tools.reduce_faults import main as run_main

    sys.exit(run_main())
