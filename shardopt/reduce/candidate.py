"""A module with its pipeline as text, how large they are, and the form in which reductions change
them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.native import verify
from shardopt.ir.printing import PrintStyle
from shardopt.ir.rewriting import functions, operations
from shardopt.pipeline.parser import ROOT_ANCHOR, Pipeline, anchored, leaves
from shardopt.pipeline.reproducer import Reproduction, footer


@dataclass(frozen=True, order=True)
class Size:
    """What is made smaller, the most important first.

    `weight` counts operations, their operands, and arguments and results of functions: so an
    argument in the place of an operation is smaller, and so is a constant in the place of one with
    operands. `extents` adds up the dimensions of all values."""

    passes: int
    weight: int
    operations: int
    extents: int
    attributes: int
    characters: int


@dataclass(frozen=True)
class Candidate:
    """Without a pipeline, `passes` is None. `keeps_locations` says how the text was printed."""

    text: str
    passes: tuple[str, ...] | None
    size: Size
    verify_each: bool = True
    keeps_locations: bool = True

    @property
    def pipeline(self) -> str:
        return pipeline_text(self.passes or ())

    @property
    def file_text(self) -> str:
        """The module, and behind it the pipeline as reproducers have it."""
        if self.passes is None:
            return self.text
        return self.text + footer(Reproduction(self.pipeline, self.verify_each))

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass
class Subject:
    """A candidate as reductions change it, in a child process: the module in place."""

    module: ir.Module
    passes: tuple[str, ...] | None
    verify_each: bool = True
    keeps_locations: bool = True

    def candidate(self) -> Candidate:
        """What is there now. Raises DiagnosedError when it does not verify, and ValueError when
        its text does not read back."""
        verify(self.module)
        style = PrintStyle(debug_info=self.keeps_locations)
        text = style.text(self.module.operation, verified=True)
        again = ir.Module.parse(text, self.module.context)
        size = size_of(again, self.passes, text)
        return Candidate(text, self.passes, size, self.verify_each, self.keeps_locations)


def decoded_candidate(data: bytes) -> Candidate:
    fields = json.loads(data)
    fields["size"] = Size(**fields["size"])
    passes = fields["passes"]
    return Candidate(**{**fields, "passes": None if passes is None else tuple(passes)})


def subject_of(candidate: Candidate, context: ir.Context | None = None) -> Subject:
    """The candidate with its module read."""
    module = ir.Module.parse(candidate.text, context or make_context())
    return Subject(module, candidate.passes, candidate.verify_each, candidate.keeps_locations)


def without_locations(subject: Subject) -> Subject:
    return replace(subject, keeps_locations=False)


def pass_texts(pipeline: Pipeline) -> tuple[str, ...]:
    """The passes, without phases, each with its nestings: what may be dropped one by one."""
    return tuple(anchored(leaf.step, leaf.anchors[1:]) for leaf in leaves(pipeline))


def pipeline_text(passes: Iterable[str]) -> str:
    return f"{ROOT_ANCHOR}({','.join(passes)})"


def size_of(module: ir.Module, passes: tuple[str, ...] | None, text: str) -> Size:
    ops = [op for op in operations(module.operation) if op.name != ROOT_ANCHOR]
    weight = len(ops)
    extents = attributes = 0
    for op in ops:
        weight += len(op.operands)
        attributes += len(op.attributes)
        extents += sum(_extents(result.type) for result in op.results)
    for function in functions(module):
        signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        types = (*signature.inputs, *signature.results)
        weight += len(types)
        extents += sum(map(_extents, types))
        for name in ("arg_attrs", "res_attrs"):
            if name in function.attributes:
                attributes += sum(
                    len(ir.DictAttr(each)) for each in ir.ArrayAttr(function.attributes[name])
                )
    return Size(len(passes or ()), weight, len(ops), extents, attributes, len(text))


def _extents(type_: ir.Type) -> int:
    """The sum of the dimensions; other types than plain tensors have none that we read."""
    if not isinstance(type_, ir.RankedTensorType):
        return 0
    return sum(extent for extent in type_.shape if extent > 0)
