"""What a step exchanges under the user's own `jax.jit`, with a plan of `shardopt.shardings`: a
table.

    python -m benchmarks.frontend.own_jit              # GPT, mixture of experts, ResNet
    python -m benchmarks.frontend.own_jit --mesh data=8 gpt

Of each step three programs are compiled for CPU devices, and the bytes of their collectives are
read from what XLA made: `jax.jit(plan.constrained)`, `jax.jit(sharded.call)` of `shardopt.shard`,
and the function itself with nothing but the shardings of its arguments and results, between which
XLA's propagation decides."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from rich.console import Console
from rich.table import Table

# Small, with dimensions that all meshes of eight devices divide.
MODELS = ("gpt", "moe", "resnet")


@dataclass(frozen=True)
class Traffic:
    """Bytes that one device exchanges in a step, in all, and in all-gathers alone."""

    total_bytes: int
    gathered_bytes: int


@dataclass(frozen=True)
class Comparison:
    """A step, and what it exchanges: in the user's jit, as `sharded.call`, and with the shardings
    of its signature alone."""

    model: str
    own_jit: Traffic
    sharded_call: Traffic
    signature_only: Traffic


def compare(name: str, axes: dict[str, int], cluster: str) -> Comparison:
    """Plan and compile one of `MODELS` for a mesh of the first devices of this process."""
    import jax
    import numpy as np

    import shardopt
    from shardopt.models.build import build
    from shardopt.models.train_step import abstract_state, make_step

    model = build(_spec(name), "f32")
    step, arguments = make_step(model), (abstract_state(model), model.batch)
    devices = np.array(jax.devices()[: prod(axes.values())]).reshape(*axes.values())
    mesh = jax.sharding.Mesh(devices, tuple(axes))
    plan = shardopt.shardings(step, *arguments, mesh=mesh, cluster=cluster)
    exported = jax.export.export(jax.jit(step, donate_argnums=0))(*arguments)
    text = ",".join(f"{axis}:{size}" for axis, size in axes.items())
    sharded = shardopt.shard(exported, cluster, text)
    inputs, _ = shardopt.input_shardings(sharded)
    whole = {"in_shardings": plan.in_shardings, "out_shardings": plan.out_shardings}
    programs = (
        jax.jit(plan.constrained, donate_argnums=0),
        jax.jit(sharded.call, in_shardings=inputs, donate_argnums=0),
        jax.jit(step, donate_argnums=0, **whole),
    )
    return Comparison(name, *(_traffic(program, arguments, text) for program in programs))


def _spec(name: str) -> Any:
    from shardopt.models.specs import GptSpec, MoeSpec, ResnetSpec

    sizes = {"sequence": 32, "vocab": 128, "batch": 32, "heads": 8}
    if name == "gpt":
        return GptSpec(hidden=128, layers=2, tied=True, **sizes)
    if name == "moe":
        return MoeSpec(hidden=128, layers=2, experts=8, group=128, **sizes)
    return ResnetSpec(50, 32, 1, image=32, classes=128, batch=32, blocks=(1, 1, 1, 1))


def _traffic(program: Any, arguments: tuple[Any, ...], mesh: str) -> Traffic:
    from shardopt.mesh.mesh import parse_mesh
    from shardopt.xla_text.hlo import module_traffic

    compiled = program.lower(*arguments).compile()
    traffic = module_traffic(compiled.as_text(), parse_mesh(mesh))
    gathers = sum(each.bytes for each in traffic if each.kind == "all_gather")
    return Traffic(sum(each.bytes for each in traffic), gathers)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--mesh", default="data=2,model=4", help="axes of the mesh, NAME=SIZE")
    parser.add_argument("--cluster", default="cpu-test:1x8")
    args = parser.parse_args(argv)
    axes = {name: int(size) for name, _, size in (a.partition("=") for a in args.mesh.split(","))}
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={prod(axes.values())}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    table = Table("model", "own jit, KB", "sharded.call, KB", "ratio", "signature only, KB")
    for name in args.models or MODELS:
        row = compare(name, axes, args.cluster)
        sizes = (row.own_jit, row.sharded_call, row.signature_only)
        jitted, call, alone = (
            f"{each.total_bytes / 1e3:.1f} (gathers {each.gathered_bytes / 1e3:.1f})"
            for each in sizes
        )
        ratio = row.own_jit.total_bytes / max(row.sharded_call.total_bytes, 1)
        table.add_row(name, jitted, call, f"{ratio:.3f}", alone)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
