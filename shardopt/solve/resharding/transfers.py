"""Cross-mesh resharding: which device sends which box of a tensor to which device.

A destination tile overlaps some source tiles, and each overlap is a box that one holder of the source tile must send.
Replicas leave a choice (Alpa, arXiv 2201.12023, section 6; load balance as in arXiv 2211.05322):

* `send_recv`: every destination device gets its whole tile from the source mesh, each overlap from the least-loaded
  replica. A tile with n destination replicas crosses n times.
* `local_allgather`: the replicas of a destination tile share the work. The tile is cut finer, each piece crosses once,
  to one replica, and the replicas then exchange pieces over the fast links inside the destination. This holds wherever
  the replicas stand, also on two hosts.
* `auto`: the cheaper of the two under a cost function.

An overlap that the destination device itself holds is a copy inside the device: it stands in the plan, so that the plan
alone says how each tile is filled, but crosses no wire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from itertools import product
from math import gcd, prod
from types import MappingProxyType

from shardopt.cost.errors import UserError
from shardopt.cost.mesh import Mesh, Sharding
from shardopt.solve.resharding.plan import ReshardingPlan, TileSend, elements_gathered, elements_on_wire, messages

Box = tuple[tuple[int, int], ...]  # (start, limit) of each dimension
Holders = Mapping[Box, tuple[int, ...]]  # each distinct tile and the devices that hold it, in mesh order
PlanCost = Callable[[ReshardingPlan], float]

AUTO = "auto"

# Links inside a mesh are roughly ten times as fast as a 100-400 Gbit/s link between hosts: a guess, for want of links.
_GATHER_COST = 0.1


def element_cost(plan: ReshardingPlan) -> float:
    """The default cost, in elements: all that cross, and a tenth of those exchanged inside the destination."""
    return elements_on_wire(plan) + _GATHER_COST * elements_gathered(plan)


def plan_resharding(
    shape: tuple[int, ...],
    itemsize: int,
    source: tuple[Mesh, Sharding],
    destination: tuple[Mesh, Sharding],
    strategy: str = AUTO,
    cost: PlanCost = element_cost,
) -> ReshardingPlan:
    """Plan how a tensor of `shape` gets from one mesh and sharding to another.

    `itemsize` is bytes per element; `cost` ranks the strategies for `auto` (then fewer messages, then `send_recv`).
    Raises UserError for an unknown strategy, ValueError if a sharding does not fit (see `Sharding.check`).
    """
    if strategy not in (AUTO, *_PLANNERS):
        known = (AUTO, *_PLANNERS)
        close = get_close_matches(strategy, known, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UserError(f"unknown resharding strategy '{strategy}': {hint}known strategies are {', '.join(known)}")
    held, wanted = _holders(*source, shape), _holders(*destination, shape)
    plans = []
    for name in _PLANNERS if strategy == AUTO else (strategy,):
        sends, gathers = _PLANNERS[name](held, wanted)
        plans.append(ReshardingPlan(name, len(shape), itemsize, sends, gathers))
    return min(plans, key=lambda plan: (cost(plan), messages(plan)))


def _holders(mesh: Mesh, sharding: Sharding, shape: tuple[int, ...]) -> Holders:
    holders: dict[Box, list[int]] = {}
    for device, bounds in zip(mesh.devices, sharding.tiles(mesh, shape).tolist(), strict=True):
        if all(start < limit for start, limit in bounds):  # a tensor without elements needs no messages
            holders.setdefault(tuple((start, limit) for start, limit in bounds), []).append(device)
    return {box: tuple(devices) for box, devices in holders.items()}


Phases = tuple[tuple[TileSend, ...], tuple[TileSend, ...]]  # sends, gathers


def _send_recv(held: Holders, wanted: Holders) -> Phases:
    load: Counter[int] = Counter()
    sends = (
        send for tile, replicas in wanted.items() for device in replicas for send in _fetch(tile, device, held, load)
    )
    return tuple(sends), ()


def _local_allgather(held: Holders, wanted: Holders) -> Phases:
    load: Counter[int] = Counter()
    sends: list[TileSend] = []
    gathers: list[TileSend] = []
    for tile, replicas in wanted.items():
        # Fewer pieces than replicas (extents without a common factor) leave the last replicas with gathers only.
        owners = tuple(zip(_pieces(tile, len(replicas)), replicas, strict=False))
        for piece, device in owners:
            sends.extend(_fetch(piece, device, held, load))
        # In round k replica i passes its piece to replica i + k, so each device sends and receives one at a time.
        for distance in range(1, len(replicas)):
            for index, (piece, device) in enumerate(owners):
                gathers.append(_send(device, replicas[(index + distance) % len(replicas)], piece))
    return tuple(sends), tuple(gathers)


_PLANNERS: Mapping[str, Callable[[Holders, Holders], Phases]] = MappingProxyType(
    {"send_recv": _send_recv, "local_allgather": _local_allgather}
)


def _fetch(box: Box, device: int, held: Holders, load: Counter[int]) -> Iterator[TileSend]:
    """Fill `box` on `device`: each overlap from the device itself if it can, else from the least-loaded holder.

    `load` counts the elements each device has sent so far and is updated; ties go to the first holder in mesh order.
    """
    for tile, holders in held.items():
        overlap = _intersect(box, tile)
        if overlap is None:
            continue
        sender = device if device in holders else min(holders, key=lambda holder: load[holder])
        if sender != device:
            load[sender] += prod(limit - start for start, limit in overlap)
        yield _send(sender, device, overlap)


def _send(src_device: int, dst_device: int, box: Box) -> TileSend:
    return TileSend(src_device, dst_device, tuple(start for start, _ in box), tuple(limit for _, limit in box))


def _intersect(left: Box, right: Box) -> Box | None:
    """The common box, or None if it is empty."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return common if all(start < limit for start, limit in common) else None


def _pieces(box: Box, replicas: int) -> tuple[Box, ...]:
    """Cut a box into equal pieces, at most one per replica: each dimension in turn gives the factor it shares."""
    cuts, left = [], replicas
    for start, limit in box:
        parts = gcd(limit - start, left)
        step = (limit - start) // parts
        cuts.append([(start + index * step, start + (index + 1) * step) for index in range(parts)])
        left //= parts
    return tuple(product(*cuts))
