"""Everybody who can reach the ports of a run's workers connects to them, while these start and
while they run: does it end as if nobody had?

    python -m benchmarks.runtime.strangers [--connections 10000] [--steps 400] [--seed 0]

Two meshes on processes train an MLP. Another process looks for ports that listen on this machine's
loopback and belong to the workers, from before these are there until the run is over, and does in
turns what a stranger can do: connect and leave, send random bytes, answer the challenge wrongly,
answer half and stay, send a byte a second, announce a name or a message that is far too long, play
back what it has read and sent before, and hold as many connections open as it may. The state in
the end must be that of an undisturbed run, bit for bit; steps are timed beside it, and the memory
of the workers is compared."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import secrets
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any

from benchmarks.runtime.faults import feed, state
from benchmarks.runtime.state_programs import mlp
from shardopt.runtime.driver import open_run
from shardopt.runtime.inputs import random_inputs

_HELD = 400  # connections that stay open: more than the workers let in at once
_CHALLENGE_BYTES = 32
_LISTENS = "0A"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument(
        "--steps", type=int, default=400, help="at least; it goes on until all came"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    context = multiprocessing.get_context("spawn")
    done, counts = context.Value("i", 0), context.Queue()
    stranger = context.Process(
        target=_visit, args=(os.getpid(), args.connections, args.seed, done, counts), daemon=True
    )
    stranger.start()
    disturbed = _train(args.steps, lambda: done.value < args.connections)
    visits: Counter[str] = counts.get(timeout=60)
    stranger.join(10)
    alone = _train(disturbed["steps"], lambda: False)
    for kind, count in sorted(visits.items()):
        print(f"{kind:24} {count}")
    print(f"{'all':24} {sum(visits.values())} while {disturbed['steps']} steps ran")
    for name, each in (("beside strangers", disturbed), ("alone", alone)):
        seconds, megabytes = median(each["seconds"]), each["bytes"] >> 20
        print(f"{name:24} {1e3 * seconds:.2f} ms a step, {megabytes} MiB of all workers")
    same = disturbed["state"] == alone["state"]
    print(f"state                    {'the same' if same else 'DIFFERS'}")
    return int(not same)


def _train(steps: int, goes_on: Callable[[], bool]) -> dict[str, Any]:
    program = mlp(width=32, stages=2, devices=2)
    seconds = []
    with open_run(program, "process", quick_compile=True, compile_cache=False) as run:
        run.load(random_inputs(program, 0))
        while run.steps_done < steps or goes_on():
            begin = perf_counter()
            run.step(feed(run.steps_done % 16))
            seconds.append(perf_counter() - begin)
        resident = sum(map(_resident_bytes, _children(os.getpid())))
        return {
            "steps": run.steps_done,
            "seconds": seconds,
            "state": state(run),
            "bytes": resident,
        }


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    found: list[int] = []
    for each in tasks:
        with suppress(OSError):
            found += [int(child) for child in each.read_text().split()]
    return found


def _resident_bytes(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGESIZE"
        )
    except OSError:
        return 0


def _ports(driver: int) -> list[int]:
    """Loopback ports on which children of the driver listen."""
    sockets = set()
    for child in _children(driver):
        if child == os.getpid():
            continue
        with suppress(OSError):
            for link in Path(f"/proc/{child}/fd").iterdir():
                with suppress(OSError):
                    sockets.add(os.readlink(link))
    ports = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in sockets:
            ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def _visit(driver: int, connections: int, seed: int, done: Any, counts: Any) -> None:
    """Connect so often, to whatever ports there are."""
    generator, visits = random.Random(seed), Counter[str]()
    held: list[socket.socket] = []
    heard: list[bytes] = [secrets.token_bytes(_CHALLENGE_BYTES)]
    ports: list[int] = []
    looked = 0.0
    while done.value < connections:
        if not ports or monotonic() - looked > 0.5:
            ports, looked = _ports(driver), monotonic()
        if not ports:
            sleep(0.005)
            continue
        kind = generator.choice(list(_KINDS))
        try:
            connection = socket.create_connection(("127.0.0.1", generator.choice(ports)), timeout=2)
        except OSError:
            ports = []
            continue
        with suppress(OSError):  # it was hung up on
            connection.settimeout(0.5)
            if _KINDS[kind](connection, generator, heard):
                held.append(connection)
                connection = None  # type: ignore[assignment]
        if connection is not None:
            connection.close()
        if len(held) > _HELD:
            held.pop(0).close()
        visits[kind] += 1
        done.value += 1
    counts.put(visits)


def _challenge(connection: socket.socket, heard: list[bytes]) -> bytes:
    data = connection.recv(_CHALLENGE_BYTES)
    heard.append(data)
    del heard[:-64]
    return data


def _leaves(connection: socket.socket, generator: random.Random, heard: list[bytes]) -> bool:
    return False


def _random(connection: socket.socket, generator: random.Random, heard: list[bytes]) -> bool:
    connection.sendall(generator.randbytes(generator.randrange(1, 1 << 12)))
    return False


def _wrong(connection: socket.socket, generator: random.Random, heard: list[bytes]) -> bool:
    _challenge(connection, heard)
    name = generator.choice((b"m0", b"m1"))
    answer = generator.randbytes(2 * _CHALLENGE_BYTES)
    connection.sendall(struct.pack("<H", len(name)) + name + answer)
    connection.recv(1)
    return False


def _half(connection: socket.socket, generator: random.Random, heard: list[bytes]) -> bool:
    _challenge(connection, heard)
    connection.sendall(struct.pack("<H", 2) + b"m")
    return True


def _slow(connection: socket.socket, generator: random.Random, heard: list[bytes]) -> bool:
    connection.sendall(b"\x02")
    return True


def _oversize(connection: socket.socket, generator: random.Random, heard: list[bytes]) -> bool:
    connection.sendall(struct.pack("<H", 0xFFFF) + bytes(1 << 16))
    return False


def _header(connection: socket.socket, generator: random.Random, heard: list[bytes]) -> bool:
    """A message of an exabyte, without a proof."""
    connection.sendall(struct.pack("<QQQQ", 0, 0, 0, 1 << 60) * 4)
    return False


def _replay(connection: socket.socket, generator: random.Random, heard: list[bytes]) -> bool:
    """An answer that was a challenge before: the receiver's own words."""
    challenge = _challenge(connection, heard)
    answer = generator.choice((challenge, *heard))
    connection.sendall(struct.pack("<H", 2) + b"m0" + answer + challenge)
    connection.recv(_CHALLENGE_BYTES)
    return False


def _holds(connection: socket.socket, generator: random.Random, heard: list[bytes]) -> bool:
    return True


_KINDS: dict[str, Callable[[socket.socket, random.Random, list[bytes]], bool]] = {
    "connects and leaves": _leaves,
    "random bytes": _random,
    "wrong answer": _wrong,
    "half an answer": _half,
    "a byte, and stays": _slow,
    "name of 65,535 bytes": _oversize,
    "message of an exabyte": _header,
    "replay": _replay,
    "connects and stays": _holds,
}


if __name__ == "__main__":
    sys.exit(main())
