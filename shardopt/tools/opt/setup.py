"""From the command line of shardopt-opt to objects: the pipeline, its watchers, and the style of
printing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardopt.ir.formats import decoded
from shardopt.ir.io import OutputForm
from shardopt.ir.native import COMMON_NATIVE_PASSES, is_native_pass
from shardopt.ir.printing import PrintStyle
from shardopt.passes.registry import PASSES, PREFIX
from shardopt.pipeline.dumps import PhaseDumper, TreeDumper
from shardopt.pipeline.instrumentation import Instrumentation
from shardopt.pipeline.ir_printer import DUMP_STYLE, DUMP_WIDTH, IRPrinter
from shardopt.pipeline.parser import (
    ROOT_ANCHOR,
    NestStep,
    Pipeline,
    Step,
    leaves,
    parse_flag,
    parse_pipeline,
)
from shardopt.pipeline.phases import PHASE_NAMES, PIPELINES, find_phase, phase_range
from shardopt.pipeline.reproducer import PassTracker, read_recipe
from shardopt.pipeline.statistics import OpCounter
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name
from shardopt.tools.opt.options import PassFlag, build_parser


@dataclass(frozen=True)
class OptTask:
    """What to run on each module: the pipeline, and whether the verifier runs after each pass."""

    pipeline: Pipeline
    verify_each: bool


def chosen_task(options: argparse.Namespace, flags: Sequence[PassFlag], data: bytes) -> OptTask:
    """The pipeline asked for; an empty one reads, verifies and writes. Raises UserError."""
    by_phase = bool(options.first or options.last)
    if (options.pass_pipeline is not None) + by_phase + bool(flags) + options.run_reproducer > 1:
        raise UserError(
            "expected one of --pass-pipeline, --from/--to, --run-reproducer and flags that name "
            "passes, found several"
        )
    if options.phase_options and not by_phase:
        raise UserError(
            "--phase-options goes with --from and --to; give options to a phase as "
            "--shardopt-stage=OPTIONS"
        )
    verify_each = options.verify_each in ("true", "1")
    if options.run_reproducer:
        recipe = read_recipe(decoded(data) or "", options.input)
        return OptTask(parse_pipeline(recipe.pipeline), verify_each and recipe.verify_each)
    if options.pass_pipeline is not None:
        return OptTask(parse_pipeline(options.pass_pipeline), verify_each)
    if by_phase:
        # People edit dumps and go on from there.
        text = phase_range(
            options.first or "", options.last or "", options.phase_options, verify_input=True
        )
        return OptTask(parse_pipeline(text), verify_each)
    return OptTask(NestStep(ROOT_ANCHOR, tuple(step_of_flag(flag) for flag in flags)), verify_each)


def step_of_flag(flag: PassFlag) -> Step:
    """The step behind a flag. Raises UserError for a flag that is neither an option nor a pass."""
    if flag.name not in PASSES and find_phase(flag.name) is None and not is_native_pass(flag.name):
        flags = [name[2:] for name in build_parser().option_strings if name.startswith("--")]
        phases = [PREFIX + name for name in (*PHASE_NAMES, *(phase.name for phase in PIPELINES))]
        known = (*flags, *PASSES, *phases, *COMMON_NATIVE_PASSES)
        raise UserError(unknown_name("option, pass or phase", flag.name, known))
    return parse_flag(flag.name, flag.options)


@dataclass(frozen=True)
class Watchers:
    """The instrumentation of one run; those that are asked for results afterwards by name."""

    progress: PassTracker
    counter: OpCounter | None
    tree: TreeDumper | None
    others: tuple[Instrumentation, ...]

    @property
    def all(self) -> tuple[Instrumentation, ...]:
        watchers = (self.progress, self.counter, self.tree, *self.others)
        return tuple(watcher for watcher in watchers if watcher is not None)


def make_watchers(
    options: argparse.Namespace, pipeline: Pipeline, progress: PassTracker, folder: str = ""
) -> Watchers:
    """The watchers asked for; dumps go into `folder` inside of the directories given, and with a
    tree of files none to stderr, as with mlir-opt.

    Raises UserError when IR is to be printed around a pass that does not run.
    """
    tree, phases = options.mlir_print_ir_tree_dir, options.dump_compilation_phases_to
    printer = _printer(options, pipeline)  # in any case, since it checks the names of passes
    others: list[Instrumentation] = [] if tree is not None else [printer]
    if phases is not None:
        others.append(PhaseDumper(Path(phases) / folder, _file_style(options)))
    return Watchers(
        progress,
        OpCounter() if options.mlir_pass_statistics else None,
        TreeDumper(Path(tree) / folder, _file_style(options), options.mlir_print_ir_after_change)
        if tree is not None
        else None,
        tuple(others),
    )


def _printer(options: argparse.Namespace, pipeline: Pipeline) -> IRPrinter:
    return IRPrinter(
        sys.stderr,
        before_all=options.mlir_print_ir_before_all,
        after_all=options.mlir_print_ir_after_all,
        after_change=options.mlir_print_ir_after_change,
        after_failure=options.mlir_print_ir_after_failure,
        module_scope=options.mlir_print_ir_module_scope,
        diff=options.mlir_print_ir_diff,
        color=options.color or sys.stderr.isatty(),
        before_passes=_named_passes(
            options.mlir_print_ir_before, "--mlir-print-ir-before", pipeline
        ),
        after_passes=_named_passes(options.mlir_print_ir_after, "--mlir-print-ir-after", pipeline),
        style=_dump_style(options),
    )


def _named_passes(texts: Sequence[str], flag: str, pipeline: Pipeline) -> tuple[str, ...]:
    running = tuple(dict.fromkeys(leaf.name for leaf in leaves(pipeline)))
    names = tuple(name for text in texts for name in text.split(",") if name)
    for name in names:
        if name not in running:
            raise UserError(f"{flag}: {unknown_name('pass of this pipeline', name, running)}")
    return names


def output_style(options: argparse.Namespace) -> PrintStyle:
    """How the output is printed: as asked, and with all constants unless cutting them is asked
    for. Raises UserError."""
    named = options.mlir_print_unique_ssa_ids or options.mlir_print_value_users
    if named and (options.mlir_print_debuginfo or options.mlir_pretty_debuginfo):
        raise UserError(
            "unique names are given by locations: --mlir-print-unique-ssa-ids and "
            "--mlir-print-value-users print no others"
        )
    return PrintStyle(
        debug_info=options.mlir_print_debuginfo,
        pretty_debug_info=options.mlir_pretty_debuginfo,
        generic=options.mlir_print_op_generic,
        local_scope=options.mlir_print_local_scope,
        nameloc_as_prefix=options.mlir_use_nameloc_as_prefix,
        skip_regions=options.mlir_print_skip_regions,
        elements_limit=options.mlir_elide_elementsattrs_if_larger,
        resource_limit=options.mlir_elide_resource_strings_if_larger,
        assume_verified=options.mlir_print_assume_verified,
        width=options.print_width or None,
        unique_names=options.mlir_print_unique_ssa_ids,
        users=options.mlir_print_value_users,
    )


def _dump_style(options: argparse.Namespace) -> PrintStyle:
    style = output_style(options)
    elements, resources = style.elements_limit, style.resource_limit
    return replace(
        style,
        elements_limit=DUMP_STYLE.elements_limit if elements is None else elements,
        resource_limit=DUMP_STYLE.resource_limit if resources is None else resources,
        width=_dump_width(options),
    )


def _file_style(options: argparse.Namespace) -> PrintStyle:
    """Dumps in files can be run again, so only locations, names, widths and wanted cuts change
    their form."""
    style = output_style(options)
    return PrintStyle(
        debug_info=style.debug_info,
        nameloc_as_prefix=style.nameloc_as_prefix,
        width=_dump_width(options),
        elements_limit=style.elements_limit,
        resource_limit=style.resource_limit,
    )


def _dump_width(options: argparse.Namespace) -> int | None:
    """0 leaves lines as they are."""
    return DUMP_WIDTH if options.print_width is None else options.print_width or None


def output_form(options: argparse.Namespace) -> OutputForm:
    """The form of the output. Raises UserError for two that contradict each other."""
    if options.emit_bytecode and options.emit == "portable":
        raise UserError("expected one of --emit-bytecode and --emit=portable, found both")
    form: OutputForm = "bytecode" if options.emit_bytecode else options.emit
    if options.emit_bytecode_version is not None and form != "bytecode":
        raise UserError("--emit-bytecode-version goes with --emit-bytecode")
    if form != "text" and options.split_input_file is not None:
        raise UserError(
            "--split-input-file writes text: several modules in one binary file could "
            "not be read back"
        )
    return form
