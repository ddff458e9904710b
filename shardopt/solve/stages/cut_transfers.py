"""What crosses a cut between two layers, forwards and backwards, and how long that takes.

Every value counts once at each cut that it passes, in the direction from its producer to its
readers. The stage DP does not know yet where stages will lie, so it takes the slowest link of the
cluster. Once stages have devices, a value is spread evenly over them: less cannot cross, and how it
really lies is decided by the shard phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardopt.cost.transfers import even_messages, messages_seconds
from shardopt.graph.op_graph import OpGraph
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.topology import neighbours


@dataclass(frozen=True, eq=False)
class CutTransfers:
    """Bytes of one microbatch over the cut before each layer, int64 `[L + 1]`: activations, and
    their gradients."""

    cluster: Cluster
    forward_bytes: np.ndarray
    backward_bytes: np.ndarray
    _known: dict[tuple[tuple[int, int, int], ...], float] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def goes_back(self) -> bool:
        """Whether anything crosses a cut backwards: gradients, in a program that trains."""
        return bool(self.backward_bytes.any())

    def slowest_seconds(self) -> np.ndarray:
        """`[2, L + 1]`: each cut there and back, one device to one device over the slowest link."""
        pairs = neighbours(self.cluster)

        def slowest(size: int) -> float:
            return max((self._seconds([(*pair, size)]) for pair in pairs), default=0.0)

        return np.array(
            [
                [slowest(int(size)) for size in cut_bytes]
                for cut_bytes in (self.forward_bytes, self.backward_bytes)
            ]
        )

    def seconds(
        self, cut: int, source: Sequence[int], target: Sequence[int], forward: bool
    ) -> float:
        """Seconds over one cut from the devices of a stage to those of the next, or of the one
        before."""
        size = int((self.forward_bytes if forward else self.backward_bytes)[cut])
        return self._seconds(even_messages(source, target, size))

    def nics(self, source: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
        """The NICs between two stages: number 2h is what host h sends through, 2h + 1 what
        it receives through; none inside of a host."""
        senders, receivers = (
            {self.cluster.host_of(device) for device in ids} for ids in (source, target)
        )
        if senders == receivers and len(senders) == 1:
            return ()
        return (*sorted(2 * host for host in senders), *sorted(2 * host + 1 for host in receivers))

    def _seconds(self, messages: list[tuple[int, int, int]]) -> float:
        """Plans share most of their cuts, so the cost of each set of messages is found once."""
        sent = tuple(message for message in messages if message[2] > 0)
        if sent not in self._known:
            self._known[sent] = messages_seconds(self.cluster, sent)
        return self._known[sent]


def cut_transfers(
    graph: OpGraph,
    op_layer: Sequence[int],
    num_layers: int,
    cluster: Cluster,
    repeated: Mapping[int, int] | None = None,
) -> CutTransfers:
    """`op_layer[i]` is negative for operations that every stage copies; what they make crosses
    nothing. `repeated` as in `StepGraph`: later stages read the original of what is computed
    again."""
    # Differences from one cut to the next, which `cumsum` turns into bytes: a value that crosses
    # many cuts costs two additions.
    forward, backward = np.zeros(num_layers + 2, np.int64), np.zeros(num_layers + 2, np.int64)
    layers = _reader_layers(graph, op_layer, repeated or {})
    for op, home in zip(graph.ops, op_layer, strict=True):
        for tensor in op.results if home >= 0 else ():
            readers = layers[tensor]
            size = graph.tensors[tensor].size_bytes
            last, first = max(readers, default=home), min(readers, default=home)
            for crossing, low, high in (
                (forward, home, max(last, home)),
                (backward, min(first, home), home),
            ):
                crossing[low + 1] += size  # over the cuts low + 1 to high
                crossing[high + 1] -= size
    return CutTransfers(cluster, forward.cumsum()[:-1], backward.cumsum()[:-1])


def _reader_layers(
    graph: OpGraph, op_layer: Sequence[int], repeated: Mapping[int, int]
) -> list[list[int]]:
    """For each tensor the layers that read it."""
    producers = graph.producers()
    layers_of: list[list[int]] = [[] for _ in graph.tensors]
    for tensor, consumers in enumerate(graph.consumers()):
        for layer in (op_layer[c] for c in consumers if op_layer[c] >= 0):
            rises = tensor in repeated and layer > op_layer[producers[tensor]]
            layers_of[repeated[tensor] if rises else tensor].append(layer)
    return layers_of
