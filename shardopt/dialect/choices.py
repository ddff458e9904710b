"""`shardopt.choices` on `@main`: which way of splitting it every operation of each mesh got, for
the plan file.

shardopt.choices = {m0 = {inputs = {arg0 = "[{x}, {}]", …}, ops = ["dot_general [{x}, {}], [{}, {}]
-> [{x}, {}]", …]}}

Operations and tensors are numbered as `shardopt.extract.mesh_graphs` reads them before the pass
changes the module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jaxlib.mlir import ir

from shardopt.dialect.attributes import from_values, to_values
from shardopt.planfile.parts import PlannedShardings

CHOICES = "shardopt.choices"


def write_choices(main: ir.Operation, choices: Mapping[str, PlannedShardings]) -> None:
    """`choices` by the name of the mesh."""
    values = {
        mesh: {name: value for name, value in asdict(planned).items() if value}
        for mesh, planned in choices.items()
    }
    main.attributes[CHOICES] = from_values(values)


def read_choices(main: ir.Operation) -> dict[str, Any]:
    """The values of a plan file's `shardings`, by the name of the mesh; none where the attribute is
    missing."""
    return to_values(main.attributes[CHOICES]) if CHOICES in main.attributes else {}


def drop_choices(main: ir.Operation) -> None:
    if CHOICES in main.attributes:
        del main.attributes[CHOICES]
