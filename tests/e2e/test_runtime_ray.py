"""What only the Ray backend has: messages through its objects, actors that die, where its workers
go."""

from __future__ import annotations

from typing import Any

import pytest

from shardopt.runtime.backends.ray_actors import connect
from shardopt.runtime.backends.ray_placement import RayPlacement
from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import MeshError
from shardopt.runtime.program.hosts import hosts_of
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.reference import compare
from shardopt.runtime.run import Run
from shardopt.support.errors import UserError
from tests.e2e.exported_model import example, expected_step, inputs
from tests.e2e.test_trace_of_processes import check_spans

pytestmark = pytest.mark.ray


def start(program: Program, transport: str = "auto", **options: Any) -> Run:
    return open_run(
        program, "ray", transport=transport, checked_steps=100, quick_compile=True, **options
    )


def test_messages_through_objects(ray_cluster: None) -> None:
    w0, w1, x, t = inputs()
    with start(example("gpipe"), "ray") as run:
        run.load([w0, w1, x, t])
        for _ in range(2):
            outputs = run.step()
            expected = expected_step(w0, w1, x, t)
            assert all(row.within(1e-5) for row in compare(outputs, expected))
            w0, w1 = expected[:2]


@pytest.mark.slow
def test_death_of_an_actor_is_one_error_that_names_the_mesh(ray_cluster: None) -> None:
    import ray

    with start(example()) as run:
        run.load(inputs())
        run.step()
        ray.kill(run._backend._actors["m1"])  # type: ignore[attr-defined]
        # Ray does not wait for the death: the actor may have begun the next step, and the error
        # says where it was.
        place = r"step 0, end of step|step 1, instruction \d+ \(.*\)"
        with pytest.raises(MeshError, match=rf"mesh 'm1', host 0, ({place}): its actor died"):
            run.step()
        with pytest.raises(RuntimeError, match="can only be closed"):
            run.step()
    from ray.util import placement_group_table

    assert all(group["state"] == "REMOVED" for group in placement_group_table().values())


@pytest.mark.slow
def test_failure_on_a_worker_keeps_its_message(ray_cluster: None) -> None:
    with (
        start(example()) as run,
        pytest.raises(MeshError, match="mesh 'm0', host 0: result 0 does not exist before"),
    ):
        run._has_results = True
        run.fetch(0)


@pytest.mark.slow
def test_hosts_of_the_plan_are_bundles(ray_cluster: None) -> None:
    """Parts of both meshes on one host share a bundle; what the cluster cannot hold is said."""
    import ray

    program = example()
    workers = [host for hosts in hosts_of(program, 4).values() for host in hosts]
    placement = RayPlacement(ray, workers, gpus=False)
    strategies = [placement.options(worker)["scheduling_strategy"] for worker in workers]
    assert [each.placement_group_bundle_index for each in strategies] == [0, 0]
    placement.remove()
    with pytest.raises(
        UserError, match=r"the Ray cluster has no room: expected 2 bundles .*'GPU': 2"
    ):
        RayPlacement(
            ray,
            [host for hosts in hosts_of(program, 2).values() for host in hosts],
            gpus=True,
            patience=0.5,
        )


def test_a_cluster_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"no Ray cluster at '127.0.0.1:1': .*Connection refused"):
        connect(None, "127.0.0.1:1")


@pytest.mark.slow
def test_actors_tell_times_and_where_they_stand(ray_cluster: None) -> None:
    with open_run(example(), "ray", quick_compile=True, trace=True) as run:
        run.load(inputs())
        run.step()
        check_spans(run)
        assert all("idle for" in line for line in run.where().splitlines())
