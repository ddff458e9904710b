"""The driver: from an exported module to a running distributed program.

    program = prepare(module)                          # verify, read, build, check; no device needed
    with open_run(program, backend="local") as run:
        run.load(inputs)                               # one numpy array per argument of @main
        outputs = run.step()                           # arrays are fetched when looked at
        loss = outputs[-1]

Arguments that a result replaces (donated ones) are state: they stay on the workers and are fed back from step to step.
The others keep their value until `step({number: array})` gives a new one. State need not come from here: `create` and
`initialize` make it where it lives, `restore` reads it from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir

from shardopt.dialect.cluster import CLUSTER, read_cluster
from shardopt.forms.exported_form import read_exported
from shardopt.forms.exported_verify import verify_exported
from shardopt.ir.diagnostics import DiagnosedError, diagnostic
from shardopt.runtime.devices.gpus import chosen_platform
from shardopt.runtime.faults import Fault, fault_fields
from shardopt.runtime.health.monitor import DEFAULT_LIMITS, Limits
from shardopt.runtime.program.build import build_program
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.hosts import hosts_of
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.memory import over_limit
from shardopt.runtime.run import Backend, Run
from shardopt.runtime.state.periodic import CheckpointOptions, PeriodicCheckpoints
from shardopt.support.errors import UserError

BACKENDS = ("local", "process", "ray")
TRANSPORTS = {
    "local": ("auto", "nccl"),
    "process": ("auto", "sockets", "nccl"),
    "ray": ("auto", "sockets", "ray", "nccl"),
}


def prepare(module: ir.Module) -> Program:
    """The program of an exported module. Raises UserError with the places of all faults in the module."""
    faults = verify_exported(module)
    if faults:
        raise DiagnosedError(*(diagnostic("error", where, message) for where, message in faults))
    program = replace(build_program(read_exported(module)), hosts=_cluster_hosts(module))
    problems = check_program(program)
    if problems:
        raise UserError("the module cannot be executed: " + "; ".join(problems))
    return program


def _cluster_hosts(module: ir.Module) -> tuple[tuple[int, ...], ...]:
    """The devices of every host of the cluster that the module carries; nothing for a module made without one."""
    if CLUSTER not in module.operation.attributes:
        return ()
    try:
        cluster = read_cluster(module)
    except ValueError as error:
        raise UserError(str(error)) from error
    hosts: dict[int, list[int]] = {}
    for device in range(cluster.num_devices):
        hosts.setdefault(cluster.host_of(device), []).append(device)
    return tuple(tuple(devices) for devices in hosts.values())


def open_run(
    program: Program,
    backend: str = "local",
    *,
    platform: str = "auto",
    share_gpus: bool = False,
    transport: str = "auto",
    checked_steps: int = 1,
    quick_compile: bool = False,
    track_bytes: bool = False,
    compile_cache: bool = True,
    trace: bool = False,
    memory_limit_bytes: int | None = None,
    watchdog_seconds: float | None = None,
    devices_per_host: int | None = None,
    ray_address: str | None = None,
    checkpoints: CheckpointOptions | None = None,
    limits: Limits = DEFAULT_LIMITS,
    faults: Sequence[Fault] = (),
) -> Run:
    """Start the workers and compile. `local` is threads of this process, one a mesh; `process` is processes, and `ray`
    is actors, one a host of a mesh: the hosts of the cluster that the module was planned for, or ones of
    `devices_per_host` devices. The cluster of Ray is the one that this process is connected to, else that at
    `ray_address` or RAY_ADDRESS, else a new one on this machine.

    `platform` is "cpu", "gpu", or "auto": GPUs if this process sees as many as the program has devices. With
    `share_gpus`, fewer do: device d is GPU d modulo their number, so that a pipeline can be tried on one GPU.
    `transport` is how workers in different processes exchange messages: "sockets", which is what "auto" means, or, with
    the backend `ray`, through its objects ("ray"), where sockets cannot be opened. With "nccl", GPUs exchange them
    directly.
    `checked_steps` first steps verify every executable's inputs. `quick_compile` trades speed of the code for less
    compile time. `track_bytes` counts live arrays after every instruction (`Run.live_bytes`), which makes steps slow.
    `compile_cache` keeps executables on disk, in the folder that SHARDOPT_CACHE names, unless that says `off`.
    `trace` keeps times of the newest steps (`Run.spans`). A program in which a device would hold more than
    `memory_limit_bytes`, with the temporaries of its functions, is refused. With `watchdog_seconds`, it is said on
    standard error where every worker stands whenever a step makes no progress for so long.
    With `checkpoints`, the state is written every so many steps (docs/checkpoints.md). `limits` say when a run that
    does not get on is given up. `faults` make things go wrong, for tests.
    Raises UserError for an unknown backend, too little memory, or a folder that another run writes to, MeshError if a
    mesh cannot start.
    """
    if backend not in BACKENDS:
        raise UserError(f"unknown backend '{backend}': known backends are {', '.join(BACKENDS)}")
    if transport not in TRANSPORTS[backend]:
        raise UserError(
            f"backend '{backend}' knows the transports {', '.join(TRANSPORTS[backend])}, found '{transport}'"
        )
    if transport == "nccl" and platform != "gpu":
        raise UserError(f"transport 'nccl' needs platform 'gpu', found '{platform}'")
    if share_gpus and (platform != "gpu" or transport == "nccl" or backend != "local"):
        raise UserError("GPUs are shared by meshes of one process: expected backend 'local', platform 'gpu', no NCCL")
    options = {
        "share_gpus": share_gpus,
        "direct": transport == "nccl",
        "platform": chosen_platform(
            platform, 1 + max(device for part in program.meshes for device in part.mesh.devices)
        ),
        "checked_steps": checked_steps,
        "quick_compile": quick_compile,
        "track_bytes": track_bytes,
        "compile_cache": compile_cache,
        "trace": trace,
        "limits": limits,
        "faults": fault_fields(faults, backend),
    }
    _check_memory(program, memory_limit_bytes, {})
    periodic = None if checkpoints is None else PeriodicCheckpoints(checkpoints)
    try:
        started = _start(program, backend, transport, devices_per_host, ray_address, options)
        run = Run(program, started, periodic, watchdog_seconds)
    except BaseException:
        if periodic is not None:
            periodic.close()
        raise
    if memory_limit_bytes is not None:
        try:
            _check_memory(program, memory_limit_bytes, run.temporary_bytes())
        except BaseException:
            run.close()
            raise
    return run


def _check_memory(program: Program, limit: int | None, temporaries: Mapping[str, Mapping[str, int]]) -> None:
    if limit is not None and (faults := over_limit(program, limit, temporaries)):
        raise UserError("; ".join(faults))


def _start(
    program: Program,
    backend: str,
    transport: str,
    devices_per_host: int | None,
    ray_address: str | None,
    options: Mapping[str, Any],
) -> Backend:
    if backend == "ray":
        from shardopt.runtime.backends.ray_actors import RayBackend

        return RayBackend(program, hosts_of(program, devices_per_host), transport, address=ray_address, **options)
    if backend == "process":
        from shardopt.runtime.backends.process import ProcessBackend

        return ProcessBackend(program, hosts_of(program, devices_per_host), **options)
    from shardopt.runtime.backends.local import LocalBackend

    return LocalBackend(program, **options)
