"""Nodes of a Ray cluster are lost in the middle of `shardopt run --restarts`: is the state in the
end that of a run that lost none?

    python -m benchmarks.runtime.node_loss [--trials 10] [--steps 40] [--seed 0] [--replan]
        [--devices 2]

The hosts are network namespaces of this machine (`namespaces.py`), so root is needed. The plan of
the tutorial's model is on two hosts; the driver runs on the head of the cluster. At a random step
everything on a node with a worker is killed. Without `--replan` there is a spare node, and the
state of the newest checkpoint must be that of an undisturbed run, bit for bit. With it there is
none, the run goes on with a plan for one host, and no value may differ by more than 1e-5 of the
largest of its array: with `--devices 2` of each host for both stages, with 1 for a single one, as
there is no device for the other. The node comes back before the next trial."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from benchmarks.runtime.namespaces import LinkedHosts, why_not
from shardopt.frontend.planning.optimize import optimize
from shardopt.frontend.plans.plan import Plan
from shardopt.runtime.driver import open_run
from shardopt.runtime.inputs import random_inputs
from shardopt.runtime.run import Run
from shardopt.runtime.state.checkpoint_folder import checkpoints

_MODEL = Path(__file__).parents[2] / "docs" / "tutorial" / "mlp.mlir"
_SECONDS = 300.0  # of one run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replan", action="store_true", help="on the host that is left")
    parser.add_argument("--devices", type=int, default=2, help="of each host, with --replan")
    args = parser.parse_args(argv)
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    generator, bad = random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        cluster = f"cpu-test:2x{args.devices if args.replan else 1}"
        plan = optimize(_MODEL, cluster, microbatches=2, stages=2)
        plan.save(Path(folder) / "plan")
        expected = _undisturbed(plan, args.steps)
        with LinkedHosts(2 if args.replan else 3) as hosts:
            for number in range(args.trials):
                begin = monotonic()
                why = _trial(hosts, Path(folder), number, plan, expected, args, generator)
                print(
                    f"{number}: {monotonic() - begin:.0f} s, {why or 'as it should be'}", flush=True
                )
                bad += bool(why)
    print(f"{args.trials - bad} of {args.trials} as they should be")
    return int(bad > 0)


def _undisturbed(plan: Plan, steps: int) -> list[np.ndarray]:
    with open_run(plan.program(), "local") as run:
        run.load(random_inputs(run.program, 0))
        for _ in range(steps):
            run.step()
        return _state(run)


def _state(run: Run) -> list[np.ndarray]:
    arguments = run.program.signature.arguments
    return [run.argument(number) for number, a in enumerate(arguments) if a.alias is not None]


def _trial(
    hosts: LinkedHosts,
    folder: Path,
    number: int,
    plan: Plan,
    expected: list[np.ndarray],
    args: argparse.Namespace,
    generator: random.Random,
) -> str:
    """Why it is not as it should be, "" if it is."""
    state = folder / f"state{number}"
    command = [sys.executable, "-m", "shardopt.tools.shardopt", "run", str(folder / "plan")]
    command += ["--backend", "ray", "--ray-address", hosts.address, "--steps", str(args.steps)]
    command += ["--checkpoint-dir", str(state), "--restarts", "1", "--watchdog", "0"]
    command += ["--replan"] if args.replan else []
    with (folder / "said").open("w+") as said:
        inside = ["ip", "netns", "exec", hosts.names[0], *command]
        with subprocess.Popen(inside, env=hosts.environment, stdout=said, stderr=said) as run:
            lost = _lose(hosts, run, state, generator.randrange(2, args.steps // 2), generator)
            try:
                code = run.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                run.kill()
                code = -1
        said.seek(0)
        text = said.read()
    if lost is None:
        return f"no node was lost: {text}"
    hosts.join(lost)
    if not code and "starting again from step" not in text:
        return "it was over before anybody missed the node: more steps are needed"
    if code:
        return f"exit code {code}: {text}"
    newest, path = checkpoints(state)[-1]
    with open_run(plan.program(), "local") as restored:
        restored.restore(path)
        found = _state(restored)
    same = newest == args.steps and all(
        np.allclose(a, b, rtol=0, atol=1e-5 * np.abs(a).max())
        if args.replan
        else np.array_equal(a, b)
        for a, b in zip(expected, found, strict=True)
    )
    return "" if same else f"another state after {newest} steps"


def _lose(
    hosts: LinkedHosts,
    run: subprocess.Popen[bytes],
    state: Path,
    step: int,
    generator: random.Random,
) -> int | None:
    """Kill a node with a worker, beside the head, when so many steps are saved."""
    while run.poll() is None:
        saved = checkpoints(state) if state.exists() else []
        if saved and saved[-1][0] >= step:
            busy = [k for k in range(1, len(hosts.names)) if _works(hosts, hosts.names[k])]
            if not busy:
                return None
            lost = generator.choice(busy)
            hosts.kill(hosts.names[lost])
            return lost
        sleep(0.01)
    return None


def _works(hosts: LinkedHosts, name: str) -> bool:
    """Whether there is an actor: Ray calls its process by what it is."""
    titles = (Path(f"/proc/{process}/cmdline") for process in hosts.processes(name))
    texts = [path.read_text() for path in titles if path.exists()]
    return any(text.startswith("ray::") and "IDLE" not in text for text in texts)


if __name__ == "__main__":
    sys.exit(main())
