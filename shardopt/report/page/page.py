"""The page itself: one HTML file without anything from elsewhere, made from `page.html.j2`.

Pictures are SVG inside the page. A short script stretches the timeline and filters tables; without
it the page shows all the same."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from shardopt.report.measured_timeline import comparison_rows
from shardopt.report.page.contents import PlanContents
from shardopt.report.page.cuts import cut_reasons
from shardopt.report.page.pictures import hue, layers_svg, memory_svg, tiles_svg
from shardopt.report.plan_table import backward_text, ids_text, span_text
from shardopt.report.timeline_svg import timeline_svg
from shardopt.report.units import bytes_text, seconds_text
from shardopt.schedule.simulator import SimulationResult
from shardopt.support.counts import counted, plural

if TYPE_CHECKING:
    from jinja2 import Environment

_ROOM = "shardopt.report.page"


def plan_page(
    contents: PlanContents,
    simulated: SimulationResult,
    measured: SimulationResult | None = None,
    title: str = "plan",
) -> str:
    """The page as text. `measured` is a step that was run, in the simulator's form
    (`shardopt.report.measured_timeline`)."""
    summary = contents.summary
    template = _environment().get_template("page.html.j2")
    return template.render(
        title=title,
        summary=summary,
        contents=contents,
        num_devices=len({device for mesh in contents.meshes for device in mesh.devices}),
        state_bytes=sum(g.bytes for g in contents.placements if g.first.is_state),
        reasons=cut_reasons(summary, contents.layers),
        layers=layers_svg(contents.layers, summary) if contents.layers is not None else "",
        timelines=_timelines(simulated, measured),
        memory=memory_svg(simulated, summary.stages),
        comparison=comparison_rows(simulated, measured) if measured is not None else (),
        step_seconds=summary.step_seconds,
        simulated_seconds=simulated.makespan_seconds,
        measured_seconds=None if measured is None else measured.makespan_seconds,
        style=_text("page.css"),
        script=_text("page.js"),
    )


def _timelines(
    simulated: SimulationResult, measured: SimulationResult | None
) -> tuple[tuple[str, str], ...]:
    predicted = ("predicted", timeline_svg(simulated))
    if measured is None:
        return (predicted,)
    return (predicted, ("measured", timeline_svg(measured)))


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("shardopt.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        backward=backward_text,
        bytes=bytes_text,
        counted=counted,
        duration=seconds_text,
        hue=hue,
        ids=ids_text,
        plural=plural,
        span=span_text,
        tiles=lambda tiles: Markup(tiles_svg(tiles)),
    )
    return environment


def _text(name: str) -> str:
    return files(_ROOM).joinpath(name).read_text()
