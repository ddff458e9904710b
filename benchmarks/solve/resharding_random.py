"""What choosing senders and ordering messages is worth, on slices and messages between hosts drawn
at random."""

from __future__ import annotations

from itertools import product

import numpy as np

from shardopt.cost.transfers import Links, Ordered
from shardopt.hardware.cluster_file import load_cluster
from shardopt.solve.resharding.message_order import best_order
from shardopt.solve.resharding.senders import Fetch, busiest_seconds, choose_senders

HEAD = ("what", "sets", "against", "mean", "worst", "equal")


def random_order(count: int) -> tuple[str, ...]:
    """Messages of random sizes between eight hosts and eight others, as listed and in order,
    against the busiest NIC."""
    cluster, rng = load_cluster("p3.16xlarge:16x1"), np.random.default_rng(0)
    ratios = []
    for _ in range(count):
        rows = zip(
            rng.integers(0, 8, 40),
            rng.integers(8, 16, 40),
            rng.integers(1, 9, 40) * 10**7,
            strict=True,
        )
        links = Links.of(cluster, [(int(a), int(b), int(size)) for a, b, size in rows])
        seconds = Ordered(links).seconds, Ordered(links.reordered(best_order(links))).seconds
        ratios.append([each / links.busiest_seconds for each in seconds])
    return _ratio_row("40 messages in order (as listed)", "busiest NIC", np.array(ratios))


def random_senders(count: int) -> tuple[str, ...]:
    """Boxes that one to four of eight devices hold, for devices of other hosts: the first holder
    sends, or who is chosen, against all assignments."""
    cluster, rng = load_cluster("p3.16xlarge:8x2"), np.random.default_rng(0)
    ratios = []
    for _ in range(count):
        holders = [
            tuple(map(int, rng.choice(8, int(rng.integers(1, 5)), replace=False))) for _ in range(8)
        ]
        sizes, targets = rng.integers(1, 10, 8) * 10**6, rng.integers(8, 16, 8)
        rows = zip(sizes.tolist(), targets.tolist(), holders, strict=True)
        fetches = [Fetch(((0, size),), size, target, held) for size, target, held in rows]
        # One device a host.
        hosts = [sorted({device // 2: device for device in held}.values()) for held in holders]
        best = min(busiest_seconds(cluster, fetches, each) for each in product(*hosts))
        choices = [held[0] for held in holders], choose_senders(cluster, fetches)
        ratios.append([busiest_seconds(cluster, fetches, each) / best for each in choices])
    return _ratio_row(
        "8 slices with chosen senders (first holder)", "best assignment", np.array(ratios)
    )


def _ratio_row(what: str, against: str, ratios: np.ndarray) -> tuple[str, ...]:
    figures = (ratios.mean(axis=0), ratios.max(axis=0))
    texts = (f"{ratio:.3f} ({plain:.3f})" for plain, ratio in figures)
    equal = (ratios < 1 + 1e-6).mean(axis=0)
    return (what, str(len(ratios)), against, *texts, f"{equal[1]:.0%} ({equal[0]:.0%})")
