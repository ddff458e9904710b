"""The event simulator: known makespans, transfers, memory, traces and speed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.schedule.events import NodeCosts, Times
from shardopt.schedule.graph import StageEdge, StageGraph, chain_graph
from shardopt.schedule.memory import LiveBytes
from shardopt.schedule.schedules import SCHEDULES, SEVERAL, build_schedule
from shardopt.schedule.simulator import SimulationResult, StepMemory, TransferCosts, simulate
from shardopt.schedule.tasks import Schedule, StageTask, Task, TaskKind
from shardopt.schedule.trace import chrome_trace
from shardopt.schedule.validate import link

F = TaskKind.FORWARD
B = TaskKind.BACKWARD
I = TaskKind.BACKWARD_INPUT
W = TaskKind.BACKWARD_WEIGHT
U = TaskKind.UPDATE
SECONDS = {F: 1.0, B: 2.0, I: 1.0, W: 1.0, U: 0.5}


def durations(graph: StageGraph) -> dict[StageTask, float]:
    return {task: SECONDS[task.kind] for task in graph.tasks}


def run(name: str, meshes: int, microbatches: int, chunks: int = 1) -> SimulationResult:
    """A pipeline whose work on every mesh is F = 1, I = W = 1, B = 2, in equal chunks; transfers
    take no time."""
    graph = chain_graph(meshes * chunks, SCHEDULES[name].kinds)
    schedule = build_schedule(name, meshes * chunks, microbatches, meshes)
    return simulate(
        schedule, graph, {task: seconds / chunks for task, seconds in durations(graph).items()}
    )


class TestMakespan:
    @pytest.mark.parametrize(
        ("name", "seconds", "in_flight"),
        [("gpipe", 33.0, (8, 8, 8, 8)), ("1f1b", 33.0, (4, 3, 2, 1))],
    )
    def test_known_values(self, name: str, seconds: float, in_flight: tuple[int, ...]) -> None:
        result = run(name, 4, 8)
        assert result.makespan_seconds == seconds
        assert result.busy_seconds == (24.0,) * 4
        assert result.bubble_fraction == pytest.approx(3 / 11)
        assert result.peak_in_flight == in_flight

    @settings(deadline=None)
    @given(stages=st.integers(1, 7), microbatches=st.integers(1, 12))
    def test_formulas(self, stages: int, microbatches: int) -> None:
        steps = microbatches + stages - 1
        assert run("gpipe", stages, microbatches).makespan_seconds == 3 * steps
        assert run("1f1b", stages, microbatches).makespan_seconds == 3 * steps
        assert run("eager-1f1b", stages, microbatches).makespan_seconds == 3 * steps
        assert run("inference", stages, microbatches).makespan_seconds == steps

    @pytest.mark.parametrize(
        ("name", "chunks", "seconds"),
        [
            ("interleaved", 2, 28.5),
            ("interleaved", 4, 26.25),
            ("zero-bubble", 1, 27.0),
            ("dualpipe-v", 2, 25.5),
        ],
    )
    def test_known_values_with_chunks_and_halves(
        self, name: str, chunks: int, seconds: float
    ) -> None:
        assert run(name, 4, 8, chunks).makespan_seconds == seconds

    @pytest.mark.parametrize("meshes", [2, 4, 8, 16])
    def test_formulas_of_bubbles_and_memory(self, meshes: int) -> None:
        for microbatches in range(meshes, 8 * meshes + 1, meshes):
            bubble = (meshes - 1) / (meshes - 1 + microbatches)
            for name, counts in (
                ("gpipe", [microbatches] * meshes),
                ("1f1b", range(meshes, 0, -1)),
                ("eager-1f1b", [min(2 * left - 1, microbatches) for left in range(meshes, 0, -1)]),
            ):
                result = run(name, meshes, microbatches)
                assert result.bubble_fraction == pytest.approx(bubble)
                assert result.peak_in_flight == tuple(counts)
            for chunks in (2, 4):
                result = run("interleaved", meshes, microbatches, chunks)
                bubble = (meshes - 1) / (meshes - 1 + chunks * microbatches)
                assert result.bubble_fraction == pytest.approx(bubble)
                most = (2 * left + (chunks - 1) * meshes + 1 for left in reversed(range(meshes)))
                assert result.peak_in_flight == tuple(
                    min(count, chunks * microbatches) for count in most
                )
            result = run("zero-bubble", meshes, microbatches)
            assert result.makespan_seconds == 3 * microbatches + meshes - 1
            assert result.peak_in_flight == (meshes,) * meshes
            if microbatches >= 2 * meshes:
                result = run("dualpipe-v", meshes, microbatches, 2)
                assert result.makespan_seconds == 3 * microbatches + (meshes - 1) / 2
                assert result.peak_in_flight == (2 * meshes + 1,) * meshes

    def test_split_backward_runs_from_a_task_list(self) -> None:
        """Two stages, one microbatch: the weight half of stage 1 runs while stage 0 does its input
        half."""
        graph = chain_graph(2, (F, I, W))
        lists = ("0F0 0I0 0W0", "1F0 1I0 1W0")
        schedule = Schedule(
            "split", 1, (0, 1), tuple(tuple(map(Task.parse, row.split())) for row in lists)
        )
        assert simulate(schedule, graph, durations(graph)).makespan_seconds == 5.0

    def test_fused_last_stage_and_skip_edge(self) -> None:
        forward0, fused, backward0 = StageTask(F, 0), StageTask(F, 1), StageTask(B, 0)
        graph = StageGraph(
            (forward0, fused, backward0), (StageEdge(forward0, fused), StageEdge(fused, backward0))
        )
        result = simulate(
            build_schedule("1f1b", 2, 2), graph, {forward0: 1.0, fused: 3.0, backward0: 2.0}
        )
        assert result.makespan_seconds == 9.0
        assert result.peak_in_flight == (2, 1)
        assert [str(span.task) for span in result.spans()] == [
            "0F0",
            "0F1",
            "0B0",
            "0B1",
            "1F0",
            "1F1",
        ]

    def test_update_waits_for_all_microbatches_of_other_stages(self) -> None:
        tasks = (StageTask(F, 0), StageTask(F, 1), StageTask(U, 0), StageTask(U, 1))
        graph = StageGraph(
            tasks,
            (
                StageEdge(tasks[0], tasks[1]),
                StageEdge(tasks[1], tasks[2]),
                StageEdge(tasks[2], tasks[3]),
            ),
        )
        schedule = build_schedule("inference", 2, 3).with_updates()
        result = simulate(schedule, graph, durations(graph), TransferCosts([0.0, 10.0, 0.0]))
        assert result.start_seconds[0][-1] == 4.0 + 10.0
        assert result.makespan_seconds == 15.0

    def test_zero_durations_have_no_bubble(self) -> None:
        graph = chain_graph(2)
        result = simulate(build_schedule("1f1b", 2, 2), graph, dict.fromkeys(graph.tasks, 0.0))
        assert (result.makespan_seconds, result.bubble_fraction) == (0.0, 0.0)


class TestTransfers:
    def test_they_delay_but_overlap(self) -> None:
        """Three microbatches leave stage 0 at 1, 2, 3 and arrive 1.5 later; stage 1 keeps pace."""
        graph = chain_graph(2, (F,))
        result = simulate(
            build_schedule("inference", 2, 3), graph, durations(graph), TransferCosts([1.5])
        )
        assert result.start_seconds[1] == (2.5, 3.5, 4.5)
        spans = [(str(t.src), str(t.dst), t.start_seconds, t.end_seconds) for t in result.transfers]
        assert spans == [
            ("0F0", "1F0", 1.0, 2.5),
            ("0F1", "1F1", 2.0, 3.5),
            ("0F2", "1F2", 3.0, 4.5),
        ]

    @settings(deadline=None)
    @given(seconds=st.lists(st.integers(0, 5), min_size=7, max_size=7))
    def test_every_task_starts_as_soon_as_it_can(self, seconds: list[int]) -> None:
        graph = chain_graph(3)
        result = simulate(
            build_schedule("1f1b", 3, 4), graph, durations(graph), TransferCosts(seconds)
        )
        end = {span.task: span.end_seconds for span in result.spans()}
        mesh_free = [0.0] * 3
        for span in result.spans():
            arrivals = [
                end[Task(edge.src.kind, edge.src.stage, span.task.microbatch)] + delay
                for edge, delay in zip(graph.edges, seconds, strict=True)
                if edge.dst == span.task.stage_task
            ]
            assert span.start_seconds == max([mesh_free[span.mesh], *arrivals])
            mesh_free[span.mesh] = span.end_seconds


class TestLinks:
    def test_transfers_over_one_link_wait_for_each_other(self) -> None:
        """Two stages send to the next over one network card: 1 and 1, so that each second one
        starts late."""
        tasks = (StageTask(F, 0), StageTask(F, 1), StageTask(F, 2), StageTask(F, 3))
        graph = StageGraph(tasks, (StageEdge(tasks[0], tasks[2]), StageEdge(tasks[1], tasks[3])))
        lists = tuple((Task(F, stage, 0), Task(F, stage, 1)) for stage in range(4))
        schedule = Schedule("pairs", 2, (0, 1, 2, 3), lists)
        alone = simulate(schedule, graph, durations(graph), TransferCosts([1.0, 1.0]))
        shared = simulate(
            schedule, graph, durations(graph), TransferCosts([1.0, 1.0], links=[[7], [7]])
        )
        assert [(t.start_seconds, t.end_seconds) for t in alone.transfers] == [
            (1, 2),
            (2, 3),
            (1, 2),
            (2, 3),
        ]
        assert [(t.start_seconds, t.end_seconds) for t in shared.transfers] == [
            (1, 2),
            (3, 4),
            (2, 3),
            (4, 5),
        ]
        assert (alone.makespan_seconds, shared.makespan_seconds) == (4.0, 6.0)

    def test_links_that_nobody_shares_change_nothing(self) -> None:
        graph = chain_graph(4)
        seconds = [float(number % 3) for number in range(len(graph.edges))]
        alone = simulate(
            build_schedule("1f1b", 4, 1), graph, durations(graph), TransferCosts(seconds)
        )
        unshared = simulate(
            build_schedule("1f1b", 4, 1),
            graph,
            durations(graph),
            TransferCosts(seconds, links=[[n] for n in range(len(seconds))]),
        )
        assert unshared == alone
        assert unshared.transfers == alone.transfers

    def test_links_are_given_for_every_edge(self) -> None:
        graph = chain_graph(2)
        with pytest.raises(ValueError, match="links given for 1 edges, the stage graph has 4"):
            simulate(
                build_schedule("1f1b", 2, 1), graph, durations(graph), TransferCosts(links=[[0]])
            )


class TestMemory:
    @pytest.mark.parametrize(("name", "peaks"), [("gpipe", (8, 8, 8, 8)), ("1f1b", (4, 3, 2, 1))])
    def test_peak_counts_microbatches_in_flight(self, name: str, peaks: tuple[int, ...]) -> None:
        graph = chain_graph(4)
        activations = {StageTask(F, stage): 100 for stage in range(4)}
        result = simulate(
            build_schedule(name, 4, 8),
            graph,
            durations(graph),
            memory=StepMemory(activations, fixed_bytes=(5, 6, 7, 8)),
        )
        assert [profile.peak_bytes for profile in result.memory] == [
            100 * peak + fixed for peak, fixed in zip(peaks, (5, 6, 7, 8), strict=True)
        ]
        assert [profile.bytes[-1] for profile in result.memory] == [5, 6, 7, 8]

    def test_profile_over_time(self) -> None:
        """F holds 10 until the end of B; B holds 3 while it runs."""
        graph = chain_graph(1)
        activations = {StageTask(F, 0): 10, StageTask(B, 0): 3}
        memory = simulate(
            build_schedule("1f1b", 1, 2), graph, durations(graph), memory=StepMemory(activations)
        ).memory[0]
        assert memory.seconds == (0.0, 0.0, 1.0, 1.0, 3.0, 3.0, 4.0, 4.0, 6.0)
        assert memory.bytes == (0, 10, 10, 13, 0, 10, 10, 13, 0)

    def test_values_live_from_the_first_of_their_tasks_to_the_last(self) -> None:
        """5 are received for B and read until W; 3 made by F lie where B writes its own 3, which W
        reads."""
        graph = chain_graph(1, (F, I, W))
        schedule = Schedule("split", 1, (0,), (tuple(map(Task.parse, ("0F0", "0I0", "0W0"))),))
        forward, inputs, weights = (StageTask(kind, 0) for kind in (F, I, W))
        live = [
            LiveBytes((inputs, weights), 5),
            LiveBytes((forward, inputs), 3, taken_over=True),
            LiveBytes((inputs, weights), 3),
        ]
        memory = simulate(
            schedule, graph, durations(graph), memory=StepMemory(fixed_bytes=(1,), live=live)
        ).memory[0]
        assert memory.bytes == (1, 4, 4, 9, 9, 9, 1)

    def test_weight_half_keeps_activations_alive(self) -> None:
        graph = chain_graph(1, (F, I, W))
        schedule = Schedule("split", 1, (0,), (tuple(map(Task.parse, ("0F0", "0I0", "0W0"))),))
        activations = {StageTask(F, 0): 10, StageTask(I, 0): 1}
        result = simulate(schedule, graph, durations(graph), memory=StepMemory(activations))
        assert result.memory[0].bytes == (0, 10, 10, 11, 11, 11, 0)


class TestArguments:
    def test_mistakes_are_found(self) -> None:
        graph, schedule = chain_graph(2), build_schedule("1f1b", 2, 2)
        seconds = durations(graph)
        with pytest.raises(ValueError, match="no duration given for task 1B"):
            simulate(schedule, graph, dict.fromkeys(graph.tasks[:-1], 1.0))
        with pytest.raises(ValueError, match="task 5F, which the stage graph does not have"):
            simulate(schedule, graph, seconds | {StageTask(F, 5): 1.0})
        with pytest.raises(ValueError, match="1 transfer durations given for 4 edges"):
            simulate(schedule, graph, seconds, TransferCosts([0.0]))
        with pytest.raises(ValueError, match="fixed bytes given for 1 meshes"):
            simulate(schedule, graph, seconds, memory=StepMemory(fixed_bytes=[1]))
        with pytest.raises(ValueError, match="at least 0"):
            simulate(schedule, graph, seconds, TransferCosts([float("nan")] * 4))


def test_chrome_trace() -> None:
    graph = chain_graph(2)
    activations = {StageTask(F, 0): 100}
    result = simulate(
        build_schedule("1f1b", 2, 2),
        graph,
        durations(graph),
        TransferCosts([0.0, 0.25, 0.0, 0.0]),
        StepMemory(activations),
    )
    trace = json.loads(json.dumps(chrome_trace(result)))
    events = trace["traceEvents"]
    tasks = {event["name"]: event for event in events if event["ph"] == "X"}
    assert len(tasks) == 8
    assert (tasks["0F1"]["ts"], tasks["0F1"]["dur"], tasks["0F1"]["tid"]) == (1e6, 1e6, 0)
    begins = [event for event in events if event["ph"] == "b"]
    assert [event["name"] for event in begins] == ["0F0 to 1F0", "0F1 to 1F1"]
    assert len(begins) == sum(event["ph"] == "e" for event in events)
    assert max(event["args"]["bytes"] for event in events if event["ph"] == "C") == 200


class TestTimes:
    @settings(deadline=None)
    @given(
        name=st.sampled_from(sorted(SCHEDULES)),
        seconds=st.lists(st.sampled_from([0.0, 0.1, 0.7, 2.0]), min_size=64, max_size=64),
        overlap=st.booleans(),
    )
    def test_the_walk_gives_what_the_events_give(
        self, name: str, seconds: list[float], overlap: bool
    ) -> None:
        kind = SCHEDULES[name]
        stages = 4 * (2 if kind.stages_per_mesh == SEVERAL else kind.stages_per_mesh)
        graph = kind.graph(stages, 4, kind.kinds)
        linked = link(build_schedule(name, stages, 5, 4), graph)
        node_seconds = [SECONDS.get(task.kind, 0.0) * (1 + task.stage % 3) for task in linked.nodes]
        delays = (seconds * 2)[: len(graph.edges)]
        costs = NodeCosts(node_seconds, delays, ((),) * len(delays), overlap=overlap)
        walked, played = Times.in_order(linked, costs), Times.by_events(linked, costs)
        assert (walked.starts, walked.ends) == (played.starts, played.ends)
        assert sorted(walked.transfers(linked)) == sorted(played.transfers(linked))

    def test_without_overlap_a_mesh_sends_before_it_goes_on(self) -> None:
        graph = chain_graph(2, (F,))
        schedule = build_schedule("inference", 2, 3)
        result = simulate(schedule, graph, durations(graph), TransferCosts([0.5], overlap=False))
        assert result.start_seconds == ((0.0, 1.5, 3.0), (1.5, 3.0, 4.5))
        result = simulate(
            schedule, graph, durations(graph), TransferCosts([0.5], links=[[0]], overlap=False)
        )
        assert result.start_seconds == ((0.0, 1.5, 3.0), (1.5, 3.0, 4.5))
