"""The page of the table: what each program came to, and with which message others are refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.programs.one import CLUSTER, SETTINGS

Outcomes = Sequence[Mapping[str, Any]]

_ROW = r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$"

_HEAD = f"""# Programs as people write them

Small training and inference steps of several libraries, three calls of each through
`shardopt.parallelize` on `{CLUSTER}`, against the library's own jit on one device: with one stage,
with two, and with two stages and several microbatches. A figure is the largest difference of two
elements of a result or of the state, relative to the largest element of its array, over all arrays
and calls; integers, flags and keys have to be equal. † counts arrays that are left out: no digit of
them is the same with the library's own jit and without any, since they are rounding and nothing
else, such as the bias of keys in attention under Adam, whose gradient is zero.

The two cells that are called wrong are one program, and rounding that Adam enlarges: with weights
and moments in float64, its two stages without microbatches differ from the library's own jit by
4.7e-15, and under SGD in float32 by 1.1e-6, but for arrays of rounding.

In bfloat16 a difference does not say which of the two is nearer to exact numbers. Gradients of four
layers of weights in bfloat16 (`python -m benchmarks.programs.narrow`, 64 rows, two stages, against
float64) are off by

| | 1 microbatch | 8 | 32 |
|---|---|---|---|
| `jax.jit` | 4.8e-3 to 5.5e-3 | | |
| plans | 4.8e-3 to 5.5e-3 | 4.6e-3 to 5.6e-3 | 4.6e-3 to 5.7e-3 |
| plans with `microbatch_sums="own"` | 4.8e-3 to 5.5e-3 | 5.4e-3 to 6.3e-3 | 7.1e-3 to 8.4e-3 |

so that plans lose nothing: sums over microbatches are kept in float32.

Made by `python -m benchmarks.programs --results results.json --table docs/evidence/programs.md`.
Libraries that are not installed are left out; none is a dependency of shardopt.
"""


def page(results: Mapping[str, Outcomes], num_programs: int, absent: Sequence[str]) -> str:
    """Markdown. `results` are by "LIBRARY/FEATURE", in the order of the page, of all the
    programs that there are."""
    lines = [_HEAD, *_totals(results, num_programs), ""]
    if absent:
        lines += [f"Not installed when this was made: {', '.join(absent)}.", ""]
    lines += [
        "| library | program | one stage | two stages | microbatches |",
        "|---|---|---|---|---|",
    ]
    notes: dict[str, int] = {}
    for name, outcomes in results.items():
        library, feature = name.split("/", 1)
        cells = [_cell(setting, outcomes, notes) for setting in SETTINGS]
        lines.append(f"| {library} | {feature} | {' | '.join(cells)} |")
    if notes:
        lines += ["", "## Messages", ""]
        lines += [f"{number}. {message}" for message, number in notes.items()]
    return "\n".join(lines) + "\n"


def read_page(text: str) -> dict[str, list[dict[str, Any]]]:
    """The results that a page was made of, with differences in the digits that it shows."""
    messages = dict(re.findall(r"^(\d+)\. (.+)$", text, re.MULTILINE))
    results = {}
    for library, feature, *cells in re.findall(_ROW, text, re.MULTILINE):
        if feature != "program":
            results[f"{library}/{feature}"] = [
                _outcome(setting, cell, messages)
                for setting, cell in zip(SETTINGS, cells, strict=True)
                if cell
            ]
    return results


def _outcome(setting: str, cell: str, messages: Mapping[str, str]) -> dict[str, Any]:
    said = re.fullmatch(r"(refused|failed|not run) \((\d+)\)", cell)
    if said is not None:
        message = messages[said[2]]
        return {"setting": setting, "kind": said[1], "difference": 0.0, "message": message}
    figure = re.fullmatch(r"(\*\*wrong\*\* )?(\S+?)(?: †(\d+))?", cell)
    if figure is None:
        raise ValueError(f"expected a figure or a message, found '{cell}'")
    return {
        "setting": setting,
        "kind": "wrong" if figure[1] else "works",
        "difference": float(figure[2]),
        "message": "",
        "arrays_of_rounding": int(figure[3] or 0),
    }


def _totals(results: Mapping[str, Outcomes], num_programs: int) -> Iterator[str]:
    kinds = [Counter(_kinds(setting, results)) for setting in SETTINGS]
    yield f"Of {num_programs} programs {len(results)} were run:"
    yield ""
    yield "| | one stage | two stages | microbatches |"
    yield "|---|---:|---:|---:|"
    for kind in ("works", "refused", "wrong", "failed", "not run"):
        yield f"| {kind} | {' | '.join(str(counts[kind]) for counts in kinds)} |"


def _kinds(setting: str, results: Mapping[str, Outcomes]) -> Iterator[str]:
    for outcomes in results.values():
        yield from (each["kind"] for each in outcomes if each["setting"] == setting)


def _cell(setting: str, outcomes: Outcomes, notes: dict[str, int]) -> str:
    outcome = next((each for each in outcomes if each["setting"] == setting), None)
    if outcome is None:
        return ""
    if outcome["kind"] in ("works", "wrong"):
        word = "" if outcome["kind"] == "works" else "**wrong** "
        left_out = outcome.get("arrays_of_rounding", 0)
        return f"{word}{outcome['difference']:.0e}" + (f" †{left_out}" if left_out else "")
    number = notes.setdefault(_message(outcome["message"]), len(notes) + 1)
    return f"{outcome['kind']} ({number})"


def _message(text: str) -> str:
    """A message on one line; paths begin at the folder of the programs, or at a library."""
    line = " ".join(text.split())
    return re.sub(r"(?:/[\w.-]+)+?/(?:site-packages/|(?=benchmarks/))", "", line)
