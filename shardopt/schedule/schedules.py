"""The schedules by name: each builder writes, per mesh, the order in which its tasks run.

All schedules run the microbatches of one kind in ascending order, so gradients are summed in the
same order and two schedules give bit-equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from shardopt.schedule.builders.chimera import chimera, chimera_graph
from shardopt.schedule.builders.dual_pipe import dual_pipe_v
from shardopt.schedule.builders.flat import (
    all_in_flight,
    eager_in_flight,
    eager_one_f_one_b,
    gpipe,
    inference,
    one_f_one_b,
    one_f_one_b_in_flight,
)
from shardopt.schedule.builders.interleaved import interleaved
from shardopt.schedule.builders.pipedream import (
    pipedream,
    pipedream_2bw,
    pipedream_2bw_ages,
    pipedream_ages,
    step_of,
)
from shardopt.schedule.builders.terapipe import terapipe, terapipe_graph
from shardopt.schedule.builders.v_shaped import v_half, v_min, zb_v
from shardopt.schedule.builders.zero_bubble import zero_bubble
from shardopt.schedule.csv_format import from_rows
from shardopt.schedule.graph import StageGraph, chain_graph
from shardopt.schedule.homes import down_and_up, in_blocks, in_turn
from shardopt.schedule.memory import peak_in_flight
from shardopt.schedule.tasks import Schedule, TaskKind
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name

ScheduleBuilder = Callable[[int, int, int], Schedule]  # stages, microbatches, meshes
GraphBuilder = Callable[[int, int, tuple[TaskKind, ...]], StageGraph]  # stages, meshes, kinds
Homes = Callable[[int, int], tuple[int, ...]]  # stages, meshes

_WHOLE = (TaskKind.FORWARD, TaskKind.BACKWARD)
_HALVES = (TaskKind.FORWARD, TaskKind.BACKWARD_INPUT, TaskKind.BACKWARD_WEIGHT)
AUTO = "auto"  # in place of a name: the planner chooses
SEARCH = "search"  # in place of a name: the stages are planned for each schedule
ALIKE = 0.01  # steps that differ by less are alike: no cost model is that exact
SEVERAL = -1  # stages a mesh: any number
# Stages a mesh where nobody says how many: this halves the bubble for the least extra traffic.
_USUAL_STAGES = 2
# Stages a mesh that a search over schedules tries where any number may be.
_SEARCHED_STAGES = (2, 3, 4)


def _chain(num_stages: int, num_meshes: int, kinds: tuple[TaskKind, ...]) -> StageGraph:
    return chain_graph(num_stages, kinds)


@dataclass(frozen=True)
class ScheduleKind:
    """A schedule by name: the kinds of task that it lists for every stage, and the stages a mesh
    has (or `SEVERAL`).

    `in_flight(stages, microbatches)`, where it is known, is what counting on the task list would
    give. `cuts_tokens`: the stages of a mesh are slices of tokens that go through one stage of the
    model. `weight_ages(stages)`, where given, are the updates by which the weights of each stage
    are too old: it computes another step than the model does. `training` lists several of its steps
    in a row, with their updates, for the simulator; `delayed` says that microbatches use the
    weights from before the last of them (see `weight_versions`). `streams` pipelines share the
    meshes: its list has every stage of the model so many times, and one number stands for so many
    microbatches. `mesh_multiple` must divide the number of meshes. `graph` gives its tasks and what
    they wait for in a model that is a chain, `homes` the mesh of each stage of the list."""

    name: str
    build: ScheduleBuilder
    kinds: tuple[TaskKind, ...] = _WHOLE
    stages_per_mesh: int = 1
    in_flight: Callable[[int, int], tuple[int, ...]] | None = None
    cuts_tokens: bool = False
    weight_ages: Callable[[int], tuple[int, ...]] | None = None
    training: ScheduleBuilder | None = None
    delayed: bool = False
    streams: int = 1
    mesh_multiple: int = 1
    graph: GraphBuilder = _chain
    homes: Homes = in_turn

    @property
    def model_stages_per_mesh(self) -> int:
        """Stages of the model that have their home on a mesh (or `SEVERAL`)."""
        return self.stages_per_mesh if self.streams == 1 else self.stages_per_mesh // self.streams

    def listed_microbatches(self, num_microbatches: int) -> int:
        """How many numbers its list has for so many microbatches. Raises UserError where they
        cannot be shared out evenly."""
        if num_microbatches % self.streams:
            raise UserError(
                f"schedule '{self.name}' needs a multiple of {self.streams} microbatches, got "
                f"{num_microbatches}"
            )
        return num_microbatches // self.streams

    def suits(self, num_stages: int, num_meshes: int) -> bool:
        """Whether it can be built for so many stages on so many meshes."""
        even = (
            num_meshes >= 1
            and num_stages % num_meshes == 0
            and num_meshes % self.mesh_multiple == 0
        )
        return even and self.stages_per_mesh in (SEVERAL, num_stages // num_meshes)

    @property
    def planned(self) -> ScheduleKind:
        """The kind that stages are planned for, with a definite number of them a mesh. What goes
        through the stages in slices holds as many microbatches as 1F1B."""
        if self.cuts_tokens:
            return SCHEDULES["1f1b"]
        return (
            self
            if self.stages_per_mesh != SEVERAL
            else find_schedule(f"{self.name}:{_USUAL_STAGES}")
        )

    @property
    def splits_backward(self) -> bool:
        return TaskKind.BACKWARD_WEIGHT in self.kinds

    @property
    def trains(self) -> bool:
        return len(self.kinds) > 1

    def check_backward(self) -> None:
        """Raise UserError where it has no place for the backward that a model has."""
        if not self.trains:
            raise UserError(
                f"schedule '{self.name}' has forwards only, and the model has a backward: expected "
                "one that trains, such as 1f1b, or auto"
            )

    @property
    def is_offered(self) -> bool:
        """Whether every model can run under it, and computes what it does by itself: others are for
        users to ask for."""
        return not self.cuts_tokens and self.weight_ages is None

    @property
    def is_plain(self) -> bool:
        """One stage a mesh, and backwards that are not split: nothing about the program has to suit
        it."""
        return self.stages_per_mesh == 1 and not self.splits_backward and self.is_offered


SCHEDULES: Mapping[str, ScheduleKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            ScheduleKind("gpipe", gpipe, in_flight=all_in_flight),
            ScheduleKind("1f1b", one_f_one_b, in_flight=one_f_one_b_in_flight),
            ScheduleKind("eager-1f1b", eager_one_f_one_b, in_flight=eager_in_flight),
            ScheduleKind("interleaved", interleaved, stages_per_mesh=SEVERAL),
            ScheduleKind("zero-bubble", zero_bubble, _HALVES),
            ScheduleKind("zb-v", zb_v, _HALVES, 2, homes=down_and_up),
            ScheduleKind("v-half", v_half, _HALVES, 2, homes=down_and_up),
            ScheduleKind("v-min", v_min, _HALVES, 2, homes=down_and_up),
            ScheduleKind("dualpipe-v", dual_pipe_v, _HALVES, 2, homes=down_and_up),
            ScheduleKind("inference", inference, (TaskKind.FORWARD,)),
            ScheduleKind(
                "chimera",
                chimera,
                stages_per_mesh=2,
                streams=2,
                mesh_multiple=2,
                graph=chimera_graph,
                homes=down_and_up,
            ),
            ScheduleKind(
                "pipedream",
                step_of("pipedream"),
                in_flight=one_f_one_b_in_flight,
                weight_ages=pipedream_ages,
                training=pipedream,
            ),
            ScheduleKind(
                "pipedream-2bw",
                step_of("pipedream-2bw"),
                in_flight=one_f_one_b_in_flight,
                weight_ages=pipedream_2bw_ages,
                training=pipedream_2bw,
                delayed=True,
            ),
            ScheduleKind(
                "terapipe",
                terapipe,
                stages_per_mesh=SEVERAL,
                cuts_tokens=True,
                graph=terapipe_graph,
                homes=in_blocks,
            ),
        )
    }
)


def find_schedule(name: str) -> ScheduleKind:
    """The schedule called `name`; `interleaved:3` fixes the stages a mesh of one that takes any
    number.

    Raises UserError for an unknown name, and for a number where there is none to choose.
    """
    plain, colon, count = name.partition(":")
    if plain not in SCHEDULES:
        raise UserError(unknown_name("schedule", plain, tuple(SCHEDULES)))
    kind = SCHEDULES[plain]
    if not colon:
        return kind
    if kind.stages_per_mesh != SEVERAL:
        raise UserError(
            f"schedule '{name}': '{plain}' has a fixed number of stages a mesh, "
            f"expected no ':{count}'"
        )
    if not (count.isascii() and count.isdecimal() and int(count) >= 1):
        raise UserError(
            f"schedule '{name}': expected a number of stages a mesh behind ':', found '{count}'"
        )
    return replace(kind, name=name, stages_per_mesh=int(count))


def build_schedule(
    name: str,
    num_stages: int,
    num_microbatches: int,
    num_meshes: int | None = None,
    *,
    training: bool = False,
) -> Schedule:
    """Build the schedule called `name`, by default with as many stages a mesh as it wants at least;
    with `training` the tasks of several steps, where these overlap.

    Raises UserError for an unknown name, a count below 1, or numbers of stages and meshes that do
    not suit it."""
    kind = find_schedule(name)
    meshes = _suiting_meshes(kind, num_stages, num_meshes, num_microbatches)
    build = kind.training if training and kind.training is not None else kind.build
    return build(num_stages, num_microbatches, meshes)


def _suiting_meshes(
    kind: ScheduleKind, num_stages: int, num_meshes: int | None, num_microbatches: int = 1
) -> int:
    """The number of meshes, or the one for as many stages a mesh as it wants at least. Raises
    UserError for numbers that do not suit the kind."""
    stages_each = kind.stages_per_mesh
    meshes = num_stages // max(stages_each, 1) if num_meshes is None else num_meshes
    if num_stages < 1 or num_microbatches < 1:
        raise UserError(
            f"schedule '{kind.name}' needs at least 1 stage and 1 microbatch, got {num_stages} and "
            f"{num_microbatches}"
        )
    if meshes > 0 and meshes % kind.mesh_multiple:
        raise UserError(
            f"schedule '{kind.name}' needs a multiple of {kind.mesh_multiple} meshes, got {meshes}"
        )
    if not kind.suits(num_stages, meshes):
        each = (
            "the same number of stages"
            if stages_each == SEVERAL
            else "1 stage"
            if stages_each == 1
            else f"{stages_each} stages"
        )
        raise UserError(
            f"schedule '{kind.name}' needs {each} on every mesh, got {num_stages} stages on "
            f"{meshes} meshes"
        )
    return meshes


@dataclass(frozen=True)
class ScheduleText:
    """A schedule as text: a name of the registry, or under any name the tasks of every mesh, `0F0
    0F1 …`."""

    name: str
    rows: tuple[str, ...] = ()

    @staticmethod
    def of(schedule: Schedule) -> ScheduleText:
        """With the tasks of every mesh."""
        return ScheduleText(schedule.name, tuple(str(schedule).split("\n")))

    def build(
        self, num_stages: int, num_microbatches: int, num_meshes: int | None = None
    ) -> Schedule:
        """Raises UserError as `build_schedule`, for text that is no task, or for other numbers than
        these."""
        if not self.rows:
            return build_schedule(self.name, num_stages, num_microbatches, num_meshes)
        schedule = from_rows([row.split() for row in self.rows], self.name)
        actual = (schedule.num_stages, schedule.num_microbatches, schedule.num_meshes)
        expected = (num_stages, num_microbatches, num_meshes or schedule.num_meshes)
        if actual != expected:
            form = "{} stages, {} microbatches and {} meshes"
            expected_text, actual_text = form.format(*expected), form.format(*actual)
            raise UserError(
                f"schedule '{self.name}': expected tasks of {expected_text}, "
                f"found tasks of {actual_text}"
            )
        return schedule


@lru_cache(maxsize=4096)
def in_flight(
    name: str, num_stages: int, num_microbatches: int, num_meshes: int | None = None
) -> tuple[int, ...]:
    """Per stage, the largest number of microbatches whose activations are alive at once.

    Counted on the task list where the schedule does not know it. Cached because the stage DP asks
    for the same few schedules again and again."""
    kind = find_schedule(name)
    if kind.in_flight is not None and num_meshes is None and min(num_stages, num_microbatches) > 0:
        return kind.in_flight(num_stages, num_microbatches)
    schedule = build_schedule(name, num_stages, num_microbatches, num_meshes)
    return tuple(
        peak_in_flight([task for task in schedule.tasks[mesh] if task.stage == stage])
        for stage, mesh in enumerate(schedule.stage_to_mesh)
    )


def stage_homes(name: str, num_stages: int, num_meshes: int | None = None) -> tuple[int, ...]:
    """The mesh of every stage. Raises UserError as `build_schedule`."""
    kind = find_schedule(name)
    return kind.homes(num_stages, _suiting_meshes(kind, num_stages, num_meshes))


def model_homes(name: str, num_stages: int) -> tuple[int, ...]:
    """The mesh of every stage of the list, for a model of `num_stages` stages: these come first.
    Raises UserError as `build_schedule`."""
    return stage_homes(name, find_schedule(name).streams * num_stages)


def model_in_flight(
    name: str, num_stages: int, num_microbatches: int, num_meshes: int | None = None
) -> tuple[int, ...]:
    """As `in_flight`, for all stages of the list of a model of `num_stages` stages. Raises
    UserError where its microbatches cannot be shared out evenly."""
    kind = find_schedule(name)
    count = kind.listed_microbatches(num_microbatches)
    return in_flight(name, kind.streams * num_stages, count, num_meshes)


def usual_schedule(homes: tuple[int, ...]) -> str | None:
    """The schedule of whole backwards for stages on the meshes `homes` where nobody has chosen one,
    if there is any."""
    meshes = 1 + max(homes)
    fits = (name for name in ("1f1b", "interleaved") if SCHEDULES[name].suits(len(homes), meshes))
    return next((name for name in fits if stage_homes(name, len(homes), meshes) == homes), None)


def like(schedule: Schedule) -> str:
    """The name of the schedule that lays stages on meshes and splits backwards as `schedule` does;
    of several, the one that holds most. Empty if there is none."""
    kinds = {task.kind for row in schedule.tasks for task in row if not task.kind.runs_once}
    stages, meshes = schedule.num_stages, schedule.num_meshes
    # With more, only those that hold all microbatches hold more.
    count = min(schedule.num_microbatches, 2 * stages)
    best, most = "", 0
    for kind in SCHEDULES.values():
        several = kind.stages_per_mesh == SEVERAL
        name = f"{kind.name}:{stages // meshes}" if several else kind.name
        # Of several pipelines a list does not tell which stages are one of the model.
        if not kind.is_offered or kind.streams > 1 or set(kind.kinds) != kinds:
            continue
        if not kind.suits(stages, meshes):
            continue
        held = sum(in_flight(name, stages, count, meshes))
        if stage_homes(name, stages, meshes) == schedule.stage_to_mesh and held > most:
            best, most = name, held
    return best


def searched_schedules(trains: bool) -> tuple[str, ...]:
    """The schedules that `auto` chooses among for a program with or without a backward: all that
    suit any program."""
    return tuple(
        kind.name for kind in SCHEDULES.values() if kind.is_plain and kind.trains == trains
    )


def planned_schedules() -> Iterator[str]:
    """What a search over schedules plans stages for: `auto` for all that suit any program, and each
    of the others that train and that plans can run, as it wants other stages."""
    yield AUTO
    for kind in SCHEDULES.values():
        if kind.trains and not kind.is_plain and kind.is_offered:
            counts = _SEARCHED_STAGES if kind.stages_per_mesh == SEVERAL else ()
            yield from (f"{kind.name}:{count}" for count in counts)
            yield from () if counts else (kind.name,)
