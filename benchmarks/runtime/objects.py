"""Messages through Ray's objects, beside a plain call of an actor with the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.runtime.samples import Pair, in_turns
from benchmarks.runtime.transfers import turns_of, whole
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.runtime.transports.ray_objects import RECEIVE, RayObjectTransport


class Peer:
    """An actor that sends or receives."""

    def join(self, name: str, bytes: int, actors: dict[str, Any]) -> None:
        self._mailbox = Mailbox()
        self._mailbox.expect(0, whole((bytes,), np.uint8, "a"))
        self._transport = RayObjectTransport(name, self._mailbox, actors)
        self._actors = actors

    def receive(self, source: str, number: int, step: int, tag: int, data: Any) -> None:
        self._transport.receive(source, number, step, tag, data)
        self._mailbox.take(step, tag)

    def plain(self, data: Any) -> int:
        return int(data[-1])

    def measure(self, bytes: int) -> Pair:
        import ray

        source, steps = np.ones(bytes, np.uint8), iter(range(10**9))
        plain = self._actors["b"].plain.options(concurrency_group=RECEIVE)
        turns = min(turns_of(bytes), 40)
        return in_turns(
            "Ray objects",
            bytes,
            lambda: self._transport.send("b", next(steps), 0, [source]),
            lambda: ray.get(plain.remote(source)),
            turns,
        )


def objects(sizes: Sequence[int]) -> list[Pair]:
    """Starts, and ends, a Ray cluster on this machine. Empty where Ray is not installed."""
    try:
        import ray
    except ImportError:
        return []
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    try:
        actor = ray.remote(num_cpus=0, concurrency_groups={RECEIVE: 1})(Peer)
        rows = []
        for bytes in sizes:
            actors = {name: actor.remote() for name in "ab"}
            ray.get([each.join.remote(name, bytes, actors) for name, each in actors.items()])
            rows.append(ray.get(actors["a"].measure.remote(bytes)))
            for each in actors.values():
                ray.kill(each)
        return rows
    finally:
        ray.shutdown()
