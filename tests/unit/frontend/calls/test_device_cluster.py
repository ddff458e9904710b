"""Clusters of JAX's devices: presets by kind, hosts by process or machine, meshes in any order."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

from shardopt.frontend.calls.device_cluster import cluster_text, export_platform, logical_mesh
from shardopt.mesh.mesh import mesh_text, parse_mesh
from shardopt.support.errors import UserError

H100 = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class Device:
    id: int
    device_kind: str = "cpu"
    platform: str = "cpu"
    process_index: int = 0
    slice_index: int | None = None


def mesh(devices: list[Device], shape: tuple[int, ...], names: tuple[Any, ...]) -> Any:
    array = np.array(devices, dtype=object).reshape(shape)
    return SimpleNamespace(
        devices=array, axis_names=names, shape=dict(zip(names, shape, strict=True))
    )


def text(devices: list[Device]) -> str:
    return cluster_text(cast("list[jax.Device]", devices))


def test_hosts_are_processes() -> None:
    assert text([Device(k) for k in range(4)]) == "cpu-test:1x4"
    tpus = [Device(k, "TPU v5 lite", "tpu", k // 8, 0) for k in range(16)]
    assert text(tpus) == "tpu-v5e:2x8"


def test_hosts_of_gpus_are_machines() -> None:
    """With a process for each device."""
    gpus = [Device(k, H100, "gpu", k, k // 8) for k in range(16)]
    assert text(gpus) == "h100-sxm:2x8"


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([Device(0, "Banana 9000")], "no preset describes devices of kind 'Banana 9000'"),
        ([Device(0), Device(1, H100)], f"devices of one kind, found {H100} and cpu"),
        ([Device(k, process_index=k // 2) for k in range(3)], "equally many devices of each host"),
    ],
)
def test_what_no_preset_describes(devices: list[Device], message: str) -> None:
    with pytest.raises(UserError, match=message):
        text(devices)


def test_meshes_leave_out_axes_of_one_device() -> None:
    devices = [Device(k) for k in range(4)]
    assert mesh_text(logical_mesh(mesh(devices, (1, 2, 2), ("a", "b", "c")))) == "b:2,c:2"
    assert mesh_text(logical_mesh(mesh(devices[:1], (1, 1), ("a", "b")))) == "a:1"


def test_devices_are_numbered_host_by_host() -> None:
    """The first axis of this mesh runs inside hosts, whatever the ids say."""
    devices = [Device(10 * k, process_index=k % 2) for k in range(4)]
    assert logical_mesh(mesh(devices, (2, 2), ("in", "out"))).devices == (0, 2, 1, 3)


def test_wrong_meshes() -> None:
    devices = [Device(k) for k in range(32)]
    with pytest.raises(UserError, match="at most 4 axes of more than one device"):
        logical_mesh(mesh(devices, (2, 2, 2, 2, 2), tuple("abcde")))
    with pytest.raises(UserError, match="names of mesh axes to be letters"):
        logical_mesh(mesh(devices, (8, 4), ("a-b", "c")))


def test_platforms_as_export_calls_them() -> None:
    client = SimpleNamespace(platform_version="PJRT C API\ncuda 12090")
    assert export_platform(cast("jax.Device", Device(0))) == "cpu"
    gpu = SimpleNamespace(platform="gpu", client=client)
    assert export_platform(cast("jax.Device", gpu)) == "cuda"


@pytest.mark.parametrize("shape", ["data:2,model:4", "2x2@0,2,1,3", "4", "a_1:8"])
def test_meshes_with_names_as_text(shape: str) -> None:
    assert mesh_text(parse_mesh(shape)) == shape


@pytest.mark.parametrize(
    "shape", ["a:2,a:2", "a:2@0", "a:2@0,0", "a:2@x,y", "a:2x2", "1a:2", "a:0"]
)
def test_wrong_meshes_with_names(shape: str) -> None:
    with pytest.raises(UserError):
        parse_mesh(shape)
