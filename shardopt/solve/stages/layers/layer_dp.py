"""Layer clustering: cut a straight line of operations into layers that exchange little and weigh
about the same.

Alpa (OSDI'22, section 5.2), equation 6: G(k, r) = min over i of max(G(i-1, r-1), C(i, k)) subject
to FLOP(o_i..o_k) <= (1 + delta) · FLOP_total / L, where C(i, k) is the bytes operations i..k
receive from earlier ones, each value once. Ties in the bottleneck G go to the smaller sum of C,
then to the smaller variance of FLOPs. Other weights than FLOPs (seconds) may stand in their place.

The matrix C is never stored: an operation that reads a value adds its bytes to one contiguous range
of layer starts, so the column C(·, k) follows from C(·, k-1), and the bound of weights keeps only a
window of about (1 + delta) n / L starts alive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardopt.support.errors import UserError
from shardopt.support.spans import timed

# Alpa's choice: uneven enough to cut between blocks, even enough to balance stages.
DEFAULT_DELTA = 0.5
# The stage DP and the profiling of stage candidates grow with the square of the layers.
MAX_AUTO_LAYERS = 16
_DELTA_STEP = 1e-6
_INFINITE_BYTES = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Value:
    """A tensor of `bytes` made by operation `producer` and read by the operations `consumers`
    (later ones)."""

    producer: int
    bytes: int
    consumers: tuple[int, ...]


@dataclass(frozen=True)
class LayerSolution:
    """Layers are `[boundaries[r], boundaries[r + 1])`. `cost` is the most bytes one layer receives,
    `total_bytes` the sum over layers. `status` is "optimal" or, of a baseline, "feasible"; where a
    plan file says where layers begin it is "fixed", and no bytes are counted."""

    boundaries: tuple[int, ...]
    cost: int
    total_bytes: int
    layer_bytes: tuple[int, ...]
    layer_weights: tuple[float, ...]
    status: str

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Half-open operation ranges."""
        return tuple(pairwise(self.boundaries))

    @property
    def layer_of_op(self) -> tuple[int, ...]:
        return tuple(
            layer for layer, (start, end) in enumerate(self.layers) for _ in range(start, end)
        )


@timed("layer DP: solve")
def solve_layers(
    weights: Sequence[float] | np.ndarray,
    values: Sequence[Value],
    num_layers: int,
    delta: float = DEFAULT_DELTA,
    least: float = 0.0,
) -> LayerSolution:
    """The optimal clustering of `n` operations, `weights[n]` each, into exactly `num_layers`
    non-empty layers.

    Two exact passes: the least bottleneck c*, then the least (sum of C, sum of squared weights of
    layers) among clusterings whose layers all receive at most c*. Raises UserError if `num_layers`
    is infeasible, with the largest feasible one. Where it is possible at all, no layer has less
    than the share `least` of an equal one. The paper has no such bound (0); without it a loss,
    which receives next to nothing, becomes a layer, and two blocks elsewhere have to share one."""
    weights = _checked_weights(weights, values)
    _check_feasible(weights, num_layers, delta)
    reads = _reads(len(weights), values)
    starts = _starts(weights, num_layers, delta, least)
    cost = _least_bottleneck(reads, starts, num_layers)
    if cost == _INFINITE_BYTES:
        starts = _starts(weights, num_layers, delta, 0.0)
        cost = _least_bottleneck(reads, starts, num_layers)
    boundaries = _least_sum(weights, reads, starts, num_layers, cost)
    return evaluate(weights, values, boundaries, status="optimal")


def relaxed_delta(weights: np.ndarray, num_layers: int, delta: float) -> float:
    """`delta` for a number of layers that nobody asked for: one operation may outweigh a layer, and
    what follows it has to go somewhere, so that the balance gives way, not the user."""
    heaviest = num_layers * float(weights.max(initial=0.0)) / (float(weights.sum()) or 1.0)
    return delta + max(0.0, heaviest - 1)


def is_feasible(weights: np.ndarray, num_layers: int, delta: float) -> bool:
    """Whether operations can be cut into so many layers, none heavier than `delta` allows."""
    count = _min_layers(weights, num_layers, delta)
    return 1 <= num_layers <= len(weights) and count <= num_layers


def least_delta(weights: np.ndarray, num_layers: int) -> float:
    """The least `delta` that is feasible, up to rounding."""
    low, high = 0.0, float(num_layers)
    while high - low > _DELTA_STEP:
        middle = (low + high) / 2
        low, high = (low, middle) if is_feasible(weights, num_layers, middle) else (middle, high)
    return high


