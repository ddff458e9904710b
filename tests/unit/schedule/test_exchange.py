"""Sends and receives: what blocks under eager sends and under rendezvous is what blocks when
everything is tried."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.runtime.program.instructions import Free, Recv, Run, Send
from shardopt.runtime.program.sends import order_sends, steps_of
from shardopt.schedule.exchange import (
    Do,
    Steps,
    check_exchange,
    describe,
    in_order_of_receipt,
    messages_of,
    run_exchange,
    validate,
)
from shardopt.schedule.graph import chain_graph
from shardopt.schedule.schedules import SCHEDULES, SEVERAL, ScheduleKind, build_schedule
from shardopt.schedule.validate import ScheduleError, link
from tests.draws import draws


def blocks_by_brute_force(steps: Steps, rendezvous: bool) -> bool:
    """Every mesh is two programs, its list and the line of what it sends; whatever can move does,
    until nothing can."""
    position = [0] * len(steps)
    lines: list[list[int]] = [[] for _ in steps]
    through = [0] * len(steps)
    moved = True
    while moved:
        moved = False
        for mesh, row in enumerate(steps):
            if position[mesh] == len(row):
                continue
            do, value = row[position[mesh]]
            sender = next((m for m, line in enumerate(lines) if value in line), None)
            if do is Do.SEND:
                lines[mesh].append(value)
            elif do is Do.SENT:
                if rendezvous and through[mesh] < value:
                    continue
            elif sender is None:
                continue
            elif rendezvous:
                if lines[sender][through[sender]] != value:
                    continue
                through[sender] += 1
            position[mesh] += 1
            moved = True
    return any(at < len(row) for at, row in zip(position, steps, strict=True))


@st.composite
def exchanges(draw: st.DrawFn) -> Steps:
    """Messages between two to four meshes in any order, some of which must be sent before the mesh
    goes on."""
    count = draw(st.integers(2, 4))
    steps: list[list[tuple[Do, int]]] = [[] for _ in range(count)]
    for message in range(draw(st.integers(1, 8))):
        source, target = draw(st.permutations(range(count)))[:2]
        for mesh, do in ((source, Do.SEND), (target, Do.RECV)):
            steps[mesh].insert(draw(st.integers(0, len(steps[mesh]))), (do, message))
    for row in steps:
        if draw(st.booleans()):
            place = draw(st.integers(0, len(row)))
            row.insert(
                place, (Do.SENT, draw(st.integers(0, sum(do is Do.SEND for do, _ in row[:place]))))
            )
    return tuple(map(tuple, steps))


@settings(deadline=None, max_examples=draws(300))
@given(steps=exchanges(), rendezvous=st.booleans())
def test_blocked_exchanges_are_found(steps: Steps, rendezvous: bool) -> None:
    outcome = run_exchange(steps, rendezvous)
    assert outcome.blocks == blocks_by_brute_force(steps, rendezvous)
    if outcome.blocks:
        assert "mesh" in describe(steps, outcome, lambda mesh, at: f"mesh {mesh}", "#{}".format)


@settings(deadline=None, max_examples=draws(200))
@given(steps=exchanges())
def test_sends_in_order_of_receipt_never_block(steps: Steps) -> None:
    free = tuple(tuple(step for step in row if step[0] is not Do.SENT) for row in steps)
    ordered = in_order_of_receipt(free)
    assert [sorted(row) for row in ordered] == [sorted(row) for row in free]
    assert [[s for s in row if s[0] is Do.RECV] for row in ordered] == [
        [s for s in row if s[0] is Do.RECV] for row in free
    ]
    assert blocks_by_brute_force(ordered, True) == blocks_by_brute_force(free, False)


@settings(deadline=None, max_examples=draws(100))
@given(data=st.data(), kind=st.sampled_from([*SCHEDULES.values()]), microbatches=st.integers(1, 4))
def test_corrupted_schedules_are_refused_exactly_when_they_block(
    data: st.DataObject, kind: ScheduleKind, microbatches: int
) -> None:
    """Two tasks of a mesh change places, once or twice."""
    meshes = 2 * kind.mesh_multiple
    stages = meshes * (2 if kind.stages_per_mesh == SEVERAL else kind.stages_per_mesh)
    schedule = build_schedule(kind.name, stages, microbatches, meshes)
    graph = kind.graph(stages, meshes, kind.kinds)
    rows = [list(row) for row in schedule.tasks]
    for _ in range(data.draw(st.integers(1, 2))):
        row = data.draw(st.sampled_from(rows))
        a, b = data.draw(st.integers(0, len(row) - 1)), data.draw(st.integers(0, len(row) - 1))
        row[a], row[b] = row[b], row[a]
    corrupted = replace(schedule, tasks=tuple(map(tuple, rows)))
    needs = {(edge.dst, edge.src) for edge in graph.edges}
    done: set[object] = set()
    lists = [list(row) for row in rows]
    moved = True
    while moved:
        moved = False
        for row in lists:
            while row and all(
                (source, row[0].microbatch) in done
                for target, source in needs
                if target == row[0].stage_task
            ):
                done.add((row[0].stage_task, row[0].microbatch))
                row.pop(0)
                moved = True
    if any(lists):
        with pytest.raises(ScheduleError, match=r"mesh \d+ .*\(task \d+ of \d+\)"):
            validate(corrupted, graph)
        return
    reason = validate(corrupted, graph)
    assert bool(reason) == blocks_by_brute_force(messages_of(link(corrupted, graph)).steps, True)


def test_those_of_a_v_need_the_order_of_receipt() -> None:
    reasons = {}
    for kind in SCHEDULES.values():
        stages = 4 * (2 if kind.stages_per_mesh == SEVERAL else kind.stages_per_mesh)
        reason = validate(
            build_schedule(kind.name, stages, 16, 4), kind.graph(stages, 4, kind.kinds)
        )
        if reason:
            reasons[kind.name] = reason
    assert set(reasons) == {"zb-v", "v-half", "v-min", "dualpipe-v"}
    assert reasons["dualpipe-v"] == "mesh 1 waits for 7I0 for 6I0, sent behind 0F6 for 1F6"


def test_a_circle_names_what_is_held_back() -> None:
    """Mesh 0 sends 0 and then 1, mesh 1 takes them the other way round."""
    steps = (((Do.SEND, 0), (Do.SEND, 1)), ((Do.RECV, 1), (Do.RECV, 0)))
    assert not run_exchange(steps, rendezvous=False).blocks
    outcome = run_exchange(steps, rendezvous=True)
    text = describe(steps, outcome, lambda mesh, at: f"mesh {mesh}", "#{}".format)
    assert text == "mesh 1 waits for #1, sent behind #0"
    assert in_order_of_receipt(steps)[0] == ((Do.SEND, 1), (Do.SEND, 0))


def test_checks_take_linked_schedules() -> None:
    assert check_exchange(link(build_schedule("1f1b", 3, 4), chain_graph(3))) == ""


def test_sends_of_the_runtime_are_moved_back_and_nothing_else() -> None:
    """m0 makes buffers 1 and 2 and sends them; m1 takes the second first."""
    make = [Run(f"f{k}", (), (k,), (), "") for k in (1, 2)]
    send = [Send(tag, (tag + 1,), "m1", (0,)) for tag in (0, 1)]
    take = [Recv(tag, (tag + 1,), "m0", (0,)) for tag in (1, 0)]
    free = Free((1,))
    ordered = order_sends([[make[0], send[0], make[1], send[1], free], take])
    assert ordered == [[make[0], make[1], send[1], send[0], free], take]
    in_order = [[make[0], send[0], make[1], send[1], free], take[::-1]]
    assert order_sends(in_order) == in_order


def test_a_run_waits_for_what_it_overwrites() -> None:
    """m0 donates what it has sent, and only then sends what m1 takes first."""
    first = [Send(0, (1,), "m1", (0,)), Run("f", (1,), (2,), (1,), ""), Send(1, (2,), "m1", (0,))]
    steps = steps_of([first, [Recv(1, (2,), "m0", (0,)), Recv(0, (1,), "m0", (0,))]])
    assert steps[0] == ((Do.SEND, 0), (Do.SENT, 1), (Do.SEND, 1))
    assert not run_exchange(steps, rendezvous=False).blocks
    text = describe(
        steps, run_exchange(steps, rendezvous=True), lambda mesh, at: f"mesh {mesh}", "#{}".format
    )
    assert text == "mesh 0 waits until #0 is sent; mesh 1 waits for #1"


def test_a_message_waits_only_for_its_own_receiver_where_there_are_lanes() -> None:
    """0 sends to 2 first and then to 1; 2 wants what 1 makes of it before: one lane blocks, a lane
    each does not."""
    send, recv = Do.SEND, Do.RECV
    steps: Steps = (((send, 0), (send, 1)), ((recv, 1), (send, 2)), ((recv, 2), (recv, 0)))
    assert run_exchange(steps, rendezvous=True).blocks
    outcome = run_exchange(steps, rendezvous=True, lanes=True)
    assert not outcome.blocks and outcome.received == (1, 2, 0)


def test_messages_to_one_receiver_keep_their_order_with_lanes() -> None:
    send, recv = Do.SEND, Do.RECV
    steps: Steps = (((send, 0), (send, 1)), ((recv, 1), (recv, 0)))
    outcome = run_exchange(steps, rendezvous=True, lanes=True)
    assert outcome.stopped == {1: 0} and outcome.ahead == {0: 0, 1: 0}


def test_what_is_written_over_waits_for_all_sends_before_it_with_lanes() -> None:
    """The wait comes before the sends that others need to come to their RECVs: it blocks with
    lanes, too."""
    send, recv, sent = Do.SEND, Do.RECV, Do.SENT
    steps: Steps = (((send, 0), (sent, 1), (send, 1)), ((recv, 1), (recv, 0)))
    outcome = run_exchange(steps, rendezvous=True, lanes=True)
    assert outcome.stopped == {0: 1, 1: 0} and outcome.holding == {0: 0}
    through: Steps = (((send, 0), (send, 1), (sent, 2)), ((recv, 0),), ((recv, 1),))
    assert not run_exchange(through, rendezvous=True, lanes=True).blocks
