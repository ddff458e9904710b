"""What runs in the process of a worker that is not the driver's: the worker, and the sockets its
messages arrive on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardopt.runtime.devices.clients import World
from shardopt.runtime.errors import Cancelled, mesh_error
from shardopt.runtime.options import WorkerOptions
from shardopt.runtime.program.hosts import Host
from shardopt.runtime.program.json_form import program_from_json
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.runtime.transports.ray_objects import RayObjectTransport
from shardopt.runtime.transports.sockets import Address, SocketTransport
from shardopt.runtime.worker import Position, Site, Worker, start_worker
from shardopt.support.errors import UserError


class RemoteWorker:
    """Its arguments and answers are plain values (`frames.py`): commands may come over any
    connection."""

    def __init__(self, position: Position | None = None) -> None:
        self._mailbox = Mailbox()
        self._position = position
        self.name = ""
        self._transport: SocketTransport | RayObjectTransport | None = None
        self._address = ""
        self._worker: Worker | None = None

    def listen(self, name: str, address: str, token: bytes) -> tuple[str, int, str]:
        """Be the worker `name`; where others can reach it."""
        self.name, self._address = name, address
        self._transport = SocketTransport(self._mailbox, address, token, name)
        host, port, near = self._transport.address
        return host, port, near

    def use_objects(self, actors: Mapping[str, Any]) -> RayObjectTransport:
        """Exchange messages with these actors of Ray instead."""
        assert self._transport is not None, "listen() comes first"
        self._transport.close()
        self._transport = RayObjectTransport(self.name, self._mailbox, actors)
        return self._transport

    def start(
        self,
        program: str,
        number: int,
        shards: Mapping[str, Sequence[Sequence[int]]],
        peers: Mapping[str, Sequence[Any]],
        service: str | None,
        options: Mapping[str, Any],
    ) -> None:
        """Connect to the peers and compile. `program` is the JSON of the worker's mesh, `shards`
        those of every host of every mesh, `service` where the hosts of the mesh meet, if there are
        several."""
        assert self._transport is not None, "listen() comes first"
        read = program_from_json(program)
        (part,) = read.meshes
        hosts = {
            mesh: tuple(Host(mesh, k, len(each), tuple(places)) for k, places in enumerate(each))
            for mesh, each in shards.items()
        }
        of_mesh = hosts[part.mesh.name]
        world = None if service is None else World(service, self._address, of_mesh)
        self._transport.connect({name: Address(*address) for name, address in peers.items()})
        site = Site(of_mesh[number], hosts, self._transport, self._position or [0])
        self._worker = start_worker(part, read.routes, site, WorkerOptions(**options), world)

    def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """A method of this object or of its worker. Raises MeshError, Cancelled or UserError, and
        nothing else."""
        try:
            function = getattr(self, method, None) or getattr(self._worker, method)
            return function(*arguments)
        except (Cancelled, UserError) as error:
            # Subclasses have no place in a frame (`frames.py`): they travel as the plain kind.
            raise (
                type(error)(*error.args)
                if type(error) in (Cancelled, UserError)
                else UserError(str(error))
            ) from error
        except Exception as error:
            raise mesh_error(self.name, "", error) from error

    def cancel(self, reason: str) -> None:
        """Wake the worker out of what it waits for; may be called from any thread."""
        self._mailbox.cancel(Cancelled(reason))
