"""How placement takes a cluster that has lost a node, on a stand-in for Ray."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from shardopt.runtime.backends import ray_placement


@pytest.fixture
def node() -> Any:
    """`node(True)` takes connections; `node(False)` is gone."""
    servers = []

    def make(is_there: bool) -> dict[str, Any]:
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]
        servers.append(server)
        if not is_there:
            server.close()
        return {"Alive": True, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}

    yield make
    for server in servers:
        server.close()


def test_a_node_that_is_gone_is_waited_for_until_ray_knows(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, gone = node(True), node(False)
    looks = []
    monkeypatch.setattr(ray_placement.time, "sleep", looks.append)

    def nodes() -> list[dict[str, Any]]:
        gone["Alive"] = len(looks) < 3
        return [left, gone]

    assert ray_placement.living_nodes(SimpleNamespace(nodes=nodes), patience=60) == [left]
    assert len(looks) == 3


def test_a_node_that_nobody_can_reach_is_not_waited_for_for_ever(node: Any) -> None:
    ray = SimpleNamespace(nodes=lambda: [node(True), node(False)])
    assert len(ray_placement.living_nodes(ray, patience=0)) == 2
