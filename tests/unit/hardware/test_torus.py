"""What groups of chips have of the links of a torus: against flows over its links, and by hand."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import resources
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src import mesh_utils
from scipy.optimize import linprog

from shardopt.cost.collectives import ALL_GATHER, ALL_TO_ALL, PERMUTE, collective_seconds
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import DESCRIPTION, checked_cluster, describe, load_cluster
from shardopt.hardware.topology import group_placement
from shardopt.hardware.torus import Torus, box, lying, rates
from shardopt.mesh.mesh import Mesh
from shardopt.support.errors import UserError

Chip = tuple[int, ...]
Drawn = tuple[tuple[int, ...], tuple[bool, ...], tuple[int, ...], set[int]]
LINK = 45e9  # bytes/s of one link of a v5e, in one direction


@st.composite
def _meshes(draw: st.DrawFn) -> Drawn:
    """The shape of a small slice with its wraps, the axes of a mesh over it, and some of them."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 4, 8)), min_size=1, max_size=3)))
    wraps = tuple(size > 2 and draw(st.booleans()) for size in shape)
    left, axes = math.prod(shape), []
    while left > 1:
        axes.append(draw(st.sampled_from([k for k in (2, 4, 8, 16) if left % k == 0])))
        left //= axes[-1]
    chosen = draw(st.sets(st.integers(0, max(len(axes) - 1, 0))))
    return shape, wraps, tuple(axes), {at for at in chosen if at < len(axes)}


def _groups(shape: tuple[int, ...], axes: tuple[int, ...], chosen: set[int]) -> list[list[Chip]]:
    """The chips of each group, by what `lying` says of every axis."""
    parts = lying(axes, shape)
    groups: dict[tuple[int, ...], list[Chip]] = {}
    for place in product(*(product(*map(range, each)) for each in parts)):
        chip = []
        for dimension in range(len(shape)):
            at = 0
            for steps, each in zip(place, parts, strict=True):
                at = at * each[dimension] + steps[dimension]
            chip.append(at)
        others = tuple(steps for number, steps in enumerate(place) if number not in chosen)
        groups.setdefault(others, []).append(tuple(chip))
    return list(groups.values())


def _ways(
    source: Chip, target: Chip, shape: Sequence[int], wraps: Sequence[bool]
) -> Iterator[tuple[tuple[Chip, int, int], float]]:
    """Links (from, dimension, direction) of shortest ways, one dimension after another, with the
    share of the message on each: half each way where both are as short."""
    at = list(source)
    for dimension, size in enumerate(shape):
        ahead = target[dimension] - at[dimension]
        ways = {math.copysign(1, ahead): abs(ahead)} if ahead else {}
        if wraps[dimension] and ahead:
            both = {1.0: ahead % size, -1.0: -ahead % size}
            ways = {way: hops for way, hops in both.items() if hops == min(both.values())}
        for way, hops in ways.items():
            for hop in range(hops):
                chip = list(at)
                chip[dimension] = int(at[dimension] + way * hop) % size
                yield (tuple(chip), dimension, int(way)), 1 / len(ways)
        at[dimension] = target[dimension]


@given(_meshes())
def test_axes_lie_as_jax_puts_them(drawn: Drawn) -> None:
    shape, _, axes, _ = drawn
    if not axes:
        return
    physical = np.arange(math.prod(shape)).reshape(shape)
    _, steps = mesh_utils._create_device_mesh_for_nd_torus(
        physical, axes, allow_split_physical_axes=True
    )
    assert steps.T.tolist() == [list(parts) for parts in lying(axes, shape)]


@given(_meshes())
def test_exchanges_load_the_busiest_link_as_priced(drawn: Drawn) -> None:
    """Every pair of members sends one message at once, by shortest ways."""
    shape, wraps, axes, chosen = drawn
    groups = _groups(shape, axes, chosen)
    members = len(groups[0])
    if members < 2:
        return
    load = defaultdict[tuple[Chip, int, int], float](float)
    for group in groups:
        for source, target in product(group, group):
            for link, share in _ways(source, target, shape, wraps):
                load[link] += share
    flags = [at in chosen for at in range(len(axes))]
    found = rates(lying(axes, shape), flags, shape, wraps)
    assert (members - 1) / max(load.values()) == pytest.approx(found.exchange)


