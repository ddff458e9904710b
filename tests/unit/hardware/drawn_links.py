"""Links between the devices of a host, drawn at random."""

from __future__ import annotations

from hypothesis import strategies as st

from shardopt.hardware.link_routes import Links


@st.composite
def some_links(draw: st.DrawFn, most: int) -> Links:
    """Up to two between any two of at most so many devices."""
    size = draw(st.integers(2, most))
    links = [[0] * size for _ in range(size)]
    for a in range(size):
        for b in range(a):
            links[a][b] = links[b][a] = draw(st.integers(0, 2))
    return tuple(map(tuple, links))
