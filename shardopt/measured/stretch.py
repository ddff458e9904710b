"""A pipeline of many equal blocks and stages, from two short plans of it.

The blocks of a model are equal, and a plan of a row shards them all alike. So what a stage takes
and holds is that of its first block and the same again for each further one: two plans whose stages
differ by one block give both, exactly. Stages between the first and the last are equal too, so
three stages show all there are. What many stages and microbatches make of this, order, waiting and
memory, is simulated in full.

`tests/unit/measured/test_stretch.py` holds stretched plans to plans of the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardopt.extract.pipeline_graph import PipelineGraph, peak_bytes, simulate_pipeline
from shardopt.measured.short_plan import ShortPlan
from shardopt.schedule.graph import StageEdge, StageGraph
from shardopt.schedule.memory import LiveBytes
from shardopt.schedule.schedules import ScheduleText
from shardopt.schedule.tasks import StageTask


@dataclass(frozen=True)
class Pair:
    """Two short plans of equally many stages; the second has more blocks a stage, or is the first
    where that is the whole."""

    first: ShortPlan
    second: ShortPlan

    def at(self, blocks: int, first: float, second: float) -> float:
        """What is `first` and `second` in the two plans, with so many blocks a stage."""
        more = self.second.blocks - self.first.blocks
        return first + (second - first) / more * (blocks - self.first.blocks) if more else first


@dataclass(frozen=True)
class Shape:
    """The pipeline to be: `meshes` meshes of `width` devices, `stages` stages of `blocks` blocks
    that go round the meshes. In a second of collectives before and behind the microbatches it gets
    on by `outside_share` seconds with the first and the last of these. With `awaits_messages` it
    computes nothing while it receives; with `sums_together` the backward pass ends with one
    collective for all that it sums, until which every device holds its terms."""

    meshes: int
    stages: int
    blocks: int
    width: int
    devices_per_host: int
    outside_share: float = 0.0
    awaits_messages: bool = False
    sums_together: bool = False

    def crosses(self, stage: int) -> bool:
        """Whether the stage behind this one lies on another host."""
        return self._host(stage) != self._host(stage + 1)

    def links(self, edge: StageEdge) -> tuple[int, ...]:
        """The NICs that the transfer of an edge uses, numbered as in `PipelineGraph`; of stages
        over several hosts, whose NICs do the same at once, the first."""
        source, target = self._host(edge.src.stage), self._host(edge.dst.stage)
        return () if source == target else (2 * source, 2 * target + 1)

    def _host(self, stage: int) -> int:
        return stage % self.meshes * self.width // self.devices_per_host


@dataclass(frozen=True)
class StepPrediction:
    """Of one step, and the most that a device holds in it."""

    step_seconds: float
    memory_bytes: int


def predict(pair: Pair, shape: Shape, schedule: str, microbatches: int) -> StepPrediction:
    """Simulate the whole pipeline. Raises UserError for a schedule that does not suit it."""
    template = _Template(pair, shape)
    pipeline = template.pipeline()
    result = simulate_pipeline(ScheduleText(schedule), pipeline, microbatches)
    outside = template.outside_seconds()
    fragments = max(
        pair.at(shape.blocks, *values)
        for values in zip(pair.first.fragment_bytes, pair.second.fragment_bytes, strict=True)
    )
    held = max([*peak_bytes(pipeline, result), *template.bytes_when_summed()])
    return StepPrediction(result.makespan_seconds + max(outside), max(held, round(fragments)))


class _Template:
    """The stages of the short plans, and which of them stands for which stage of the pipeline."""

    def __init__(self, pair: Pair, shape: Shape) -> None:
        self._pair, self._shape = pair, shape
        self._short = pair.first.pipeline
        self._last = self._short.num_stages - 1

    def pipeline(self) -> PipelineGraph:
        pair, shape, short = self._pair, self._shape, self._short
        seconds = dict(self._of_stages(short.task_seconds, pair.second.pipeline.task_seconds))
        edges = dict(self._edges())
        if shape.awaits_messages:
            for edge, delay in edges.items():
                if abs(edge.src.stage - edge.dst.stage) == 1:
                    seconds[edge.dst] += delay
                    edges[edge] = 0.0
        graph = StageGraph(tuple(seconds), tuple(edges))
        fixed, outside = (
            tuple(round(value) for value in self.by_mesh(self._stretched(name)))
            for name in ("fixed_bytes", "outside_bytes")
        )
        return PipelineGraph(
            graph=graph,
            task_seconds=seconds,
            transfer_seconds=tuple(edges.values()),
            activation_bytes={},
            fixed_bytes=fixed,
            num_stages=shape.stages,
            stage_to_mesh=tuple(stage % shape.meshes for stage in range(shape.stages)),
            edge_links=tuple(shape.links(edge) for edge in edges),
            live=tuple(self._live()),
            outside_bytes=outside,
        )

    def outside_seconds(self) -> list[float]:
        """Of each mesh, before and behind the microbatches, less what passes beside one of them: of
        the first what comes before, of the last what follows."""
        outside, awaited = (
            self.by_mesh(self._of_plans(name))
            for name in ("outside_seconds", "outside_communication")
        )
        one = [0.0] * self._shape.meshes
        pairs = self._of_stages(
            self._pair.first.pipeline.task_seconds, self._pair.second.pipeline.task_seconds
        )
        for task, seconds in pairs:
            one[task.stage % self._shape.meshes] += seconds
        share = self._shape.outside_share
        return [
            each - min(share * communication, computing)
            for each, communication, computing in zip(outside, awaited, one, strict=True)
        ]

    def bytes_when_summed(self) -> list[int]:
        """Of each mesh, with all that it sums together."""
        if not self._shape.sums_together:
            return []
        return [round(held) for held in self.by_mesh(self._of_plans("summed_bytes"))]

    def by_mesh(self, values: Iterator[float] | list[float]) -> list[float]:
        """Sums over the stages of each mesh, of what the short plans have for theirs."""
        of_short = list(values)
        sums = [0.0] * self._shape.meshes
        for stage in range(self._shape.stages):
            sums[stage % self._shape.meshes] += of_short[self._like(stage)]
        return sums

    def _like(self, stage: int) -> int:
        """The stage of the short plans that a stage is like."""
        if stage in (0, self._shape.stages - 1):
            return 0 if stage == 0 else self._last
        return min(1, self._last)

    def _stages_like(self, short: int) -> list[int]:
        return [stage for stage in range(self._shape.stages) if self._like(stage) == short]

    def _stretched(self, name: str) -> list[float]:
        plans = (self._pair.first.pipeline, self._pair.second.pipeline)
        return self._at_blocks(*(getattr(plan, name) for plan in plans))

    def _of_plans(self, name: str) -> list[float]:
        return self._at_blocks(getattr(self._pair.first, name), getattr(self._pair.second, name))

    def _at_blocks(self, first: Sequence[float], second: Sequence[float]) -> list[float]:
        blocks = self._shape.blocks
        return [self._pair.at(blocks, *values) for values in zip(first, second, strict=True)]

    def _of_stages(
        self, first: Mapping[StageTask, float], second: Mapping[StageTask, float]
    ) -> Iterator[tuple[StageTask, float]]:
        for task, seconds in first.items():
            whole = self._pair.at(self._shape.blocks, seconds, second[task])
            for stage in self._stages_like(task.stage):
                yield StageTask(task.kind, stage), whole

    def _edges(self) -> Iterator[tuple[StageEdge, float]]:
        """Edges inside of a stage, between the ends (of a value that both use), and between
        neighbours."""
        delays = dict(zip(self._short.graph.edges, self._short.transfer_seconds, strict=True))
        ends = (0, self._shape.stages - 1)
        for edge, delay in delays.items():
            first, second = edge.src.stage, edge.dst.stage
            if first == second:
                for stage in self._stages_like(first):
                    yield self._moved(edge, stage, stage), delay
            elif abs(first - second) > 1:
                yield self._moved(edge, *(ends if first < second else ends[::-1])), delay
        for stage in range(self._shape.stages - 1):
            yield from self._to_neighbour(stage, delays)

    def _to_neighbour(
        self, stage: int, delays: Mapping[StageEdge, float]
    ) -> Iterator[tuple[StageEdge, float]]:
        """What a stage and the one behind it pass to each other. How long that takes depends on
        whether they share a host."""
        place = self._place(stage)
        for edge in delays:
            forward = edge.src.stage < edge.dst.stage
            if {edge.src.stage, edge.dst.stage} != {place, place + 1}:
                continue
            pair = (stage, stage + 1) if forward else (stage + 1, stage)
            delay = delays[edge]
            if self._short_crosses(place) != self._shape.crosses(stage):
                delay = max(self._delays_elsewhere(forward, place, delays), default=delay)
            yield self._moved(edge, *pair), delay

    def _place(self, stage: int) -> int:
        """The stage of the short plans that passes to the next what this one does."""
        if stage == 0 or self._last < 2:
            return 0
        if stage == self._shape.stages - 2:
            return self._last - 1
        return 1 if self._last > 2 else 0

    def _delays_elsewhere(
        self, forward: bool, place: int, delays: Mapping[StageEdge, float]
    ) -> Iterator[float]:
        """Of neighbours in the short plans that share a host where those at `place` do not, or the
        other way round."""
        for edge, delay in delays.items():
            low, high = sorted((edge.src.stage, edge.dst.stage))
            same_way = (edge.src.stage < edge.dst.stage) == forward
            if high != low + 1 or not same_way:
                continue
            if self._short_crosses(low) != self._short_crosses(place):
                yield delay

    def _short_crosses(self, place: int) -> bool:
        count = self._last + 1
        return replace(self._shape, meshes=count, stages=count).crosses(place)

    @staticmethod
    def _moved(edge: StageEdge, source: int, target: int) -> StageEdge:
        return StageEdge(
            StageTask(edge.src.kind, source), StageTask(edge.dst.kind, target), edge.bytes
        )

    def _live(self) -> Iterator[LiveBytes]:
        first, second = (
            {(each.tasks, each.taken_over, each.stays): each.bytes for each in plan.pipeline.live}
            for plan in (self._pair.first, self._pair.second)
        )
        for key in dict.fromkeys((*first, *second)):
            tasks, *how = key
            size = self._pair.at(self._shape.blocks, first.get(key, 0), second.get(key, 0))
            for stage in self._stages_like(tasks[0].stage):
                moved = tuple(StageTask(task.kind, stage) for task in tasks)
                yield LiveBytes(moved, max(0, round(size)), *how)
