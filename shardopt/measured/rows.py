"""Rows of a table of measured training steps: a CSV file with one row a configuration
(`docs/reference/measured-steps.md` lists the columns).

An empty cell means that the source does not state the value."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shardopt.support.documents import read_text
from shardopt.support.errors import UserError

# Cells of columns for figures that say why there is none.
_NO_FIGURE = frozenset(("", "OOM"))


@dataclass(frozen=True)
class Row:
    """One measured configuration; `None` and the empty text are what the source does not state.

    `mbs` are the examples of a microbatch on one replica, `gbs` those of a step. `intra_GBps` is
    one direction of one device's links, `inter_Gbps_per_host` all NICs of a host. `attention` names
    the library whose kernels compute attention; by default, what the framework of the `source` has
    (`shardopt.measured.frameworks`). `step_s`, `tflops_dev` and `mem_GiB` were measured."""

    id: str
    group: str
    arch: str
    hardware: str
    precision: str
    zero: str
    recompute: str
    schedule: str
    tflops_def: str
    note: str
    source: str
    attention: str
    devices: int | None
    devices_per_host: int | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    vocab: int | None
    seq: int | None
    experts: int | None
    dp: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    cp: int | None
    ep: int | None
    mbs: int | None
    gbs: int | None
    intra_GBps: float | None
    inter_Gbps_per_host: float | None
    params_B: float | None
    step_s: float | None
    tflops_dev: float | None
    mem_GiB: float | None


_REQUIRED = ("id", "arch", "hardware", "devices")
_READERS: Mapping[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}


def read_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a file, in order; columns that are missing count as empty. Raises UserError that
    names file, line and column."""
    table = csv.DictReader(io.StringIO(read_text(path, "table of measured steps")))
    missing = [name for name in _REQUIRED if name not in (table.fieldnames or ())]
    if missing:
        raise UserError(
            f"{path}: expected the columns {', '.join(_REQUIRED)} in the first line, found no "
            f"'{missing[0]}'"
        )
    return tuple(_row(cells, f"{path}:{table.line_num}") for cells in table)


def _row(cells: Mapping[str, str | None], place: str) -> Row:
    return Row(**dict(_values(cells, place)))


def _values(cells: Mapping[str, str | None], place: str) -> Iterator[tuple[str, Any]]:
    for field in fields(Row):
        text = (cells.get(field.name) or "").strip()
        kind = str(field.type).partition(" ")[0]
        if kind == "str":
            yield field.name, text
            continue
        try:
            yield field.name, None if text in _NO_FIGURE else _READERS[kind](text)
        except ValueError as error:
            expected = "a whole number" if kind == "int" else "a number"
            raise UserError(
                f"{place}: column '{field.name}': expected {expected} or nothing, found '{text}'"
            ) from error
