"""Pipelines put together from two short plans, against plans of the whole model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from shardopt.extract.pipeline_graph import PipelineGraph, peak_bytes, simulate_pipeline
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster
from shardopt.measured.predict import short_blocks
from shardopt.measured.short_plan import ShortCase, ShortPlan, short_plan
from shardopt.measured.stretch import Pair, Shape, predict
from shardopt.models.computing import PLAIN
from shardopt.models.specs import GptSpec
from shardopt.schedule.graph import StageEdge, StageGraph
from shardopt.schedule.schedules import ScheduleText
from shardopt.schedule.tasks import StageTask, TaskKind
from shardopt.support.errors import UserError

_MACHINE = replace(load_cluster("a100-80g").groups[0], devices_per_host=4)
_SPEC = GptSpec(256, 1, 4, sequence=64, vocab=512, batch=16)
_MICROBATCHES = 4


@dataclass(frozen=True)
class Whole:
    """A pipeline that is planned in full; `short` are the stages of the short plans."""

    stages: int
    blocks: int
    short: int
    shape: tuple[int, int]
    intra_op: str
    recompute: str
    tied: bool = False


WHOLE = (
    Whole(1, 4, 1, (2, 2), "megatron", "layer"),
    Whole(4, 2, 3, (4, 1), "data", "layer", tied=True),
    Whole(6, 2, 4, (1, 2), "megatron", "layer"),
)


def _planned(whole: Whole, stages: int, blocks: int) -> ShortCase:
    spec = replace(_SPEC, layers=stages * blocks, tied=whole.tied)
    modes = (whole.intra_op, whole.recompute)
    return ShortCase(spec, "bf16", PLAIN, _MACHINE, stages, whole.shape, *modes, _MICROBATCHES)


@pytest.mark.slow
@pytest.mark.parametrize("whole", WHOLE, ids=str)
def test_stretched_plans_are_those_of_the_whole_model(whole: Whole) -> None:
    full = short_plan(_planned(whole, whole.stages, whole.blocks))
    result = simulate_pipeline(ScheduleText("1f1b"), full.pipeline, _MICROBATCHES)
    counts = short_blocks(whole.stages, whole.blocks, whole.intra_op)
    pair = Pair(*(short_plan(_planned(whole, whole.short, blocks)) for blocks in counts))
    width = whole.shape[0] * whole.shape[1]
    shape = Shape(whole.stages, whole.stages, whole.blocks, width, _MACHINE.devices_per_host)
    stretched = predict(pair, shape, "1f1b", _MICROBATCHES)
    seconds = result.makespan_seconds + max(full.outside_seconds)
    held = max(*peak_bytes(full.pipeline, result), *full.fragment_bytes)
    assert stretched.step_seconds == pytest.approx(seconds, rel=0.005)
    assert stretched.memory_bytes == pytest.approx(held, rel=0.02)


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 11.0), (0.25, 10.0), (1.0, 9.0)])
def test_collectives_outside_pass_beside_one_microbatch(share: float, seconds: float) -> None:
    """Three microbatches of 2 s, and 5 s outside, of which 4 are communication."""
    task = StageTask(TaskKind.FORWARD, 0)
    graph = StageGraph((task,), ())
    pipeline = PipelineGraph(graph, {task: 2.0}, (), {}, (0,), 1, (0,), outside_bytes=(0,))
    plan = ShortPlan(1, Cluster("one", (_MACHINE,)), pipeline, (5.0,), (4.0,), (0,), (0,))
    shape = Shape(1, 1, 1, 1, 1, outside_share=share)
    assert predict(Pair(plan, plan), shape, "1f1b", 3).step_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("awaits", "seconds"), [(False, 11.0), (True, 14.0)])
def test_messages_pass_beside_computing_or_are_awaited(awaits: bool, seconds: float) -> None:
    """Four forward passes of 2 s on each of two meshes, and messages of 1 s: the last mesh begins
    after 3 s and never waits, or waits for each message."""
    tasks = tuple(StageTask(TaskKind.FORWARD, stage) for stage in (0, 1))
    graph = StageGraph(tasks, (StageEdge(*tasks, 8),))
    times = dict.fromkeys(tasks, 2.0)
    pipeline = PipelineGraph(graph, times, (1.0,), {}, (0, 0), 2, (0, 1), outside_bytes=(0, 0))
    plan = ShortPlan(
        1, Cluster("two", (_MACHINE,)), pipeline, (0.0, 0.0), (0.0, 0.0), (0, 0), (0, 0)
    )
    shape = Shape(2, 2, 1, 1, 1, awaits_messages=awaits)
    assert predict(Pair(plan, plan), shape, "1f1b", 4).step_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("together", "held"), [(False, 10), (True, 16)])
def test_sums_of_one_collective_are_held_until_the_last(together: bool, held: int) -> None:
    """A fragment that holds 10 bytes, of a step that would hold 16 when it sums."""
    task = StageTask(TaskKind.FORWARD, 0)
    pipeline = PipelineGraph(
        StageGraph((task,), ()), {task: 1.0}, (), {}, (7,), 1, (0,), outside_bytes=(0,)
    )
    plan = ShortPlan(1, Cluster("one", (_MACHINE,)), pipeline, (0.0,), (0.0,), (10,), (16,))
    shape = Shape(1, 1, 1, 1, 1, sums_together=together)
    assert predict(Pair(plan, plan), shape, "1f1b", 1).memory_bytes == held


def test_what_the_solver_chooses_is_planned_whole() -> None:
    """It may shard few blocks, which fit, in other ways than many."""
    assert short_blocks(1, 8, "ilp") == (8, 8)
    assert short_blocks(1, 8, "zero3") == (2, 3)


def test_stages_of_a_split_sequence_pass_on_the_parts_in_which_it_lies() -> None:
    """Residuals forward and their gradients back (Korthikanti et al., section 4.2.1), so that
    what the first norm of a stage keeps is as small as what any other does."""
    passed, held = {}, {}
    for method in ("megatron", "sequence"):
        whole = Whole(3, 1, 3, (1, 2), method, "none")
        live = short_plan(_planned(whole, 3, 1)).pipeline.live
        passed[method] = sum(each.bytes for each in live if each.taken_over)
        held[method] = sum(each.bytes for each in live if each.tasks[0].stage == 1)
    assert passed["megatron"] > 0
    assert passed["sequence"] == passed["megatron"] / 2
    assert held["sequence"] < 0.75 * held["megatron"]


def test_no_fraction_of_the_memory_is_no_limit() -> None:
    """In any phase: seconds and peaks of a plan that no device can hold."""
    device = replace(_MACHINE.device, memory_bytes=2**16)
    whole = Whole(1, 1, 1, (1, 1), "replicate", "layer")
    case = replace(_planned(whole, 1, 1), machine=replace(_MACHINE, device=device))
    assert max(short_plan(case).fragment_bytes) > 2**16
    with pytest.raises(UserError, match=r"does not fit into|fits the memory"):
        short_plan(replace(case, memory_fraction=0.9))
