"""`shardopt profile`: measure the devices at hand into a file that `--profile` takes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shardopt import __version__
from shardopt.support.errors import UserError
from shardopt.tools.common import console

if TYPE_CHECKING:
    from shardopt.support.progress import Progress

_DTYPES = ("f64", "f32", "bf16", "f16")


def add_profile(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure matrix products, elementwise work, collectives, messages and calls on the devices "
        "of this machine. The file is what `shardopt plan --profile` takes."
    )
    parser.add_argument(
        "--platform", choices=("auto", "cpu", "accelerator"), default="auto", help="default: auto"
    )
    parser.add_argument(
        "--devices", type=_count, metavar="N", help="how many (default: 4 of the host, or all)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="name of the devices, as in the cluster file"
    )
    parser.add_argument(
        "--dtypes",
        type=_dtypes,
        default=("f32",),
        metavar="T,U",
        help="f32 (default), bf16, f16, f64",
    )
    parser.add_argument("--kinds", type=_kinds, metavar="K,L", help="only these kinds of work")
    parser.add_argument("--quick", action="store_true", help="fewer samples, and no large sizes")
    parser.add_argument(
        "--cluster",
        default="cpu-test",
        metavar="FILE|PRESET",
        help="whose formulas to compare with",
    )
    parser.add_argument(
        "--date", type=date.fromisoformat, metavar="Y-M-D", help="to write into the file"
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="write a picture of measured against formula"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the profile")
    parser.set_defaults(run=_run)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, found '{text}'")
    return int(text)


def _dtypes(text: str) -> tuple[str, ...]:
    dtypes = tuple(text.split(","))
    if len(set(dtypes)) != len(dtypes) or not set(dtypes) <= set(_DTYPES):
        raise argparse.ArgumentTypeError(
            f"expected some of {','.join(_DTYPES)}, each once, found '{text}'"
        )
    return dtypes


def _kinds(text: str) -> tuple[str, ...]:
    from shardopt.hardware.profile import KINDS  # here, as it needs numpy

    kinds = tuple(text.split(","))
    if not set(kinds) <= set(KINDS):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(KINDS)}, found '{text}'")
    return kinds


def _run(args: argparse.Namespace) -> None:
    from shardopt.hardware.cluster_file import load_cluster
    from shardopt.hardware.profile_file import profile_text
    from shardopt.ir.io import check_output
    from shardopt.report.profile_report import profile_svg, profile_table
    from shardopt.runtime.profiling.measure import MeasurementRequest, measure_profile
    from shardopt.support.progress import watching

    for path in (args.output, args.svg):
        if path is not None:
            check_output(path)
    cluster = load_cluster(args.cluster)
    devices = _devices(args.platform, args.devices)
    name = args.device or str(devices[0].device_kind)
    request = (
        MeasurementRequest.quick(name, args.dtypes)
        if args.quick
        else MeasurementRequest(name, args.dtypes)
    )
    if args.kinds is not None:
        request = replace(request, kinds=args.kinds)
    remarks: list[str] = []
    with _Bar() as bar, watching(bar.show):
        profile = measure_profile(
            devices, request, _origin(devices, request, args.date), remark=remarks.append
        )
    for remark in remarks:
        print(f"remark: {remark}", file=sys.stderr)
    if args.output is not None:
        args.output.write_text(profile_text(profile))
    if args.svg is not None:
        args.svg.write_text(profile_svg(profile, cluster))
    console().print(profile_table(profile, cluster))


def _devices(platform: str, count: int | None) -> list[Any]:
    """Raises UserError when there are too few."""
    from shardopt.runtime.devices.clients import unshared_devices
    from shardopt.runtime.devices.replicas import accelerators

    devices = [] if platform == "cpu" else accelerators()
    if devices or platform == "accelerator":
        if len(devices) < (count or 1):
            raise UserError(f"expected {count or 1} accelerators, found {len(devices)}")
        return devices[:count]
    return unshared_devices(count or 4).local


def _origin(devices: list[Any], request: Any, day: date | None) -> dict[str, str]:
    """Where the numbers come from; nothing in it changes a plan."""
    return {
        "date": (day or datetime.now(UTC).date()).isoformat(),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "shardopt": __version__,
        "platform": str(devices[0].platform),
        "device_kind": str(devices[0].device_kind),
        "samples": f"{request.effort.fewest} to {request.effort.most}",
    }


class _Bar:
    """One line on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            TextColumn("{task.description:>24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        terminal = Console(stderr=True)
        self._bar = Progress(
            *columns, console=terminal, transient=True, disable=not terminal.is_terminal
        )
        self._task = self._bar.add_task("", total=None)

    def show(self, progress: Progress) -> None:
        self._bar.update(
            self._task, description=progress.what, completed=progress.done, total=progress.total
        )

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()
