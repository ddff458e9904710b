"""Parts of a cluster, from one device to all."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardopt.hardware.cluster_file import load_cluster
from shardopt.hardware.parts import parts_of
from shardopt.support.errors import UserError

FILE = """
name: pool
hosts: 6
devices_per_host: 4
device: {name: chip, peak_flops: {f32: 1e12}, memory_bytes: 1000000, memory_bandwidth: 1e11}
intra_host: {latency_seconds: 1e-6, bandwidth_bytes_per_second: 1e10}
inter_host: {latency_seconds: 1e-6, bandwidth_bytes_per_second: 1e10}
dispatch_seconds: 1e-5
price_per_hour: 12.5
"""


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("cpu-test:1x1", ["1x1"]),
        ("cpu-test:1x8", ["1x1", "1x2", "1x4", "1x8"]),
        ("cpu-test:1x6", ["1x1", "1x2", "1x4", "1x6"]),
        ("cpu-test:5x2", ["1x1", "1x2", "2x2", "4x2", "5x2"]),
        ("cpu-test", ["1x1", "1x2", "1x4"]),
    ],
)
def test_parts_grow_by_powers_of_two(spec: str, shapes: list[str]) -> None:
    parts = parts_of(spec)
    assert [part for part, _ in parts] == [f"cpu-test:{shape}" for shape in shapes]
    counts = [group.num_devices for _, group in parts]
    assert counts == sorted(set(counts)) and counts[-1] == load_cluster(spec).num_devices


def test_parts_of_a_file_are_priced(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(FILE)
    parts = parts_of(str(file))
    assert [part.rpartition(":")[2] for part, _ in parts] == [
        *("1x1", "1x2", "1x4", "2x4", "4x4", "6x4")
    ]
    assert {group.price_per_hour for _, group in parts} == {12.5}
    assert all(load_cluster(part).groups == (group,) for part, group in parts)


def test_several_host_groups_have_no_order() -> None:
    with pytest.raises(UserError, match=r"expected one host group, .* found 2"):
        parts_of("cpu-test:1x2+v100:1x2")
