"""Where the tokens of a causal model lie in the body of a microbatch, and how each operation runs
on a slice of them.

A value is of one of five kinds:

* CONST: made of weights alone, or of the batch alone; whoever needs a slice of it takes one;
* ROWS: one dimension carries the tokens, and slice k is a value of slice k;
* SCORES: of queries and keys; slice k has its queries, and the keys of all slices up to k;
* TERM: a sum over tokens; each slice has a term of it (gradients of weights, the loss);
* WHOLE: known when all slices are through. What is known behind all forwards may be read by the
  backward of each slice, as the gradient of a shifted loss, or of a square of a mean.

Tokens are followed through the factors of the sharding rules, as the batch is by
`shardopt.solve.microbatches.time_axis`. The one place in which tokens meet is attention. There, a
product of queries and keys takes the keys of earlier slices beside its own. What sums over keys is
right for a slice if later keys would add nothing (`shardopt.solve.tokens.causality`). What sums
over queries *joins*: the gradient of a key has terms from its own slice and from later ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum

from shardopt.graph.linear_ops import linear_modes
from shardopt.graph.microbatching import Cut, Split
from shardopt.graph.op_graph import SHARED, Op, OpGraph
from shardopt.solve.microbatches.batch_factors import (
    locate,
    moves_along,
    operand_split,
    result_split,
)
from shardopt.solve.presets.attention_dims import AttentionDims
from shardopt.solve.presets.sequence_flow import RESIZING
from shardopt.solve.tokens.causality import Causality, Literals
from shardopt.support.errors import UserError

# Too much work to be done for all tokens in each slice, or not known.
_HEAVY = frozenset({"dot_general", "convolution", "while", "case", "custom_call"})
_KEEPS_ZEROS = frozenset({"broadcast_in_dim", "convert", "negate", "reshape", "transpose"})
_SUMS = frozenset({"add", "maximum", "minimum"})


class Kind(Enum):
    CONST = "const"
    ROWS = "rows"
    SCORES = "scores"
    TERM = "term"
    WHOLE = "whole"


_OF_ALL = frozenset({Kind.TERM, Kind.WHOLE})


@dataclass(frozen=True)
class Tokens:
    """The kind of a value; of ROWS and SCORES where its tokens (queries) lie, of SCORES where its
    keys do, of TERM how terms combine. CONST values may carry tokens, too, those of the batch, and
    WHOLE ones, which slices cut.

    `light` values are made of the batch and of constants. `late` ones need later slices."""

    kind: Kind
    rows: Split | None = None
    keys: Split | None = None
    reducer: str = ""
    light: bool = False
    late: bool = False

    @property
    def is_sliced(self) -> bool:
        return self.kind in (Kind.ROWS, Kind.SCORES, Kind.TERM)


class UncutError(UserError):
    """Operation `op` of the body cannot run on slices of the tokens; `reader` is the operation of a
    slice that needs what it makes, if it is refused for that."""

    def __init__(self, message: str, op: int, reader: int | None = None) -> None:
        super().__init__(message)
        self.op, self.reader = op, reader


@dataclass(frozen=True)
class SlicedOp:
    """How an operation runs: once for all tokens (`kind` CONST or WHOLE), or once a slice, cut at
    `rows`, and at `keys` into those of all slices so far. `joins` says that its results are summed
    over slices from the last one on. `backwards`: what depends on it is summed from the last slice
    on. What is added to terms, operand `once`, is added to one of them."""

    kind: Kind
    rows: Cut | None = None
    keys: Cut | None = None
    joins: bool = False
    backwards: bool = False
    once: int | None = None


@dataclass(frozen=True)
class TokenBody:
    """A body to cut. `starts` are where tokens begin, with their dimension; `attention` operations
    on scores by their place; `batch` the inputs that are rows of the batch, `carried` those that
    the loop carries on, which one task reads and replaces; `stages` the stage of each operation,
    and `backward` those that run in the backward pass of it."""

    graph: OpGraph
    extent: int
    starts: Mapping[int, int]
    attention: Mapping[int, AttentionDims]
    batch: Set[int]
    carried: Set[int]
    stages: Sequence[int]
    backward: Set[int]
    literals: Literals


@dataclass(frozen=True)
class TokenAxis:
    """How each operation runs, and what each value is."""

    ops: tuple[SlicedOp, ...]
    tokens: tuple[Tokens, ...]


def find_token_axis(body: TokenBody) -> TokenAxis:
    """Raises UncutError for the first operation that cannot be cut."""
    walk = _Walk(body)
    ops = tuple(map(walk.visit, range(len(body.graph.ops))))
    for tensor in body.graph.outputs:
        if walk.tokens[tensor].kind is Kind.SCORES:
            raise UncutError("gives scores of attention out", body.graph.producers()[tensor])
    return TokenAxis(ops, tuple(walk.tokens))


class _Refused(Exception):
    """An operation cannot be cut, but can run on all tokens at once."""


class _Walk:
    def __init__(self, body: TokenBody) -> None:
        self.body, self.graph = body, body.graph
        self.makers = body.graph.producers()
        self.causality = Causality(body.graph, body.literals)
        self.tokens = [self._input(tensor) for tensor in range(len(body.graph.tensors))]
        self.last = max(body.stages, default=0)
        self.carried = set(body.carried)  # and what is made of nothing else
        self.zeros = {t for t, number in body.literals.splats.items() if number == 0}
        # A value of all tokens, or a term of one -> the operation that asked for them, and why.
        self.asked: dict[int, tuple[int, str]] = {}

    def _input(self, tensor: int) -> Tokens:
        light = tensor in self.body.batch
        return Tokens(Kind.CONST, self._start(tensor) if light else None, light=light)

    def _start(self, tensor: int) -> Split | None:
        dim = self.body.starts.get(tensor)
        return None if dim is None else Split(dim, 1, self.graph.tensors[tensor].shape[dim])

    def _carries(self, tokens: Tokens) -> bool:
        """Whether a value has all tokens: inputs may have more of them (the last is a label)."""
        return tokens.rows is not None and tokens.rows.extent == self.body.extent

    def visit(self, index: int) -> SlicedOp:
        op = self.graph.ops[index]
        operands = [self.tokens[tensor] for tensor in op.operands]
        kinds = {each.kind for each in operands}
        light = all(each.light for each in operands) and op.name not in _HEAVY
        if kinds <= {Kind.CONST}:
            if light or not any(map(self._carries, operands)):
                return self._constant(index, op, operands, light)
        elif not kinds & {Kind.ROWS, Kind.SCORES} and not self._cuts_whole(index, op):
            return self._of_sums(index, op, operands)
        late = any(each.late or each.kind in _OF_ALL for each in operands)
        if self.carried.intersection(op.operands) and Kind.SCORES not in kinds:
            return self._at_once(index, op, "joins tokens to what microbatches carry on")
        try:
            return self._cut(index, op, operands, late)
        except _Refused as reason:
            # Scores are made nowhere as a whole, nor are tokens that enter the model.
            if Kind.SCORES in kinds or kinds <= {Kind.CONST}:
                raise UncutError(str(reason), index) from None
            return self._at_once(index, op, str(reason))

    # ---- on all tokens ----

    def _constant(self, index: int, op: Op, operands: Sequence[Tokens], light: bool) -> SlicedOp:
        """Of the batch alone it may carry tokens, in one piece."""
        if self.carried.intersection(op.operands):
            self.carried.update(op.results)
        if op.name in _KEEPS_ZEROS and op.operands[0] in self.zeros:
            self.zeros.update(op.results)
        for number, result in enumerate(op.results):
            split = self._start(result)
            if split is not None and not light:
                raise UncutError("makes the tokens of attention in another order or number", index)
            split = split or self._kept_rows(op, number, operands)
            self.tokens[result] = Tokens(Kind.CONST, split if light else None, light=light)
        return SlicedOp(Kind.CONST)

    def _kept_rows(self, op: Op, number: int, operands: Sequence[Tokens]) -> Split | None:
        """Where a result carries the tokens of the operands, in whatever number or order."""
        cuts = {
            cut
            for k, each in enumerate(operands)
            if each.rows is not None and (cut := self._located(op, k, each.rows)) is not None
        }
        cut = next(iter(cuts)) if len(cuts) == 1 else None
        if cut is not None and not moves_along(op, cut):
            return result_split(op, number, cut)
        if op.name not in RESIZING or operands[0].rows is None:
            return None
        dim = operands[0].rows.dim
        return Split(dim, 1, self.graph.tensors[op.results[number]].shape[dim])

    def _at_once(self, index: int, op: Op, reason: str = "") -> SlicedOp:
        asked = [self.asked[t] for t in op.operands if t in self.asked]
        origin, reason = asked[0] if asked else (index, reason)
        place = self.body.attention.get(index)
        if place is not None and place.factor(index, "rows") is not None:
            raise UncutError(reason, origin, None if origin == index else index)
        backwards = any(map(self._is_of_backwards, op.operands))
        operands = [self.tokens[tensor] for tensor in op.operands]
        for number, result in enumerate(op.results):
            rows = self._kept_rows(op, number, operands)
            self.tokens[result] = Tokens(Kind.WHOLE, rows, late=backwards)
            self.asked[result] = origin, reason
        return SlicedOp(Kind.WHOLE, backwards=backwards)

    def _is_of_backwards(self, tensor: int) -> bool:
        """Whether the backward of a slice has a part in it."""
        tokens = self.tokens[tensor]
        sliced_backwards = tokens.is_sliced and self.makers[tensor] in self.body.backward
        return tokens.late or sliced_backwards

    def _cuts_whole(self, index: int, op: Op) -> bool:
        """Whether slices share the work on a value that is there as a whole. Cheap work is not
        shared: more may follow that needs all of it."""
        carriers = [t for t in op.operands if self._carries(self.tokens[t])]
        return op.name in _HEAVY and any(self._is_ready(t, index) for t in carriers)

    def _is_ready(self, tensor: int, reader: int) -> bool:
        """Whether what is known when all slices are through is known to an operation of a slice:
        behind all forwards, to a backward. In the last stage this may be any, as its last slice
        turns around."""
        turned = reader in self.body.backward or self._stage(reader) == self.last
        of_all = self.tokens[tensor].kind in _OF_ALL
        return of_all and turned and not self._is_of_backwards(tensor)

    def _of_sums(self, index: int, op: Op, operands: Sequence[Tokens]) -> SlicedOp:
        """On terms where it is linear in them; otherwise behind all slices. Terms do not leave
        their stage: their sum does."""
        terms = {
            number
            for number, each in enumerate(operands)
            if each.kind is Kind.TERM and self._stage_of(op.operands[number]) == self._stage(index)
        }
        if not self._keeps_terms(op, operands, terms):
            return self._at_once(index, op)
        adds = op.name == "add" and len(terms) == 1
        reducer = operands[min(terms)].reducer
        late = any(operands[number].late for number in terms)
        self.tokens[op.results[0]] = Tokens(Kind.TERM, reducer=reducer, late=late)
        self.asked[op.results[0]] = self.asked[op.operands[min(terms)]]
        backwards = late or index in self.body.backward
        return SlicedOp(Kind.TERM, backwards=backwards, once=1 - min(terms) if adds else None)

    def _keeps_terms(self, op: Op, operands: Sequence[Tokens], terms: Set[int]) -> bool:
        """Whether the result is a sum of what the operation makes of each term."""
        if not terms or any(operands[number].reducer != "add" for number in terms):
            return False
        if op.name == "add":
            return True
        others = set(range(len(operands))) - terms
        modes = [*map(set, linear_modes(op, self.graph.tensors, self.zeros))]
        fixed = all(operands[k].kind is Kind.CONST for k in others)
        return terms in modes and fixed and not self.carried.intersection(op.operands)

    def _stage(self, index: int) -> int:
        return self.body.stages[index]

    def _stage_of(self, tensor: int) -> int:
        maker = self.makers[tensor]
        return SHARED if maker < 0 else self.body.stages[maker]

    # ---- on slices ----

    def _located(self, op: Op, operand: int, split: Split) -> Cut | None:
        if op.rule is None or operand >= len(op.rule.operands):
            return None
        cut = locate(op.rule.operands[operand][split.dim], op.rule.sizes, split)
        return cut if cut is not None and cut.extent == split.extent else None

    def _cut(self, index: int, op: Op, operands: Sequence[Tokens], late: bool) -> SlicedOp:
        self._check_operands(index, op, operands)
        rows, keys = self._cuts(index, op, operands)
        if rows is None and keys is None:
            raise _Refused("does not keep the tokens in one piece")
        for cut in (rows, keys):
            if cut is not None and moves_along(op, cut):
                raise _Refused("moves data along the tokens")
        assert op.rule is not None
        reduced = [
            cut for cut in (rows, keys) if cut is not None and cut.factor in op.rule.reduction
        ]
        self._check_sums(op, reduced)
        if keys is not None:
            self._check_later(index, op, operands, rows, keys)
        return self._results(index, op, rows, keys, late)

    def _check_operands(self, index: int, op: Op, operands: Sequence[Tokens]) -> None:
        if op.rule is None:
            raise _Refused("of tokens has no sharding rule")
        for number, each in enumerate(operands):
            if each.kind in _OF_ALL and not self._is_ready(op.operands[number], index):
                origin, reason = self.asked[op.operands[number]]
                raise UncutError(reason, origin, index)
            captured = number >= len(op.rule.operands)
            if captured and (each.is_sliced or self._carries(each)):
                raise _Refused("reads tokens inside of a region")

    def _cuts(
        self, index: int, op: Op, operands: Sequence[Tokens]
    ) -> tuple[Cut | None, Cut | None]:
        """Where the queries (or tokens) and the keys are."""
        pairs: set[tuple[Cut | None, Cut | None]] = set()
        single: set[Cut] = set()
        for number, each in enumerate(operands):
            if each.rows is None or not self._carries(each):
                continue
            cut = self._located(op, number, each.rows)
            if cut is None:
                if each.kind is Kind.CONST or each.kind in _OF_ALL:
                    continue
                raise _Refused(f"does not keep the tokens of operand {number} in one piece")
            if each.kind is Kind.SCORES:
                assert each.keys is not None
                pairs.add((cut, self._located(op, number, each.keys)))
            else:
                single.add(cut)
        if pairs:
            if len(pairs) > 1:
                raise _Refused("pairs queries of one operand with keys of another")
            rows, keys = pairs.pop()
            if keys is None or not single <= {rows, keys}:
                raise _Refused("does not keep queries and keys apart")
            return rows, keys
        return self._of_place(index, op, single)

    def _of_place(self, index: int, op: Op, single: Set[Cut]) -> tuple[Cut | None, Cut | None]:
        """In attention, the factors of queries and keys; elsewhere the one factor of the tokens."""
        place = self.body.attention.get(index)
        assert op.rule is not None
        made = {f for mapping in op.rule.results for dim in mapping for f in dim}
        if place is not None:
            found = (place.factor(index, role) for role in ("rows", "keys"))
            factors = [f for f in found if f in made and op.rule.sizes[f] == self.body.extent]
            cuts = [Cut(factor, 1, self.body.extent) for factor in factors]
            if len(cuts) == 2 and single <= set(cuts):
                return cuts[0], cuts[1]
        if len(single) > 1:
            raise _Refused("pairs every token with every other one")
        return next(iter(single), None), None

    def _check_sums(self, op: Op, reduced: Sequence[Cut]) -> None:
        if not reduced:
            return
        if op.name == "gather":
            raise _Refused("looks tokens up by index")
        if op.reducer not in _SUMS:
            raise _Refused("reduces over tokens with a combination that is no sum or maximum")
        if op.name == "scatter" and op.operands[0] not in self.zeros:
            raise _Refused("combines tokens into a start value that is not 0")

    def _check_later(
        self, index: int, op: Op, operands: Sequence[Tokens], rows: Cut | None, keys: Cut
    ) -> None:
        """What sums scores up may leave later keys out."""
        assert op.rule is not None
        summed = {cut.factor for cut in (rows, keys) if cut is not None} & op.rule.reduction
        if not summed:
            return
        for number, each in enumerate(operands):
            if each.kind is not Kind.SCORES:
                continue
            queries, later_keys = (operand_split(op, number, cut) for cut in (rows, keys))
            later = self.causality.later(op.operands[number], queries, later_keys)
            if later is None:
                continue
            is_maximum = op.reducer == "maximum" and later.is_masked
            if is_maximum or (op.reducer == "add" and later.is_zero):
                return
        needed = "0" if op.reducer == "add" else "minus infinity"
        raise UncutError(
            f"sums scores of attention, which for keys behind their query are not known to be "
            f"{needed}: expected a causal mask, made of positions (iota and compare) or constants",
            index,
        )

    def _results(
        self, index: int, op: Op, rows: Cut | None, keys: Cut | None, late: bool
    ) -> SlicedOp:
        joins = False
        for number, result in enumerate(op.results):
            of_rows, of_keys = (result_split(op, number, cut) for cut in (rows, keys))
            if of_rows is not None:
                kind = Kind.ROWS if of_keys is None else Kind.SCORES
                made = Tokens(kind, of_rows, of_keys, late=late)
            elif of_keys is not None:
                joins = True
                made = Tokens(Kind.ROWS, of_keys, late=True)
            else:
                made = Tokens(Kind.TERM, reducer=op.reducer or "", late=late)
                self.asked[result] = index, "sums over all tokens"
            self.tokens[result] = made
        kinds = {self.tokens[result].kind for result in op.results}
        if len(kinds) > 1 or (joins and op.reducer != "add"):
            raise UncutError("sums only some of its results over tokens", index)
        backwards = late or joins or index in self.body.backward
        return SlicedOp(kinds.pop(), rows, keys, joins, backwards)
