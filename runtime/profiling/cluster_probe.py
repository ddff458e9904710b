"""Hold what is there against the description of a cluster: a process or an actor on each of its
hosts tells what it has, and the links between them are measured.

`process` makes all hosts processes of this machine, `ray` puts each where a run would
(`shardopt.runtime.backends.ray_placement`)."""

from __future__ import annotations

import multiprocessing
import os
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from shardopt.hardware.cluster import Cluster, Link
from shardopt.runtime.backends.ray_actors import NEW_CLUSTER, connect, import_ray
from shardopt.runtime.backends.ray_placement import RayPlacement
from shardopt.runtime.profiling.host_probe import HostFacts, facts, link_inside, link_to, open_echo
from shardopt.runtime.program.hosts import Host
from shardopt.support.errors import UserError

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Probe:
    """Of every host of a cluster, group after group: what it says, and its link inside (None where
    there is none). `between` has links of hosts that are neighbours in that order. `nodes` are the
    machines there are."""

    facts: tuple[HostFacts, ...]
    inside: tuple[Link | None, ...]
    between: dict[tuple[int, int], Link]
    nodes: int


class _Hosts(Protocol):
    nodes: int

    def submit(self, host: int, function: Callable[..., Any], *arguments: Any) -> Future[Any]: ...

    def address(self, host: int) -> str: ...

    def close(self) -> None: ...


def probe(
    cluster: Cluster, backend: str, platform: str = "auto", ray_address: str | None = None
) -> Probe:
    """Raises UserError where hosts cannot be had, or one does not answer."""
    widths = [group.devices_per_host for group in cluster.groups for _ in range(group.hosts)]
    with ExitStack() as stack:
        hosts: _Hosts = (
            _Processes(len(widths))
            if backend == "process"
            else _Actors(widths, platform, ray_address)
        )
        stack.callback(hosts.close)
        told = [hosts.submit(k, facts, platform, width) for k, width in enumerate(widths)]
        found = tuple(_answer(k, future) for k, future in enumerate(told))
        # One after the other: hosts may be one machine, and links share switches.
        inside = tuple(
            _answer(k, hosts.submit(k, link_inside, platform, width))
            for k, width in enumerate(widths)
        )
        between = {(k, k + 1): _between(hosts, k, k + 1) for k in range(len(widths) - 1)}
        return Probe(found, inside, between, hosts.nodes)


def _between(hosts: _Hosts, first: int, second: int) -> Link:
    token, address = secrets.token_bytes(32), hosts.address(second)
    port = _answer(second, hosts.submit(second, open_echo, address, token))
    link: Link = _answer(first, hosts.submit(first, link_to, address, port, token))
    return link


def _answer(host: int, future: Future[Any]) -> Any:
    try:
        return future.result()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"host {host} does not answer: {type(error).__name__}: {error}") from error


class _Processes:
    """Fresh ones, so that nothing of XLA is forked."""

    nodes = 1

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes = [ProcessPoolExecutor(1, mp_context=context) for _ in range(count)]

    def submit(self, host: int, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._processes[host].submit(function, *arguments)

    def address(self, host: int) -> str:
        return _LOOPBACK

    def close(self) -> None:
        for process in self._processes:
            process.shutdown(cancel_futures=True)


class _Actor:
    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return function(*arguments)

    def address(self) -> str:
        import ray

        return str(ray.util.get_node_ip_address())


class _Actors:
    def __init__(self, widths: list[int], platform: str, address: str | None) -> None:
        ray = self._ray = import_ray()
        self._connects = not ray.is_initialized()
        if self._connects:
            connect(ray, address or os.environ.get("RAY_ADDRESS") or NEW_CLUSTER)
        self._placement: RayPlacement | None = None
        try:
            self.nodes = sum(1 for node in ray.nodes() if node["Alive"])
            homes = [
                Host(f"host{number}", 0, 1, tuple(range(width)), number)
                for number, width in enumerate(widths)
            ]
            gpus = platform == "gpu" or (platform == "auto" and "GPU" in ray.cluster_resources())
            self._placement = RayPlacement(ray, homes, gpus=gpus)
            actor = ray.remote(_Actor)
            self._actors = [
                actor.options(**self._placement.options(home)).remote() for home in homes
            ]
            self._addresses = ray.get([each.address.remote() for each in self._actors])
        except BaseException:
            self.close()
            raise

    def submit(self, host: int, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = self._actors[host].call.remote(function, arguments).future()
        return future

    def address(self, host: int) -> str:
        return str(self._addresses[host])

    def close(self) -> None:
        if self._placement is not None:
            self._placement.remove()  # and its actors
        if self._connects:
            self._ray.shutdown()
