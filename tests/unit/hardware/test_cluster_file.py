"""Descriptions of clusters: files, presets, combinations, and what is wrong with bad ones."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.hardware.cluster import Cluster, Link
from shardopt.hardware.cluster_file import DESCRIPTION, describe, load_cluster, presets
from shardopt.support.documents import errors_of
from shardopt.support.errors import UserError
from tests.draws import draws

GOOD = describe(load_cluster("cpu-test"))


def write(folder: Path, data: object, name: str = "cluster.yaml") -> str:
    path = folder / name
    path.write_text(json.dumps(data) if name.endswith("json") else yaml.safe_dump(data))
    return str(path)


# ---- descriptions ----


def test_every_preset_loads_under_its_own_name() -> None:
    hopper = ("gh200", "h100-96gb", "h100-sxm", "h200")
    nvidia = ("b200", "dgx-a100", *hopper, "p3.16xlarge", "v100")
    others = ("a100-80g", "cpu-test", "mi300x", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e")
    assert presets() == tuple(sorted((*nvidia, *others)))
    for name in presets():
        loaded = load_cluster(name)
        assert loaded.name == name
        assert [group.name for group in loaded.groups] == [name]
        optional = {
            "nccl",
            "device_links",
            "torus",
            "between_slices",
            "overlap",
            "awaited",
            "host_link",
            "host_memory_bytes",
        }
        assert describe(loaded).keys() - optional == GOOD.keys() - optional


def test_shape_override() -> None:
    loaded = load_cluster("p3.16xlarge:4x8")
    assert (loaded.groups[0].hosts, loaded.groups[0].devices_per_host, loaded.num_devices) == (
        4,
        8,
        32,
    )
    assert loaded.host_of(17) == 2
    assert loaded.groups == (replace(load_cluster("p3.16xlarge").groups[0], hosts=4),)
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
        inner = inner[int(key) if key.isdigit() else key]
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
        (
            "device.peak_flops.fp16",
            1.0,
            "unknown field 'device.peak_flops.fp16'; did you mean 'f16'?",
        ),
        ("hosts", 0, "field 'hosts': expected a positive number, got 0"),
        ("hosts", 1.5, "field 'hosts': expected a whole number, got 1.5"),
        ("hosts", True, "field 'hosts': expected a number, got True"),
        (
            "device.memory_bytes",
            "16 GiB",
            "field 'device.memory_bytes': expected a number, got '16 GiB'",
        ),
        (
            "device.memory_bandwidth",
            float("nan"),
            "field 'device.memory_bandwidth': expected a number, got nan",
        ),
        (
            "inter_host.latency_seconds",
            -1,
            "field 'inter_host.latency_seconds': expected a number of at least 0, got -1",
        ),
        ("device", 3, "expected a mapping of fields in 'device', got 3"),
        ("name", 3, "field 'name': expected a name, got 3"),
    ],
)
def test_bad_fields_name_file_and_path(
    tmp_path: Path, path: str, value: object, message: str
) -> None:
    file = write(tmp_path, change(path, value))
    with pytest.raises(UserError) as error:
        load_cluster(file)
    assert str(error.value) == f"{file}: {message}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "p3.16xlrge",
            "unknown cluster preset 'p3.16xlrge'; did you mean 'p3.16xlarge'? There are "
            f"{', '.join(presets())}",
        ),
        (
            "zzz:2x2",
            f"unknown cluster preset 'zzz'; expected one of {', '.join(presets())}",
        ),
        ("no/such.yaml", "no/such.yaml: cannot read the cluster file: No such file or directory"),
        (
            "cpu-test:2y2",
            "cluster 'cpu-test:2y2': expected HOSTSxDEVICES after ':', such as '2x8', got '2y2'",
        ),
        ("cpu-test:9000x8", "cluster 'cpu-test': expected at most 65536 devices, got 72000"),
        (
            "cpu-test:4096x8+cpu-test:4097x8",
            "cluster 'cpu-test+cpu-test': expected at most 65536 devices, got 65544",
        ),
        (
            "cpu-test:0x2",
            "cluster 'cpu-test:0x2': expected HOSTSxDEVICES after ':', such as '2x8', got '0x2'",
        ),
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


# ---- several host groups ----

FAST, SLOW = {**GOOD, "name": "fast"}, {**GOOD, "name": "slow", "hosts": 2, "devices_per_host": 2}
MIXED = {
    "name": "mixed",
    "groups": [FAST, SLOW],
    "between_groups": {"latency_seconds": 1e-3, "bandwidth_bytes_per_second": 1e8},
}
LINK = {"latency_seconds": 2e-3, "bandwidth_bytes_per_second": 2e8}


def grouped(**changes: object) -> dict:
    return {name: value for name, value in {**MIXED, **changes}.items() if value is not None}


def test_groups_number_devices_and_hosts_one_after_another(tmp_path: Path) -> None:
    mixed = load_cluster(write(tmp_path, MIXED))
    assert str(mixed) == "mixed:1x4+2x2"
    assert mixed.num_devices == 8
    assert [mixed.group_index(device) for device in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [mixed.host_of(device) for device in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert describe(mixed) == MIXED


def test_links_between_groups(tmp_path: Path) -> None:
    third = {
        **GOOD,
        "name": "third",
        "inter_host": {"latency_seconds": 1e-6, "bandwidth_bytes_per_second": 5e8},
    }
    fourth = {
        **GOOD,
        "name": "fourth",
        "inter_host": {"latency_seconds": 9e-4, "bandwidth_bytes_per_second": 7e8},
    }
    groups, links = [FAST, third, fourth], [{"groups": ["third", "fast"], "link": LINK}]
    named = load_cluster(write(tmp_path, grouped(groups=groups, links=links)))
    assert named.link_between(0, 1) == named.link_between(1, 0) == Link(2e-3, 2e8)
    assert named.link_between(1, 2) == Link(1e-3, 1e8)
    worse = load_cluster(write(tmp_path, grouped(groups=groups, links=links, between_groups=None)))
    assert worse.link_between(0, 1) == Link(2e-3, 2e8)
    assert worse.link_between(1, 2) == Link(9e-4, 5e8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (grouped(groups=[]), "field 'groups': expected a list that is not empty, got []"),
        (grouped(groups=[FAST, FAST]), "field 'groups': expected unique names, got 'fast' twice"),
        (
            grouped(groups=[FAST, {**SLOW, "hosts": 0}]),
            "field 'groups[1].hosts': expected a positive number, got 0",
        ),
        (
            grouped(hosts=2),
            "unknown field 'hosts'; expected one of name, groups, between_groups, links",
        ),
        (grouped(link=[]), "unknown field 'link'; did you mean 'links'?"),
        (grouped(between_groups=3), "expected a mapping of fields in 'between_groups', got 3"),
        (
            grouped(links=[{"groups": ["fast", "slwo"], "link": LINK}]),
            "field 'links[0].groups': unknown group 'slwo'; did you mean 'slow'?",
        ),
        (
            grouped(links=[{"groups": ["fast"], "link": LINK}]),
            "field 'links[0].groups': expected a list of 2 items, got ['fast']",
        ),
        (
            grouped(links=[{"groups": ["fast", "fast"], "link": LINK}]),
            "field 'links[0].groups': expected two groups, got 'fast' twice (its hosts talk "
            "over inter_host)",
        ),
        (
            grouped(
                links=[
                    {"groups": list(pair), "link": LINK}
                    for pair in (("fast", "slow"), ("slow", "fast"))
                ]
            ),
            "field 'links[1].groups': expected one link for 'slow' and 'fast', got another",
        ),
    ],
)
def test_bad_groups(tmp_path: Path, data: dict, message: str) -> None:
    file = write(tmp_path, data)
    with pytest.raises(UserError) as error:
        load_cluster(file)
    assert str(error.value) == f"{file}: {message}"


def test_presets_combine_into_groups() -> None:
    both = load_cluster("p3.16xlarge:2x8+a100-80g:1x4")
    assert str(both) == "p3.16xlarge+a100-80g:2x8+1x4"
    assert both.groups == tuple(
        load_cluster(f).groups[0] for f in ("p3.16xlarge:2x8", "a100-80g:1x4")
    )
    assert both.link_between(0, 1) == load_cluster("p3.16xlarge").groups[0].inter_host
    twice = load_cluster("cpu-test:1x4+cpu-test:2x2+cpu-test")
    assert [str(group) for group in twice.groups] == [
        "cpu-test:1x4",
        "cpu-test-2:2x2",
        "cpu-test-3:1x4",
    ]


def test_files_combine_too(tmp_path: Path) -> None:
    flat, mixed = write(tmp_path, GOOD, "a+b.yaml"), write(tmp_path, MIXED, "mixed.json")
    assert load_cluster(f"{flat}").num_devices == 4
    assert load_cluster(f"{flat}:2x2").groups[0].hosts == 2
    flat = write(tmp_path, GOOD, "plain.yaml")
    assert load_cluster(f"{flat}:2x2+a100-80g").num_devices == 12
    with pytest.raises(
        UserError, match="expected parts with one host group each, 'mixed' has several"
    ):
        load_cluster(f"{flat}+{mixed}")
    with pytest.raises(
        UserError, match="expected no ':1x4' for a description with several host groups"
    ):
        load_cluster(f"{mixed}:1x4")
    with pytest.raises(UserError, match="unknown cluster preset ''"):
        load_cluster("cpu-test+")


# ---- the schema, and descriptions that a machine made up ----


def test_the_schema_in_the_package_is_that_of_the_readers() -> None:
    stored = json.loads(
        (resources.files("shardopt") / "schemas" / "cluster.schema.json").read_text()
    )
    assert stored == DESCRIPTION.schema()


@pytest.mark.parametrize(
    "path", ["hosts", "device.memory_bytes", "device.peak_flops.f32", "intra_host", "name"]
)
@pytest.mark.parametrize("value", [..., 0, -1, "x", [], None])
def test_schema_and_readers_agree(path: str, value: object) -> None:
    data = change(path, value)
    valid = not list(jsonschema.Draft202012Validator(DESCRIPTION.schema()).iter_errors(data))
    assert valid == (not errors_of(DESCRIPTION, data)[1])


def test_schema_accepts_all_forms() -> None:
    validator = jsonschema.Draft202012Validator(DESCRIPTION.schema())
    for data in (
        MIXED,
        grouped(between_groups=None),
        *(describe(load_cluster(name)) for name in presets()),
    ):
        validator.validate(data)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1e9", "fast"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*GOOD, *MIXED]), inner, max_size=4)
    ),
    max_leaves=6,
)
PATHS = [
    *GOOD,
    "groups.0",
    "groups.1.device",
    "groups.1.device.peak_flops.f32",
    "links",
    "between_groups",
    "groups",
]


@settings(max_examples=draws(300), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES | st.just(...)), min_size=1, max_size=3))
def test_changed_descriptions_are_clusters_or_mistakes(changes: list[tuple[str, object]]) -> None:
    data = json.loads(json.dumps(MIXED))
    for path, value in changes:
        *parents, last = path.split(".")
        inner = data
        for key in parents:
            step = int(key) if key.isdigit() else key
            fits = isinstance(inner, list) and isinstance(step, int) and step < len(inner)
            inner = inner[step] if fits or (isinstance(inner, dict) and step in inner) else {}
        if isinstance(inner, dict):
            inner.pop(last, None) if value is ... else inner.update({last: value})
    made, errors = errors_of(DESCRIPTION, data)
    assert errors or isinstance(made, Cluster)
    if not errors:
        assert errors_of(DESCRIPTION, describe(made)) == (made, ())


@settings(max_examples=draws(200), deadline=None)
@given(st.text(alphabet="+:x/.\\\0 12ap3cu-test", max_size=24) | st.text(max_size=24))
def test_any_text_is_a_cluster_or_a_user_error(spec: str) -> None:
    with suppress(UserError):
        assert load_cluster(spec).num_devices > 0


@settings(max_examples=draws(200), deadline=None)
@given(
    st.text(max_size=40) | st.text(alphabet="{}[]:-,.!&*#|>'\"0123456789eanT \n", max_size=40),
    st.booleans(),
)
def test_any_file_is_a_cluster_or_a_user_error(text: str, is_json: bool) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / ("c.json" if is_json else "c.yaml")
        path.write_text(text)
        with pytest.raises(UserError):
            load_cluster(str(path))


def test_yaml_numbers_without_exponent_sign(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(change("dispatch_seconds", ...)) + "dispatch_seconds: 2e-6\n")
    assert load_cluster(str(path)).groups[0].dispatch_seconds == 2e-6


def test_the_documentation_lists_the_presets_with_their_figures() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guide" / "cluster.md").read_text()
    rows = []
    for name in presets():
        (group,) = load_cluster(name).groups
        device, f16 = group.device, group.device.peak_flops.get("f16")
        cells = [
            f"`{name}`",
            f"{group.hosts}x{group.devices_per_host}",
            device.name,
            f"{device.peak_flops['f32'] / 1e12:g}",
            "–" if f16 is None else f"{f16 / 1e12:g}",
            f"{device.memory_bytes / 2**30:.3g}",
            f"{device.memory_bandwidth / 1e9:g}",
            f"{group.intra_host.bandwidth_bytes_per_second / 1e9:g}",
            f"{group.inter_host.bandwidth_bytes_per_second / 1e9:g}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    assert "\n".join(rows) in page
