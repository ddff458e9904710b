"""What the kernels of measured steps read, write and multiply, and how fast: a line of JSON for
each group of equal kernels of a model.

    export XLA_FLAGS=--xla_gpu_enable_command_buffer=
    python -m benchmarks.one_device.step … --hlo HLO > rows.jsonl
    python -m benchmarks.one_device.by_operation rows.jsonl HLO [--share 0.01]

Kernels are those of `benchmarks.one_device.step`, by the operation of the optimized module that
they belong to. `bytes` are those of operands and results, once each, without the space that
libraries ask for; of a kernel that reads a slice of an operand they are too many. `flops` are those
of products. `along` says of each operand of a product whether what is contracted is innermost in
memory. Groups that take less than the given share of the step are left out."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

_ITEMSIZE = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "f8e4m3fn": 1,
    "f8e5m2": 1,
    "f16": 2,
    "bf16": 2,
    "s16": 2,
    "u16": 2,
    "f32": 4,
    "s32": 4,
    "u32": 4,
    "f64": 8,
    "s64": 8,
    "u64": 8,
}
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*))?")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")


@dataclass(frozen=True)
class Instruction:
    """`rest` is what follows the operands: attributes."""

    type: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """Element type, extents, and layout, minor to major, of each array."""
        return [
            (name, _numbers(extents), _numbers(layout))
            for name, extents, layout in _SHAPE.findall(self.type)
            if name in _ITEMSIZE
        ]


@dataclass
class Group:
    """`kind` tells fusions by how they are emitted, and what of their operations decides that."""

    kind: str
    result: str
    operands: tuple[str, ...]
    bytes: float
    flops: float
    along: tuple[bool, ...]
    seconds: float = 0.0
    runs: float = 0.0
    operations: list[str] = field(default_factory=list)

    def row(self, model: str) -> dict[str, Any]:
        calls = len(self.operations)
        return {
            "model": model,
            "kind": self.kind,
            "result": self.result,
            "operands": self.operands,
            "calls": calls,
            "kernels": self.runs,
            "seconds": self.seconds / calls,
            "bytes": self.bytes,
            "flops": self.flops,
            "along": self.along,
        }


Module = dict[str, dict[str, Instruction]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="lines of benchmarks.one_device.step")
    parser.add_argument("folder", type=Path, help="where it wrote optimized modules")
    parser.add_argument("--share", type=float, default=0.01)
    args = parser.parse_args(argv)
    for line in args.rows.read_text().splitlines():
        row = json.loads(line)
        module = read_module(args.folder / f"{row['model']}.hlo.gz")
        least = args.share * row["busy_seconds"]
        for group in groups(module, row["kernels"]):
            if group.seconds >= least:
                print(json.dumps(group.row(row["model"])))
    return 0


def groups(module: Module, kernels: dict[str, tuple[float, float]]) -> list[Group]:
    """Those that take longest first."""
    computations = {name: each for each in module.values() for name in each}
    found: dict[tuple[Any, ...], Group] = {}
    for name, (seconds, runs) in kernels.items():
        if name not in computations:
            continue
        new = _group(module, computations[name], name)
        key = (new.kind, new.result, new.operands, new.along)
        group = found.setdefault(key, new)
        group.seconds += seconds
        group.runs += runs
        group.operations.append(name)
    return sorted(found.values(), key=lambda group: -group.seconds)


def read_module(path: Path) -> Module:
    """Instructions of each computation by name."""
    module: Module = {}
    inside: dict[str, Instruction] = {}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            if (head := _COMPUTATION.match(line)) is not None:
                inside = module.setdefault(head.group(1), {})
            elif (found := _INSTRUCTION.match(line)) is not None:
                inside[found.group(1)] = _instruction(found.group(2))
    return module


def _instruction(text: str) -> Instruction:
    type_end = _closed(text, 0) + 1 if text.startswith("(") else text.index(" ")
    begin = text.index("(", type_end)
    end = _closed(text, begin)
    operands = tuple(re.findall(r"%([\w.\-]+)", text[begin:end]))
    return Instruction(text[:type_end], text[type_end:begin].strip(), operands, text[end + 1 :])


def _closed(text: str, begin: int) -> int:
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    raise ValueError(f"no end of the parenthesis at {begin}: {text[:80]}")


def _group(module: Module, inside: dict[str, Instruction], name: str) -> Group:
    op = inside[name]
    read = [inside[operand] for operand in op.operands if operand in inside]
    results = op.shapes
    if op.opcode == "custom-call" and len(results) > 1:
        results = results[:-1]  # the last one is space for the library
    kind, computed = op.opcode, inside
    if op.opcode == "custom-call":
        kind = re.findall(r'custom_call_target="([^"]+)"', op.rest)[0]
    if op.opcode == "fusion":
        computed = module[re.findall(r"calls=%([\w.\-]+)", op.rest)[0]]
        triton = re.findall(r'"kind":"(__\w+)"', op.rest)
        kind = (triton or re.findall(r"kind=(\w+)", op.rest))[0]
        telling = ("dot", "scatter", "reduce", "transpose")
        opcodes = {each.opcode for each in computed.values()}
        kind += "".join(f" {each}" for each in telling if each in opcodes)
    products = [(computed, n) for n, each in computed.items() if each.opcode == "dot"]
    if op.opcode != "fusion":
        products = [(inside, name)] if "_contracting_dim" in op.rest else []
    return Group(
        kind,
        " ".join(map(_text, results)),
        tuple(" ".join(map(_text, each.shapes)) for each in read),
        float(sum(map(_bytes, (*results, *(s for each in read for s in each.shapes))))),
        sum(_flops(*product) for product in products),
        tuple(along for product in products[:1] for along in _along(*product)),
    )


def _contracted(op: Instruction, side: str) -> tuple[int, ...]:
    plain = re.findall(side + r"_contracting_dims=\{([\d,]*)\}", op.rest)
    quoted = re.findall(f'"{side}' + r'_contracting_dimensions":\[([^\]]*)\]', op.rest)
    return _numbers((plain or quoted or [""])[0].replace('"', ""))


def _flops(inside: dict[str, Instruction], name: str) -> float:
    op = inside[name]
    extents = inside[op.operands[0]].shapes[0][1]
    depth = prod(extents[dim] for dim in _contracted(op, "lhs"))
    return 2.0 * prod(op.shapes[0][1]) * depth


def _along(inside: dict[str, Instruction], name: str) -> Iterator[bool]:
    op = inside[name]
    for side, operand in zip(("lhs", "rhs"), op.operands[:2], strict=False):
        _, _, layout = inside[operand].shapes[0]
        yield bool(layout) and layout[0] in _contracted(op, side)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def _bytes(shape: tuple[str, tuple[int, ...], tuple[int, ...]]) -> int:
    return _ITEMSIZE[shape[0]] * prod(shape[1])


def _text(shape: tuple[str, tuple[int, ...], tuple[int, ...]]) -> str:
    return f"{shape[0]}[{','.join(map(str, shape[1]))}]"


if __name__ == "__main__":
    sys.exit(main())
