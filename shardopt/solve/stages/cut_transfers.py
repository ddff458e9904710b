"""What crosses a cut between two layers, forwards and backwards, and how long that takes.

Every value counts once at each cut that it passes, in the direction from its producer to its readers. The stage DP does
not know yet where stages will lie, so it takes the slowest link of the cluster. Once stages have devices, a value is
spread evenly over them: less cannot cross, and how it really lies is decided by the shard phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardopt.cost.cluster import Cluster
from shardopt.cost.graph import OpGraph
from shardopt.cost.topology import neighbours
from shardopt.cost.transfers import messages_seconds


@dataclass(frozen=True, eq=False)
class CutTransfers:
    """Bytes of one microbatch over the cut before each layer, int64 `[L + 1]`: activations, and their gradients."""

    cluster: Cluster
    forward_bytes: np.ndarray
    backward_bytes: np.ndarray

    @property
    def goes_back(self) -> bool:
        """Whether anything crosses a cut backwards: gradients, in a program that trains."""
        return bool(self.backward_bytes.any())

    def slowest_seconds(self) -> np.ndarray:
        """`[L + 1]`: both directions of each cut, one device to one device over the slowest link."""
        pairs = neighbours(self.cluster)

        def slowest(size: int) -> float:
            return max((self._seconds([(*pair, size)]) for pair in pairs), default=0.0)

        both = zip(self.forward_bytes, self.backward_bytes, strict=True)
        return np.array([sum(slowest(int(size)) for size in sizes) for sizes in both])

    def between(self, cut: int, source: Sequence[int], target: Sequence[int]) -> tuple[float, float]:
        """Seconds over one cut from stage devices `source` to `target`, and of the way back."""
        count = min(len(source), len(target))
        pairs = [(source[k * len(source) // count], target[k * len(target) // count]) for k in range(count)]
        forward, backward = (-(-int(each[cut]) // count) for each in (self.forward_bytes, self.backward_bytes))
        return (
            self._seconds([(a, b, forward) for a, b in pairs]),
            self._seconds([(b, a, backward) for a, b in pairs]),
        )

    def _seconds(self, messages: list[tuple[int, int, int]]) -> float:
        return messages_seconds(self.cluster, [message for message in messages if message[2] > 0])


def cut_transfers(graph: OpGraph, op_layer: Sequence[int], num_layers: int, cluster: Cluster) -> CutTransfers:
    """`op_layer[i]` is negative for operations that every stage copies; what they make crosses nothing."""
    forward, backward = np.zeros(num_layers + 2, np.int64), np.zeros(num_layers + 2, np.int64)
    consumers = graph.consumers()
    for op, home in zip(graph.ops, op_layer, strict=True):
        for tensor in op.results if home >= 0 else ():
            readers = [layer for c in consumers[tensor] if (layer := op_layer[c]) >= 0]
            size = graph.tensors[tensor].size_bytes
            last, first = max(readers, default=home), min(readers, default=home)
            for crossing, low, high in ((forward, home, max(last, home)), (backward, min(first, home), home)):
                crossing[low + 1] += size  # over the cuts low + 1 to high
                crossing[high + 1] -= size
    return CutTransfers(cluster, forward.cumsum()[:-1], backward.cumsum()[:-1])
