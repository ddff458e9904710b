"""A finished plan, how it was asked for, and the directory that keeps it.

PLAN/plan.json             what was decided and predicted: a plan file (`docs/guide/plan-file.md`)
PLAN/module.mlirbc         the exported module: the one thing the runtime executes
PLAN/original.mlirbc       the model as it was read, for `shardopt run --check`
PLAN/ir/1-import.mlir …    the IR after every phase
PLAN/stages/<name>.mlirbc  every stage function as an XLA module of its own
PLAN/files.sha256          what of this the plan wrote, with checksums
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardopt.frontend.plans.loaded_modules import LoadedModules
from shardopt.options.plan_options import PlanOptions
from shardopt.planfile.plan_folder import (
    PLAN_FILE,
    has_checksum,
    plan_parts,
    read_plan_part,
    safe_file_name,
    write_plan_folder,
)
from shardopt.runtime.options import RunOptions, with_keywords
from shardopt.support.collection import rare_collection
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from shardopt.report.plan_summary import PlanSummary
    from shardopt.runtime.program.instructions import Program
    from shardopt.runtime.run import Run
    from shardopt.schedule.simulator import SimulationResult


def _run_of(plan: Plan, options: RunOptions) -> Run:
    """Start the workers of a plan and compile its stages; the options are those of `RunOptions`.

        with plan.run("process") as run:
            run.load(inputs)  # one numpy array for each argument
            loss = run.step()[-1]

    Raises UserError for options that do not fit each other or the machine, MeshError if a mesh
    cannot start."""
    from shardopt.runtime.driver import start_run

    return start_run(plan.program(), options)


@dataclass(frozen=True, repr=False)
class Plan:
    """A finished plan: the exported module and the original as MLIR bytecode.

    `forms` is the IR after every phase, text or bytecode; few look at it, and printing large
    modules takes seconds. `loaded` has what was read of all these, for whoever reads them next."""

    module: bytes
    original: bytes
    forms: tuple[tuple[str, bytes], ...]
    summary: PlanSummary
    options: PlanOptions
    # The model given to `shardopt.optimize`.
    source: Any = field(default=None, repr=False, compare=False)
    loaded: LoadedModules = field(default_factory=LoadedModules, repr=False, compare=False)

    def __repr__(self) -> str:
        from shardopt.report.plan_html import plan_text

        return plan_text(self.summary)

    def _repr_html_(self) -> str:
        """What notebooks show: the stages, and the simulated step as a picture."""
        from shardopt.report.plan_html import plan_html

        return plan_html(self.summary, self.simulate())

    @cached_property
    def phases(self) -> tuple[tuple[str, str], ...]:
        """The IR text after every phase, long lines broken, as `shardopt-opt` dumps it."""
        from shardopt.ir.formats import decoded
        from shardopt.pipeline.dumps import FILE_STYLE

        with self.loaded as modules:
            return tuple(
                (
                    phase,
                    decoded(form) or FILE_STYLE.text(modules[form].operation, verified=True),
                )
                for phase, form in self.forms
            )

    # `plan.run("process", quick_compile=True)`
    run = with_keywords(RunOptions, _run_of)

    def program(self) -> Program:
        """What the runtime executes, with the custom calls that the options allow. Raises UserError
        as `shardopt.prepare` does."""
        from shardopt.frontend.plans.plan_document import fingerprint
        from shardopt.runtime.driver import prepare

        with self.loaded as modules:
            program = prepare(modules[self.module], self.options.custom_calls)
            return replace(program, model=fingerprint(modules[self.original]))

    def to_exported(self) -> Any:
        """For a plan with one stage and one microbatch: the model as one `jax.export.Exported`,
        sharded over the mesh.

        It is sharded anew as a whole, since a plan keeps step and state apart. Raises UserError for
        a pipeline, and for a plan that was not made from an `Exported` by `shardopt.optimize`."""
        from shardopt.frontend.spmd.shard import exported_of

        return exported_of(self)

    def table(self) -> Any:
        """The stages as `rich` tables."""
        from shardopt.report.plan_table import plan_table

        return plan_table(self.summary)

    def simulate(self) -> SimulationResult:
        """The step as the event simulator sees it."""
        with self.loaded as modules:
            return simulate_module(modules[self.module])

    def timeline(self) -> Any:
        """The simulated step as `rich` text."""
        from shardopt.report.timeline import timeline_text

        return timeline_text(self.simulate())

    def report(self, measured: SimulationResult | None = None, title: str = "plan") -> str:
        """The plan as one self-contained HTML page: stages, why it is cut there, timeline, memory,
        collectives, and where every argument lies.

        `measured` is a step that was run, in the simulator's form
        (`shardopt.report.measured_timeline`)."""
        from shardopt.report.page.contents import read_contents
        from shardopt.report.page.page import plan_page

        clustered = dict(self.forms).get("cluster")
        with self.loaded as modules:
            contents = read_contents(
                modules[self.module], None if clustered is None else modules[clustered]
            )
        return plan_page(contents, self.simulate(), measured, title)

    def to_json(self) -> dict[str, object]:
        """What `plan.json` holds: a plan file, which gives this plan again."""
        from shardopt.frontend.plans.plan_document import plan_document

        return plan_document(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan directory; of an earlier plan there, every file is replaced, and files
        that no plan wrote stay (`shardopt.planfile.plan_folder`).

        Raises UserError when `path` is something else than a plan directory or an empty one."""
        target = _folder(path)
        with rare_collection():  # what planning has built is still there to be looked through
            write_plan_folder(target, self._files())
        return target

    def _files(self) -> dict[str, bytes]:
        """The contents of the plan directory, by relative name."""
        from shardopt.forms.exported_form import read_exported
        from shardopt.report.timeline_svg import timeline_svg
        from shardopt.support.documents import json_text

        with self.loaded as modules:
            functions = read_exported(modules[self.module]).functions
        stages = {
            f"stages/{safe_file_name(one.name, 'a stage function')}.mlirbc": one.bytecode
            for one in functions
        }
        return {
            "module.mlirbc": self.module,
            "original.mlirbc": self.original,
            PLAN_FILE: (json_text(self.to_json()) + "\n").encode(),
            "timeline.svg": timeline_svg(self.simulate()).encode(),
            **{
                f"ir/{number}-{phase}.mlir": text.encode()
                for number, (phase, text) in enumerate(self.phases, 1)
            },
            **stages,
        }

    @staticmethod
    def load(path: str | os.PathLike[str], custom_calls: str = "") -> Plan:
        """Read a plan directory. `custom_calls` names those that may run beside what XLA and JAX
        register; a directory vouches for none. Raises UserError that names the missing or foreign
        file."""
        from shardopt.ir.io import text_expected
        from shardopt.ir.trial import check_readable
        from shardopt.planfile.plan_file import load_plan_file

        folder = _folder(path)
        described = load_plan_file(str(folder / PLAN_FILE))
        module, original = (
            read_plan_part(folder, name) for name in ("module.mlirbc", "original.mlirbc")
        )
        for name, data in (("module.mlirbc", module), ("original.mlirbc", original)):
            if not has_checksum(folder, name):  # whoever changed it may have damaged it
                check_readable(data, str(folder / name))
        dumps = plan_parts(folder, "ir/*.mlir")
        name = str(folder / "module.mlirbc")
        with (loaded := LoadedModules()) as modules, text_expected(name):
            summary = _summary(modules.read(module, name=name))
        return Plan(
            module,
            original,
            tuple(
                (Path(name).stem.partition("-")[2], read_plan_part(folder, name)) for name in dumps
            ),
            summary,
            PlanOptions(
                **{"cluster": summary.cluster, **described.options, "custom_calls": custom_calls}
            ),
            loaded=loaded,
        )