def auto_layers(
    weights: Sequence[float] | np.ndarray,
    values: Sequence[Value],
    max_layers: int = MAX_AUTO_LAYERS,
    delta: float = DEFAULT_DELTA,
    least: float = 0.0,
) -> int:
    """A number of layers where no block repeats: the most, up to `max_layers`, that cut nothing
    dearer than the best cut in two, and leave no layer less than the share `least` of an equal one.
    1 if there is no cut in two.

    `delta` is relaxed for heavy operations (`relaxed_delta`).
    """
    weights = _checked_weights(weights, values)
    reads = _reads(len(weights), values)
    best, cheapest = 1, _INFINITE_BYTES - 1
    for count in range(2, min(max_layers, len(weights)) + 1):
        cost = _least_bottleneck(
            reads, _starts(weights, count, relaxed_delta(weights, count, delta), least), count
        )
        # The first number that is feasible, mostly two, is the reference.
        if best == 1:
            cheapest = min(cost, cheapest)
        if cost <= cheapest:
            best = count
    return best


def equal_shares(weights: Sequence[float] | np.ndarray, num_layers: int) -> tuple[int, ...]:
    """Boundaries where the running sum of `weights` is nearest to equal shares, whatever crosses
    them: baselines."""
    _check_count(len(weights), num_layers)
    n, prefix = len(weights), np.concatenate(([0.0], np.cumsum(weights)))
    boundaries = [0]
    for r in range(1, num_layers):
        low, high = boundaries[-1] + 1, n - (num_layers - r)  # leave an operation for every layer
        nearest = int(np.argmin(np.abs(prefix[low : high + 1] - prefix[-1] * r / num_layers)))
        boundaries.append(low + nearest)
    return (*boundaries, n)


def evaluate(
    weights: Sequence[float] | np.ndarray,
    values: Sequence[Value],
    boundaries: Sequence[int],
    status: str = "feasible",
) -> LayerSolution:
    """The clustering given by `boundaries` with its costs, counted from the definition."""
    layer_of = np.repeat(np.arange(len(boundaries) - 1), np.diff(boundaries))
    received = [0] * (len(boundaries) - 1)
    for value in values:
        home = layer_of[value.producer]
        for layer in {int(layer_of[consumer]) for consumer in value.consumers} - {int(home)}:
            received[layer] += value.bytes
    work = tuple(float(np.sum(weights[start:end])) for start, end in pairwise(boundaries))
    return LayerSolution(
        boundaries=tuple(boundaries),
        cost=max(received),
        total_bytes=sum(received),
        layer_bytes=tuple(received),
        layer_weights=work,
        status=status,
    )


# ---- input ----


def _checked_weights(weights: Sequence[float] | np.ndarray, values: Sequence[Value]) -> np.ndarray:
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 1 or (weights < 0).any() or not np.isfinite(weights).all():
        raise ValueError("weights must be a vector of finite numbers of at least 0")
    for value in values:
        if not all(0 <= value.producer < consumer < len(weights) for consumer in value.consumers):
            raise ValueError(
                f"{value}: consumers must come after the producer, within {len(weights)} operations"
            )
    return weights


def _reads(n: int, values: Sequence[Value]) -> list[list[tuple[int, int]]]:
    """For each operation k: (first start, bytes) of the values it reads. A layer that starts at
    `first start` or later, and ends at k, has no earlier reader of the value inside and does not
    make it itself."""
    reads: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for value in values:
        previous = value.producer
        for consumer in sorted(set(value.consumers)):
            reads[consumer].append((previous + 1, value.bytes))
            previous = consumer
    return reads


# ---- the bound of weights ----


def _bound(weights: np.ndarray, num_layers: int, delta: float) -> float:
    # The slack keeps exact shares (delta = 0) feasible in floating point.
    return (1 + delta) * float(weights.sum()) / num_layers * (1 + 1e-9)


def _earliest_starts(weights: np.ndarray, num_layers: int, delta: float) -> np.ndarray:
    """int64 `[n + 1]`: the earliest start of a layer that ends before operation `end`; `end` if
    there is none."""
    prefix = np.concatenate(([0.0], np.cumsum(weights)))
    starts = np.searchsorted(prefix, prefix - _bound(weights, num_layers, delta), side="left")
    return np.minimum(starts, np.arange(len(prefix)))


@dataclass(frozen=True)
class _Starts:
    """int64 `[n + 1]`: where a layer that ends before operation `end` may start: from
    `earliest[end]` to `latest[end]`; nowhere if the former is greater."""

    earliest: np.ndarray
    latest: np.ndarray


def _starts(weights: np.ndarray, num_layers: int, delta: float, least: float) -> _Starts:
    prefix = np.concatenate(([0.0], np.cumsum(weights)))
    work = least * float(weights.sum()) / num_layers * (1 - 1e-9)
    latest = np.searchsorted(prefix, prefix - work, side="right") - 1
    return _Starts(
        _earliest_starts(weights, num_layers, delta), np.minimum(latest, np.arange(len(prefix)) - 1)
    )


