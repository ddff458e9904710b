"""Cluster files, submeshes, and what the placement of a mesh means for its links."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.cost.cluster import (
    Cluster,
    Device,
    Link,
    Submesh,
    axis_link,
    group_placement,
    load_cluster,
    logical_shapes,
    place,
    presets,
    submeshes,
)
from shardopt.cost.errors import UserError
from shardopt.cost.mesh import Mesh

GOOD = asdict(load_cluster("cpu-test"))
del GOOD["device"]["profile"]  # a file of its own


def cluster(hosts: int, devices_per_host: int) -> Cluster:
    device = Device("d", {"f32": 1e12}, 2**30, 1e11)
    return Cluster("c", hosts, devices_per_host, device, Link(1e-6, 100.0), Link(1e-5, 16.0), 0.0)


def mesh(*shape: int, devices: tuple[int, ...] | None = None) -> Mesh:
    ids = devices or tuple(range(int.__mul__(*shape) if len(shape) == 2 else shape[0]))
    return Mesh("m", tuple(zip("xyz", shape, strict=False)), ids)


def write(folder: Path, data: object, name: str = "cluster.yaml") -> str:
    path = folder / name
    path.write_text(json.dumps(data) if name.endswith("json") else yaml.safe_dump(data))
    return str(path)


# ---- descriptions ----


def test_every_preset_loads_under_its_own_name() -> None:
    assert presets() == ("a100-80g", "cpu-test", "h100-sxm", "p3.16xlarge", "tpu-v5e")
    for name in presets():
        loaded = load_cluster(name)
        assert loaded.name == name
        assert loaded.intra_host.bandwidth_bytes_per_second * loaded.devices_per_host > 0


def test_shape_override() -> None:
    loaded = load_cluster("p3.16xlarge:4x8")
    assert (loaded.hosts, loaded.devices_per_host, loaded.num_devices) == (4, 8, 32)
    assert loaded.host_of(17) == 2
    assert loaded == replace(load_cluster("p3.16xlarge"), hosts=4)
    assert hash(loaded) == hash(load_cluster("p3.16xlarge:4x8"))


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster.json"])
def test_files_round_trip(tmp_path: Path, name: str) -> None:
    assert load_cluster(write(tmp_path, GOOD, name)) == load_cluster("cpu-test")
    assert load_cluster(write(tmp_path, GOOD, name) + ":2x3").num_devices == 6


def change(path: str, value: object) -> dict:
    """GOOD with one field set, or removed for `...`."""
    data = json.loads(json.dumps(GOOD))
    *parents, last = path.split(".")
    inner = data
    for key in parents:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("device.memory_bytes", ..., "missing field 'device.memory_bytes'"),
        ("intra_host.latency_seconds", ..., "missing field 'intra_host.latency_seconds'"),
        ("device.peak_flops.f32", ..., "missing field 'device.peak_flops.f32'"),
        ("devices", 4, "unknown field 'devices'; did you mean 'device'?"),
        ("device.peak_flops.fp16", 1.0, "unknown field 'device.peak_flops.fp16'; did you mean 'f16'?"),
        ("hosts", 0, "field 'hosts': expected a positive number, got 0"),
        ("hosts", 1.5, "field 'hosts': expected a whole number, got 1.5"),
        ("hosts", True, "field 'hosts': expected a number, got True"),
        ("device.memory_bytes", "16 GiB", "field 'device.memory_bytes': expected a number, got '16 GiB'"),
        ("device.memory_bandwidth", float("nan"), "field 'device.memory_bandwidth': expected a number, got nan"),
        (
            "inter_host.latency_seconds",
            -1,
            "field 'inter_host.latency_seconds': expected a number of at least 0, got -1",
        ),
        ("device", 3, "expected a mapping of fields in 'device', got 3"),
        ("name", 3, "field 'name': expected a name, got 3"),
    ],
)
def test_bad_fields_name_file_and_path(tmp_path: Path, path: str, value: object, message: str) -> None:
    file = write(tmp_path, change(path, value))
    with pytest.raises(UserError) as error:
        load_cluster(file)
    assert str(error.value) == f"{file}: {message}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("p3.16xlrge", "unknown cluster preset 'p3.16xlrge'; did you mean 'p3.16xlarge'?"),
        ("zzz:2x2", "unknown cluster preset 'zzz' (known: a100-80g, cpu-test, h100-sxm, p3.16xlarge, tpu-v5e)"),
        ("no/such.yaml", "no/such.yaml: cannot read the cluster file: No such file or directory"),
        ("cpu-test:2y2", "cluster 'cpu-test:2y2': expected HOSTSxDEVICES after ':', such as '2x8', got '2y2'"),
        ("cpu-test:0x2", "cluster 'cpu-test:0x2': expected HOSTSxDEVICES after ':', such as '2x8', got '0x2'"),
    ],
)
def test_bad_specs(spec: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_cluster(spec)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: [1,\nb: 2", "a.yaml:2: not valid YAML"),
        ("a.json", "{\n1", "a.json:2: not valid JSON"),
        ("a.yaml", "", "a.yaml: expected a mapping of fields, got None"),
    ],
)
def test_unreadable_text(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_cluster(str(path))


def test_yaml_numbers_without_exponent_sign(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(change("dispatch_seconds", ...)) + "dispatch_seconds: 2e-6\n")
    assert load_cluster(str(path)).dispatch_seconds == 2e-6


# ---- submeshes ----


def test_submeshes_are_those_of_the_paper() -> None:
    assert [str(s) for s in submeshes(cluster(3, 8))] == ["1x1", "1x2", "1x4", "1x8", "2x8", "3x8"]
    assert [str(s) for s in submeshes(cluster(1, 6))] == ["1x1", "1x2", "1x4", "1x6"]
    assert [str(s) for s in submeshes(cluster(2, 1))] == ["1x1", "2x1"]


def test_logical_shapes_list_each_factorization_once() -> None:
    assert logical_shapes(Submesh(1, 1)) == ((1, 1),)
    assert logical_shapes(Submesh(1, 4)) == ((1, 4), (2, 2))
    assert logical_shapes(Submesh(2, 8)) == ((1, 16), (2, 8), (4, 4), (8, 2))
    assert logical_shapes(Submesh(1, 6)) == ((1, 6), (2, 3), (3, 2))


# ---- links ----


def test_axis_inside_a_host_uses_the_fast_link() -> None:
    c = cluster(2, 4)
    assert axis_link(c, mesh(2, 4), "y") == c.intra_host
    assert axis_link(c, mesh(2, 2, devices=(4, 5, 6, 7)), "x") == c.intra_host


def test_axis_across_hosts_shares_the_network_card_between_its_groups() -> None:
    c = cluster(2, 4)
    assert axis_link(c, mesh(2, 4), "x") == Link(1e-5, 4.0)  # four groups leave each host
    assert axis_link(c, mesh(8), "x") == Link(1e-5, 16.0)  # one ring over both hosts crosses each card once
    assert group_placement(c, mesh(8), ("x",)).members_per_host == 4
    assert group_placement(c, mesh(2, 4), ("x", "y")) == group_placement(c, mesh(8), ("x",))
    assert axis_link(c, mesh(4, 2), "x") == Link(1e-5, 8.0)


def test_fast_network_is_capped_by_the_device_link() -> None:
    c = replace(cluster(2, 1), inter_host=Link(0.0, 1e9))
    assert axis_link(c, mesh(2), "x") == Link(1e-6, 100.0)


def test_unknown_axis_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        axis_link(cluster(1, 4), mesh(4), "q")


# ---- placement ----


def shapes(*sizes: str) -> list[Submesh]:
    return [Submesh(*map(int, size.split("x"))) for size in sizes]


def test_pipeline_order_is_kept_when_it_packs() -> None:
    ids = place(cluster(4, 8), shapes("1x2", "1x2", "1x4", "2x8", "1x8"))
    assert ids == ((0, 1), (2, 3), (4, 5, 6, 7), tuple(range(8, 24)), tuple(range(24, 32)))
    many = place(cluster(4, 8), shapes(*["1x1"] * 32))
    hosts = [stage[0] // 8 for stage in many]
    assert sum(a != b for a, b in itertools.pairwise(hosts)) == 3


def test_stages_that_do_not_pack_in_order_are_regrouped() -> None:
    ids = place(cluster(2, 8), shapes("1x4", "1x8", "1x4"))
    assert ids == ((0, 1, 2, 3), tuple(range(8, 16)), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (["1x4", "1x4", "1x4"], "cannot place 3 stages with submeshes 1x4, 1x4, 1x4 on cluster c:2x6"),
        (["3x6"], "cannot place 1 stages with submeshes 3x6 on cluster c:2x6"),
        (["1x1", "2x3"], "stage 1: submesh 2x3 is neither inside one host nor whole hosts of c:2x6"),
    ],
)
def test_impossible_placements(sizes: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        place(cluster(2, 6), shapes(*sizes))
    assert str(error.value) == message


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_powers_of_two_and_whole_hosts_always_pack(data: st.DataObject) -> None:
    c = cluster(data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 2, 4, 8])))
    left, stages = c.num_devices, []
    while left:
        stages.append(data.draw(st.sampled_from([s for s in submeshes(c) if s.num_devices <= left])))
        left -= stages[-1].num_devices
    stages = data.draw(st.permutations(stages))
    placed = place(c, stages)
    assert sorted(itertools.chain(*placed)) == list(range(c.num_devices))
    for ids, submesh in zip(placed, stages, strict=True):
        assert ids == tuple(range(ids[0], ids[0] + submesh.num_devices))
        assert len({c.host_of(device) for device in ids}) == submesh.hosts
