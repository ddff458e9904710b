"""The generated pages are up to date, links lead somewhere, and the table of attributes is what the
IR says."""

from __future__ import annotations

import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from scripts import docs
from scripts.doc_sources import markdown
from shardopt.dialect.attributes import entries
from shardopt.dialect.donation import argument_attributes
from shardopt.forms.vocabulary import ATTRIBUTES, INPUT
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import operations
from shardopt.pipeline.instrumentation import Instrumentation
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.parser import Leaf
from shardopt.pipeline.phases import PHASES, phase_range
from shardopt.tools.opt.options import build_parser

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TABLE_PATH = re.compile(r"`((?:tests|docs|shardopt)/[\w./-]+)`")

# The other way of donating, annotations, recomputation, methods, steps without a batch or in a loop:
# the tutorial uses none of them.
UNUSED = (
    "jax.buffer_donor",
    "shardopt.replaced_by",
    "shardopt.shape",
    "shardopt.sharding",
    "shardopt.memory",
    "shardopt.offload",
    "shardopt.part",
    "shardopt.recompute",
    "shardopt.streams",
    "shardopt.token_slices",
    "shardopt.version_of",
    "shardopt.intra_op",
    "shardopt.no_batch",
    "shardopt.step_loop",
    "shardopt.rematerialize",
)
OPTIONS = "num-microbatches=4 layers=2 cluster=cpu-test:1x4 num-stages=2"


def test_generated_pages_are_up_to_date() -> None:
    assert docs.main(["--check"]) == 0


