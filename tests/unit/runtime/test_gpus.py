"""Which GPUs a run takes, and what a process is told of them, on drivers that are stand-ins."""

from __future__ import annotations

import ctypes
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from jax.extend.backend import get_compile_options

from shardopt.mesh.mesh import Mesh
from shardopt.runtime.backends import ray_actors
from shardopt.runtime.devices import clients, gpu_drivers, gpus
from shardopt.runtime.devices.clients import World
from shardopt.runtime.devices.gpu_drivers import num_gpus, worker_environment
from shardopt.runtime.devices.gpus import chosen_platform, devices_of
from shardopt.runtime.devices.xla import tune_alone
from shardopt.runtime.program.hosts import Host
from shardopt.support.errors import UserError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`machine(gpus, plugin)`: with a driver that shows so many."""

    def make(count: int, plugin: str | None = "cuda", failure: int = 0) -> None:
        def counted(number: Any) -> int:
            number._obj.value = count
            return failure

        def library(name: str) -> Any:
            if name != "libcuda.so.1":
                raise OSError(name)
            return SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=counted)

        monkeypatch.setattr(ctypes, "CDLL", library)
        monkeypatch.setattr(gpus, "gpu_kind", lambda: plugin)
        num_gpus.cache_clear()

    def opened() -> Any:
        raise AssertionError("a driver opened a GPU")

    monkeypatch.setattr(gpus, "visible_gpus", opened)
    yield make
    num_gpus.cache_clear()


def test_auto_counts_gpus_and_opens_none(machine: Any) -> None:
    machine(4)
    assert chosen_platform("auto", 4) == "gpu"
    assert chosen_platform("cpu", 4) == "cpu"


def test_auto_is_the_gpus_that_meshes_share(machine: Any) -> None:
    machine(1)
    assert chosen_platform("auto", 4, share=True) == "gpu"
    assert chosen_platform("cpu", 4, share=True) == "cpu"


@pytest.mark.parametrize(
    ("count", "plugin", "words"),
    [
        (2, "cuda", "not the 2 GPUs of this machine: the program has 4 devices"),
        (8, None, "not the 8 GPUs of this machine: JAX has no plugin for GPUs"),
    ],
)
def test_auto_takes_no_host_devices_in_silence(
    machine: Any, count: int, plugin: str | None, words: str
) -> None:
    machine(count, plugin)
    with pytest.warns(UserWarning, match=words):
        assert chosen_platform("auto", 4) == "cpu"
    with pytest.warns(UserWarning, match="not the 2 GPUs of the Ray cluster"):
        chosen_platform("auto", 4, 2, "the Ray cluster")


@pytest.mark.parametrize("failure", [0, 100])  # CUDA_ERROR_NO_DEVICE
def test_a_machine_without_gpus_is_no_news(machine: Any, failure: int) -> None:
    machine(0 if not failure else 7, failure=failure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen_platform("auto", 1) == "cpu"


def test_a_cluster_of_ray_may_have_gpus_that_this_machine_lacks(machine: Any) -> None:
    machine(0, None)
    assert chosen_platform("auto", 4, 4, "the Ray cluster") == "gpu"


def test_a_worker_sees_its_own_gpus() -> None:
    assert worker_environment([3, 1], {}, "cuda") == {"CUDA_VISIBLE_DEVICES": "3,1"}
    shown = {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b,5"}
    assert worker_environment([2, 0], shown, "cuda") == {"CUDA_VISIBLE_DEVICES": "5,GPU-a"}
    assert worker_environment([1], shown, "rocm") == {"HIP_VISIBLE_DEVICES": "1"}
    with pytest.raises(UserError, match="expected GPU 3 among those of CUDA_VISIBLE_DEVICES"):
        worker_environment([1, 3], shown, "cuda")


def test_actors_take_the_share_of_memory_that_the_driver_was_told() -> None:
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".6", "HOME": "/"}
    assert ray_actors._memory_settings(environment) == {
        "runtime_env": {"env_vars": {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".6"}}
    }
    assert ray_actors._memory_settings({}) == {}


def device(process: int, ordinal: int) -> Any:
    return SimpleNamespace(
        id=10 * process + ordinal, process_index=process, local_hardware_id=ordinal
    )


HOSTS = (Host("m", 0, 2, (0, 3)), Host("m", 1, 2, (1, 2)))


def test_devices_of_all_processes_are_in_the_order_of_the_mesh() -> None:
    world = World("service", "here", HOSTS)
    all_ = [device(1, 1), device(1, 0), device(0, 1), device(0, 0)]
    local = [each for each in all_ if each.process_index == 1]
    found = clients._of_mesh(world, HOSTS[1], all_, local)
    assert [each.id for each in found.all] == [0, 10, 11, 1]
    assert [each.id for each in found.local] == [10, 11]
    with pytest.raises(UserError, match="mesh 'm', host 0: expected 2 devices, found 1"):
        clients._of_mesh(world, HOSTS[1], all_[:3], local)


def test_a_process_that_sees_the_gpus_of_others_makes_no_part_of_a_mesh() -> None:
    world = World("service", "here", HOSTS)
    mesh = Mesh("m", (("x", 4),), (0, 1, 2, 3))
    with pytest.raises(UserError, match="workers that see all GPUs, and 2 hosts"):
        devices_of(mesh, HOSTS[0], world, "gpu")


def test_kernels_of_a_mesh_over_processes_are_tuned_by_each() -> None:
    options = get_compile_options(num_replicas=1, num_partitions=1, device_assignment=[[0]])
    options.env_option_overrides = [("xla_gpu_autotune_level", 0)]
    tune_alone(options)
    assert options.env_option_overrides[-1] == ("xla_gpu_shard_autotuning", False)
    assert len(options.env_option_overrides) == 2
    # Options that XLA does not know would end the compilation.
    client = clients.unshared_client(1)
    text = "func.func public @main(%a: tensor<f32>) -> tensor<f32> {return %a : tensor<f32>}"
    client.compile_and_load(text.encode(), tuple(client.devices()), options)
    assert gpu_drivers.gpu_kind() in (None, "cuda", "rocm")
