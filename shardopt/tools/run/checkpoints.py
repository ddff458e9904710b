"""`shardopt run --checkpoint-dir`: where a run leaves its state, and how it goes on from there."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from shardopt.runtime.state.places import Place, place
from shardopt.support.errors import UserError
from shardopt.tools.common import count

if TYPE_CHECKING:
    from shardopt.runtime.errors import MeshError
    from shardopt.runtime.restart import Recovery
    from shardopt.runtime.state.periodic import CheckpointOptions


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint-dir",
        type=place,
        metavar="DIR",
        help="write the state there, and find it there: a folder, or the address of a store, "
        "s3://bucket/run",
    )
    parser.add_argument(
        "--checkpoint-every", type=count, metavar="K", help="after every K steps (default 1)"
    )
    parser.add_argument(
        "--keep-checkpoints", type=count, metavar="N", help="so many of the newest stay (default 3)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint, of any plan"
    )
    parser.add_argument(
        "--resume-from",
        type=place,
        metavar="PATH",
        help="go on from this checkpoint, or from the newest in this folder",
    )
    parser.add_argument(
        "--restarts",
        type=_natural,
        default=0,
        metavar="R",
        help="start again so often when a mesh fails (default 0)",
    )
    parser.add_argument(
        "--replan",
        action="store_true",
        help="with --restarts on Ray: plan for the hosts that are left where some are gone, and "
        "for those that are there again",
    )


def checkpoint_options(args: argparse.Namespace) -> CheckpointOptions | None:
    """Raises UserError for options that need others."""
    from shardopt.runtime.state.periodic import CheckpointOptions

    if args.checkpoint_dir is None:
        for name in ("checkpoint_every", "keep_checkpoints", "resume"):
            if getattr(args, name):
                raise UserError(f"--{name.replace('_', '-')} needs --checkpoint-dir")
        return None
    if args.resume and args.resume_from is not None:
        raise UserError("--resume and --resume-from say two things: leave one of them out")
    if (args.resume or args.resume_from is not None) and args.check:
        raise UserError(
            "--check compares the first step, which a resumed run does not run: leave "
            "one of them out"
        )
    return CheckpointOptions(
        args.checkpoint_dir,
        args.checkpoint_every or 1,
        args.keep_checkpoints or 3,
        # What a step would be left out for is not to come back from a checkpoint.
        finite=args.nonfinite != "report",
        notice=lambda text: print(f"warning: {text}", file=sys.stderr),
    )


def has_checkpoint(args: argparse.Namespace, step: int) -> bool:
    """Whether the state after so many steps is on the disk."""
    from shardopt.runtime.state.checkpoint_folder import checkpoints

    folder = args.checkpoint_dir
    return folder is not None and any(each == step for each, _ in checkpoints(folder))


def recovery(args: argparse.Namespace) -> Recovery:
    """How a run begins, and what becomes of it when a mesh fails."""
    from shardopt.runtime.restart import Recovery

    return Recovery(
        args.checkpoint_dir,
        args.resume,
        args.restarts,
        _tell_restart,
        args.resume_from,
        _tell_resumed,
        _tell_left_out,
    )


def _tell_restart(error: MeshError, step: int) -> None:
    print(f"warning: {error}", file=sys.stderr)
    print(f"note: starting again from step {step}", file=sys.stderr)


def _tell_resumed(checkpoint: Place, step: int) -> None:
    print(f"note: going on from '{checkpoint}', at step {step}", file=sys.stderr)


def _tell_left_out(text: str) -> None:
    print(f"warning: {text}; the steps before it run again", file=sys.stderr)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number, found '{text}'")
    return int(text)
