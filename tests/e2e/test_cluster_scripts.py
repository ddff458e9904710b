"""The files of examples/clusters: scripts run here with stand-ins for Slurm, ssh and Ray, manifests
are held against the schemas and parsers that there are."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardopt.tools.shardopt import _parser

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"
SCRIPTS = ("slurm.sh", "ssh.sh")

# Run what they are told to run on another machine on this one.
STAND_INS = {
    "scontrol": 'printf "a\\nb\\nc\\n"',
    "srun": """
        count=1
        while [[ $1 == --* ]]; do
            [[ $1 == --ntasks=* ]] && count=${1#*=}
            shift
        done
        tasks=()
        for ((k = 0; k < count; k++)); do
            "$@" &
            tasks+=($!)
        done
        trap 'kill "${tasks[@]}"' TERM
        wait
    """,
    "ssh": """
        while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done
        shift
        exec bash -c "$*"
    """,
    "hostname": "echo 127.0.0.1",
    "ray": """
        if [[ $1 == get-auth-token ]]; then echo secret; exit; fi
        echo "$RAY_AUTH_MODE $*" > "$NODES/$$"
        if [[ $2 == --head ]]; then
            exec python -c "import socket, time
s = socket.create_server(('127.0.0.1', $RAY_PORT)); time.sleep(60)"
        fi
        exec sleep 60
    """,
}
RAY_MODULE = """
import os

def init(address, log_to_driver):
    assert address == f"127.0.0.1:{os.environ['RAY_PORT']}"

def nodes():
    return [{"Alive": True} for _ in os.listdir(os.environ["NODES"])]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for folder in ("bin", "nodes", "home"):
        (tmp_path / folder).mkdir()
    for name, text in STAND_INS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "ray.py").write_text(RAY_MODULE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return {
        "PATH": f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "HOME": str(tmp_path / "home"),
        "NODES": str(tmp_path / "nodes"),
        "RAY_PORT": str(port),
        "SLURM_JOB_NODELIST": "all",
        "HOSTS": "b c",
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_right_by_themselves(script: str) -> None:
    subprocess.run(["bash", "-n", CLUSTERS / script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", CLUSTERS / script], check=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_command_sees_a_cluster_over_all_nodes(
    script: str, environment: dict[str, str], tmp_path: Path
) -> None:
    command = ["bash", "-c", "echo $RAY_ADDRESS; ls $NODES | wc -l; exit 7"]
    run = subprocess.run(
        ["bash", CLUSTERS / script, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout) == (7, f"127.0.0.1:{environment['RAY_PORT']}\n3\n")
    nodes = {int(path.name): path.read_text() for path in (tmp_path / "nodes").iterdir()}
    starts = sorted(text.split(" --disable-usage-stats")[0] for text in nodes.values())
    address = f"127.0.0.1:{environment['RAY_PORT']}"
    head = f"--head --node-ip-address=127.0.0.1 --port={environment['RAY_PORT']}"
    assert starts == [
        f"token start --address={address}",
        f"token start --address={address}",
        f"token start {head} --include-dashboard=false",
    ]
    token = tmp_path / "home" / ".ray" / "auth_token"
    assert token.is_file() == (script == "ssh.sh")
    if token.is_file():
        assert token.read_text() == "secret\n" and token.stat().st_mode & 0o77 == 0
    assert_all_end(nodes)


def test_the_end_of_a_slurm_job_reaches_the_command(environment: dict[str, str]) -> None:
    """It saves its state, and its exit code is that of the job."""
    command = (
        'trap "sleep 0.5; echo saved; exit 143" TERM; echo ready; for ((;;)); do sleep 0.1; done'
    )
    with subprocess.Popen(
        ["bash", CLUSTERS / "slurm.sh", "bash", "-c", command],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdout is not None and job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGTERM)
        assert job.stdout.readline() == "saved\n" and job.wait(30) == 143
    assert_all_end(int(path.name) for path in Path(environment["NODES"]).iterdir())


def assert_all_end(pids: Iterable[int]) -> None:
    """Nodes of Ray, shortly after the script."""
    left = list(pids)
    assert len(left) == 3
    for _ in range(100):
        left = [pid for pid in left if Path(f"/proc/{pid}").exists()]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(f"processes {left} are left")


def test_the_description_for_ray_up_fits_the_schema_of_ray() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    content = yaml.safe_load((CLUSTERS / "ray-up.yaml").read_text())
    util.validate_config(util.prepare_config(content))
    with pytest.raises(Exception, match="nonsense"):
        util.validate_config(util.prepare_config({**content, "nonsense": 1}))


def test_the_job_for_kubernetes_runs_what_the_tool_takes() -> None:
    """There is no cluster here, and no schema: the parts that our side reads are held to it."""
    job = yaml.safe_load((CLUSTERS / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    tool, *arguments = job["spec"]["entrypoint"].split()
    assert tool == "shardopt"
    args = _parser().parse_args(arguments)
    assert (args.backend, args.platform) == ("ray", "gpu") and args.resume
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod: dict[str, Any] = group["template"]["spec"]
        (container,) = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert {volume["name"] for volume in pod["volumes"]} == set(mounts)
        assert str(args.checkpoint_dir).startswith(mounts["work"])
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 2
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8" and groups[0]["rayStartParams"]["num-gpus"] == "0"
