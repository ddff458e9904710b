"""`shardopt cluster check`: what a cluster has beside what its description says."""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from shardopt.hardware.cluster import Link
from shardopt.hardware.cluster_file import load_cluster
from shardopt.runtime.profiling import cluster_probe
from shardopt.runtime.profiling.cluster_probe import Probe
from shardopt.runtime.profiling.host_probe import (
    Echo,
    HostFacts,
    facts,
    link_inside,
    link_to,
    own_versions,
)
from shardopt.tools.commands.cluster import compare, measured
from shardopt.tools.shardopt import main

FAST, SLOW = Link(1e-5, 4e9), Link(5e-5, 0.5e9)
HOST = HostFacts("a", own_versions(), "gpu", "B", 2, 3 << 30)


def probed(*facts: HostFacts, inside: Link | None = FAST, between: Link = FAST) -> Probe:
    count = len(facts)
    links = {(k, k + 1): between for k in range(count - 1)}
    return Probe(facts, (inside,) * count, links, count)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["process", pytest.param("ray", marks=pytest.mark.ray)])
def test_hosts_are_asked_and_links_measured(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.yaml"
    assert main(["cluster", "check", "cpu-test:2x2", "--backend", backend, "-o", str(file)]) == 0
    out = capsys.readouterr().out
    assert "cpu-test:2x2, 2 hosts on 1 node: cpu (cpu)" in out
    assert out.count("│ host 0 to host 1") == 1
    assert ("hosts share nodes" in out) == (backend == "ray")
    described, found = load_cluster("cpu-test:2x2").groups[0], load_cluster(str(file)).groups[0]
    # Inside a host a slope is measured, which much other work there may leave without a sign.
    is_inside_measured = "device to device" in out
    assert found.inter_host != described.inter_host
    assert (found.intra_host != described.intra_host) == is_inside_measured
    # What they are depends on what else the machine does.
    assert 1e-7 < found.inter_host.latency_seconds < 1
    assert 1e6 < found.inter_host.bandwidth_bytes_per_second < 1e12
    assert replace(found, inter_host=FAST, intra_host=FAST) == replace(
        described, inter_host=FAST, intra_host=FAST
    )


def test_a_host_tells_what_it_has() -> None:
    found = facts("cpu", 3)
    assert (found.devices, found.platform, found.versions) == (3, "cpu", own_versions())
    assert {"Python", "shardopt", "jax", "jaxlib"} <= found.versions.keys()
    assert link_inside("cpu", 1) is None


def test_who_does_not_know_the_token_gets_no_echo() -> None:
    token = secrets.token_bytes(32)
    echo = Echo("127.0.0.1", token)
    with pytest.raises((EOFError, OSError)):
        link_to("127.0.0.1", echo.port, secrets.token_bytes(32))
    with socket.create_connection(("127.0.0.1", echo.port)):
        pass  # who says nothing at all does not end it
    link = link_to("127.0.0.1", echo.port, token)
    assert link.latency_seconds > 0 and link.bandwidth_bytes_per_second > 0
    echo.close()


def test_what_differs_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = load_cluster("cpu-test:2x2")
    assert not list(compare(cluster, probed(HOST, HOST), "ray"))
    old = replace(HOST, name="b", versions={**HOST.versions, "jaxlib": "0.1"}, devices=1)
    small = replace(HOST, name="c", memory_bytes=1 << 30)
    found = replace(probed(old, small, inside=SLOW, between=SLOW), nodes=1)
    lines = [str(each) for each in compare(cluster, found, "ray")]
    assert lines == [
        "note: Ray cluster: expected 2 nodes, found 1: hosts share nodes",
        f"error: host 0 (b): expected jaxlib {own_versions()['jaxlib']}, as here, found 0.1",
        "error: host 0 (b): expected 2 devices, found 1",
        "note: host 0 (b), between devices: expected 2 GB/s, found 0.5 GB/s",
        "error: host 1 (c): expected 2147483648 bytes a device, found 1073741824",
        "note: host 1 (c), between devices: expected 2 GB/s, found 0.5 GB/s",
        "note: from host 0 to host 1: expected 1 GB/s, found 0.5 GB/s",
    ]
    # What a plan needs and is not there is an exit code; what is slower is none.
    for answer, code in ((found, 1), (probed(HOST, HOST, between=SLOW), 0)):
        monkeypatch.setattr(cluster_probe, "probe", lambda *_, answer=answer: answer)
        file = tmp_path / "found.json"
        assert main(["cluster", "check", "cpu-test:2x2", "-o", str(file)]) == code
        group = json.loads(file.read_text())
        assert group["inter_host"]["bandwidth_bytes_per_second"] == 0.5e9
        assert group["devices_per_host"] == 2 - code
        assert group["device"]["memory_bytes"] == (1 << 30 if code else 3 << 30)
    assert "error: host 0 (b): expected 2 devices, found 1" in capsys.readouterr().out


def test_groups_get_links_of_their_own() -> None:
    cluster = load_cluster("cpu-test:2x2+p3.16xlarge:1x2")
    found = Probe(
        (HOST, HOST, replace(HOST, memory_bytes=None)),
        (FAST, SLOW, None),
        {(0, 1): FAST, (1, 2): SLOW},
        3,
    )
    better = measured(cluster, found)
    one, other = better.groups
    assert one.inter_host == FAST and one.intra_host == Link(3e-5, 2.25e9)
    assert (other.inter_host, other.intra_host) == (
        cluster.groups[1].inter_host,
        cluster.groups[1].intra_host,
    )
    assert better.link_between(0, 1) == SLOW
    assert other.device == cluster.groups[1].device and one.device.memory_bytes == 3 << 30


def test_a_neighbour_on_a_host_without_a_switch_has_few_of_its_links() -> None:
    """A V100 has six, and sends to the next over one, two, or a third GPU."""
    cluster = load_cluster("v100:1x8")
    whole = cluster.groups[0].intra_host
    host = replace(HOST, devices=8, memory_bytes=None)
    sixth = replace(whole, bandwidth_bytes_per_second=whole.bandwidth_bytes_per_second / 6)
    assert not list(compare(cluster, probed(host, inside=sixth), "process"))
    (group,) = measured(cluster, probed(host, inside=sixth)).groups
    assert group.intra_host == whole
    slow = replace(sixth, bandwidth_bytes_per_second=10e9)
    (told,) = compare(cluster, probed(host, inside=slow), "process")
    assert "between devices: expected 20 GB/s, found 10 GB/s" in str(told)


def test_targets_that_cannot_be_written_are_told_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for output, words in (("found.txt", "expected a .yaml or .json file"), ("no/a.yaml", "no")):
        assert main(["cluster", "check", "cpu-test", "-o", str(tmp_path / output)]) == 1
        assert words in capsys.readouterr().err