@given(
    st.lists(
        st.tuples(st.sampled_from((2, 3, 4, 8)), st.booleans(), st.sampled_from((1, 2, 4)))
    ).filter(lambda spans: 1 <= len(spans) <= 3)
)
def test_gathers_take_the_best_orders_of_dimensions(spans: list[tuple[int, bool, int]]) -> None:
    """Against the best share of a value for each order in which dimensions can be gathered, where
    `between` others lie between the members along a dimension: a linear program."""
    part = [count * between for count, _, between in spans]
    inner = tuple(between for _, _, between in spans)
    axes = (tuple(count for count, _, _ in spans), inner)
    links = [(2 if around else 1) / between for _, around, between in spans]
    orders = [*permutations(range(len(spans)))]
    load = np.zeros((len(spans), len(orders)))
    for number, order in enumerate(orders):
        held = 1
        for at in order:
            load[at, number] = held * (spans[at][0] - 1) / links[at]
            held *= spans[at][0]
    bound = np.hstack([load, -np.ones((len(spans), 1))])
    shares = [[*[1.0] * len(orders), 0.0]]
    goal = [*[0.0] * len(orders), 1.0]
    best = linprog(goal, bound, np.zeros(len(spans)), shares, [1.0])
    found = rates(axes, (True, False), part, [around for _, around, _ in spans])
    assert found.ring == pytest.approx((math.prod(axes[0]) - 1) / best.fun)


@given(_meshes())
def test_no_ring_is_faster_than_the_links_into_a_chip(drawn: Drawn) -> None:
    """All groups together take no more than the links of the chip that has fewest, and a group no
    more than all of its own."""
    shape, wraps, axes, chosen = drawn
    members = math.prod(axes[at] for at in chosen)
    if members < 2:
        return
    flags = [at in chosen for at in range(len(axes))]
    found = rates(lying(axes, shape), flags, shape, wraps)
    fewest = sum(
        (2 if around else 1) for size, around in zip(shape, wraps, strict=True) if size > 1
    )
    assert 0 < found.ring <= fewest
    assert found.steps <= members - 1
    assert found.shift <= 1


@pytest.mark.parametrize(
    ("preset", "chips", "shape", "wraps"),
    [
        ("tpu-v5e", 8, (2, 4), (False, False)),
        ("tpu-v5e", 128, (8, 16), (False, True)),
        ("tpu-v5e", 256, (16, 16), (True, True)),
        ("tpu-v4", 32, (2, 4, 4), (False, False, False)),
        ("tpu-v5p", 64, (4, 4, 4), (True, True, True)),
        ("tpu-v5p", 512, (8, 8, 8), (True, True, True)),
    ],
)
def test_presets_have_the_slices_that_their_makers_list(
    preset: str, chips: int, shape: tuple[int, ...], wraps: tuple[bool, ...]
) -> None:
    torus = load_cluster(preset).groups[0].torus
    assert torus is not None
    assert torus.shape(chips) == shape
    assert torus.wrapped(shape) == wraps


def test_axes_lie_on_whole_dimensions_where_they_can() -> None:
    assert lying((16, 16), (16, 16)) == ((1, 16), (16, 1))
    assert lying((4, 16), (4, 4, 4)) == ((1, 1, 4), (4, 4, 1))
    assert box((16, 16), 16) == (4, 4)
    assert Torus((4, 4), 4).shape(17) is None


def _seconds(
    spec: str, axes: tuple[tuple[str, int], ...], kind: str, over: tuple[str, ...]
) -> float:
    cluster = load_cluster(spec)
    mesh = Mesh("m", axes, tuple(range(cluster.num_devices)))
    return collective_seconds(cluster, mesh, kind, over, 1e12)


def test_an_axis_over_one_whole_ring_has_both_of_its_links() -> None:
    cluster = load_cluster("tpu-v5e:32x8")
    mesh = Mesh("m", (("x", 16), ("y", 16)), tuple(range(256)))
    for axis in ("x", "y"):
        place = group_placement(cluster, mesh, (axis,))
        assert place.link == cluster.groups[0].intra_host
        assert (place.steps, place.shift) == (15, LINK)


