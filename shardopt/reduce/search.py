"""The search: delta debugging (Zeller and Hildebrandt, 2002) over one kind of reduction after the
other, until none of them helps.

1. A reduction counts its places in the candidate: operations, arguments, passes.
2. All places are tried at once, then halves, quarters, down to single ones. Where a trial succeeds
   its result takes the candidate's place, and the search goes on at the same position.
3. A trial is made in a child process, which verifies it; it has to be strictly smaller. So the
   search ends, and a fault of C++ that a rewrite runs into costs a trial and no more.
4. The test runs on the file that a user would run, in a process of its own.

Order and result depend on nothing but the input and the answers of the test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.reduce.candidate import Candidate, Subject, decoded_candidate, subject_of
from shardopt.reduce.interest import Test
from shardopt.reduce.isolation import isolated


class Reduction(Protocol):
    """One way of making a candidate smaller."""

    @property
    def name(self) -> str: ...

    def places(self, subject: Subject) -> int:
        """At how many places it can be tried; the module stays as it is."""
        ...

    def apply(self, subject: Subject, chosen: range) -> None:
        """Change the subject at these places; what cannot be changed stays. What comes out may be
        invalid: it is verified afterwards."""
        ...


@dataclass(frozen=True)
class Sweep:
    """One reduction over the whole candidate: what it did, for whoever looks on."""

    name: str
    before: Candidate
    after: Candidate
    trials: int
    seconds: float


@dataclass
class Search:
    """`on_better` hears every candidate that passed the test; `on_trial` the name of the reduction
    and how far it is; `stop` is asked before each trial whether to leave it at that."""

    test: Test
    reductions: Sequence[Reduction]
    trial_seconds: float
    on_better: Callable[[Candidate], None] = lambda candidate: None
    on_trial: Callable[[str, int, int], None] = lambda name, done, total: None
    on_sweep: Callable[[Sweep], None] = lambda sweep: None
    stop: Callable[[], bool] = lambda: False
    trials: int = 0
    _known: dict[str, bool] = field(default_factory=dict, repr=False)
    _context: ir.Context = field(default_factory=make_context, repr=False)

    def run(self, candidate: Candidate) -> Candidate:
        """The smallest candidate found; `candidate` has to pass the test."""
        settled: dict[str, str] = {}  # by reduction: the file on which it could do no more
        while any(settled.get(each.name) != candidate.file_text for each in self.reductions):
            for reduction in self.reductions:
                if settled.get(reduction.name) == candidate.file_text:
                    continue
                before, trials, started = candidate, self.trials, perf_counter()
                candidate = self._sweep(candidate, reduction)
                if self.stop():
                    return candidate
                if candidate == before:
                    settled[reduction.name] = candidate.file_text
                seconds = perf_counter() - started
                self.on_sweep(
                    Sweep(reduction.name, before, candidate, self.trials - trials, seconds)
                )
        return candidate

    def _sweep(self, candidate: Candidate, reduction: Reduction) -> Candidate:
        subject = subject_of(candidate, self._context)
        places = chunk = reduction.places(subject)
        while chunk:
            start = 0
            while start < places:
                if self.stop():
                    return candidate
                self.on_trial(reduction.name, start, places)
                chosen = range(start, min(start + chunk, places))
                smaller = self._trial(candidate, subject, reduction, chosen)
                if smaller is None:
                    start += chunk
                    continue
                candidate = smaller
                self.on_better(candidate)
                subject = subject_of(candidate, self._context)
                places = reduction.places(subject)
            chunk = min(chunk // 2, places)
        return candidate

    def _trial(
        self, candidate: Candidate, subject: Subject, reduction: Reduction, chosen: range
    ) -> Candidate | None:
        """What the reduction makes of the candidate at these places, if that is valid, smaller and
        still interesting."""

        def work(write: Callable[[bytes], None]) -> None:
            with subject.module.context, ir.Location.unknown():
                reduction.apply(subject, chosen)
                write(subject.candidate().encoded())

        self.trials += 1
        ended = isolated(work, self.trial_seconds)
        if not ended.normally or not ended.output:
            return None
        smaller = decoded_candidate(ended.output)
        if smaller.size >= candidate.size:
            return None
        key = hashlib.sha256(smaller.file_text.encode()).hexdigest()
        if key not in self._known:
            self._known[key] = self.test(smaller)
        return smaller if self._known[key] else None
