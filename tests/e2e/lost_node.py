"""A Ray cluster of two nodes on this machine loses the one that a mesh is on: `python -m
tests.e2e.lost_node` prints the error, and what a run that is opened at once, on the node that is
left, computes.

A process of its own, as a process can be connected to one cluster only.
"""

from __future__ import annotations

import time

import ray
from ray.cluster_utils import Cluster

from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import MeshError
from tests.e2e.exported_model import example, inputs


def main() -> None:
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    node = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with open_run(example(), "ray", quick_compile=True, devices_per_host=2) as run:
            run.load(inputs())
            run.step()
            cluster.remove_node(node, allow_graceful=False)
            begin = time.monotonic()
            try:
                while time.monotonic() - begin < 60:
                    run.step()
            except MeshError as error:
                print(f"{time.monotonic() - begin:.2f} {error}", flush=True)
        with open_run(example(), "ray", quick_compile=True, devices_per_host=2) as run:
            run.load(inputs())
            print(f"{float(run.step()[2]):.6f}", flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
