"""What a device holds under every schedule: the simulator's peak against arrays that are alive when
the plan runs.

    python -m benchmarks.schedule.live_bytes [--microbatches 8] [--hidden 64] [--steps 5]

The same four stages of a small GPT, trained by SGD with momentum, run on one mesh each, or on two
meshes with two stages each, on devices of the host. After every instruction of the last step the
runtime counts the bytes of all live arrays of a device (weights, state, accumulators, activations,
what was received); what is under way between meshes belongs to neither. Some schedules run once
more with optimizer state on the hosts. Printed are the peaks of both, with what the instruction
lists give between them, and how far the results of the last step are from those of one device, but
for schedules that compute with older weights."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from examples.gpt import Config, init_params, loss_fn
from shardopt.dialect.program import read_program
from shardopt.dialect.schedule import read_peaks
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.options.names import OffloadChoice
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.program.memory import mesh_memory
from shardopt.runtime.reference import Reference, compare

# Four stages under each, on as many meshes.
SCHEDULES = {
    "gpipe": 4,
    "1f1b": 4,
    "eager-1f1b": 4,
    "zero-bubble": 4,
    "interleaved:2": 2,
    "chimera": 4,
    "zb-v": 2,
    "v-half": 2,
    "v-min": 2,
    "dualpipe-v": 2,
}
# Cut along tokens; these slices are unequal.
OF_TOKENS = {"terapipe": 4}
_SLICES = "3,4,1"
# Once more, with the state that only updates use on the hosts, or with what waits for a backward.
OFFLOADED = ("1f1b", "zb-v", "terapipe")
# These compute another step: nothing to hold against one device.
WITH_OLD_WEIGHTS = {"pipedream": 4, "pipedream-2bw": 4}
_STAGES = 4


@dataclass(frozen=True)
class MeshBytes:
    """Peaks of one device of a mesh: by the simulator, by the instruction list, and measured."""

    mesh: str
    predicted: int
    of_program: int
    measured: int

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


@dataclass(frozen=True)
class Measured:
    """What running a plan gave: peaks by mesh, and the results of the last step."""

    schedule: str
    meshes: tuple[MeshBytes, ...]
    outputs: tuple[np.ndarray, ...]


def gpt(batch: int, hidden: int, layers: int = _STAGES) -> tuple[bytes, list[np.ndarray]]:
    """The exported step of some blocks of the example GPT, and its inputs. With momentum, as Adam
    makes steps of equal size of the smallest differences."""
    import jax
    import jax.numpy as jnp

    config = Config(layers=layers, hidden=hidden, heads=2, vocab=32, length=8)

    def step(params: Any, velocity: Any, tokens: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, config)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - 0.02 * v, params, velocity), velocity, loss

    params = init_params(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (batch, config.length + 1), 0, config.vocab)
    arguments = (params, jax.tree.map(jnp.zeros_like, params), tokens)
    exported = jax.export.export(jax.jit(step, donate_argnums=(0, 1)))(*arguments)
    return bytes(exported.mlir_module_serialized), [
        np.asarray(leaf) for leaf in jax.tree.leaves(arguments)
    ]


def plan_for(
    artifact: bytes,
    schedule: str,
    microbatches: int,
    devices_per_mesh: int = 1,
    offload: OffloadChoice = "none",
) -> Plan:
    """A plan of four stages, a layer each, without recomputation."""
    meshes = (SCHEDULES | OF_TOKENS | WITH_OLD_WEIGHTS)[schedule]
    options = PlanOptions(
        f"cpu-test:1x{meshes * devices_per_mesh}",
        microbatches=microbatches,
        layers=_STAGES,
        stages=_STAGES,
        submesh=f"1x{devices_per_mesh}",
        schedule=schedule,
        token_slices=_SLICES if schedule in OF_TOKENS else "auto",
        recompute="none",
        offload=offload,
    )
    return make_plan(artifact, options)


def measure(plan: Plan, inputs: Sequence[np.ndarray], steps: int) -> Measured:
    """Run some steps, with the first inputs and the state that comes of them."""
    with make_context() as context:
        module = load_module(plan.module, context)
        peaks, program = read_peaks(read_program(module).loop), prepare(module)
    with open_run(program, quick_compile=True, track_bytes=True) as run:
        run.load(inputs)
        for _ in range(steps):
            outputs = run.step()
        outputs_of_step, live = tuple(outputs), run.live_bytes()
    meshes = tuple(
        MeshBytes(part.mesh.name, peak, max(mesh_memory(part).after), max(live[part.mesh.name]))
        for part, peak in zip(program.meshes, peaks, strict=True)
    )
    return Measured(plan.summary.schedule, meshes, outputs_of_step)


def reference_steps(artifact: bytes, inputs: Sequence[np.ndarray], steps: int) -> list[np.ndarray]:
    """The results of the last of some steps on one device; results replace the first inputs, which
    are the state."""
    with make_context() as context:
        step = Reference(load_module(artifact, context))
        outputs: list[np.ndarray] = []
        for _ in range(steps):
            outputs = step([*outputs[:-1], *inputs[max(len(outputs) - 1, 0) :]])
        return outputs


def rows(
    artifact: bytes, inputs: Sequence[np.ndarray], microbatches: int, steps: int
) -> Iterator[tuple[str, ...]]:
    expected = reference_steps(artifact, inputs, steps)
    runs: list[tuple[str, OffloadChoice]] = [
        *((name, "none") for name in (*SCHEDULES, *OF_TOKENS, *WITH_OLD_WEIGHTS)),
        *((name, "optimizer") for name in OFFLOADED),
        *((name, "activations") for name in OFFLOADED),
    ]
    for schedule, offload in runs:
        plan = plan_for(artifact, schedule, microbatches, offload=offload)
        measured = measure(plan, inputs, steps)
        away = max(row.max_rel for row in compare(list(measured.outputs), expected))
        for mesh in measured.meshes:
            peaks = (f"{each}" for each in (mesh.predicted, mesh.of_program, mesh.measured))
            shown = "–" if schedule in WITH_OLD_WEIGHTS else f"{away:.1e}"
            yield schedule, offload, mesh.mesh, *peaks, f"{mesh.ratio:.3f}", shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    artifact, inputs = gpt(2 * args.microbatches, args.hidden)
    title = f"bytes of a device, {args.microbatches} microbatches"
    table = Table("schedule", "on hosts", "mesh", title=title)
    for column in ("predicted peak", "of the program", "measured peak", "ratio", "from one device"):
        table.add_column(column, justify="right")
    for row in rows(artifact, inputs, args.microbatches, args.steps):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