def _summary(module: ir.Module) -> PlanSummary:
    """Raises UserError for a module that does not have the exported form, or says of itself what
    cannot be."""
    from shardopt.forms.exported_verify import verify_exported
    from shardopt.ir.diagnostics import DiagnosedError, diagnostic
    from shardopt.report.plan_summary import summarize

    try:
        return summarize(module)
    except (KeyError, TypeError, ValueError) as error:
        faults = [diagnostic("error", *fault) for fault in verify_exported(module)] or [
            diagnostic("error", module.operation, f"no module of a plan: {error}")
        ]
        raise DiagnosedError(*faults) from error


def simulate_module(module: ir.Module) -> SimulationResult:
    """The step of a module behind the schedule phase. Raises UserError for another form."""
    from shardopt.dialect.mpmd import read_topology
    from shardopt.dialect.program import read_program
    from shardopt.dialect.schedule import read_schedule
    from shardopt.extract.pipeline_graph import read_pipeline, simulate_pipeline

    try:
        program = read_program(module)
        pipeline = read_pipeline(program, read_topology(program.main))
    except ValueError as error:
        raise UserError(f"expected a module behind the schedule phase: {error}") from error
    text = read_schedule(program.loop)
    if text is None:
        raise UserError(
            "expected a module behind the schedule phase, found no schedule on the loop"
        )
    return simulate_pipeline(text, pipeline, program.num_microbatches)


def _folder(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or "\n" in text:
        raise UserError(f"expected the path of a plan directory, found {type(path).__name__}")
    return Path(text)
