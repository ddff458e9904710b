"""Run the MPMD programs in lit tests that others wrote, and compare them with one device.

    python -m benchmarks.tools.upstream_programs FOLDER… [--show]

A program is a function with a `topology` in a file of the folder, each part behind `// -----` on
its own. It is lowered as `shardopt run` does it (`shardopt.tools.run.entry`) and runs on host
devices, with random inputs. What it is held against is made from the text before anything of that:
a function for one device, in which fragments and calls are written out and whatever moves a value
hands it on. Each file runs in a process of its own. The table counts programs that are equal, and
others by what is said of them; parts that do not parse have none."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import stablehlo
from rich.console import Console
from rich.table import Table

from benchmarks.tools.bare_opt import SPLIT
from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import functions, operations, replace_reads, symbol_name
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.reference import Reference, compare
from shardopt.support.errors import UserError
from shardopt.tools.run.entry import make_runnable

_EQUAL = "equal"
_TOLERANCE = 1e-4
_SECONDS = 300.0
_TENSOR = re.compile(r"tensor<(?:[^<>]|<[^<>]*>)*>")
_JOIN = {"add": "add", "max": "maximum", "min": "minimum", "mul": "multiply"}
# What hands its operand on.
_MOVES = ("mpmd.transfer", "mpmd.assign", "mpmd.unassign", "mpmd.broadcast", "mpmd.named_tensor")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 where every program is equal or refused, by us or on one device."""
    parser = argparse.ArgumentParser(description="Run MPMD programs of other lit tests.")
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--show", action="store_true", help="print each program that is not equal")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        print(json.dumps(_verdicts(args.folder[0])))
        return 0
    table = Table("folder", "files", "programs", "equal", "others by reason")
    bad = False
    for folder in args.folder:
        files = sorted(folder.rglob("*.mlir"))
        verdicts = {
            f"{file.name}: {name}": verdict
            for file in files
            for name, verdict in _in_child(file).items()
        }
        counts = Counter(verdict.partition(": ")[0] for verdict in verdicts.values())
        bad |= bool(set(counts) - {_EQUAL, "refused", "no control"})
        others = Counter(verdict for verdict in verdicts.values() if verdict != _EQUAL)
        rows = "\n".join(f"{number} {text}" for text, number in others.most_common())
        table.add_row(folder.name, *map(str, (len(files), len(verdicts), counts[_EQUAL])), rows)
        for name, verdict in verdicts.items():
            if args.show and verdict != _EQUAL:
                print(f"{name}: {verdict}")
    Console(width=120).print(table)
    return int(bad)


def _in_child(file: Path) -> dict[str, str]:
    command = [sys.executable, "-m", "benchmarks.tools.upstream_programs", "--one", str(file)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"": "hang"}
    if done.returncode:
        return {"": f"crash: {done.stderr.splitlines()[-1] if done.stderr else done.returncode}"}
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _verdicts(file: Path) -> dict[str, str]:
    """Program -> verdict."""
    found: dict[str, str] = {}
    for number, part in enumerate(file.read_text("utf-8").split(SPLIT)):
        with make_context() as context:
            try:
                names = _programs(ir.Module.parse(part, context))
            except ir.MLIRError:
                continue
        for name in names:
            found[f"{number} @{name}"] = _verdict(part, name)
    return found


def _programs(module: ir.Module) -> list[str]:
    """What is not called from elsewhere in the file only."""
    return [
        symbol_name(function)
        for function in functions(module)
        if "topology" in function.attributes and not _is_private(function)
    ]


def _is_private(function: ir.Operation) -> bool:
    key = "sym_visibility"
    return key in function.attributes and ir.StringAttr(function.attributes[key]).value == "private"


def _verdict(text: str, name: str) -> str:
    try:
        return compared(text, name)
    except UserError as error:
        return f"refused: {_short(str(error))}"
    except ValueError as error:
        return f"no control: {error}"
    except Exception as error:
        return f"our bug: {_short(f'{type(error).__name__}: {error}')}"


def _short(text: str) -> str:
    """Without the place, the values and the types."""
    message = re.sub(r"^[^\n]*?error: ", "", text.splitlines()[0])
    return re.sub(r"'[^']*'|\"[^\"]*\"|@\w+|\d+", "…", _TENSOR.sub("tensor", message))[:90]


