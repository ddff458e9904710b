"""Which layers recompute their forward together, and how much of it: what a mode of recomputation
means for the layers of a stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RecomputedUnits:
    """`of_layer[k]` is the unit of layer k, rising with k; layers that are missing keep what they
    make. `selective` units keep what is dear to compute, or small; others only what enters them."""

    of_layer: Mapping[int, int] = field(default_factory=dict)
    selective: frozenset[int] = frozenset()


def units_of_stage(mode: str, layers: Sequence[int]) -> RecomputedUnits:
    """Those of a stage of these layers in a mode (`shardopt.options.names.Recompute`)."""
    if mode == "none":
        return RecomputedUnits()
    if mode == "full":
        return RecomputedUnits(dict.fromkeys(layers, layers[0]))
    each = {layer: layer for layer in layers}
    return RecomputedUnits(each, frozenset(each) if mode == "selective" else frozenset())


def units_of_stages(stages: Iterable[tuple[str, Sequence[int]]]) -> RecomputedUnits:
    """Those of several stages, each with its mode and layers."""
    each = [units_of_stage(mode, layers) for mode, layers in stages]
    return RecomputedUnits(
        {layer: unit for units in each for layer, unit in units.of_layer.items()},
        frozenset(unit for units in each for unit in units.selective),
    )
