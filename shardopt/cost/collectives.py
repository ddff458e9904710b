"""Seconds of collectives, one by one and as the steps of a resharding.

Every formula takes `bytes`, the size of the value as one device holds it when the axis in question
does not shard it:

    all-gather      what each device ends with     reduce-scatter   what each device starts with
    all-reduce      what each device holds         all-to-all       n times what each device holds
    permute, send   what one device sends          broadcast        what each device ends with

Ring formulas, with n devices, latency a and bandwidth w of one direction of the link: all-gather =
reduce-scatter = a(n-1) + bytes(n-1)/n/w; all-reduce is their sum; all-to-all a(n-1) +
bytes(n-1)/n²/w; broadcast is a pipelined tree, log2(n)(a + bytes/w) at worst. `bytes` may be a
numpy array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardopt.cost import nccl
from shardopt.hardware.cluster import Cluster, Link
from shardopt.hardware.curves import Amount, Curve
from shardopt.hardware.profile import COLLECTIVE_KINDS, INTER_HOST, INTRA_HOST
from shardopt.hardware.topology import group_placement
from shardopt.mesh.mesh import Mesh

COLLECTIVES = COLLECTIVE_KINDS
ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, PERMUTE = COLLECTIVES


def _messages_and_share(kind: str, n: int) -> tuple[float, float]:
    """(messages one after another, fraction of `bytes` that passes one link): seconds = m·latency +
    f·bytes/w."""
    if kind in (ALL_GATHER, REDUCE_SCATTER):
        return n - 1, (n - 1) / n
    if kind == ALL_REDUCE:
        return 2 * (n - 1), 2 * (n - 1) / n
    if kind == ALL_TO_ALL:
        return n - 1, (n - 1) / n**2
    if kind == PERMUTE:
        return 1, 1.0
    raise ValueError(f"unknown collective '{kind}'")


def _seconds(kind: str, link: Link, n: int, bytes: Amount) -> Amount:
    messages, share = _messages_and_share(kind, n)
    return messages * link.latency_seconds + bytes * share / link.bandwidth_bytes_per_second


def all_gather_seconds(link: Link, n: int, bytes: Amount) -> Amount:
    """Ring all-gather; `bytes` is what each device ends with."""
    return _seconds(ALL_GATHER, link, n, bytes)


def reduce_scatter_seconds(link: Link, n: int, bytes: Amount) -> Amount:
    """Ring reduce-scatter; `bytes` is the unreduced value each device starts with."""
    return _seconds(REDUCE_SCATTER, link, n, bytes)


def all_reduce_seconds(link: Link, n: int, bytes: Amount) -> Amount:
    """Ring all-reduce (reduce-scatter, then all-gather); `bytes` is what each device holds before
    and after."""
    return _seconds(ALL_REDUCE, link, n, bytes)


def all_to_all_seconds(link: Link, n: int, bytes: Amount) -> Amount:
    """Pairwise all-to-all; `bytes` is n times what each device holds. For axes that cross hosts
    with several members a host see `collective_seconds`, which knows the placement."""
    return _seconds(ALL_TO_ALL, link, n, bytes)


def permute_seconds(link: Link, bytes: Amount) -> Amount:
    """One round in which every device sends `bytes` to one other device."""
    return _seconds(PERMUTE, link, 2, bytes)


def send_seconds(link: Link, bytes: Amount) -> Amount:
    """One point-to-point message."""
    return _seconds(PERMUTE, link, 2, bytes)


def broadcast_seconds(link: Link, n: int, bytes: Amount) -> Amount:
    """Tree broadcast (or reduce) of `bytes` over n devices, as in SUMMA."""
    return math.log2(n) * send_seconds(link, bytes)


def collective_seconds(
    cluster: Cluster, mesh: Mesh, kind: str, axes: tuple[str, ...], bytes: Amount
) -> Amount:
    """One collective over the groups along `axes` of a placed mesh (`bytes` as in the module
    docstring)."""
    return collective_curve(cluster, mesh, kind, axes).at(bytes)


def collective_curve(cluster: Cluster, mesh: Mesh, kind: str, axes: tuple[str, ...]) -> Curve:
    """Seconds by `bytes` of one collective over the groups along `axes`: as measured for groups of
    that size and placement, else by NCCL's own model where the host group says that it has NCCL,
    else by the formula.

    A ring passes each host's NIC once. All-to-all and permute send from every device: k
    members of one group on a host push k(n-k) of the k(n-1) messages of an all-to-all through the
    NIC. Inside of a host they have what its links let all of their messages reach at once; of a
    permute, which may be any, what one to the next member does. So it is on a torus, where the
    messages of a ring that wait for each other are the hops along each dimension."""
    place = group_placement(cluster, mesh, axes)
    messages, share = _messages_and_share(kind, place.size)
    profile = cluster.group_of(mesh).device.profile
    measured = (
        profile.curve(kind, "", place.size, INTER_HOST if place.crosses else INTRA_HOST)
        if profile
        else None
    )
    if measured is not None:
        return measured
    k, n = place.members_per_host, place.size
    generation = cluster.group_of(mesh).nccl
    if generation is not None and n > 1 and kind in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER):
        between = place.link.bandwidth_bytes_per_second
        host = cluster.group_of(mesh).intra_host.bandwidth_bytes_per_second
        inside = host if place.crosses else between
        ranks = nccl.Ranks(generation, n, -(-n // k) if place.crosses else 1, inside, between)
        if kind == ALL_REDUCE:
            return nccl.all_reduce_curve(ranks)
        return nccl.one_way_curve(ranks, kind == REDUCE_SCATTER)
    bandwidth = place.link.bandwidth_bytes_per_second
    if place.steps is not None and kind != PERMUTE:
        messages *= place.steps / (n - 1)
    if kind == ALL_TO_ALL:
        bandwidth = place.exchange
        share *= k * (n - k) / (n - 1) if k > 1 else 1
    if kind == PERMUTE:
        bandwidth = place.shift
        share *= k
    return Curve.affine(messages * place.link.latency_seconds, share / bandwidth)


@dataclass(frozen=True)
class Step:
    """One collective over the groups along `axes`; `bytes` as the formula of its kind wants it."""

    kind: str
    axes: tuple[str, ...]
    bytes: float


def steps_seconds(cluster: Cluster, mesh: Mesh, steps: Sequence[Step]) -> float:
    """Seconds of the steps, one after another."""
    return sum(
        collective_seconds(cluster, mesh, step.kind, step.axes, step.bytes) for step in steps
    )