def compared(text: str, name: str, name_to_mesh: tuple[str, ...] = ()) -> str:
    """Whether the function `name` of the module computes the same lowered and on one device.
    Raises UserError where it is refused, ValueError where it cannot be written for one device."""
    with make_context() as context:
        module = ir.Module.parse(text, context)
        make_runnable(module, name, name_to_mesh)
        program = prepare(module)
        inputs = random_inputs(program, seed=1)
        plain = on_one_device(ir.Module.parse(text, context), name)
        try:
            control = Reference(plain, quick=True)
        except Exception as error:
            raise ValueError(_short(str(error))) from error
    with open_run(program, quick_compile=True) as run:
        run.load(inputs)
        outputs = list(run.step())
    rows = compare(outputs, control([np.asarray(value) for value in inputs]))
    differing = [row.name for row in rows if not row.within(_TOLERANCE)]
    return f"differs: {', '.join(differing)}" if differing else _EQUAL


# ---- the control ----


def on_one_device(module: ir.Module, name: str) -> ir.Module:
    """The function `name` as `@main` of a module without meshes."""
    by_name = {symbol_name(function): function for function in functions(module)}
    main = by_name[name]
    block = main.regions[0].blocks[0]
    types = [_tensor(value.type) for value in block.arguments]
    control = ir.Module.create(ir.Location.unknown(module.context))
    with ir.Location.unknown(module.context), ir.InsertionPoint(control.body):
        function = func_dialect.FuncOp("main", ir.FunctionType.get(types, [])).operation
        for other in by_name.values():
            if symbol_name(other) != "main" and _is_whole(other):
                other.clone(ip=ir.InsertionPoint(control.body))
    with ir.Location.unknown(module.context):
        out = function.regions[0].blocks.append(*types)
        writer = _OneDevice(by_name, ir.InsertionPoint(out))
        results = writer.write(block, list(out.arguments))
        func_dialect.ReturnOp(results, ip=writer.point)
    type_ = ir.FunctionType.get(types, [value.type for value in results])
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
    for op in operations(control.operation):
        for attribute in [each for each in op.attributes if each.startswith("mpmd.")]:
            del op.attributes[attribute]
    return control


def _is_whole(function: ir.Operation) -> bool:
    """Whether it knows no meshes."""
    block = function.regions[0].blocks[0]
    types = [value.type for value in block.arguments]
    return "topology" not in function.attributes and not any(
        [*map(is_mesh_tensor, types), *(op.operation.name.startswith("mpmd.") for op in block)]
    )


class _OneDevice:
    """Writes what a block computes to one place."""

    def __init__(self, by_name: Mapping[str, ir.Operation], point: ir.InsertionPoint) -> None:
        self.by_name, self.point = by_name, point

    def write(self, block: ir.Block, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """What the block returns."""
        values = dict(zip(block.arguments, arguments, strict=True))
        *body, end = (view.operation for view in block)
        for op in body:
            operands = [values[operand] for operand in op.operands]
            values.update(zip(op.results, self._results(op, operands, values), strict=True))
        return [values[operand] for operand in end.operands]

    def _results(
        self, op: ir.Operation, operands: list[ir.Value], values: dict[ir.Value, ir.Value]
    ) -> list[ir.Value]:
        if op.name in _MOVES:
            return operands[:1]
        if op.name in ("mpmd.fragment", "mpmd.named_computation"):
            return self.write(op.regions[0].blocks[0], operands)
        if op.name in ("mpmd.call", "mpmd.fragment_call", "func.call"):
            callee = self.by_name[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            return self.write(callee.regions[0].blocks[0], operands)
        if op.name == "mpmd.for":
            return self._loop(op, operands)
        if op.name == "mpmd.reduce":
            return [self._joined(op, operands)]
        if op.name.startswith("mpmd."):
            raise ValueError(f"{op.name} is not known")
        new = op.clone(ip=self.point)
        replace_reads(new, values)
        return list(new.results)

    def _loop(self, op: ir.Operation, values: list[ir.Value]) -> list[ir.Value]:
        block = op.regions[0].blocks[0]
        tensor = ir.RankedTensorType(_tensor(block.arguments[-1].type))
        for number in range(ir.IntegerAttr(op.attributes["iterations"]).value):
            value = ir.IntegerAttr.get(tensor.element_type, number)
            index = stablehlo.constant(ir.DenseElementsAttr.get_splat(tensor, value), ip=self.point)
            values = self.write(block, [*values, index])
        return values

    def _joined(self, op: ir.Operation, operands: list[ir.Value]) -> ir.Value:
        kind = str(op.attributes["reduction"]).split("<")[1].rstrip(">")
        total = operands[0]
        for value in operands[1:]:
            name = f"stablehlo.{_JOIN.get(kind, kind)}"
            total = ir.Operation.create(name, [total.type], [total, value], ip=self.point).results[
                0
            ]
        return total


def _tensor(type_: ir.Type) -> ir.Type:
    """The whole tensor of a mesh tensor."""
    return parse_mesh_tensor(type_).tensor if is_mesh_tensor(type_) else type_


if __name__ == "__main__":
    sys.exit(main())