def test_a_stale_page_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "dialect_page", lambda: "other text")
    assert docs.main(["--check"]) == 1
    assert (
        "out of date: docs/reference/dialect.md; run python -m scripts.docs"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            missing.append(target)
    assert missing == []


def _anchors(page: Path) -> set[str]:
    """What headings are called in links: lower case, blanks as hyphens, no other punctuation."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    named = TABLE_PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_comparison_with_mlir_opt_has_every_flag_and_a_test_of_it() -> None:
    text = (ROOT / "docs" / "reference" / "mlir-opt.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(-[^`]*)` .* \| `(tests/[^`]*)` \|$", text, re.MULTILINE))
    flags = {flag for flag in build_parser().option_strings if flag not in ("-h", "--help")}
    assert rows.keys() - {"--<pass>"} == flags
    assert [
        flag for flag, test in rows.items() if "<" not in flag and not _uses(ROOT / test, flag)
    ] == []


def test_the_comparison_with_mlir_opt_holds_for_a_real_one() -> None:
    """Flags said to be in mlir-opt are in its help, and those said not to be are not (19.1.7 and
    22.1.8)."""
    versions = sorted(Path("/usr/lib").glob("llvm-*/bin/mlir-opt"))
    tool = shutil.which("mlir-opt") or (str(versions[-1]) if versions else None)
    if tool is None:
        pytest.skip("no mlir-opt here (Debian: mlir-19-tools)")
    printed = subprocess.run([tool, "--help-hidden"], capture_output=True, text=True).stdout
    theirs = set(re.findall(r"^ +(--?[\w-]+)(?=[ =\[<]|$)", printed, re.MULTILINE))
    text = (ROOT / "docs" / "reference" / "mlir-opt.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(-[^`]*)` \| ([^|]*) \|", text, re.MULTILINE))
    not_listed = {"--<pass>", "--list-passes"}  # by name; `--list-passes` has another output there
    newer = {"--mlir-diagnostic-verbosity-level", "--mlir-use-nameloc-as-prefix"}
    newer |= {"--mlir-very-unsafe-disable-verifier-on-parsing", "--mlir-disable-diagnostic-notes"}
    claimed = {flag for flag, there in rows.items() if not there.startswith(("no", "under"))}
    assert claimed - theirs <= not_listed | newer
    assert (rows.keys() - claimed) & theirs == set()
    missing = set(re.findall(r"`(--[\w-]+)`", text.partition("## What is missing")[2]))
    assert {flag for flag in theirs if flag.startswith("--mlir-")} <= rows.keys() | missing


def _uses(test: Path, flag: str) -> bool:
    return re.search(rf"(?<![\w-]){flag}(?![\w-])", test.read_text(encoding="utf-8")) is not None


def test_sketches_become_fenced_blocks() -> None:
    text = "Words:\n\n    %a\n\n      %b\n =>\n    %c\n\nMore words\n   go on."
    assert markdown(text) == "Words:\n\n```mlir\n%a\n\n  %b\n =>\n%c\n```\n\nMore words\n   go on."


# ---- the table of attributes ----


def _attributes(module: ir.Module) -> set[tuple[str, str]]:
    """(operation, attribute) of every operation; attributes of arguments count for their
    function."""
    attributes = set()
    for op in [module.operation, *operations(module.operation)]:
        attributes |= {(op.name, name) for name in op.attributes}
        if op.name == "func.func":
            attributes |= {
                (op.name, name) for row in argument_attributes(op) for name in entries(row)
            }
    return attributes


class _Attributes(Instrumentation):
    """Collects the attributes after each step: some come and go within a phase."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def after(self, leaf: Leaf, module: ir.Module) -> None:
        self.seen |= _attributes(module)


@pytest.fixture(scope="module")
def forms() -> dict[str, set[tuple[str, str]]]:
    """phase (or "input") -> the attributes of the tutorial's module after any of its steps."""
    with make_context() as context:
        module = load_module(str(ROOT / "docs" / "tutorial" / "mlp.mlir"), context)
        seen = {INPUT: _attributes(module)}
        for phase in PHASES:
            options = " ".join(
                text
                for text in OPTIONS.split()
                if text.partition("=")[0] in _options_of(phase.name)
            )
            steps = _Attributes()
            run_pipeline(
                module, phase_range(phase.name, phase.name, options), instrumentation=[steps]
            )
            seen[phase.name] = steps.seen
        for options in ("frontier=1", "intra-op=data batch-args=2 sharding-format=collectives"):
            plain = _Attributes()
            module = load_module(str(ROOT / "docs" / "tutorial" / "mlp.mlir"), context)
            run_pipeline(
                module,
                f"builtin.module(shardopt-intra{{mesh=2x2 cluster=cpu-test:1x4 {options}}})",
                instrumentation=[plain],
            )
            seen["shard"] |= plain.seen
    return seen


def _options_of(phase: str) -> tuple[str, ...]:
    from shardopt.pipeline.phases import phase_options

    return phase_options(next(p for p in PHASES if p.name == phase))


def test_attributes_stand_where_the_table_says(forms: dict[str, set[tuple[str, str]]]) -> None:
    phase_of = {str(step): phase.name for phase in PHASES for step in phase.steps} | {INPUT: INPUT}
    for attribute in ATTRIBUTES:
        if attribute.name in UNUSED:
            continue
        holders = {
            form: {op for op, name in seen if name == attribute.name}
            for form, seen in forms.items()
        }
        first = next(form for form, ops in holders.items() if ops)
        assert first == phase_of[attribute.writer], attribute.name
        seen = set().union(*holders.values())
        assert all(any(fnmatch(op, pattern) for pattern in attribute.on) for op in seen), (
            attribute.name,
            seen,
        )
        assert all(any(fnmatch(op, pattern) for op in seen) for pattern in attribute.on), (
            attribute.name,
            seen,
        )


def test_the_table_has_every_attribute_of_ours(forms: dict[str, set[tuple[str, str]]]) -> None:
    attributes = {name for seen in forms.values() for _, name in seen}
    ours = {name for name in attributes if name.startswith("shardopt.")}
    assert ours - {attribute.name for attribute in ATTRIBUTES} == set()


def test_forms_of_attributes_parse() -> None:
    with make_context():
        for attribute in ATTRIBUTES:
            ir.Attribute.parse(attribute.form)