def test_a_gather_over_two_rings_has_the_links_of_both() -> None:
    """256 chips on four links each, 30 hops one after another."""
    seconds = _seconds("tpu-v5e:32x8", (("x", 256),), ALL_GATHER, ("x",))
    assert seconds == pytest.approx(1e12 * 255 / 256 / (4 * LINK) + 30e-6)


def test_an_exchange_is_bounded_by_the_bisection() -> None:
    """Of 16 x 16 chips, half send half of what they hold over 2 x 16 links; a line of 4 has one."""
    held = 1e12 / 256
    seconds = _seconds("tpu-v5e:32x8", (("x", 256),), ALL_TO_ALL, ("x",))
    assert seconds == pytest.approx(128 * held / 2 / (32 * LINK) + 30e-6)
    held = 1e12 / 16
    seconds = _seconds("tpu-v5e:2x8", (("x", 16),), ALL_TO_ALL, ("x",))
    assert seconds == pytest.approx(8 * held / 2 / (4 * LINK) + 6e-6)


def test_a_permute_to_the_next_has_one_link() -> None:
    seconds = _seconds("tpu-v5e:32x8", (("x", 256),), PERMUTE, ("x",))
    assert seconds == pytest.approx(1e12 / LINK + 1e-6)


def test_a_host_group_has_links_between_devices_or_a_torus() -> None:
    group = replace(load_cluster("tpu-v5e").groups[0], device_links=((0, 1), (1, 0)))
    with pytest.raises(UserError, match=r"cluster 'c': .*'device_links' and 'torus' of 'tpu-v5e'"):
        checked_cluster(Cluster("c", (group,)))


def test_wrong_fields_are_named(tmp_path: Path) -> None:
    preset = resources.files("shardopt.hardware") / "presets" / "tpu-v5e.yaml"
    text = preset.read_text(encoding="utf-8")
    file = tmp_path / "slice.yaml"
    file.write_text(text.replace("slice: [16, 16]", "slice: [16, 0]"))
    with pytest.raises(UserError, match=r"slice.yaml.*torus\.slice\[1\]"):
        load_cluster(str(file))


def test_a_description_of_a_torus_is_read_again() -> None:
    cluster = load_cluster("tpu-v5p:16x4")
    assert DESCRIPTION.read(json.loads(json.dumps(describe(cluster))), "", []) == cluster


def test_between_slices_the_network_is_what_counts() -> None:
    cluster = load_cluster("tpu-v5e:64x8")
    mesh = Mesh("m", (("x", 2), ("y", 256)), tuple(range(512)))
    assert group_placement(cluster, mesh, ("y",)).link.bandwidth_bytes_per_second == 4 * LINK
    assert group_placement(cluster, mesh, ("x",)).steps is None


def test_collectives_over_slices_pass_the_network() -> None:
    """Each of the eight chips of a v5e host is in a group of its own over two pods: they share its
    two NICs of 12.5 GB/s. Inside of a pod nothing changes."""
    cluster = load_cluster("tpu-v5e:64x8")
    mesh = Mesh("m", (("slice", 2), ("chip", 256)), tuple(range(512)))
    over, inside = (group_placement(cluster, mesh, (axis,)) for axis in ("slice", "chip"))
    assert over.link.bandwidth_bytes_per_second == 25e9 / 8
    assert inside.link.bandwidth_bytes_per_second > 100e9
    one = replace(cluster, groups=(replace(cluster.groups[0], between_slices=None),))
    assert group_placement(one, mesh, ("slice",)).link.bandwidth_bytes_per_second == 180e9 / 8


def test_a_network_between_slices_needs_slices(tmp_path: Path) -> None:
    text = Path("shardopt/hardware/presets/a100-80g.yaml").read_text()
    path = tmp_path / "cluster.yaml"
    path.write_text(
        text + "between_slices: {latency_seconds: 1e-5, bandwidth_bytes_per_second: 1e9}\n"
    )
    with pytest.raises(UserError, match="beside 'between_slices', got none"):
        load_cluster(str(path))
