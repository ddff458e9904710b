"""How two plan files differ, as rows for people: options, cluster, layers, stages, shardings,
predicted figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from shardopt.planfile.parts import Runs, layers_in
from shardopt.report.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from rich.table import Table

# Lists of this many items are told by their number and what differs.
_MAX_SHOWN = 60
_MOST_OPERATIONS = 10_000_000
_NOT_COMPARED = ("made_by",)


@dataclass(frozen=True)
class PlanDifference:
    """A field in two files; "–" stands for none."""

    path: str
    first: str
    second: str


def differences(first: Any, second: Any) -> tuple[PlanDifference, ...]:
    """Of the values of two plan files, in the order of the first."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return (
            () if first == second else (PlanDifference("", _shown("", first), _shown("", second)),)
        )
    drop = dict.fromkeys(_NOT_COMPARED)
    return tuple(_of_fields({**first, **drop}, {**second, **drop}, ""))


def _of_fields(
    first: Mapping[str, Any], second: Mapping[str, Any], prefix: str
) -> Iterator[PlanDifference]:
    for name in dict.fromkeys((*first, *second)):
        a, b, path = first.get(name), second.get(name), f"{prefix}{name}"
        if a == b:
            continue
        if name == "layers" and isinstance(a, dict) and isinstance(b, dict):
            yield from _of_layers(a, b)
        elif isinstance(a, dict) and isinstance(b, dict):
            yield from _of_fields(a, b, f"{path}.")
        elif a and b and _are_lists(a, b, dict):
            yield from _of_records(list(a), list(b), path)
        elif a and b and _are_lists(a, b, str):
            yield _of_texts(list(a), list(b), path)
        else:
            yield PlanDifference(path, _shown(name, a), _shown(name, b))


def _are_lists(a: Any, b: Any, item: type) -> bool:
    """Whether both are lists of such items."""
    return all(
        isinstance(value, list) and all(isinstance(one, item) for one in value) for value in (a, b)
    )


def _of_records(a: list[Any], b: list[Any], path: str) -> Iterator[PlanDifference]:
    for k in range(max(len(a), len(b))):
        if k < len(a) and k < len(b):
            yield from _of_fields(a[k], b[k], f"{path}[{k}].")
        else:
            missing = "–", _summary((a if k < len(a) else b)[k])
            yield PlanDifference(f"{path}[{k}]", *(missing if k >= len(a) else missing[::-1]))


def _of_texts(a: list[str], b: list[str], path: str) -> PlanDifference:
    """Rows of operations: how many there are, and the first that differs."""
    pairs = [k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    changed = len(pairs) + abs(len(a) - len(b))
    at = pairs[0] if pairs else min(len(a), len(b))
    of = f"{changed} of {max(len(a), len(b))} differ; [{at}] "
    return PlanDifference(path, of + (a[at] if at < len(a) else "–"), b[at] if at < len(b) else "–")


def _of_layers(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[PlanDifference]:
    for name in dict.fromkeys((*a, *b)):
        x, y = a.get(name), b.get(name)
        if x == y:
            continue
        if not (_are_runs(x) and _are_runs(y)):
            yield PlanDifference(f"layers.{name}", _shown(name, x), _shown(name, y))
            continue
        layers = layers_in(x), layers_in(y)
        moved = sum(p != q for p, q in zip(*layers, strict=False)) + abs(
            len(layers[0]) - len(layers[1])
        )
        yield PlanDifference(
            f"layers.{name}",
            f"{len(layers[0])} in runs",
            f"{len(layers[1])}, {moved} in other layers",
        )


def _are_runs(value: Any) -> TypeGuard[Runs]:
    """Whether these are `[layer, count]` of operations that a model may have."""
    pairs = isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 for pair in value
    )
    numbers = pairs and all(type(number) is int for pair in value for number in pair)
    return bool(numbers) and sum(count for _, count in value) < _MOST_OPERATIONS


def _summary(stage: Mapping[str, Any]) -> str:
    named = (
        f"{name} {stage[name]}"
        for name in ("layers", "submesh", "logical_shape")
        if stage.get(name) is not None
    )
    return ", ".join(named) or "a stage"


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_seconds"):
            return seconds_text(value)
        if name.endswith("_bytes"):
            return bytes_text(int(value))
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def diff_table(rows: tuple[PlanDifference, ...], first: str, second: str) -> Table:
    """For a terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("field", title=f"{len(rows)} differences")
    table.add_column(escape(first), overflow="fold")
    table.add_column(escape(second), overflow="fold")
    for row in rows:
        table.add_row(*(escape(text) for text in (row.path, row.first, row.second)))
    return table
