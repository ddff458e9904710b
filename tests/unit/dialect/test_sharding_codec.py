"""`mhlo.sharding` text against XLA's own reading of it, and Shardy's text there and back."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib import xla_client as xc
from jaxlib.mlir import ir

from shardopt.dialect.mpmd import mesh_tensor_type, parse_mesh_tensor
from shardopt.dialect.sharding import (
    from_mhlo,
    from_sdy,
    split_tuple,
    to_mhlo,
    to_sdy,
    tuple_to_mhlo,
)
from shardopt.ir.context import make_context
from shardopt.mesh.mesh import Mesh, Sharding
from tests.draws import draws

MESH = Mesh("m", (("x", 2), ("y", 2)), (0, 1, 2, 3))


@st.composite
def meshes_and_shardings(draw: st.DrawFn) -> tuple[Mesh, Sharding]:
    """Up to four axes of size 1 to 4, each on a dimension of a tensor of rank 0 to 3, on an open
    sum, or on none."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axes = tuple((f"a{k}", size) for k, size in enumerate(sizes))
    rank = draw(st.integers(0, 3))
    dims: list[list[str]] = [[] for _ in range(rank + 1)]
    for name in draw(st.permutations([name for name, _ in axes])):
        place = draw(st.integers(0, rank + 1))
        if place <= rank:
            dims[place].append(name)
    *split, unreduced = map(tuple, dims)
    sharding = Sharding(tuple(split), tuple(sorted(unreduced)))
    return Mesh("mesh", axes, tuple(range(prod(sizes)))), sharding


def xla_tiles(
    text: str, shape: tuple[int, ...], num_devices: int
) -> list[tuple[tuple[int, int], ...]]:
    """The box of each logical device, computed from XLA's tile assignment."""
    sharding = xc.HloSharding.from_string(text)
    if sharding.is_replicated() or sharding.is_unreduced():
        return [tuple((0, extent) for extent in shape)] * num_devices
    assignment = np.array(sharding.tile_assignment_devices()).reshape(
        sharding.tile_assignment_dimensions()
    )
    boxes: dict[int, tuple[tuple[int, int], ...]] = {}
    for place, device in np.ndenumerate(assignment):
        steps = [extent // tiles for extent, tiles in zip(shape, assignment.shape, strict=False)]
        boxes[int(device)] = tuple(
            (k * step, (k + 1) * step) for k, step in zip(place, steps, strict=False)
        )
    behind = (
        [xc.OpSharding.Type.REPLICATED]
        if sharding.replicate_on_last_tile_dim()
        else sharding.subgroup_types()
    )
    assert len(behind) == assignment.ndim - len(shape)
    return [boxes[device] for device in range(num_devices)]


@settings(max_examples=draws(300), deadline=None)
@given(meshes_and_shardings())
def test_to_mhlo_says_what_the_axis_form_says(case: tuple[Mesh, Sharding]) -> None:
    mesh, sharding = case
    shape = tuple(2 * tiles for tiles in sharding.tile_counts(mesh))
    expected = [tuple(map(tuple, box)) for box in sharding.tiles(mesh, shape).tolist()]
    assert xla_tiles(to_mhlo(sharding, mesh), shape, mesh.size) == expected


@settings(max_examples=draws(100), deadline=None)
@given(meshes_and_shardings())
def test_to_mhlo_is_what_xla_prints(case: tuple[Mesh, Sharding]) -> None:
    """The text is canonical, so that shardings can be compared as text."""
    mesh, sharding = case
    text = to_mhlo(sharding, mesh)
    assert str(xc.HloSharding.from_string(text)) == text


@given(meshes_and_shardings())
def test_sdy_round_trip(case: tuple[Mesh, Sharding]) -> None:
    mesh, sharding = case
    assert from_sdy(to_sdy(sharding, mesh.name)) == (mesh.name, sharding)


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        (((), ()), "{replicated}"),
        ((("x",), ()), "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"),
        (((), ("y",)), "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"),
        ((("x",), ("y",)), "{devices=[2,2]<=[4]}"),
        ((("y",), ("x",)), "{devices=[2,2]<=[2,2]T(1,0)}"),
        ((("x", "y"), ()), "{devices=[4,1]<=[4]}"),
        ((("y", "x"), ()), "{devices=[4,1]<=[2,2]T(1,0)}"),
    ],
)
def test_to_mhlo(dims: tuple[tuple[str, ...], ...], text: str) -> None:
    assert to_mhlo(Sharding(dims), MESH) == text


