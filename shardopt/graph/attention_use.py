"""What attention in one kernel is told by: what its seconds follow from beside its FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

# Side of the blocks of queries and keys that are taken or left out as a whole (FlashAttention-2,
# arXiv 2307.08691, section 3.3: 64 or 128).
_BLOCK = 128


@dataclass(frozen=True)
class AttentionUse:
    """A kernel over `keys` keys of `head` numbers each, of which a `triangular` mask hides those
    behind a query."""

    head: int
    keys: int
    triangular: bool
    backward: bool

    @property
    def visible(self) -> float:
        blocks = ceil(self.keys / _BLOCK)
        return (blocks + 1) / (2 * blocks) if self.triangular else 1.0
