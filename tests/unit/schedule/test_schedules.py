"""Schedules: task notation, builders, in-flight counts, and what validation finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.schedule.csv_format import read_csv, to_csv
from shardopt.schedule.exchange import validate
from shardopt.schedule.graph import StageEdge, StageGraph, chain_graph
from shardopt.schedule.memory import peak_in_flight
from shardopt.schedule.schedules import (
    SCHEDULES,
    SEVERAL,
    ScheduleKind,
    build_schedule,
    find_schedule,
    in_flight,
    like,
    stage_homes,
)
from shardopt.schedule.tasks import ONCE, Schedule, StageTask, Task, TaskKind
from shardopt.schedule.validate import ScheduleError, link
from shardopt.support.errors import UserError

F = TaskKind.FORWARD
B = TaskKind.BACKWARD
I = TaskKind.BACKWARD_INPUT
W = TaskKind.BACKWARD_WEIGHT
U = TaskKind.UPDATE

# Four meshes and ten microbatches, as torch 2.14's `_dump_csv` writes ScheduleDualPipeV and
# ScheduleZBVZeroBubble: compute only, and with communication.
TORCH = Path(__file__).parent / "torch_files"


def make_schedule(*meshes: str, stage_to_mesh: tuple[int, ...] | None = None) -> Schedule:
    tasks = tuple(tuple(map(Task.parse, mesh.split())) for mesh in meshes)
    num_microbatches = 1 + max(task.microbatch for row in tasks for task in row)
    return Schedule("test", num_microbatches, stage_to_mesh or tuple(range(len(meshes))), tasks)


class TestNotation:
    @pytest.mark.parametrize(
        ("text", "task"),
        [
            ("0F3", Task(F, 0, 3)),
            ("12B345", Task(B, 12, 345)),
            ("1I0", Task(I, 1, 0)),
            ("7U", Task(U, 7, ONCE)),
        ],
    )
    def test_round_trip(self, text: str, task: Task) -> None:
        assert Task.parse(text) == task
        assert str(task) == text

    @pytest.mark.parametrize(
        "text", ["", "F3", "0X1", "0F", "0U1", "0F3x", "-1F0", "0f3", "0F-1", "0UNSHARD"]
    )
    def test_bad_text_is_a_user_error(self, text: str) -> None:
        with pytest.raises(UserError, match="is not a task"):
            Task.parse(text)

    def test_microbatch_must_suit_the_kind(self) -> None:
        with pytest.raises(ValueError, match="FORWARD"):
            Task(F, 0)
        with pytest.raises(ValueError, match="UPDATE"):
            Task(U, 0, 1)


class TestCsv:
    @settings(deadline=None)
    @given(
        name=st.sampled_from(sorted(SCHEDULES)),
        meshes=st.integers(1, 6),
        microbatches=st.integers(1, 9),
    )
    def test_round_trip(self, name: str, meshes: int, microbatches: int) -> None:
        meshes *= SCHEDULES[name].mesh_multiple
        stages = meshes * max(SCHEDULES[name].stages_per_mesh, 1)
        schedule = build_schedule(name, stages, microbatches, meshes).with_updates()
        assert read_csv(to_csv(schedule), name).schedule == schedule

    def test_idle_slots_are_skipped_and_stages_may_share_a_mesh(self) -> None:
        schedule = read_csv("0F0,2F0,,2B0, ,0B0\n,1F0,3F0,3B0,1B0\n").schedule
        assert str(schedule) == "0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0"
        assert schedule.stage_to_mesh == (0, 1, 0, 1)
        validate(schedule, chain_graph(4))

    def test_actions_of_torch(self) -> None:
        """Overlapped actions become their parts; communication is counted and left out."""
        imported = read_csv(
            "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,(1F0;1B0)OVERLAP_F_B,1SEND_B0\n"
        )
        assert str(imported.schedule) == "0F0 0B0\n1F0 1B0"
        counts = "1 RECV_B, 1 RECV_F, 1 REDUCE_GRAD, 1 RESHARD, 1 SEND_B, 1 SEND_F, 1 UNSHARD"
        assert str(imported) == counts

    def test_whole_backwards_become_halves_where_others_are(self) -> None:
        """The last stage splits the backward of microbatch 1 only, and stage 0 none."""
        schedule = read_csv("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1I1,1W1\n").schedule
        assert str(schedule) == "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1F1 1I0 1W0 1I1 1W1"
        validate(schedule, chain_graph(2, (F, I, W)))

    @pytest.mark.parametrize("name", ["dualpipe-v", "zb-v"])
    def test_files_of_torch(self, name: str) -> None:
        """What torch writes with and without communication is one schedule, that runs."""
        plain, sending = (
            read_csv((TORCH / f"{name}{ending}.csv").read_text()) for ending in ("", "-comms")
        )
        assert plain.schedule.tasks == sending.schedule.tasks
        assert not plain.left_out
        assert {kind for kind, _ in sending.left_out} >= {"SEND_F", "RECV_F", "SEND_B", "RECV_B"}
        assert plain.schedule.stage_to_mesh == stage_homes("dualpipe-v", 8)
        validate(plain.schedule, chain_graph(8, (F, I, W)))
        same = plain.schedule.tasks == build_schedule(name, 8, 10).tasks
        assert same == (name == "dualpipe-v")  # torch's ZB-V knows no drain without bubbles

    @settings(deadline=None)
    @given(text=st.text(st.sampled_from('0123FBIWUA,;()\n" _SENDRV')))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        try:
            schedule = read_csv(text).schedule
        except UserError:
            return
        assert read_csv(to_csv(schedule)).schedule == schedule

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("0F0,0F1\n1F0,oops", r"line 2, column 2: 'oops' is not a task"),
            ("0F0\n,,\n1F0", "line 2: a mesh without tasks"),
            ("0F0\n0F1", "stage 0 has tasks on mesh 0 and mesh 1"),
            ("0F0\n2F0", "stage 1 has no tasks"),
            ("0F0,0F5000000", "has microbatch 5000000, but only 2 tasks"),
            ("0F0,5000000F0", "stage 1 has no tasks, but stage 5000000 has"),
            ("0F" + "9" * 5000, r"line 1, column 1: '0F9{38}' is not a task"),
            ("0F0\n(1F0;oops)OVERLAP_F_B", r"line 2, column 1: 'oops' is not a task"),
            ("0F0,0SEND_F", r"line 1, column 2: '0SEND_F' is not a task"),
            ('0F0\n"1F0', "line 2: unexpected end of data"),
            (
                "0F0,0B0\n1F0,1I0,1B0,1W0",
                "line 2, column 2: '1I0' is a half of the backward that line 2, column 3 has as a "
                "whole: expected either",
            ),
            (
                "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2,0W1",
                "line 1, column 6: '0W1' is a half of the backward that line 1, column 4 has",
            ),
            ("0U", "no task has a microbatch"),
            ("", "no task has a microbatch"),
        ],
    )
    def test_errors(self, text: str, message: str) -> None:
        with pytest.raises(UserError, match=message):
            read_csv(text)


class TestBuilders:
    def test_1f1b_order(self) -> None:
        assert str(build_schedule("1f1b", 3, 4)) == (
            "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n2F0 2B0 2F1 2B1 2F2 "
            "2B2 2F3 2B3"
        )

    def test_gpipe_and_inference_order(self) -> None:
        assert str(build_schedule("gpipe", 2, 2)) == "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"
        assert str(build_schedule("inference", 2, 2)) == "0F0 0F1\n1F0 1F1"

    @settings(deadline=None)
    @given(
        kind=st.sampled_from([*SCHEDULES.values()]),
        meshes=st.integers(1, 7),
        chunks=st.integers(1, 4),
        microbatches=st.integers(1, 20),
    )
    def test_all_are_valid(
        self, kind: ScheduleKind, meshes: int, chunks: int, microbatches: int
    ) -> None:
        meshes *= kind.mesh_multiple
        stages = meshes * (chunks if kind.stages_per_mesh == SEVERAL else kind.stages_per_mesh)
        schedule = build_schedule(kind.name, stages, microbatches, meshes)
        graph = kind.graph(stages, meshes, kind.kinds)
        validate(schedule, graph)
        listed = [task for row in schedule.tasks for task in row if task.kind in kind.kinds]
        assert len(listed) == stages * microbatches * len(kind.kinds)
        updates = tuple(StageTask(U, stage) for stage in range(stages))
        ends = tuple(StageEdge(StageTask(kind.kinds[-1], row.stage), row) for row in updates)
        validate(
            schedule.with_updates(), StageGraph((*graph.tasks, *updates), (*graph.edges, *ends))
        )

    def test_unknown_name_suggests_the_closest(self) -> None:
        with pytest.raises(
            UserError,
            match=r"unknown schedule: '1F1b'; did you mean '1f1b'\?",
        ):
            build_schedule("1F1b", 2, 2)
        with pytest.raises(UserError, match="needs at least 1 stage and 1 microbatch, got 2 and 0"):
            build_schedule("gpipe", 2, 0)

    def test_a_number_of_stages_a_mesh_stands_behind_the_name(self) -> None:
        schedule = build_schedule("interleaved:3", 6, 4)
        assert schedule.stage_to_mesh == stage_homes("interleaved:3", 6) == (0, 1, 0, 1, 0, 1)
        assert schedule == build_schedule("interleaved", 6, 4, 2)
        assert find_schedule("interleaved").planned == find_schedule("interleaved:2")
        with pytest.raises(
            UserError,
            match="'interleaved:3' needs 3 stages on every mesh, got 4 stages on 2 meshes",
        ):
            build_schedule("interleaved:3", 4, 4, 2)
        with pytest.raises(
            UserError, match="expected a number of stages a mesh behind ':', found '0'"
        ):
            find_schedule("interleaved:0")
        with pytest.raises(
            UserError, match="'1f1b' has a fixed number of stages a mesh, expected no ':2'"
        ):
            find_schedule("1f1b:2")

    @pytest.mark.parametrize(
        ("name", "stages", "meshes", "message"),
        [
            ("1f1b", 4, 2, "'1f1b' needs 1 stage on every mesh, got 4 stages on 2 meshes"),
            (
                "interleaved",
                5,
                2,
                "'interleaved' needs the same number of stages on every mesh, got 5 stages on 2",
            ),
            ("chimera", 6, 3, "'chimera' needs a multiple of 2 meshes, got 3"),
            (
                "dualpipe-v",
                4,
                4,
                "'dualpipe-v' needs 2 stages on every mesh, got 4 stages on 4 meshes",
            ),
        ],
    )
    def test_stages_must_suit_the_meshes(
        self, name: str, stages: int, meshes: int, message: str
    ) -> None:
        with pytest.raises(UserError, match=message):
            build_schedule(name, stages, 4, meshes)


class TestLike:
    @pytest.mark.parametrize(
        ("name", "stages", "expected"),
        [
            ("1f1b", 4, "gpipe"),
            ("zero-bubble", 4, "zero-bubble"),
            ("interleaved", 12, "interleaved:3"),
            ("v-min", 8, "dualpipe-v"),
            ("inference", 4, "inference"),
        ],
    )
    def test_lies_alike_and_holds_most(self, name: str, stages: int, expected: str) -> None:
        assert like(build_schedule(name, stages, 8, 4)) == expected

    def test_some_are_like_none(self) -> None:
        """Stages the other way round; whole backwards in a V."""
        assert like(make_schedule("1F0 1B0", "0F0 0B0", stage_to_mesh=(1, 0))) == ""
        assert (
            like(make_schedule("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0", stage_to_mesh=(0, 1, 1, 0)))
            == ""
        )


class TestInFlight:
    @settings(deadline=None)
    @given(stages=st.integers(1, 8), microbatches=st.integers(1, 16))
    def test_counts_match_the_formulas(self, stages: int, microbatches: int) -> None:
        assert in_flight("gpipe", stages, microbatches) == (microbatches,) * stages
        assert in_flight("inference", stages, microbatches) == (1,) * stages
        assert in_flight("1f1b", stages, microbatches) == tuple(
            min(stages - s, microbatches) for s in range(stages)
        )
        eager = tuple(min(2 * (stages - s) - 1, microbatches) for s in range(stages))
        assert in_flight("eager-1f1b", stages, microbatches) == eager
        assert in_flight("zero-bubble", stages, max(microbatches, stages)) == (stages,) * stages

    @settings(deadline=None)
    @given(
        kind=st.sampled_from([kind for kind in SCHEDULES.values() if kind.in_flight is not None]),
        stages=st.integers(1, 8),
        microbatches=st.integers(1, 20),
    )
    def test_what_a_schedule_says_is_what_its_tasks_hold(
        self, kind: ScheduleKind, stages: int, microbatches: int
    ) -> None:
        schedule = build_schedule(kind.name, stages, microbatches)
        assert in_flight(kind.name, stages, microbatches) == tuple(
            map(peak_in_flight, schedule.tasks)
        )

    def test_example(self) -> None:
        assert in_flight("1f1b", 4, 8) == (4, 3, 2, 1)


class TestGraph:
    def test_chain(self) -> None:
        edges = [
            (str(edge), edge.bytes) for edge in chain_graph(2, (F, B, U), activation_bytes=8).edges
        ]
        assert edges == [
            ("0F->0B", 0),
            ("0B->0U", 0),
            ("0F->1F", 8),
            ("1B->0B", 8),
            ("1F->1B", 0),
            ("1B->1U", 0),
        ]
        split = [str(edge) for edge in chain_graph(1, (F, I, W)).edges]
        assert split == ["0F->0I", "0F->0W", "0I->0W"]

    @pytest.mark.parametrize(
        ("edges", "message"),
        [
            ([("F", "B"), ("B", "F")], "cycle"),
            ([("F", "W")], "0F->0W names a task that the graph does not have"),
            ([("U", "F")], "0U->0F leads from a task run once per step into the microbatch loop"),
        ],
    )
    def test_errors(self, edges: list[tuple[str, str]], message: str) -> None:
        tasks = (StageTask(F, 0), StageTask(B, 0), StageTask(U, 0))
        with pytest.raises(ValueError, match=message):
            StageGraph(
                tasks,
                tuple(
                    StageEdge(StageTask(TaskKind(a), 0), StageTask(TaskKind(b), 0))
                    for a, b in edges
                ),
            )


class TestValidate:
    def test_skip_connection_and_fused_last_stage(self) -> None:
        """The last stage's forward holds its backward; the backward of stage 0 also reads the
        forward of stage 1."""
        tasks = (
            StageTask(F, 0),
            StageTask(F, 1),
            StageTask(F, 2),
            StageTask(B, 1),
            StageTask(B, 0),
        )
        pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (1, 4), (0, 4), (1, 3)]
        graph = StageGraph(tasks, tuple(StageEdge(tasks[src], tasks[dst], 4) for src, dst in pairs))
        for name in ("gpipe", "1f1b"):
            linked = link(build_schedule(name, 3, 4), graph)
            assert sorted(linked.order) == list(range(3 * 4 * 2))

    def test_order_respects_dependences_and_lists(self) -> None:
        linked = link(build_schedule("1f1b", 4, 6).with_updates(), chain_graph(4, (F, B, U)))
        rank = {node: position for position, node in enumerate(linked.order)}
        assert all(
            rank[source] < rank[node]
            for node, preds in enumerate(linked.predecessors)
            for source, _ in preds
        )
        assert all(
            rank[n] < rank[n + 1]
            for n in range(len(rank) - 1)
            if linked.mesh_of[n] == linked.mesh_of[n + 1]
        )

    @pytest.mark.parametrize(
        ("meshes", "message"),
        [
            (("0F0 0B0", "1B0 1F0"), r"mesh 1 runs 1B0 \(task 1 of 2\) before 1F0, which it needs"),
            (
                ("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"),
                r"deadlock: mesh 0 waits before 0B0 \(task 2 of 4\) for 1B0, mesh 1 waits before "
                r"1F1 \(task 2 of 4\)",
            ),
            (("0F0 0B0 0F0", "1F0 1B0"), "mesh 0: task 0F0 is listed twice"),
            (("0F0 0B0", "1F0"), "task 1B0 is not listed on any mesh"),
            (("0F0 0B0 1F0", "1B0"), "mesh 0: task 1F0 belongs to mesh 1"),
            (("0F0 0B0", "1F0 1B0 2F0"), "task 2F0 does not exist: the schedule has 2 stages"),
        ],
    )
    def test_errors_name_the_tasks(self, meshes: tuple[str, ...], message: str) -> None:
        with pytest.raises(ScheduleError, match=message):
            validate(make_schedule(*meshes), chain_graph(2))

    def test_long_deadlock_is_abridged(self) -> None:
        """A circle of six: every backward waits for the forward of the stage before, listed behind
        its backward."""
        tasks = tuple(StageTask(kind, stage) for stage in range(6) for kind in (F, B))
        graph = StageGraph(
            tasks,
            tuple(
                StageEdge(StageTask(F, stage), StageTask(B, (stage + 1) % 6)) for stage in range(6)
            ),
        )
        with pytest.raises(
            ScheduleError,
            match=r"deadlock: mesh 0 waits before 0B0 .* for 5F0, mesh 5 .* and 2 more$",
        ):
            validate(make_schedule(*(f"{stage}B0 {stage}F0" for stage in range(6))), graph)

    def test_absent_kinds_wait_for_nothing(self) -> None:
        validate(make_schedule("0B0 0F0", "1B0 1F0"), chain_graph(2, (F,)))

    @settings(deadline=None)
    @given(data=st.data(), stages=st.integers(2, 4), microbatches=st.integers(1, 3))
    def test_agrees_with_brute_force_on_shuffled_lists(
        self, data: st.DataObject, stages: int, microbatches: int
    ) -> None:
        graph = chain_graph(stages)
        schedule = build_schedule("1f1b", stages, microbatches)
        shuffled = replace(
            schedule, tasks=tuple(tuple(data.draw(st.permutations(row))) for row in schedule.tasks)
        )
        if runs_to_the_end(shuffled, graph):
            validate(shuffled, graph)
        else:
            with pytest.raises(ScheduleError, match=r"deadlock|which it needs"):
                validate(shuffled, graph)


def runs_to_the_end(schedule: Schedule, graph: StageGraph) -> bool:
    """Try every mesh again and again until nothing moves."""
    needs: dict[StageTask, set[StageTask]] = {}
    for edge in graph.edges:
        needs.setdefault(edge.dst, set()).add(edge.src)
    lists = [list(row) for row in schedule.tasks]
    done: set[Task] = set()
    moved = True
    while moved:
        moved = False
        for row in lists:
            if row and all(
                Task(n.kind, n.stage, row[0].microbatch) in done
                for n in needs.get(row[0].stage_task, ())
            ):
                done.add(row.pop(0))
                moved = True
    return not any(lists)