def terms(text: str) -> set[frozenset[int]]:
    """The groups of devices that hold the terms of one sum, in XLA's reading."""
    sharding = xc.HloSharding.from_string(text)
    devices = np.arange(MESH.size)
    if sharding.is_unreduced():
        return {frozenset(devices.tolist())}
    assignment = np.array(sharding.tile_assignment_devices()).reshape(
        sharding.tile_assignment_dimensions()
    )
    where = (
        assignment.ndim
        - len(sharding.subgroup_types())
        + sharding.subgroup_types().index(xc.OpSharding.Type.UNREDUCED)
    )
    return {
        frozenset(row)
        for row in np.moveaxis(assignment, where, -1).reshape(-1, assignment.shape[where]).tolist()
    }


@pytest.mark.parametrize(
    ("dims", "unreduced", "text"),
    [
        (((), ()), ("x", "y"), "{unreduced}"),
        (
            ((), ()),
            ("y",),
            "{devices=[1,1,2,2]<=[2,2]T(1,0) last_tile_dims={unreduced, replicated}}",
        ),
        ((("y",), ()), ("x",), "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dims={unreduced}}"),
        ((), ("x",), "{devices=[2,2]<=[4] last_tile_dims={unreduced, replicated}}"),
    ],
)
def test_unreduced(
    dims: tuple[tuple[str, ...], ...], unreduced: tuple[str, ...], text: str
) -> None:
    sharding = Sharding(dims, unreduced)
    assert to_mhlo(sharding, MESH) == text
    assert from_mhlo(text, len(dims), MESH) == sharding
    along = {("x", "y"): [[0, 1, 2, 3]], ("x",): [[0, 2], [1, 3]], ("y",): [[0, 1], [2, 3]]}[
        unreduced
    ]
    assert terms(text) == set(map(frozenset, along))


def test_a_tuple_with_unreduced_parts_splits_into_its_parts() -> None:
    shardings = [
        Sharding(((), ())),
        Sharding(((), ()), ("y",)),
        Sharding(((),), ("x", "y")),
        Sharding((("x",),)),
    ]
    assert split_tuple(tuple_to_mhlo(shardings, MESH)) == tuple(
        to_mhlo(sharding, MESH) for sharding in shardings
    )
    assert split_tuple(to_mhlo(shardings[1], MESH)) == (to_mhlo(shardings[1], MESH),)


def test_axes_of_size_one_split_nothing() -> None:
    mesh = Mesh("m", (("x", 1), ("y", 4)), (0, 1, 2, 3))
    assert to_mhlo(Sharding((("x",), ())), mesh) == "{replicated}"
    assert to_mhlo(Sharding((("x", "y"), ())), mesh) == "{devices=[4,1]<=[4]}"


def test_tuple_only_for_several_results() -> None:
    row, whole = Sharding((("x",), ())), Sharding.replicated(1)
    assert tuple_to_mhlo([whole], MESH) == "{replicated}"
    assert (
        tuple_to_mhlo([row, whole], MESH)
        == "{{devices=[2,1,2]<=[4] last_tile_dim_replicate}, {replicated}}"
    )


@pytest.mark.parametrize("text", ['<@m, [{"x", ?}, {}]>', '<@m, [{"x":(1)2}]>'])
def test_open_dimensions_and_sub_axes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="open dimensions and sub-axes are not supported"):
        from_sdy(text)


def test_text_that_is_no_sharding() -> None:
    with pytest.raises(ValueError, match="expected a sharding of the form"):
        from_sdy("{replicated}")


@pytest.mark.parametrize("dims", [None, ((), ()), (("x",), ("y",)), ((), ("y", "x"))])
@pytest.mark.parametrize("element", ["f32", "ui32", "complex<f32>"])
def test_mesh_tensor_type_round_trip(
    dims: tuple[tuple[str, ...], ...] | None, element: str
) -> None:
    sharding = None if dims is None else Sharding(dims, ("z",) if dims[0] else ())
    with make_context():
        tensor = ir.Type.parse(f"tensor<4x8x{element}>")
        parsed = parse_mesh_tensor(mesh_tensor_type("m0", tensor, sharding))
        assert (parsed.mesh, parsed.tensor, parsed.sharding) == ("m0", tensor, sharding)
        with pytest.raises(ValueError, match=r"expected an !mpmd.mesh_tensor type, found tensor"):
            parse_mesh_tensor(tensor)


def test_names_in_any_script_are_read_as_they_are_printed() -> None:
    with make_context():
        type_ = ir.Type.parse(
            '!mpmd.mesh_tensor<"網", tensor<4xf32>, sharding=<@"網", [{"軸"}], unreduced={"ось"}>>'
        )
        parsed = parse_mesh_tensor(type_)
        sharding = Sharding((("軸",),), ("ось",))
        assert (parsed.mesh, parsed.sharding) == ("網", sharding)
        assert from_sdy(to_sdy(sharding, "網")) == ("網", sharding)
