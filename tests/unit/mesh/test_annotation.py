"""Annotations of users: read from GSPMD's and Shardy's words, and what they allow on meshes that
are cut otherwise."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib import xla_client as xc
from jaxlib.mlir import ir

from shardopt.dialect.annotation import annotation_attr, read_annotation
from shardopt.dialect.sharding import to_mhlo, to_sdy
from shardopt.ir.context import make_context
from shardopt.mesh.annotation import Annotation
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.mesh.shardings import all_shardings, shardings_that
from shardopt.passes.importing.user_shardings import (
    UnsupportedError,
    from_gspmd,
    from_shardy,
    read_meshes,
    split_texts,
)
from tests.draws import draws

SHAPE = (8, 16)


def mesh_of(*sizes: int) -> Mesh:
    return Mesh("mesh", tuple(zip("xyz", sizes, strict=False)), tuple(range(prod(sizes))))


MESHES = [mesh_of(8), mesh_of(2, 4), mesh_of(4, 2), mesh_of(2, 2, 2)]


def boxes(sharding: Sharding, mesh: Mesh) -> list:
    return sharding.tiles(mesh, SHAPE).tolist()


@pytest.mark.parametrize("theirs", MESHES, ids=str)
@pytest.mark.parametrize("ours", MESHES, ids=str)
def test_what_is_allowed_puts_the_same_tiles_on_the_same_devices(theirs: Mesh, ours: Mesh) -> None:
    """Every sharding of one mesh, said in both languages, against all shardings of another by their
    tiles."""
    with make_context() as context:
        axes = ", ".join(f'"{name}"={size}' for name, size in theirs.axes)
        meshes = read_meshes(ir.Module.parse(f"sdy.mesh @mesh = <[{axes}]>", context))
        for stated in all_shardings(theirs, SHAPE):
            annotation = from_gspmd(to_mhlo(stated, theirs), len(SHAPE))
            shardy = from_shardy(
                ir.Attribute.parse(f"#sdy.sharding{to_sdy(stated, 'mesh')}"), meshes
            )
            for sharding in all_shardings(ours, SHAPE):
                same = boxes(stated, theirs) == boxes(sharding, ours)
                assert annotation.agrees(sharding, ours) == same, (
                    f"{annotation} and {sharding} on {ours}"
                )
                assert shardy.agrees(sharding, ours) == same, f"{shardy} and {sharding} on {ours}"


@st.composite
def tile_texts(draw: st.DrawFn) -> tuple[str, tuple[int, int]]:
    """`mhlo.sharding` of eight devices in any order and with replicas, and the tile counts."""
    tiles = draw(st.sampled_from([t for t in product((1, 2, 4, 8), repeat=3) if prod(t) == 8]))
    last = " last_tile_dim_replicate" if tiles[2] > 1 else ""
    counts = ",".join(map(str, tiles if last else tiles[:2]))
    if draw(st.booleans()):
        order = draw(st.permutations(range(8)))
        return f"{{devices=[{counts}]{','.join(map(str, order))}{last}}}", tiles[:2]
    source = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2)]))
    perm = list(draw(st.permutations(range(len(source)))))
    iota = f"<=[{','.join(map(str, source))}]"
    if len(source) > 1:
        iota += f"T({','.join(map(str, perm))})"
    return f"{{devices=[{counts}]{iota}{last}}}", tiles[:2]


@settings(max_examples=draws(200), deadline=None)
@given(tile_texts())
def test_tile_texts_mean_what_xla_says(case: tuple[str, tuple[int, int]]) -> None:
    text, tiles = case
    annotation = from_gspmd(text, 2)
    xla = xc.HloSharding.from_string(text)
    expected: dict[int, tuple[int, ...]] = dict.fromkeys(range(8), (0, 0))
    if not xla.is_replicated():
        assignment = np.array(xla.tile_assignment_devices()).reshape(
            xla.tile_assignment_dimensions()
        )
        expected = {int(device): place[:2] for place, device in np.ndenumerate(assignment)}
    order = annotation.devices or tuple(range(8))
    # the annotation as a sharding of a mesh of its own, whose devices stand in the order it names
    reordered = Mesh("own", annotation.axes, order)
    starts = Sharding(annotation.dims).tiles(reordered, SHAPE)[:, :, 0]
    steps = [extent // count for extent, count in zip(SHAPE, tiles, strict=True)]
    places = (
        tuple(start // step for start, step in zip(row, steps, strict=True)) for row in starts
    )
    assert dict(zip(order, places, strict=True)) == expected


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_open_dimensions_may_be_split_further(mesh: Mesh) -> None:
    """Half of the rows on devices 0 to 3, whatever else: every finer split of what is open, and
    nothing else."""
    half = Annotation((("a", 2), ("b", 4)), (("a",), ()), open=(0, 1))
    for sharding in all_shardings(mesh, SHAPE):
        rows = sharding.tiles(mesh, SHAPE)[:, 0]
        inside = all(
            (lo >= 4) == (device >= 4) and (hi > 4) == (device >= 4)
            for device, (lo, hi) in enumerate(rows)
        )
        assert half.agrees(sharding, mesh) == inside, str(sharding)
    closed = Annotation(half.axes, half.dims, open=(1,))
    assert {
        s.tile_counts(mesh)[0]
        for s in shardings_that(lambda s: closed.agrees(s, mesh), mesh, SHAPE)
    } <= {2}


def test_axes_that_stay_whole_split_no_open_dimension() -> None:
    mesh = mesh_of(2, 2, 2)
    annotation = Annotation((("a", 2), ("b", 4)), ((), ()), open=(0, 1), replicated=("b",))
    agreeing = shardings_that(lambda s: annotation.agrees(s, mesh), mesh, SHAPE)
    assert set(agreeing) == {Sharding(((), ())), Sharding((("x",), ())), Sharding(((), ("x",)))}


def test_orders_that_the_planner_never_chooses_are_found_where_nothing_else_agrees() -> None:
    mesh = mesh_of(2, 4)
    annotation = from_gspmd("{devices=[8,1]<=[2,4]T(1,0)}", 2)
    assert shardings_that(lambda s: annotation.agrees(s, mesh), mesh, SHAPE) == (
        Sharding((("y", "x"), ())),
    )


def test_misfits_say_why() -> None:
    mesh = mesh_of(2, 2)
    eight = Annotation((("a", 8),), (("a",), ()))
    assert eight.misfit(mesh, (8, 8)) == "it is over 8 devices, mesh mesh[x=2, y=2] has 4"
    assert eight.misfit(mesh_of(8), (4, 8)) == ""  # four devices get padding alone
    assert eight.misfit(mesh_of(8), (8,)) == "it has rank 2, the tensor 8 has rank 1"
    assert Annotation((("a", 8),), ((), ())).misfit(mesh, (3, 3)) == ""


def test_annotations_of_one_device_say_nothing() -> None:
    assert from_gspmd("{devices=[1,1]<=[1]}", 2).is_vacuous
    assert Annotation((("a", 1),), (("a",), ())).is_vacuous
    assert not from_gspmd("{replicated}", 2).is_vacuous
    assert from_gspmd("{replicated}", 2, "unspecified_dims=[0,1]").is_vacuous


@pytest.mark.parametrize(
    "text", ["{maximal device=1}", "{devices=[1,2]<=[2] last_tile_dims={unreduced}}"]
)
def test_what_has_no_form_of_ours(text: str) -> None:
    with pytest.raises(UnsupportedError):
        from_gspmd(text, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "{devices=[2]}",
        "{devices=[2]<=[4]}",
        "{devices=[2]0,0}",
        "{devices=[2,2]<=[2,2]T(0,0)}",
    ],
)
def test_broken_texts(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        from_gspmd(text, 2 if "2,2" in text else 1)


def test_tuples_of_texts() -> None:
    nested = "{{devices=[2,2]<=[4] last_tile_dims={replicated}}, {replicated}}"
    assert split_texts(nested) == [
        "{devices=[2,2]<=[4] last_tile_dims={replicated}}",
        "{replicated}",
    ]
    assert split_texts("{replicated}") == ["{replicated}"] and split_texts("{}") == []


@settings(max_examples=draws(100), deadline=None)
@given(st.data())
def test_attributes_round_trip(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), max_size=3))
    axes = tuple((f"a:({k}){size}", size) for k, size in enumerate(sizes))
    places = data.draw(st.lists(st.integers(-1, 2), min_size=len(axes), max_size=len(axes)))
    dims = tuple(
        tuple(name for (name, _), p in zip(axes, places, strict=True) if p == d) for d in range(2)
    )
    replicated = tuple(name for (name, _), p in zip(axes, places, strict=True) if p == 2)
    devices = data.draw(st.sampled_from([(), tuple(reversed(range(prod(sizes))))])) if axes else ()
    open_ = tuple(sorted(data.draw(st.sets(st.integers(0, 1)))))
    annotation = Annotation(axes, dims, open_, replicated, devices)
    with make_context(), ir.Location.unknown():
        assert read_annotation(ir.Attribute.parse(str(annotation_attr(annotation)))) == annotation


@pytest.mark.parametrize(
    "text",
    [
        "3 : i32",
        "{}",
        '{axes = ["x"], sizes = array<i64: 2>, dims = [["y"]]}',
        '{axes = ["x"], sizes = array<i64>, dims = [["x"]]}',
        '{axes = ["x"], sizes = array<i64: 2>, dims = [["x"]], other = 1}',
        '{axes = ["x"], sizes = array<i64: 2>, dims = [["x"]], devices = array<i64: 0, 0>}',
    ],
)
def test_other_attributes_are_refused(text: str) -> None:
    with make_context(), pytest.raises(ValueError, match=r"expected 'shardopt\.sharding' to be"):
        read_annotation(ir.Attribute.parse(text))
