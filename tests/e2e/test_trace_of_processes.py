"""What runs in several processes tell: times on one clock, and where workers stand while a step
runs."""

from __future__ import annotations

import threading
import time

from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import MeshError
from shardopt.runtime.faults import Fault
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.program.instructions import Send
from shardopt.runtime.run import Run
from shardopt.runtime.tracing.spans import task_times
from tests.e2e.exported_model import example, inputs

# Clocks of processes of one machine are the same; reading them takes a moment.
CLOCK_SECONDS = 1e-3


def check_spans(run: Run) -> None:
    spans = run.spans()
    sends = {(s.step, s.tag): s for s in spans if s.row == "send"}
    recvs = {(s.step, s.tag): s for s in spans if s.row == "receive" and s.tag is not None}
    count = sum(isinstance(each, Send) for part in run.program.meshes for each in part.instructions)
    assert sends.keys() == recvs.keys() and len(sends) == run.steps_done * count
    for key, send in sends.items():
        assert send.worker != recvs[key].worker and send.bytes == recvs[key].bytes
        assert send.ready_seconds <= recvs[key].end_seconds + CLOCK_SECONDS
    assert len(task_times(spans, run.steps_done - 1)) == 14, "three times four tasks, two updates"


def test_processes_share_a_clock_and_say_where_they_stand() -> None:
    stuck = Fault("sleep", "m1", host=0, step=1, position=2)
    limits = Limits(progress_seconds=3)
    with open_run(
        example(), "process", quick_compile=True, trace=True, faults=[stuck], limits=limits
    ) as run:
        run.load(inputs())
        run.step()
        check_spans(run)
        assert all("idle for" in line for line in run.where().splitlines())
        ended: list[MeshError] = []

        def step() -> None:
            try:
                run.step()
            except MeshError as error:
                ended.append(error)

        thread = threading.Thread(target=step)
        thread.start()
        time.sleep(1.0)
        here = run.where().splitlines()
        thread.join()
    assert "step 1, instruction" in here[0] and "waits for message #2 from mesh 'm1'" in here[0]
    assert here[1].startswith("mesh 'm1', host 0: step 1, instruction 2 (")
    assert "no worker got on" in str(ended[0]), (
        "the run ends by its own limit, not because it was asked"
    )
