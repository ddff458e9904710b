"""Whether what one host of a mesh sends is what another one expects.

All hosts of a mesh run the same list, so that their order is the same; but each works out for
itself what it gives and takes of every route. Here all of them are worked out, and laid beside each
other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardopt.forms.exported_program import Slice
from shardopt.runtime.program.host_routes import Round, pieces_between, rounds_of
from shardopt.runtime.program.hosts import Host, Hosts
from shardopt.runtime.program.instructions import Program, Reshard, Route, Send


def find_host_faults(program: Program, hosts: Hosts) -> Iterator[str]:
    """Each fault of a route once for each pair of meshes. Relies on the program's other checks."""
    for part in program.meshes:
        shards = sorted(shard for host in hosts[part.mesh.name] for shard in host.shards)
        if shards != list(range(part.mesh.size)):
            yield (
                f"mesh {part.mesh.name}: its hosts have the shards {shards}, expected each of "
                f"{part.mesh.size} once"
            )
            return
    seen: set[tuple[int, str, str]] = set()
    for part in program.meshes:
        for each in part.instructions:
            uses = [(route, each.target) for route in each.routes] if isinstance(each, Send) else []
            uses += [(each.route, part.mesh.name)] if isinstance(each, Reshard) else []
            for number, target in uses:
                if (number, part.mesh.name, target) not in seen:
                    seen.add((number, part.mesh.name, target))
                    where = f"route {number} from mesh {part.mesh.name} to mesh {target}"
                    ends = (hosts[part.mesh.name], hosts[target])
                    yield from (
                        f"{where}: {fault}" for fault in _of_route(program.routes[number], *ends)
                    )


def _of_route(route: Route, sources: Sequence[Host], targets: Sequence[Host]) -> Iterator[str]:
    for target in targets:
        sent = [piece for source in sources for piece in pieces_between(route, source, target)]
        needed = {place.piece for place in route.placements if place.shard in target.shards}
        if sorted(sent) != sorted(needed):
            yield (
                f"worker {target.name} needs the pieces {sorted(needed)}, and is sent "
                f"{sorted(sent)}"
            )
    rounds = {target.number: rounds_of(route, targets, target) for target in targets}
    if len({len(of_host) for of_host in rounds.values()}) > 1:
        yield (
            "the hosts of the target exchange in "
            f"{', '.join(str(len(of_host)) for of_host in rounds.values())} rounds"
        )
        return
    for number in range(len(next(iter(rounds.values())))):
        for target in targets:
            yield from _of_round(
                number, target, {host: of_host[number] for host, of_host in rounds.items()}
            )


def _of_round(number: int, host: Host, rounds: dict[int, Round]) -> Iterator[str]:
    """What all others give to a host in a round, against what it takes, and how large that is where
    it lands."""
    here = rounds[host.number]
    sent = {other: dict(each.outgoing).get(host.number, ()) for other, each in rounds.items()}
    taken = dict(here.incoming)
    for other, slices in sent.items():
        if taken.get(other, ()) != slices:
            yield (
                f"round {number}: worker {host.name} takes other slices of host {other} than "
                "that "
                "gives"
            )
    for other, at, shard, slice_ in here.landing:
        slices = sent.get(other, ())
        if at >= len(slices) or _extents(slices[at][1]) != _extents(slice_):
            yield (
                f"round {number}: slice {at} of host {other} does not fit where it lands in shard "
                f"{shard}"
            )


def _extents(slice_: Slice) -> tuple[int, ...]:
    return tuple(limit - start for start, limit in slice_)
