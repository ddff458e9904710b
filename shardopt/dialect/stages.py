"""`shardopt.stages` on `@main`: which layers a stage runs, on which mesh, and what it is to
recompute and to keep on its hosts.

    func.func public @main(…) attributes {
      shardopt.stages = [{layers = array<i64: 0, 1>, mesh = "m0", recompute = "full"},
                         {layers = array<i64: 2, 2>, mesh = "m1", offload = "optimizer"}],
      topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>, … }

Stages stand in pipeline order; `layers` are the first and the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries

STAGES = "shardopt.stages"


@dataclass(frozen=True)
class PlacedStage:
    """Layers `first` to `last` on the mesh of this name. `recompute` is what its backward is still
    to recompute: nothing ("none"), what is cheap and large ("selective"), the forward of each
    "layer", or its "full" forward. `offload` is what is still to be laid into the memory of its
    hosts: nothing, or the state that only its update uses ("optimizer")."""

    first: int
    last: int
    mesh: str
    recompute: str = "none"
    offload: str = "none"


def write_stages(main: ir.Operation, stages: Sequence[PlacedStage]) -> None:
    main.attributes[STAGES] = ir.ArrayAttr.get([_attribute(stage) for stage in stages])


def read_stages(main: ir.Operation) -> tuple[PlacedStage, ...]:
    """The stages in pipeline order. Raises ValueError where there are none, or of another form."""
    if STAGES not in main.attributes:
        raise ValueError(
            f"expected attribute '{STAGES}' on '@main' (run shardopt-choose-stages "
            "first), found none"
        )
    try:
        return tuple(_stage(ir.DictAttr(row)) for row in ir.ArrayAttr(main.attributes[STAGES]))
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"expected '{STAGES}' to list stages with layers and a mesh, found "
            f"{main.attributes[STAGES]}"
        ) from error


def stage_of_layers(stages: Sequence[PlacedStage]) -> dict[int, int]:
    """layer -> number of its stage."""
    return {
        layer: number
        for number, stage in enumerate(stages)
        for layer in range(stage.first, stage.last + 1)
    }


def _attribute(stage: PlacedStage) -> ir.DictAttr:
    fields: dict[str, ir.Attribute] = {
        "layers": ir.DenseI64ArrayAttr.get([stage.first, stage.last]),
        "mesh": ir.StringAttr.get(stage.mesh),
    }
    if stage.recompute != "none":
        fields["recompute"] = ir.StringAttr.get(stage.recompute)
    if stage.offload != "none":
        fields["offload"] = ir.StringAttr.get(stage.offload)
    return ir.DictAttr.get(fields)


def _stage(row: ir.DictAttr) -> PlacedStage:
    fields = entries(row)
    first, last = ir.DenseI64ArrayAttr(fields["layers"])
    recompute, offload = (
        ir.StringAttr(fields[name]).value if name in fields else "none"
        for name in ("recompute", "offload")
    )
    return PlacedStage(first, last, ir.StringAttr(fields["mesh"]).value, recompute, offload)
