"""Figures 12 and 13 of the paper: how convolutions of Wide-ResNet are split on 4, 8 and 16 GPUs.

    python -m benchmarks.alpa.case_study [--models wresnet-1b,wresnet-2b,wresnet-4b] [--page]

Each model is planned with everything left to the planner. What is drawn are the forward
convolutions in the order of the model: into how many parts the batch, the channels that come in and
those that go out are split, and which stage has the convolution. Kept in `case_study.jsonl`;
`--page` writes table and picture to the docs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.alpa.kept import Result, fill
from benchmarks.alpa.methods import options, step
from benchmarks.alpa.pages import PAGE, write_part
from benchmarks.alpa.phases import TO_STAGE, run_phases
from benchmarks.alpa.specs import Case, find_case
from shardopt.report.svg_text import svg_text

if TYPE_CHECKING:
    from shardopt.extract.chosen_plan import ChosenPart

KEPT = Path(__file__).parent / "case_study.jsonl"
PICTURE = PAGE.parent / "alpa-case-study.svg"
MODELS = ("wresnet-1b", "wresnet-2b", "wresnet-4b")
PARTS = ("batch", "channels in", "channels out")
_COLORS = ("#2b6cb0", "#dd6b20", "#38a169")
_DECISIONS = (
    "builtin.module(shardopt-separate-accumulators,shardopt-mark-carried,shardopt-choose-shardings)"
)
_CELL, _LEFT, _PANEL = 13, 90, 88
_COUNT: dict[str, Any] = {"anchor": "middle", "size": 8, "colour": "#ffffff"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--results", type=Path, default=KEPT, help="file of results")
    parser.add_argument("--page", action="store_true", help="write table and picture to the docs")
    args = parser.parse_args(argv)
    results = fill(args.results, args.models.split(","), lambda name: planned(find_case(name)))
    text = table(results)
    print(text)
    if args.page:
        write_part("figures 12 and 13", text)
        PICTURE.write_text(picture(results))
    return 0


def planned(case: Case) -> Result:
    """Plan a case as far as the shardings are chosen. Raises UserError."""
    from shardopt.extract.chosen_plan import read_parts
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.pipeline.manager import run_pipeline

    chosen = options(case, "shardopt")
    with make_context() as context:
        module = load_module(step(case), context)
        run_phases(module, chosen, TO_STAGE)
        run_pipeline(module, _DECISIONS)
        forward = [
            part for part in read_parts(module) if _attribute(part, "shardopt.kind") == "fwd"
        ]
        forward.sort(key=lambda part: int(_attribute(part, "stage_id")))
        return {"stages": [_stage(part) for part in forward]}


def _attribute(part: ChosenPart, name: str) -> str:
    return str(part.holder.attributes[name]).split(" : ")[0].strip('"')


def _stage(part: ChosenPart) -> dict[str, Any]:
    return {"mesh": str(part.mesh), "convolutions": list(_convolutions(part))}


def _convolutions(part: ChosenPart) -> Iterator[dict[str, Any]]:
    """Of the forward pass: the weight's shape, and parts by dimension. What is computed again has a
    weight that was met."""
    met: set[int] = set()
    rows = zip(part.reader.ops, part.reader.handles, part.strategies, strict=True)
    for op, handle, strategy in rows:
        weight = op.operands[1] if len(op.operands) > 1 else -1
        is_forward = "transpose(" not in str(handle.location)
        if handle.name != "stablehlo.convolution" or not is_forward or weight in met:
            continue
        met.add(weight)
        image, kernel, _ = _dimensions(str(handle.attributes["dimension_numbers"]))
        of_image, of_kernel = strategy.operands[0].dims, strategy.operands[1].dims
        split = (
            of_image[image.index("b")],
            of_kernel[kernel.index("i")],
            of_kernel[kernel.index("o")],
        )
        yield {
            "weight": "x".join(map(str, part.reader.tensors[weight].shape)),
            "parts": [prod(part.mesh.axis_size(axis) for axis in axes) for axes in split],
        }


def _dimensions(text: str) -> tuple[list[str], list[str], list[str]]:
    """Letters of the dimensions of image, kernel and result: `[b, 0, 1, f]x[0, 1, i, o]->[…]`."""
    image, kernel, result = (part.split(", ") for part in re.findall(r"\[([^\]]*)\]", text))
    return image, kernel, result


# ---- table and picture ----


def table(results: Mapping[str, Result]) -> str:
    """How many convolutions of each stage are split in which way."""
    lines = ["| model | GPUs | stage | mesh | split | convolutions |", "|---|---|---|---|---|---|"]
    for name in MODELS:
        if name not in results:
            lines.append(f"| {name} | {find_case(name).devices} | not run | | | |")
            continue
        for number, stage in enumerate(_stages(results[name])):
            for split, count in _ways(stage):
                mesh = re.sub(r"^[^\[]*", "", str(stage["mesh"]))
                devices = find_case(name).devices
                lines.append(f"| {name} | {devices} | {number} | {mesh} | {split} | {count} |")
    return "\n".join(lines)


def _stages(result: Result) -> list[dict[str, Any]]:
    stages = result.get("stages", [])
    assert isinstance(stages, list)
    return stages


def _ways(stage: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    counts: dict[str, int] = {}
    for convolution in stage["convolutions"]:
        split = _split_text(convolution["parts"])
        counts[split] = counts.get(split, 0) + 1
    yield from counts.items()


def _split_text(parts: Sequence[int]) -> str:
    named = [f"{name} {count}" for name, count in zip(PARTS, parts, strict=True) if count > 1]
    return ", ".join(named) or "whole on every device"


def picture(results: Mapping[str, Result]) -> str:
    """A column a convolution, a row for each dimension with the number of its parts, darker the
    more these are."""
    names = [name for name in MODELS if name in results]
    longest = max((_count(results[name]) for name in names), default=0)
    width, height = _LEFT + _CELL * longest + 60, _PANEL * max(len(names), 1)
    parts = [
        part for k, name in enumerate(names) for part in _panel(name, results[name], _PANEL * k)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    return "\n".join([head + 'font-family="sans-serif">', *parts, "</svg>\n"])


def _count(result: Result) -> int:
    return sum(len(stage["convolutions"]) for stage in _stages(result))


def _panel(name: str, result: Result, top: int) -> Iterator[str]:
    case, place = find_case(name), 0
    title = f"{name} on {case.devices} GPUs: parts of each forward convolution"
    yield svg_text(5, top + 14, title, size=12)
    for row, dimension in enumerate(PARTS):
        yield svg_text(5, top + 32 + 14 * row, dimension, size=10)
    for number, stage in enumerate(_stages(result)):
        x = _LEFT + _CELL * place
        yield f'<line x1="{x}" y1="{top + 20}" x2="{x}" y2="{top + 70}" stroke="#000"/>'
        yield svg_text(x + 3, top + 74, _stage_text(number, str(stage["mesh"])), size=9)
        for convolution in stage["convolutions"]:
            for row, count in enumerate(convolution["parts"]):
                yield _square(_LEFT + _CELL * place, top + 22 + 14 * row, row, count, case.devices)
            place += 1


def _square(x: int, y: int, row: int, count: int, devices: int) -> str:
    shade = 0.0 if count == 1 else 0.25 + 0.75 * (count.bit_length() - 1) / devices.bit_length()
    return (
        f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="12" fill="{_COLORS[row]}" '
        f'fill-opacity="{shade:.2f}" stroke="#ccc"/>'
        + ("" if count == 1 else svg_text(x + _CELL / 2 - 0.5, y + 9, str(count), **_COUNT))
    )


def _stage_text(number: int, mesh: str) -> str:
    """With the devices of a mesh such as `m0[x=1, y=4]`."""
    devices = prod(int(size) for size in re.findall(r"=(\d+)", mesh))
    return f"stage {number}: {devices} GPUs"


if __name__ == "__main__":
    sys.exit(main())
