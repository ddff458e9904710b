"""Which operations of a stage run in its backward pass.

Those that depend on layers behind the stage; and those that only they read, as long as all that
these read is kept for the backward anyway: then there is less to keep.

    forward  %h = tanh %z            kept: %h          forward  %h = tanh %z         kept: %h
             %s = subtract 1, %h     kept: %s    ─▶
    backward %d = multiply %g, %s                      backward %s = subtract 1, %h
             %e = multiply %d, %h                               %d = multiply %g, %s"""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.graph.layered_body import OUTSIDE, LayeredBody


def backward_rows(
    body: LayeredBody,
    start: int,
    end: int,
    turn: int | None = None,
    reached: Sequence[int] | None = None,
) -> set[int]:
    """The rows of layers [start, end) that a stage of these layers runs in its backward pass: what
    depends on layers from `turn` on, by default from `end`. `reached` says it for each row, by
    default `body.reached`."""
    turn = end if turn is None else turn
    reached = body.reached if reached is None else reached
    rows = body.rows_of(range(start, end))
    backward = {row for row in rows if reached[row] >= turn}
    if backward:
        _postpone(body, rows, backward)
    return backward


def _postpone(body: LayeredBody, rows: list[int], backward: set[int]) -> None:
    """Add to `backward` what only it reads and can be computed from what is kept for it."""
    kept = {value for row in backward for value in body.reads[row]}
    # From the last row on: one that is postponed may let those postpone that it reads.
    for row in reversed(rows):
        readers = {reader for value in body.makes[row] for reader in body.readers.get(value, ())}
        # What nobody reads is no work for the backward, and what the forward reads cannot wait for
        # it.
        if row in backward or not readers or not readers <= backward:
            continue
        if body.returned.intersection(body.makes[row]):
            continue  # who adds up or sends a result of the loop does not wait for the backward
        needed = {value for value in body.reads[row] if not body.is_shared(value)}
        if all(value in kept or body.maker(value) == OUTSIDE for value in needed):
            backward.add(row)
            kept |= needed
