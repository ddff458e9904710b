"""What backends with workers in other processes have in common: how workers are started, called and
told to stop.

A backend of this kind makes the processes and says how to `submit` a command to one. Every worker
then opens its sockets; learns where the others are; waits, where its mesh has several hosts, for
these; and compiles its part, all of them at once. Programs and commands are plain values, and
whoever connects to a socket must know the run's token."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict, replace
from typing import Any

from shardopt.runtime.backends.gather import gather
from shardopt.runtime.devices.clients import CoordinationService
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.health.watch import Watch
from shardopt.runtime.options import WorkerOptions
from shardopt.runtime.program.hosts import Host, Hosts
from shardopt.runtime.program.instructions import MeshProgram, Program, Send
from shardopt.runtime.program.json_form import only_mesh, program_to_json
from shardopt.runtime.tracing.where import WorkerStatus

_ANSWER_SECONDS = 2.0  # for workers that are asked where they stand


class RemoteBackend(ABC):
    """One worker for each of `hosts`."""

    def __init__(self, program: Program, hosts: Hosts, limits: Limits) -> None:
        self.hosts = hosts
        self.watch = Watch(
            program, hosts, limits, lambda worker: self.control(worker, "where"), self.position
        )
        self.program = program
        self._services: list[CoordinationService] = []

    @abstractmethod
    def submit(self, worker: str, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of `RemoteWorker`, after those submitted before."""

    @abstractmethod
    def control(self, worker: str, method: str, *arguments: Any) -> Future[Any]:
        """Call one that may be called from any thread, at once, whatever the worker is doing."""

    @abstractmethod
    def position(self, worker: str) -> tuple[int, int] | None:
        """Where the worker stands, or stood when it died: (step, instruction); None where that
        cannot be seen."""

    @abstractmethod
    def own_address(self, worker: Host) -> str:
        """The address of the machine that the worker is on, as the others reach it."""

    @abstractmethod
    def service_address(self, mesh: str) -> str:
        """Where the hosts of a mesh can meet, in this process."""

    def call(self, method: str, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call a `Worker` method on some workers at once; their answers by worker. Raises the first
        failure."""
        self.watch.begin(method, arguments)
        futures = {name: self.submit(name, method, *values) for name, values in arguments.items()}
        return gather(futures, self._cancel_all, self.watch.check)

    def where(self) -> dict[str, WorkerStatus | None]:
        """Where every worker stands, None for one that does not answer."""
        return self.ask("where", _ANSWER_SECONDS)

    def ask(self, method: str, seconds: float) -> dict[str, Any]:
        """Call a method that may be called at any time on all workers, and wait so long for
        answers; None for one that does not answer."""
        answers = {host.name: self.control(host.name, method) for host in self._all_hosts()}
        answered, _ = wait(answers.values(), timeout=seconds)
        return {
            name: future.result() if future in answered and future.exception() is None else None
            for name, future in answers.items()
        }

    def start_workers(self, options: WorkerOptions) -> None:
        # For this run alone: who merely reaches a worker's socket must not be able to feed it.
        token = secrets.token_bytes(32)
        addresses = self._gather(
            {
                host.name: self.submit(
                    host.name, "listen", host.name, self.own_address(host), token
                )
                for host in self._all_hosts()
            }
        )
        self.link_workers()
        services = {
            mesh: self._serve(mesh, len(hosts))
            for mesh, hosts in self.hosts.items()
            if len(hosts) > 1
        }
        shards = {mesh: tuple(host.shards for host in hosts) for mesh, hosts in self.hosts.items()}
        started = {}
        for part in self.program.meshes:
            mesh = part.mesh.name
            text = program_to_json(_without_hosts(only_mesh(self.program, mesh)))
            for host in self.hosts[mesh]:
                peers = {name: addresses[name] for name in self._peers(part, host)}
                arguments = (text, host.number, shards, peers, services.get(mesh), asdict(options))
                started[host.name] = self.submit(host.name, "start", *arguments)
        # All are started before one is awaited: the hosts of a mesh wait for each other.
        self._gather(started)

    def link_workers(self) -> None:
        """Called when all workers listen, before they connect: for those that reach each other in
        another way."""
        return

    def close_services(self) -> None:
        """After all workers are gone: those that are left would abort."""
        for service in self._services:
            service.close()
        self._services = []

    def _serve(self, mesh: str, count: int) -> str:
        service = CoordinationService(self.service_address(mesh), count)
        self._services.append(service)
        return service.address

    def _all_hosts(self) -> list[Host]:
        return [host for hosts in self.hosts.values() for host in hosts]

    def _peers(self, part: MeshProgram, here: Host) -> list[str]:
        """The workers that a host of a mesh may send to: those of the meshes in its list, and of
        its own."""
        targets = dict.fromkeys(each.target for each in part.instructions if isinstance(each, Send))
        meshes = [*targets, part.mesh.name]
        return [host.name for mesh in meshes for host in self.hosts[mesh] if host != here]

    def _gather(self, futures: Mapping[str, Future[Any]]) -> dict[str, Any]:
        return gather(futures, self._cancel_all)

    def _cancel_all(self, reason: str) -> None:
        for host in self._all_hosts():
            self.control(host.name, "cancel", reason)


def _without_hosts(program: Program) -> Program:
    """Workers are told who they are."""
    return replace(program, hosts=())
