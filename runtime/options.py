"""What a run can be told: `RunOptions`, whose fields are keyword arguments of `open_run`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, get_args

from shardopt.options.names import BackendName, PlatformName, TransportName
from shardopt.runtime.health.limits import DEFAULT_LIMITS, Limits
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.runtime.faults import Fault, FaultFields
    from shardopt.runtime.state.periodic import CheckpointOptions

A = TypeVar("A")
O = TypeVar("O")
P = ParamSpec("P")
R = TypeVar("R")

BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
TRANSPORTS: Mapping[BackendName, tuple[TransportName, ...]] = {
    "local": ("auto", "nccl"),
    "process": ("auto", "sockets", "nccl"),
    "ray": ("auto", "sockets", "ray", "nccl"),
}


@dataclass(frozen=True)
class RunOptions:
    """Where and how a program runs: the keyword arguments of `open_run`."""

    backend: BackendName = "local"
    """`local` is threads of this process, one a mesh; `process` is processes, and `ray` is actors,
    one a host of a mesh."""

    _: KW_ONLY

    platform: PlatformName = "auto"
    """Devices of the meshes; "auto": GPUs if there are as many as the program has devices, on this
    machine or in the cluster of Ray. Where there are some that are not used, a warning says so."""

    share_gpus: bool = False
    """Run on fewer GPUs than the program has devices: device d is GPU d modulo their number, so
    that a pipeline can be tried on one GPU."""

    transport: TransportName = "auto"
    """How workers in different processes exchange messages: "sockets", which is what "auto" means,
    or, with the backend `ray`, through its objects ("ray"), where sockets cannot be opened. With
    "nccl", GPUs exchange them directly."""

    checked_steps: int = 1
    """So many first steps verify every executable's inputs."""

    quick_compile: bool = False
    """Trade speed of the code for less compile time."""

    track_bytes: bool = False
    """Count live arrays after every instruction (`Run.live_bytes`), which makes steps slow."""

    compile_cache: bool = True
    """Keep executables on disk, in the folder that SHARDOPT_CACHE names, unless that says `off`."""

    trace: bool = False
    """Keep times of the newest steps (`Run.spans`, `Run.usage`)."""

    memory_limit_bytes: int | None = None
    """Refuse a program in which a device would hold more, with the temporaries of its functions."""

    watchdog_seconds: float | None = None
    """Say on standard error where every worker stands whenever a step makes no progress for so
    long."""

    devices_per_host: int | None = None
    """Of processes and actors; by default the hosts are those of the cluster that the module was
    planned for."""

    ray_address: str | None = None
    """Of the cluster of Ray, if this process is not connected to one; by default RAY_ADDRESS, else
    a new one on this machine."""

    checkpoints: CheckpointOptions | None = None
    """Write the state every so many steps (docs/guide/checkpoints.md)."""

    limits: Limits = DEFAULT_LIMITS
    """When a run that does not get on is given up."""

    faults: Sequence[Fault] = ()
    """What is made to go wrong, for tests."""

    def __post_init__(self) -> None:
        """Raises UserError for values that an option does not take, whatever the others are."""
        for name in _SWITCHES:
            if not isinstance(value := getattr(self, name), bool):
                raise UserError(f"expected {name} to be True or False, found {value!r}")
        for name, least in _COUNTS.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                found = f"an integer of at least {least}, found {value!r}"
                raise UserError(f"expected {name} to be {found}")
        seconds = self.watchdog_seconds
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise UserError(f"expected watchdog_seconds to be a positive number, found {seconds!r}")
        if self.ray_address is not None and not isinstance(self.ray_address, str):
            raise UserError(f"expected ray_address to be text, found {self.ray_address!r}")
        # Imported late: the type of checkpoints is known where there are some.
        if self.checkpoints is not None and not hasattr(self.checkpoints, "folder"):
            raise UserError(
                f"expected checkpoints to be CheckpointOptions(folder, …), found "
                f"{self.checkpoints!r}"
            )


_SWITCHES = ("share_gpus", "quick_compile", "track_bytes", "compile_cache", "trace")
# The least number of each.
_COUNTS = {"checked_steps": 0, "memory_limit_bytes": 0, "devices_per_host": 1}


@dataclass(frozen=True)
class WorkerOptions:
    """What each worker of a run is told; they travel to other processes as plain values."""

    platform: str = "cpu"
    """Devices: "cpu" or "gpu"; "auto" only for a backend that is still to find out."""

    gpus_from_zero: bool = False
    """Take GPUs in order, since the process sees those of its worker only; otherwise by the numbers
    of the mesh's devices."""

    share_gpus: bool = False
    """Meshes take turns on what GPUs there are."""

    direct: bool = False
    """GPUs exchange messages by NCCL."""

    devices_beside: int = 0
    """So many devices of the run, with the worker's own, share the cores of its machine."""

    checked_steps: int = 1
    """So many first steps compare every input of every RUN with what is expected."""

    quick_compile: bool = False
    """Trade speed of the code for less compile time."""

    track_bytes: bool = False
    """Count what is alive after every instruction."""

    compile_cache: bool = True
    """Keep executables in the user's cache folder (`SHARDOPT_CACHE`)."""

    trace: bool = False
    """Keep times of the newest steps (`Recorder`)."""

    faults: Sequence[FaultFields] = ()
    """What is made to happen."""


def with_keywords(
    options: Callable[P, O],
    start: Callable[[A, O], R],
) -> Callable[Concatenate[A, P], R]:
    """`start(first, Options(…))` as `f(first, …)`: its keywords, types and defaults are those of
    the options' class."""

    @functools.wraps(start)
    def call(first: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return start(first, options(*args, **kwargs))

    plain = inspect.signature(start)
    first = next(iter(plain.parameters.values())).replace(kind=inspect.Parameter.POSITIONAL_ONLY)
    shown = plain.replace(parameters=[first, *inspect.signature(options).parameters.values()])
    call.__signature__ = shown  # type: ignore[attr-defined]
    return call
