"""Codecs of one sharding: axis form <-> `mhlo.sharding` text, and axis form <-> Shardy's text
inside types.

The axis form (`shardopt.mesh.mesh.Sharding`) is the only form that is computed with; these
functions print and read it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

from shardopt.mesh.mesh import Mesh, Sharding

_REPLICATED = "{replicated}"
_TILED = re.compile(
    r"\{devices=\[(?P<tiles>[\d,]+)\]<=\[(?P<source>[\d,]+)\](?:T\((?P<perm>[\d,]+)\))?"
    r"(?P<last> last_tile_dim_replicate| last_tile_dims=\{unreduced(?:, replicated)?\})?\}"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]*")
_ESCAPED = re.compile(rb"\\([0-9A-Fa-f]{2})")
_SDY_DIM = re.compile(r"\{([^{}]*)\}")
_SDY_SHARDING = re.compile(
    r"<@(?P<mesh>[\w.$-]+|\"[^\"]+\"),\s*\[(?P<dims>.*)\](?:,\s*replicated=\{[^{}]*\})?(?:,\s*unreduced=\{(?P<unreduced>[^{}]*)\})?>"
)
# The attribute of operations, arguments and results that holds a sharding in GSPMD's form.
MHLO_SHARDING = "mhlo.sharding"
_UNREDUCED = "{unreduced}"
_ONE_SHARDING = re.compile(r"\{[^{}]*(?:last_tile_dims=\{[^{}]*\})?\}")


@lru_cache(maxsize=65536)
def to_mhlo(sharding: Sharding, mesh: Mesh) -> str:
    """The V2 `mhlo.sharding` string, over logical device ids 0..n-1 in row-major order of the mesh
    axes.

    `[{"x"}, {}]` on `x=2, y=2` prints `{devices=[2,1,2]<=[4] last_tile_dim_replicate}`. Axes of
    size one are dropped: they split nothing. Example of a transposed assignment:
    `{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}`. Unreduced axes stand in a dimension of
    their own: `[{"x"}, {}], unreduced={"y"}` on `x=2, y=2, z=2` prints `{devices=[2,1,2,2]<=[8]
    last_tile_dims={unreduced, replicated}}`. GSPMD reads that and drops the sum."""
    live = [axis for axis, size in mesh.axes if size > 1]
    used = [axis for axis in sharding.axes if axis in live]
    unreduced = [axis for axis in sharding.unreduced if axis in live]
    rest = [axis for axis in live if axis not in (*used, *unreduced)]
    if not used and not unreduced:
        return _REPLICATED
    if not used and not rest:
        return _UNREDUCED
    order = [live.index(axis) for axis in (*used, *unreduced, *rest)]
    tiles = [*sharding.tile_counts(mesh)]
    tiles += [prod(mesh.axis_size(axis) for axis in axes) for axes in (unreduced, rest) if axes]
    source, perm = _merge_runs([mesh.axis_size(axis) for axis in live], order)
    iota = f"<=[{','.join(map(str, source))}]"
    if perm != sorted(perm):
        iota += f"T({','.join(map(str, perm))})"
    return f"{{devices=[{','.join(map(str, tiles))}]{iota}{_tail(unreduced, rest)}}}"


def _tail(unreduced: list[str], rest: list[str]) -> str:
    """What the dimensions behind those of the tensor mean."""
    if not unreduced:
        return " last_tile_dim_replicate" if rest else ""
    return f" last_tile_dims={{unreduced{', replicated' if rest else ''}}}"


def _merge_runs(sizes: list[int], order: list[int]) -> tuple[list[int], list[int]]:
    """Collapse axes that stay neighbours under the transposition: the canonical iota form XLA
    prints."""
    runs: list[list[int]] = []
    for axis in order:
        if runs and runs[-1][-1] + 1 == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    by_source = sorted(runs)
    return [prod(sizes[axis] for axis in run) for run in by_source], [
        by_source.index(run) for run in runs
    ]


@lru_cache(maxsize=65536)
def from_mhlo(text: str, rank: int, mesh: Mesh) -> Sharding:
    """The inverse of `to_mhlo` on one mesh. Raises ValueError for any other text.

    Axes are taken in order until the tile count of a dimension is reached, as `to_mhlo` merged
    them."""
    live = [axis for axis in mesh.axes if axis[1] > 1]
    if text in (_REPLICATED, _UNREDUCED):
        return Sharding(((),) * rank, tuple(name for name, _ in live) if text == _UNREDUCED else ())
    match = _TILED.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a sharding over the axes of mesh {mesh}, found '{text}'")
    tiles, source = _numbers(match["tiles"]), _numbers(match["source"])
    runs = list(_grouped(live, source, text))
    perm = _numbers(match["perm"]) if match["perm"] else range(len(runs))
    order = [axis for run in perm for axis in runs[run]]
    groups = [tuple(name for name, _ in group) for group in _grouped(order, tiles, text)]
    last = match["last"] or ""
    if len(tiles) != rank + bool(last) + ("replicated}" in last):
        raise ValueError(f"expected tiles of a tensor of rank {rank}, found '{text}'")
    unreduced = groups[rank] if "unreduced" in last else ()
    return Sharding(
        tuple(groups[:rank]), tuple(axis for axis in mesh.axis_names if axis in unreduced)
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _grouped(
    axes: Sequence[tuple[str, int]], extents: Sequence[int], text: str
) -> Iterator[tuple[tuple[str, int], ...]]:
    """Consecutive axes whose sizes multiply to each extent."""
    rest = list(axes)
    for extent in extents:
        group: list[tuple[str, int]] = []
        while prod(size for _, size in group) < extent and rest:
            group.append(rest.pop(0))
        if prod(size for _, size in group) != extent:
            raise ValueError(f"expected tiles of whole mesh axes {axes}, found '{text}'")
        yield tuple(group)


def tuple_to_mhlo(shardings: list[Sharding], mesh: Mesh) -> str:
    """The attribute of an operation: the string itself for one result, a tuple string for
    several."""
    texts = [to_mhlo(sharding, mesh) for sharding in shardings]
    return texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"


@lru_cache(maxsize=4096)  # few shardings stand on many values
def split_tuple(text: str) -> tuple[str, ...]:
    """`{{replicated}, {devices=[2]<=[2]}}` -> its parts; a plain sharding is its own only part."""
    return tuple(_ONE_SHARDING.findall(text))


def unescaped(name: str) -> str:
    """A name as MLIR prints it, which writes bytes that are not ASCII as `\\E3`."""
    if "\\" not in name:
        return name
    raw = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), name.encode())
    return raw.decode("utf-8", "replace")


def to_sdy(sharding: Sharding, mesh_name: str) -> str:
    """Shardy's text, as it stands in `!mpmd.mesh_tensor<…, sharding=…>`: `<@m0, [{"x"}, {}],
    unreduced={"y"}>`."""
    symbol = mesh_name if _PLAIN_NAME.fullmatch(mesh_name) else f'"{mesh_name}"'
    return f"<@{symbol}, {sharding}>"


@lru_cache(maxsize=4096)  # few shardings stand on many values
def from_sdy(text: str, *, final: bool = False) -> tuple[str, Sharding]:
    """Read `<@m0, [{"x"}, {}], unreduced={"y"}>` into (mesh name, sharding).

    Raises ValueError on sub-axes, and on open dimensions (`{"x", ?}`) unless the sharding is
    `final`: after propagation they are as they stand."""
    match = _SDY_SHARDING.search(text)
    if match is None:
        raise ValueError(
            f"expected a sharding of the form <@mesh, [{{\"axis\"}}, …]>, found '{text}'"
        )
    dims = tuple(
        _axes(body.replace("?", "") if final else body, text)
        for body in _SDY_DIM.findall(match["dims"])
    )
    name = unescaped(match["mesh"].strip('"'))
    return name, Sharding(dims, _axes(match["unreduced"] or "", text))


def _axes(body: str, text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in body.split(",") if part.strip()]
    if any(not re.fullmatch(r'"[^"]+"', part) for part in parts):
        raise ValueError(
            f"sharding '{text}': open dimensions and sub-axes are not supported, found '{{{body}}}'"
        )
    return tuple(unescaped(part.strip('"')) for part in parts)