def _min_layers(weights: np.ndarray, num_layers: int, delta: float) -> int:
    """Fewest layers under the bound for `num_layers`; n + 1 if one operation alone exceeds the
    bound.

    Splitting a layer keeps the bound, so `num_layers` is feasible if and only if this is at most
    `num_layers` <= n."""
    starts = _earliest_starts(weights, num_layers, delta)
    end, count = len(weights), 0
    while end > 0:
        if starts[end] == end:
            return len(weights) + 1
        end, count = int(starts[end]), count + 1
    return count


def _check_count(n: int, num_layers: int) -> None:
    if num_layers < 1:
        raise UserError(f"the number of layers must be at least 1, got {num_layers}")
    if num_layers > n:
        raise UserError(
            f"cannot cut {n} operations into {num_layers} layers: a layer needs an operation"
        )


def _check_feasible(weights: np.ndarray, num_layers: int, delta: float) -> None:
    if delta < 0:
        raise UserError(f"delta must be at least 0, got {delta}")
    if num_layers < 1:
        raise UserError(f"the number of layers must be at least 1, got {num_layers}")
    n, total = len(weights), float(weights.sum())
    if num_layers <= n and _min_layers(weights, num_layers, delta) <= num_layers:
        return
    # No layer can weigh less than the heaviest operation, which bounds the feasible numbers from
    # above.
    heaviest = int(np.argmax(weights)) if n else 0
    top = min(n, int((1 + delta) * total / weights[heaviest] * (1 + 1e-9))) if total > 0 else n
    largest = next(
        (count for count in range(top, 0, -1) if _min_layers(weights, count, delta) <= count), 0
    )
    reason = "a layer needs an operation"
    if num_layers <= n:
        reason = (
            f"a layer may hold {(1 + delta) / num_layers:.1%} of the work (delta {delta:g}), "
            f"and operation {heaviest}, the heaviest, has {weights[heaviest] / total:.1%}"
        )
    raise UserError(
        f"cannot cut {n} operations into {num_layers} layers: {reason}; the largest feasible "
        f"number is {largest}"
    )


# ---- the two passes ----


def _columns(
    reads: Sequence[Sequence[tuple[int, int]]], starts: _Starts
) -> Iterator[tuple[int, int, np.ndarray]]:
    """For each end 1..n with permitted starts: (end, the first of them, C of the layers [start,
    end) for all)."""
    column = np.zeros(len(reads), dtype=np.int64)
    for end in range(1, len(reads) + 1):
        low, high = int(starts.earliest[end]), int(starts.latest[end]) + 1
        for first, size in reads[end - 1]:
            # Starts before `low` never come back: `earliest` does not decrease.
            column[max(first, low) : end] += size
        if low < high:
            yield end, low, column[low:high]


def _least_bottleneck(
    reads: Sequence[Sequence[tuple[int, int]]], starts: _Starts, num_layers: int
) -> int:
    """`_INFINITE_BYTES` if there is no clustering."""
    # [operations before, layers].
    best = np.full((len(reads) + 1, num_layers + 1), _INFINITE_BYTES, dtype=np.int64)
    best[0, 0] = 0
    for end, low, column in _columns(reads, starts):
        best[end, 1:] = np.maximum(best[low : low + len(column), :-1], column[:, None]).min(axis=0)
    return int(best[-1, num_layers])


def _least_sum(
    weights: np.ndarray,
    reads: Sequence[Sequence[tuple[int, int]]],
    permitted: _Starts,
    num_layers: int,
    limit: int,
) -> tuple[int, ...]:
    """Boundaries with every C at most `limit`, least in (sum of C, sum of squared weights).

    With the total fixed, the least sum of squares is the least variance. Both sums are additive
    over layers, so the lexicographic recursion is exact."""
    n = len(reads)
    prefix = np.concatenate(([0.0], np.cumsum(weights)))
    # Bytes stay below 2**53, so these sums are exact.
    total = np.full((n + 1, num_layers + 1), np.inf)
    square = np.full((n + 1, num_layers + 1), np.inf)
    parent = np.zeros((n + 1, num_layers + 1), dtype=np.int64)
    total[0, 0] = square[0, 0] = 0
    for end, low, column in _columns(reads, permitted):
        starts = low + np.flatnonzero(column <= limit)
        if not starts.size:
            continue
        sums = total[starts, :-1] + column[starts - low, None]
        total[end, 1:] = sums.min(axis=0)
        spread = square[starts, :-1] + ((prefix[end] - prefix[starts]) ** 2)[:, None]
        spread[sums > total[end, 1:]] = np.inf
        pick = spread.argmin(axis=0)
        square[end, 1:] = spread[pick, np.arange(num_layers)]
        parent[end, 1:] = starts[pick]
    # Backwards along the parents.
    boundaries = [n]
    for layers in range(num_layers, 0, -1):
        boundaries.append(int(parent[boundaries[-1], layers]))
    return tuple(reversed(boundaries))
