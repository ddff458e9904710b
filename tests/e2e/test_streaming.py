"""A value that one host sends to a mesh on two, which pass parts of it on to each other while
others are still coming in: between processes, and when messages are lost or connections break."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.runtime import between_hosts
from benchmarks.runtime.between_hosts import CASES, CLUSTER
from shardopt.runtime.devices.tiles import RouteTarget
from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import FailureKind, MeshError
from shardopt.runtime.faults import Fault
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.host_routes import RouteParts
from shardopt.runtime.program.hosts import hosts_of
from shardopt.runtime.program.instructions import Program, Send
from shardopt.solve.resharding.transfers import plan_resharding

SHAPE = (512, 512)  # 32 KiB a chunk


def there_and_back(rounds: int, strategy: str = "broadcast", values: int = 1) -> Program:
    (case,) = (each for each in CASES if each.name == "host to two hosts, rows to replicas")
    case = replace(case, values=values)
    ends = ((case.source, case.target), (case.target, case.source))
    routes = tuple(
        between_hosts._route(
            plan_resharding(SHAPE, 4, *pair, CLUSTER, strategy).to_array(), SHAPE, *pair
        )
        for pair in ends
    )
    program = between_hosts._program(case, SHAPE, routes, rounds)
    assert check_program(program) == ()
    return program


@pytest.mark.parametrize(
    ("strategy", "parts", "values"),
    [
        ("broadcast", 16, 3),
        pytest.param("broadcast", 16, 1, marks=pytest.mark.slow),
        pytest.param("local_allgather", 2, 1, marks=pytest.mark.slow),
        pytest.param("local_allgather", 2, 3, marks=pytest.mark.slow),
    ],
)
def test_values_come_through(strategy: str, parts: int, values: int) -> None:
    """Forth and back twice in a step, several steps, also as several values of a message."""
    program = there_and_back(2, strategy, values)
    hosts = hosts_of(program)
    (target,) = (part.mesh for part in program.meshes if part.mesh.size == 4)
    route = program.routes[0]
    of_route = RouteParts(route, hosts[target.name])
    for host in hosts[target.name]:
        assert RouteTarget(route, target, host, of_route).streams
        assert len(of_route.between(hosts["a"][0], host)) == parts
    sent = [np.random.default_rng(k).random(SHAPE, np.float32) for k in range(values)]
    with open_run(program, "process") as run:
        run.load(sent)
        for _ in range(4):
            for found, value in zip(run.step(), sent, strict=True):
                np.testing.assert_array_equal(found, value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expected"), [("drop", FailureKind.LOST), ("kill", FailureKind.DIED)]
)
def test_what_does_not_come_is_told(kind: str, expected: FailureKind) -> None:
    """A message that streams is lost as a whole, and noticed by the RECV that waits for its first
    part."""
    program = there_and_back(1)
    source = program.meshes[0]
    position = next(k for k, each in enumerate(source.instructions) if isinstance(each, Send))
    fault = Fault(kind, source.mesh.name, host=0, step=1, position=position)
    limits = Limits(silence_seconds=5, message_seconds=1, progress_seconds=10)
    with open_run(program, "process", faults=[fault], limits=limits) as run:
        run.load([np.zeros(SHAPE, np.float32)])
        run.step()
        begin = time.monotonic()
        with pytest.raises(MeshError) as caught:
            run.step()
    assert caught.value.kind is expected and time.monotonic() - begin < 9
    assert ("(%0 = RECV #0" in str(caught.value)) == (kind == "drop")
