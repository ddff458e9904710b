"""The page of a plan: what it reads, what it says, and that it stands alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import shardopt
from shardopt.dialect.program import read_program
from shardopt.frontend.plans.plan import Plan
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.mesh.mesh import Sharding, parse_mesh
from shardopt.report.measured_timeline import measured_result
from shardopt.report.page.contents import PlanContents, read_contents
from shardopt.report.page.layers import read_layers
from shardopt.report.page.placement import tiles_of
from shardopt.report.plan_table import plan_table
from shardopt.report.units import seconds_text

MLP = Path(__file__).parents[3] / "docs" / "tutorial" / "mlp.mlir"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return shardopt.optimize(MLP, "cpu-test:1x4", microbatches=4, layers=2, stages=2)


@pytest.fixture(scope="module")
def contents(plan: Plan) -> PlanContents:
    with make_context() as context:
        clustered = load_module(dict(plan.forms)["cluster"], context)
        return read_contents(load_module(plan.module, context), clustered)


def test_bytes_of_arguments_add_up(contents: PlanContents) -> None:
    rows = [row for group in contents.placements for row in group.members]
    assert len(rows) == 4
    assert {row.name for row in rows if row.is_state} == {"arg0", "arg1"}
    for row in rows:
        replicas = {len(devices) for devices in row.tiles.devices}
        assert len(replicas) == 1
        assert row.device_bytes * 2 == row.bytes * replicas.pop()


def test_arguments_have_the_names_of_the_source() -> None:
    text = MLP.read_text()
    for number, name in enumerate(("params['up']", "params['down']")):
        donated = f"{{tf.aliasing_output = {number} : i32}}"
        text = text.replace(donated, f'{donated} loc("{name}")')
    named = shardopt.optimize(text.encode(), "cpu-test:1x4", microbatches=4, stages=2)
    with make_context() as context:
        placements = read_contents(load_module(named.module, context)).placements
    rows = [row for group in placements for row in group.members]
    assert {row.name for row in rows} == {"params['up']", "params['down']", "arg2", "arg3"}
    assert "params[&#39;up&#39;]" in named.report()


def test_collectives_are_those_of_the_stages(contents: PlanContents) -> None:
    planned = [item for row in contents.summary.stages for item in row.collectives]
    assert sum(row.bytes for row in contents.collective_shares) == sum(
        item.bytes for item in planned
    )
    assert sum(row.tensors for row in contents.collective_shares) == sum(
        item.tensors for item in planned
    )
    assert all(row.seconds > 0 for row in contents.collective_shares)


def test_transfers_carry_what_stages_send(contents: PlanContents) -> None:
    sent = sum(row.sent_bytes for row in contents.summary.stages)
    assert sum(route.bytes for route in contents.routes) == sent > 0


def test_layers_and_what_crosses_their_borders(plan: Plan) -> None:
    """Of a microbatch of 128 rows: the activation forward and its gradient back, 1024 wide."""
    with make_context() as context:
        program = read_program(load_module(dict(plan.forms)["cluster"], context))
        layers = read_layers(program)
    product = 2 * 128 * 256 * 1024
    assert layers.border_bytes == (2 * 128 * 1024 * 4,)
    assert layers.flops[0] == pytest.approx(2 * product, rel=0.05)  # the batch has no gradient
    assert layers.flops[1] == pytest.approx(3 * product, rel=0.05)


@pytest.mark.parametrize(
    ("dims", "rows", "columns", "devices"),
    [
        (((), ()), 1, 1, [[0, 1, 2, 3]]),
        ((("y",), ()), 2, 1, [[0, 2], [1, 3]]),
        ((("x",), ("y",)), 2, 2, [[0], [1], [2], [3]]),
        ((("y",), ("x",)), 2, 2, [[0], [2], [1], [3]]),
        (((), ("x", "y")), 4, 1, [[0], [1], [2], [3]]),
    ],
)
def test_tiles(dims: tuple, rows: int, columns: int, devices: list) -> None:
    tiles = tiles_of(Sharding(dims), parse_mesh("2x2"))
    assert (tiles.rows, tiles.columns) == (rows, columns)
    assert [list(each) for each in tiles.devices] == devices


class Page(HTMLParser):
    """The ids of a page, what it loads, and whether its tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids.add(named.get("id") or "")
        loading = [named.get(name) for name in ("src", "href", "xlink:href")]
        self.loads += [link for link in loading if link and not link.startswith("#")]
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(plan: Plan) -> None:
    page = Page(plan.report(title="a <plan>"))
    assert not page.open and not page.loads
    sections = {"stages", "cuts", "timeline", "memory", "collectives", "transfers", "arguments"}
    assert sections <= page.ids


def test_titles_are_escaped_and_pages_repeat(plan: Plan) -> None:
    text = plan.report(title="a <plan>")
    assert "<h1>a &lt;plan&gt;</h1>" in text
    assert text == plan.report(title="a <plan>")


def test_a_measured_step_stands_beside_the_predicted_one(plan: Plan) -> None:
    simulated = plan.simulate()
    slower = {s.task: (3 * s.start_seconds, 3 * s.end_seconds) for s in simulated.spans()}
    text = plan.report(measured_result(simulated, slower))
    assert "measured / predicted" in text and "3.00</td>" in text
    # The two times at the head of the page are of the same part of a step.
    makespan = simulated.makespan_seconds
    assert f"<b>{seconds_text(makespan)}</b>of it scheduled" in text
    assert f"<b>{seconds_text(3 * makespan)}</b>scheduled, measured" in text
    assert text.count('<svg class="timeline"') == 2
    assert plan.report().count('<svg class="timeline"') == 1


def test_one_stage_has_no_cuts() -> None:
    plan = shardopt.optimize(MLP, "cpu-test:1x4", microbatches=1, stages=1)
    text = plan.report()
    assert "There is one stage, and nothing is cut." in text
    assert re.search(r'id="transfers".*?There are none', text, re.DOTALL)


def test_tables_cut_nothing_at_80_columns(plan: Plan) -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(plan_table(plan.summary))
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for row in plan.summary.stages:
        assert f"{1e3 * row.forward_seconds:.3g} ms" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found to open the page in")
def test_a_browser_draws_the_page_and_stretches_the_timeline(plan: Plan, tmp_path: Path) -> None:
    """The wheel over a timeline scales it, and an error of the script would show in the title."""
    probe = """<script>
      const errors = []; window.onerror = (message) => errors.push(message);
      const frame = document.querySelector("svg.timeline");
      frame.dispatchEvent(new WheelEvent("wheel", {deltaY: -600, clientX: 600, cancelable: true}));
      const input = document.querySelector("input[data-filters]");
      input.value = "arg1"; input.dispatchEvent(new Event("input"));
      const shown = [...document.querySelectorAll("#placements tbody > tr")].filter(r => !r.hidden);
      const scale = frame.querySelector("g").transform.baseVal.consolidate().matrix.a;
      document.title = [scale.toFixed(3), shown.length, ...errors].join(" ");
    </script></body>"""
    page = tmp_path / "plan.html"
    page.write_text(plan.report().replace("</body>", probe))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command = [str(CHROMIUM), *options, f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None and title.group(1) == "7.389 1"
