"""Two hosts with a link of 1 Gbit/s between them, made of network namespaces: a run over Ray, a
mesh on both of them.

What transfers between them take is measured by `benchmarks/runtime/between_hosts.py`.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from benchmarks.runtime.namespaces import LinkedHosts, why_not
from shardopt.runtime.driver import open_run
from shardopt.runtime.reference import compare
from tests.e2e import wide_model
from tests.e2e.exported_model import load

pytestmark = [pytest.mark.slow, pytest.mark.ray]

INSIDE = "import sys; from tests.e2e.test_two_hosts import inside; inside(sys.argv[1])"


def test_a_mesh_on_both_hosts() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with LinkedHosts() as hosts:
        done = hosts.run((sys.executable, "-c", INSIDE, hosts.address), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "ran on 10.77.0.1 10.77.0.2"


def inside(address: str) -> None:
    """On the first host: the numbers of three steps, and where the workers are."""
    program = replace(load(wide_model.TEXT), hosts=((0, 1, 4, 5), (2, 3)))
    w, k = wide_model.inputs()
    with open_run(
        program, "ray", ray_address=address, checked_steps=100, quick_compile=True
    ) as run:
        run.load([w, k])
        for _ in range(3):
            outputs = run.step()
            expected = wide_model.expected_step(w, k)
            assert all(row.within(1e-5) for row in compare(outputs, expected))
            w = expected[0]
        homes = run._backend._addresses  # type: ignore[attr-defined]
    assert homes["small"] == homes["wide/0"] != homes["wide/1"]
    print("ran on", *sorted(set(homes.values())))
