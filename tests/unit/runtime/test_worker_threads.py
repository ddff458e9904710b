"""Workers that share a machine share its cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shardopt.runtime.devices import clients, executables
from shardopt.runtime.devices.clients import threads_of_worker, unshared_devices, with_threads
from shardopt.runtime.program.hosts import Host, devices_of_a_machine


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_told_threads", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))


@pytest.mark.parametrize(
    ("mesh_devices", "here", "beside", "expected"),
    [
        (1, 1, 2, 4),
        (1, 1, 16, 1),
        (2, 2, 4, 4),
        # Two RUNs of two devices may wait in a collective.
        (2, 2, 16, 4),
        (4, 1, 16, 2),
        (8, 8, 16, 8),
        # Nobody else is there, or nobody knows.
        (2, 2, 2, None),
        (1, 1, 0, None),
    ],
)
def test_threads_are_a_worker_s_part_of_the_cores(
    mesh_devices: int, here: int, beside: int, expected: int | None
) -> None:
    assert threads_of_worker(mesh_devices, here, beside) == expected


def test_who_says_how_many_threads_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_told_threads", "3")
    assert threads_of_worker(1, 1, 2) is None


def test_the_machine_of_the_plan_with_the_most_devices_counts() -> None:
    hosts = {
        "a": (Host("a", 0, 2, (0, 1), 0), Host("a", 1, 2, (2,), 1)),
        "b": (Host("b", 0, 1, (0, 1, 2), 1),),
    }
    assert devices_of_a_machine(hosts) == 4
    unknown = {name: (Host(name, 0, 1, (0, 1)),) for name in ("a", "b")}
    assert devices_of_a_machine(unknown) == 2


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted by Linux")
def test_a_client_has_the_threads_that_it_is_told() -> None:
    """In a process of its own, where nothing else starts or ends any."""
    code = (
        "import os, sys\n"
        "from shardopt.runtime.devices.clients import unshared_devices, with_threads\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "with with_threads(int(sys.argv[1])):\n"
        "    devices = unshared_devices(1)\n"
        "assert 'PJRT_NPROC' not in os.environ\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "NPROC")}
    one, nine = (
        int(subprocess.check_output([sys.executable, "-c", code, number], env=environment))
        for number in ("1", "9")
    )
    assert nine >= one + 8


def test_code_for_other_threads_is_another_entry() -> None:
    with with_threads(1):
        devices = unshared_devices(1).all
    options = executables.xc.CompileOptions()
    keys = {executables._key(devices, b"code", options, threads) for threads in ("", "1", "2")}
    assert len(keys) == 3
