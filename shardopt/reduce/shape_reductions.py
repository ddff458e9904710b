"""Smaller dimensions, everywhere at once.

A factor is taken out of every dimension that has it. So products stay products, and what a reshape
makes of two dimensions shrinks as they do, without a look at any operation; whether all is valid
afterwards the parser and the verifiers say. It works on the text, where types of every dialect look
alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from jaxlib.mlir import ir

from shardopt.ir.printing import PrintStyle
from shardopt.reduce.candidate import Subject

_SHAPE = re.compile(r"(?<=tensor<)(?:\d+x)+")
# `[0:8, 4:12:2]` of slices, and sizes by name.
_SLICE = re.compile(r"\[\d+:\d+(?::\d+)?(?:, \d+:\d+(?::\d+)?)*\]")
_SIZES = re.compile(r"\b(?:slice_)?sizes = (?:array<i64: [^>]*>|\[[^\]]*\])")
_NUMBER = re.compile(r"(?<![\w.])\d+")
_TYPE_NUMBER = re.compile(r"\d+(?=x)")


Factors: TypeAlias = Literal["primes", "extents", "steps"]


@dataclass(frozen=True)
class DivideShapes:
    """A place is a factor, the largest first. `primes` takes a prime out as often as it is in a
    dimension, which keeps all products; `extents` does so with the dimensions that there are, and
    `steps` with a prime once, where a fault needs some size."""

    factors: Factors = "primes"

    @property
    def name(self) -> str:
        return f"shapes by {self.factors}"

    def places(self, subject: Subject) -> int:
        return len(self._all(_text(subject)))

    def apply(self, subject: Subject, chosen: range) -> None:
        text = _text(subject)
        factors = self._all(text)
        for k in chosen:
            text = _divided(text, partial(self._without, factors[k]))
        subject.module = ir.Module.parse(text, subject.module.context)

    def _all(self, text: str) -> list[int]:
        sizes = {int(n) for shape in _SHAPE.findall(text) for n in _TYPE_NUMBER.findall(shape)}
        if self.factors != "extents":
            sizes = {prime for size in sizes for prime in _primes(size)}
        return sorted(sizes - {0, 1}, reverse=True)

    def _without(self, factor: int, size: int) -> int:
        if not size or size % factor:
            return size
        size //= factor
        return size if self.factors == "steps" else self._without(factor, size)


def _text(subject: Subject) -> str:
    style = PrintStyle(debug_info=subject.keeps_locations)
    return style.text(subject.module.operation, verified=True)


def _divided(text: str, smaller: Callable[[int], int]) -> str:
    def number(match: re.Match[str]) -> str:
        return str(smaller(int(match[0])))

    text = _SHAPE.sub(lambda shape: _TYPE_NUMBER.sub(number, shape[0]), text)
    text = _SLICE.sub(lambda slices: _limits(slices[0], smaller), text)
    return _SIZES.sub(
        lambda sizes: _NUMBER.sub(number, sizes[0].replace("i64", "i_64")), text
    ).replace("i_64", "i64")


def _limits(slices: str, smaller: Callable[[int], int]) -> str:
    """Starts and limits; the third number is a step."""

    def limits(match: re.Match[str]) -> str:
        return f"{smaller(int(match[1]))}:{smaller(int(match[2]))}"

    return re.sub(r"(\d+):(\d+)", limits, slices)


def _primes(size: int) -> list[int]:
    primes, divisor = [], 2
    while divisor * divisor <= size:
        if size % divisor:
            divisor += 1
            continue
        primes.append(divisor)
        size //= divisor
    return [*primes, size] if size > 1 else primes
