"""Which layers recompute their forward together, and how much of it: what a mode of recomputation
means for the layers of a stage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from shardopt.support.errors import UserError

MODES = ("none", "selective", "layer", "full")
MODE_TEXT = "none, selective, layer, full, selective:K or layer:K (the first K layers)"
MODE_PATTERN = "none|full|(selective|layer)(:[1-9][0-9]*)?"


@dataclass(frozen=True)
class RecomputedUnits:
    """`of_layer[k]` is the unit of layer k, rising with k; layers that are missing keep what they
    make. `selective` units keep what is dear to compute, or small; others only what enters them."""

    of_layer: Mapping[int, int] = field(default_factory=dict)
    selective: frozenset[int] = frozenset()


def is_mode(text: str) -> bool:
    return re.fullmatch(MODE_PATTERN, text) is not None


def check_mode(text: str) -> None:
    """Raises UserError where an option is neither a mode nor `auto`."""
    if text != "auto" and not is_mode(text):
        raise UserError(f"expected option recompute to be auto, {MODE_TEXT}, found '{text}'")


def split_mode(mode: str) -> tuple[str, int | None]:
    """A mode of a stage as what its layers do, and how many of them, from the first: None for
    all."""
    kind, _, count = mode.partition(":")
    return kind, int(count) if count else None


def searched_modes(num_layers: int) -> tuple[str, ...]:
    """Those among which a stage of a model of so many layers chooses: of the first K layers, K is
    a power of two. So a stage computes at most twice as many again as it has to."""
    counts = takewhile(lambda count: count < num_layers, (2**k for k in range(num_layers)))
    return (*MODES, *(f"{kind}:{k}" for k in counts for kind in ("selective", "layer")))


def units_of_stage(mode: str, layers: Sequence[int]) -> RecomputedUnits:
    """Those of a stage of these layers in a mode."""
    kind, count = split_mode(mode)
    if kind == "none":
        return RecomputedUnits()
    if kind == "full":
        return RecomputedUnits(dict.fromkeys(layers, layers[0]))
    each = {layer: layer for layer in layers[:count]}
    return RecomputedUnits(each, frozenset(each) if kind == "selective" else frozenset())


def units_of_stages(stages: Iterable[tuple[str, Sequence[int]]]) -> RecomputedUnits:
    """Those of several stages, each with its mode and layers."""
    each = [units_of_stage(mode, layers) for mode, layers in stages]
    return RecomputedUnits(
        {layer: unit for units in each for layer, unit in units.of_layer.items()},
        frozenset(unit for units in each for unit in units.selective),
    )
