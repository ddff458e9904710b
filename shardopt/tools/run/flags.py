"""The flags of `shardopt run`, and the options of the runtime that they stand for."""

from __future__ import annotations

import argparse
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from shardopt.options.names import BackendName, PlatformName, TransportName
from shardopt.runtime.health.limits import Limits
from shardopt.support.sizes import parse_bytes
from shardopt.tools.common import count
from shardopt.tools.option_flags import add_options
from shardopt.tools.run.checkpoints import add_checkpoints, checkpoint_options
from shardopt.tools.run.guard import NonFinite
from shardopt.tools.run.inputs import add_program_flags
from shardopt.tools.run.views import add_views, wants_trace

_WATCHDOG_SECONDS = 60.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan",
        type=Path,
        metavar="PLAN",
        help="directory written by `shardopt plan -o`, or file of a module with fragments or calls",
    )
    add_program_flags(parser)
    _add_workers(parser)
    _add_steps(parser)
    _add_metrics(parser)
    _add_check(parser)
    _add_limits(parser)
    add_checkpoints(parser)
    add_views(parser)


def run_options(args: argparse.Namespace, *, with_metrics: bool) -> dict[str, Any]:
    """What `open_run` is told, but for the backend."""
    return {
        "platform": args.platform,
        "share_gpus": args.share_gpus,
        "transport": args.transport,
        "quick_compile": args.quick_compile,
        "compile_cache": args.compile_cache,
        # Metrics are worked out of the times of instructions.
        "trace": wants_trace(args) or with_metrics,
        "memory_limit_bytes": args.memory_limit,
        "watchdog_seconds": args.watchdog or None,
        "devices_per_host": args.devices_per_host,
        "ray_address": args.ray_address,
        "limits": Limits(**{each.name: getattr(args, each.name) for each in fields(Limits)}),
        "checkpoints": checkpoint_options(args),
    }


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        default="local",
        choices=get_args(BackendName),
        help="threads or processes here, or Ray actors",
    )
    parser.add_argument(
        "--platform",
        default="auto",
        choices=get_args(PlatformName),
        help="devices of the meshes; auto: GPUs if there are enough, on this machine or in the "
        "Ray cluster",
    )
    parser.add_argument(
        "--share-gpus",
        action="store_true",
        help="meshes share the GPUs of this machine, where these are too few",
    )
    parser.add_argument(
        "--transport",
        default="auto",
        choices=get_args(TransportName),
        help="of messages: sockets, Ray's objects, or from GPU to GPU",
    )
    parser.add_argument(
        "--devices-per-host",
        type=count,
        metavar="N",
        help="of processes and actors (default: the cluster of the plan)",
    )
    parser.add_argument(
        "--ray-address", metavar="HOST:PORT", help="of a running Ray cluster (default: RAY_ADDRESS)"
    )


def _add_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=count, default=1, metavar="N")
    parser.add_argument(
        "--inputs", type=Path, metavar="F.npz", help="arrays in0, in1, …; others are random"
    )
    parser.add_argument(
        "--outputs", type=Path, metavar="F.npz", help="write those of the last step: out0, out1, …"
    )
    parser.add_argument(
        "--data",
        metavar="SOURCE",
        help="what every step is given: .npz, .parquet or .array_record files with rows of "
        "arguments, in a folder, or module:function, which gives an iterator of batches from the "
        "step it is called with",
    )
    parser.add_argument(
        "--max-seconds",
        type=_seconds,
        metavar="SECONDS",
        help="stop after the step in which these are over, with a checkpoint",
    )
    parser.add_argument(
        "--nonfinite",
        choices=get_args(NonFinite),
        default="report",
        help="of a step whose loss or metrics are not finite: report it, stop, or go back to the "
        "newest checkpoint and leave the step out",
    )


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="append a line of JSON for every step: seconds, results, tokens a second, how busy "
        "the meshes are, memory",
    )
    parser.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="write the same for TensorBoard, as curves"
    )
    parser.add_argument(
        "--tokens",
        metavar="N|NAME",
        help="tokens of a step, for metrics: a number, or the argument whose elements they are "
        "(default: the largest one of integers, batch by sequence)",
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="of random inputs")
    parser.add_argument(
        "--check", action="store_true", help="compare the first step with one device"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="largest relative difference (default 1e-4)"
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick-compile", action="store_true", help="less optimisation, less compile time"
    )
    parser.add_argument(
        "--no-compile-cache",
        dest="compile_cache",
        action="store_false",
        help="compile everything, keep nothing on disk",
    )
    parser.add_argument(
        "--memory-limit",
        type=_bytes,
        metavar="BYTES",
        help="refuse what a device would not hold, such as 512MiB",
    )
    parser.add_argument(
        "--watchdog",
        type=float,
        default=_WATCHDOG_SECONDS,
        metavar="SECONDS",
        help="say where every worker stands after so long without progress (default 60; 0 for "
        "never)",
    )
    add_options(parser, Limits)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found '{text}'")
    return seconds


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
