"""What `beside_torch.py` starts in an environment that has torch: the same MLP by
torch.distributed.pipelining on gloo, and in one process. Prints both, in seconds a step."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
from statistics import median
from time import perf_counter
from typing import Any

_WARM = 3


def _layers(torch: Any, width: int, count: int) -> Any:
    nn = torch.nn
    modules = [
        each for _ in range(count) for each in (nn.Linear(width, width, bias=False), nn.Tanh())
    ]
    return nn.Sequential(*modules)


def _timed(steps: int, step: Any) -> float:
    samples = []
    for _ in range(_WARM + steps):
        begin = perf_counter()
        step()
        samples.append(perf_counter() - begin)
    return median(samples[_WARM:])


def _single(width: int, rows: int, microbatches: int, steps: int) -> float:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    model, loss = _layers(torch, width, 4), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = torch.randn(rows, width), torch.randn(rows, width)

    def step() -> None:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            (loss(model(part), target) / microbatches).backward()
        optimizer.step()

    return _timed(steps, step)


def _rank(
    rank: int, port: int, width: int, rows: int, microbatches: int, steps: int, pipe: Any
) -> None:
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    pipelining: Any = importlib.import_module("torch.distributed.pipelining")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = _layers(torch, width, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, microbatches, loss_fn=torch.nn.MSELoss())
    x, y = torch.randn(rows, width), torch.randn(rows, width)

    def step() -> None:
        optimizer.zero_grad()
        if rank:
            schedule.step(target=y)
        else:
            schedule.step(x)
        optimizer.step()
        dist.barrier()

    seconds = _timed(steps, step)
    if rank == 0:
        pipe.send(seconds)
    dist.destroy_process_group()


def main() -> None:
    width, rows, microbatches, steps = map(int, sys.argv[1:])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    arguments = (port, width, rows, microbatches, steps, far)
    ranks = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(2)]
    for each in ranks:
        each.start()
    seconds = near.recv()
    for each in ranks:
        each.join()
    print(seconds, _single(width, rows, microbatches, steps))


if __name__ == "__main__":
    main()
