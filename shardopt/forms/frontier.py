"""`shardopt.frontier` on the `@main` of a module without stages: least time at every memory budget.

shardopt.frontier = {complete = true, least_bound_bytes = 640 : i64, searches = 7 : i64, points =
[{peak_bytes = 640 : i64, seconds = 5.2e-06 : f64, bound_seconds = 5.2e-06 : f64, recomputed = 0 :
i64, fastest_to_bytes = 767 : i64}, …]}
"""

from __future__ import annotations

from dataclasses import asdict

from jaxlib.mlir import ir

from shardopt.cost.frontier import Frontier, FrontierPoint
from shardopt.dialect.attributes import from_values, to_values

FRONTIER = "shardopt.frontier"


def write_frontier(main: ir.Operation, frontier: Frontier) -> None:
    points = [
        {name: value for name, value in asdict(point).items() if value is not None}
        for point in frontier.points
    ]
    main.attributes[FRONTIER] = from_values({**vars(frontier), "points": points})


def read_frontier(main: ir.Operation) -> Frontier | None:
    """None where none was asked for. Raises ValueError when the attribute is broken."""
    if FRONTIER not in main.attributes:
        return None
    try:
        values = to_values(main.attributes[FRONTIER])
        points = tuple(
            FrontierPoint(**{"fastest_to_bytes": None, **point}) for point in values["points"]
        )
        return Frontier(**{**values, "points": points})
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"expected '{FRONTIER}' with points of bytes and seconds, found "
            f"{main.attributes[FRONTIER]}"
        ) from error
