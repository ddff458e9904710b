"""State that rests in the memory of the hosts and is streamed to the devices for its update.

Whatever only the operations around the loop over microbatches use may rest there: moments of an
optimizer, and float32 weights of which the loop reads a copy in fewer bits. The update of a stage
then runs in *pieces*, each a fragment of its own that reads as little of this state as it can, so
that a device never holds much of it:

    fetch m0, v0 ─▶ piece 1: m0, v0, w0 ─▶ store m0, v0 ─▶ fetch m1, v1 ─▶ piece 2 …

After ZeRO-Offload (arXiv 2101.06840) and ZeRO-Infinity (arXiv 2104.07857), which update on the CPU;
here devices do, so that the numbers are those of a step without it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from shardopt.graph.op_graph import SHARED

V = TypeVar("V", bound=Hashable)

# Broadcasts of what is no larger than that are made in every piece that reads them.
_SMALL_BYTES = 4096
_SPREADING = frozenset({"constant", "iota", "broadcast_in_dim"})


@dataclass(frozen=True)
class StateUse:
    """How a step uses an argument and the result that replaces it.

    `owner` is the layer of the argument, `readers` are the layers of the operations around the loop
    that read it, `maker` is the layer of the one there that makes the result, None where none does;
    `returned` says how often that is a result, `elsewhere` whether the loop reads the argument or
    what replaces it, as an average that is brought up to date first, or the argument is a result as
    it is, as of a weight that becomes an older version."""

    rank: int
    owner: int
    readers: Set[int]
    elsewhere: bool
    maker: int | None
    returned: int

    @property
    def can_rest(self) -> bool:
        """Whether only the stage of its layer reads and makes it, outside of the loop. Scalars, as
        the number of a step, take no memory worth a message."""
        return (
            self.rank > 0
            and self.owner != SHARED
            and not self.elsewhere
            and bool(self.readers)
            and {*self.readers, self.maker} == {self.owner}
            and self.returned == 1
        )


def spreads(name: str, operand_bytes: Iterable[int]) -> bool:
    """Whether an operation around the loop only writes something small over and over: several
    pieces read such values, and none should hold them for another."""
    return name in _SPREADING and all(size <= _SMALL_BYTES for size in operand_bytes)


def reads_with_copies(values: Iterable[V], copied: Callable[[V], Iterable[V]]) -> list[V]:
    """`values`, and what their makers read if each reader has a copy of them: `copied` gives the
    operands of such a maker, none of others."""
    found = dict.fromkeys(values)
    pending = list(found)
    while pending:
        fresh = [value for value in copied(pending.pop()) if value not in found]
        found.update(dict.fromkeys(fresh))
        pending += fresh
    return list(found)


def update_pieces(
    reads: Sequence[Iterable[V]], makes: Sequence[Iterable[V]], resting: Mapping[V, int]
) -> tuple[int, ...]:
    """The piece of each of some operations in program order, that read and make these values.

    `resting` are the bytes of inputs on the host. Piece 0 needs none of them; each other piece is
    all that some of them, or what is computed of them, flow into, so that no piece waits for one
    behind it. Neighbours that together read no more than the largest does alone are one piece:
    fewer calls, and no more memory."""
    group = _Groups(len(reads))
    touched: dict[V, int] = {}
    for op, values in enumerate(reads):
        joined = [touched[value] for value in values if value in touched]
        fresh = [value for value in values if value in resting and value not in touched]
        if joined or fresh:
            touched.update(dict.fromkeys((*fresh, *makes[op]), op))
            for other in joined:
                group.join(op, other)
    bytes_of: dict[int, int] = {}
    for value, op in touched.items():
        first = group.find(op)
        bytes_of[first] = bytes_of.get(first, 0) + resting.get(value, 0)
    piece_of = _merged(bytes_of)
    pieces = [piece_of.get(group.find(op), 0) for op in range(len(reads))]
    return _with_sources(reads, makes, pieces, set(touched.values()))


def _merged(bytes_of: Mapping[int, int]) -> dict[int, int]:
    """Groups, by their first operation, to the numbers of pieces, from 1 on."""
    most, piece, held = max(bytes_of.values(), default=0), 1, 0
    piece_of = {}
    for first in sorted(bytes_of):
        if held and held + bytes_of[first] > most:
            piece, held = piece + 1, 0
        held += bytes_of[first]
        piece_of[first] = piece
    return piece_of


def _with_sources(
    reads: Sequence[Iterable[V]],
    makes: Sequence[Iterable[V]],
    pieces: list[int],
    touched: Set[int],
) -> tuple[int, ...]:
    """What only one piece reads stands in it: else piece 0 would hold it, such as a scaled
    gradient, for all of them at once."""
    readers: dict[V, set[int]] = {}
    for op in reversed(range(len(reads))):
        if op not in touched:
            inside = {piece for value in makes[op] for piece in readers.get(value, ())}
            pieces[op] = inside.pop() if len(inside) == 1 else 0
        for value in reads[op]:
            readers.setdefault(value, set()).add(pieces[op])
    return tuple(pieces)


class _Groups:
    """Disjoint sets of operations, named by their first."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, op: int) -> int:
        while self._parent[op] != op:
            self._parent[op] = self._parent[self._parent[op]]
            op = self._parent[op]
        return op

    def join(self, first: int, second: int) -> None:
        low, high = sorted((self.find(first), self.find(second)))
        self._parent[high] = low
