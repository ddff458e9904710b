"""The driver: from an exported module to a running distributed program.

    program = prepare(plan.module)  # verify, read, build, check; no device needed
    with open_run(program, backend="local") as run:
        run.load(inputs)  # one numpy array per argument of @main
        outputs = run.step()  # arrays are fetched when looked at
        loss = outputs[-1]

Arguments that a result replaces (donated ones) are state: they stay on the workers and are fed back
from step to step. The others keep their value until `step({number: array})` gives a new one. State
need not come from here: `create` and `initialize` make it where it lives, `restore` reads it from a
checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jaxlib.mlir import ir

from shardopt.dialect.cluster import CLUSTER, read_cluster
from shardopt.dialect.custom_calls import custom_call_faults
from shardopt.forms.exported_form import keep_results, read_exported
from shardopt.forms.exported_verify import verify_exported
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError, diagnostic
from shardopt.ir.io import load_module
from shardopt.runtime.devices.gpus import chosen_platform
from shardopt.runtime.faults import fault_fields
from shardopt.runtime.options import BACKENDS, TRANSPORTS, RunOptions, WorkerOptions, with_keywords
from shardopt.runtime.program.build import build_program
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.hosts import devices_of_a_machine, hosts_of, num_devices
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.memory import over_limit
from shardopt.runtime.program.unused_results import drop_unused_results
from shardopt.runtime.run import Backend, Run
from shardopt.runtime.state.periodic import PeriodicCheckpoints
from shardopt.support.errors import UserError


def prepare(module: ir.Module | bytes, custom_calls: str = "") -> Program:
    """The program of an exported module, as `Plan.module` has it or read. Its custom calls are
    those that XLA and JAX register, or these ("NAME,…"). Raises UserError with the places of all
    faults in the module."""
    if isinstance(module, bytes):
        with make_context() as context:
            return prepare(load_module(module, context), custom_calls)
    native = custom_call_faults(module, custom_calls)
    faults = [*verify_exported(module), *((op.location, fault) for op, fault in native)]
    if faults:
        raise DiagnosedError(*(diagnostic("error", where, message) for where, message in faults))
    built = drop_unused_results(build_program(read_exported(module)), keep_results)
    program = replace(built, hosts=_cluster_hosts(module))
    problems = check_program(program)
    if problems:
        raise UserError("the module cannot be executed: " + "; ".join(problems))
    return program


def _cluster_hosts(module: ir.Module) -> tuple[tuple[int, ...], ...]:
    """The devices of every host of the cluster that the module carries; nothing for a module made
    without one."""
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


def start_run(program: Program, options: RunOptions) -> Run:
    """Start the workers and compile, as the options say; `open_run` takes the fields of
    `RunOptions` as keyword arguments.

    Raises UserError for options that do not fit each other, too little memory, or a folder that
    another run writes to, MeshError if a mesh cannot start.
    """
    _check_options(options)
    worker_options = WorkerOptions(
        # The GPUs of a cluster of Ray are known when the backend has connected to it.
        platform=options.platform
        if (options.backend, options.platform) == ("ray", "auto")
        else chosen_platform(options.platform, num_devices(program), share=options.share_gpus),
        share_gpus=options.share_gpus,
        direct=options.transport == "nccl",
        devices_beside=_devices_beside(program, options),
        checked_steps=options.checked_steps,
        quick_compile=options.quick_compile,
        track_bytes=options.track_bytes,
        compile_cache=options.compile_cache,
        trace=options.trace,
        faults=fault_fields(options.faults, options.backend),
    )
    # Before anything starts, without the temporaries, which only compiling tells: see below.
    _check_memory(program, options.memory_limit_bytes, {})
    # Before the workers, so that a folder in use is told before they compile.
    periodic = None if options.checkpoints is None else PeriodicCheckpoints(options.checkpoints)
    try:
        started = _start(program, options, worker_options)
        run = Run(program, started, periodic, options.watchdog_seconds)
    except BaseException:
        if periodic is not None:
            periodic.close()
        raise
    if options.memory_limit_bytes is not None:
        try:
            _check_memory(program, options.memory_limit_bytes, run.temporary_bytes())
        except BaseException:
            run.close()
            raise
    return run


# `open_run(program, "process", quick_compile=True)`
open_run = with_keywords(RunOptions, start_run)


def _devices_beside(program: Program, options: RunOptions) -> int:
    """How many devices share the cores of a machine. On Ray, of one of the plan and not where the
    actors are in the end: a run that starts again elsewhere has the same code, and the same
    numbers."""
    if options.backend == "ray":
        return devices_of_a_machine(hosts_of(program, options.devices_per_host))
    return sum(part.mesh.size for part in program.meshes)


def _check_options(options: RunOptions) -> None:
    backend, transport, platform = options.backend, options.transport, options.platform
    if backend not in BACKENDS:
        raise UserError(f"unknown backend '{backend}': known backends are {', '.join(BACKENDS)}")
    if transport not in TRANSPORTS[backend]:
        raise UserError(
            f"backend '{backend}' knows the transports {', '.join(TRANSPORTS[backend])}, found "
            f"'{transport}'"
        )
    if transport == "nccl" and platform != "gpu":
        raise UserError(f"transport 'nccl' needs platform 'gpu', found '{platform}'")
    if options.share_gpus and (platform == "cpu" or transport == "nccl" or backend != "local"):
        raise UserError(
            "GPUs are shared by meshes of one process: expected backend 'local', platform 'gpu', "
            "no NCCL"
        )


def _check_memory(
    program: Program, limit: int | None, temporaries: Mapping[str, Mapping[str, int]]
) -> None:
    if limit is not None and (faults := over_limit(program, limit, temporaries)):
        raise UserError("; ".join(faults))


def _start(program: Program, options: RunOptions, worker_options: WorkerOptions) -> Backend:
    if options.backend == "local":
        from shardopt.runtime.backends.local import LocalBackend

        return LocalBackend(program, worker_options, options.limits)
    hosts = hosts_of(program, options.devices_per_host)
    if options.backend == "process":
        from shardopt.runtime.backends.process import ProcessBackend

        return ProcessBackend(program, hosts, worker_options, options.limits)
    from shardopt.runtime.backends.ray_actors import RayBackend

    return RayBackend(
        program,
        hosts,
        worker_options,
        options.transport,
        options.limits,
        address=options.ray_address,
    )
