"""cuDNN's fused attention: which dimensions of its calls may be split, and what a call says of the
shapes that it is for.

    %o:3 = custom_call @__cudnn$fmhaSoftmax(%q, %k, %v)      btnh, bsmh, bsmv -> bntv, bnt, w
        {backend_config = "{… \"dimensions\": [b, n, t, s] …}"}

as JAX writes it (`jax/_src/cudnn/fused_attention_stablehlo.py`), with heads before positions
(`BNTH`) or behind them. Rows of the batch are computed apart from each other, and so are heads: of
n heads of queries n / m share one of keys. Sequences and the numbers of a head stay whole.

JAX's own rule for Shardy says nothing of most operands, and nothing at all of the backward pass; it
leaves the rest to a function in Python that no module carries. Here it is read from the call, so
that it holds for a module from anywhere, and for a call at any size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxlib.mlir import ir

from shardopt.dialect.custom_calls import call_target
from shardopt.graph.attention_use import AttentionUse
from shardopt.graph.op_graph import FactorRule
from shardopt.ir.rewriting import shape_of

_TARGET = "__cudnn$fmha"
_CONFIG = "backend_config"
_FMHA = "cudnn_fmha_backend_config"
_SCORES = "intermediate_tensor_shape"
# The product that multiplies queries, or gradients that lie like them, with keys or values.
_PRODUCTS = ("bmm1_dot_dimension_numbers", "bmm2_grad_gemm2_dot_dimension_numbers")
# Products over the scores: queries with keys and scores with values; backward the first again, and
# two for each gradient.
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5


class NotSplit(Exception):
    """A call that runs whole; the message says why."""


def is_attention(op: ir.Operation) -> bool:
    """Whether an operation is a call of cuDNN's fused attention."""
    return op.name == "stablehlo.custom_call" and call_target(op).startswith(_TARGET)


def attention_rule(op: ir.Operation) -> FactorRule:
    """The rule of a call. Raises NotSplit."""
    return _read(op).rule()


def attention_limits(op: ir.Operation) -> str:
    """Why a call is not split along the batch or along heads; nothing where it is along both."""
    try:
        return _read(op).limits()
    except NotSplit as error:
        return str(error)


def attention_work(op: ir.Operation) -> tuple[float, AttentionUse] | None:
    """FLOPs of the products of a call, masked or not, and what kind of kernel it is; None for one
    that is not read here."""
    try:
        call = _read(op)
    except NotSplit:
        return None
    size = call.sizes
    products = _BACKWARD_PRODUCTS if call.backward else _FORWARD_PRODUCTS
    # Those with values and their gradients: one of the two, two of the five.
    depth = (products - products // 2) * size["h"] + products // 2 * size["v"]
    scores = size["b"] * size["n"] * size["t"] * size["s"]
    use = AttentionUse(size["h"], size["s"], "CAUSAL" in call.mask, call.backward)
    return 2.0 * scores * depth, use


def fit_attention(op: ir.Operation) -> None:
    """Let a call say the shapes that its operands have now. Raises NotSplit."""
    config = _config(op)
    size = _read(op).sizes
    dimensions = [str(size[letter]) for letter in "bnts"]
    config[_FMHA][_SCORES]["dimensions"] = dimensions
    op.attributes[_CONFIG] = ir.StringAttr.get(json.dumps(config))


@dataclass(frozen=True)
class _Call:
    """A call with its tensors. A letter stands for what a dimension counts: rows of the batch (b),
    positions of queries and of keys (t, s), heads of queries and of keys (n, m), numbers of a head
    of keys and of values (h, v), the workspace (w), and nothing, broadcast (1)."""

    backward: bool
    heads_first: bool
    mask: str
    bias: tuple[int, ...] | None
    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    reads_bias_gradient: bool

    @cached_property
    def letters(self) -> tuple[list[str], list[str]]:
        """Of operands and of results."""
        query, key, value, out = (
            ("bnth", "bmsh", "bmsv", "bntv")
            if self.heads_first
            else ("btnh", "bsmh", "bsmv", "btnv")
        )
        bias = []
        if self.bias is not None:
            # What is broadcast has one row, or one head for all.
            rows, heads = (
                letter if extent > 1 else "1"
                for letter, extent in zip("bn", self.bias[:2], strict=True)
            )
            bias = [f"{rows}{heads}ts"]
        lengths = ["b", "b"] if "PADDING" in self.mask else []
        if not self.backward:
            sums = ["bnt"] if len(self.results) == 3 else []
            return [query, key, value, *bias, *lengths], ["bntv", *sums, "w"]
        operands = [query, key, value, "bnt", out, *bias, out, *lengths]
        return operands, ["bnth", "bmsh", "bmsv", *bias, "w"]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The extent behind each letter. Raises NotSplit where tensors do not agree."""
        sizes: dict[str, int] = {}
        for shapes, texts in zip((self.operands, self.results), self.letters, strict=True):
            if list(map(len, shapes)) != list(map(len, texts)):
                raise NotSplit("its operands are not those that JAX hands over")
            for shape, text in zip(shapes, texts, strict=True):
                for letter, extent in zip(text, shape, strict=True):
                    if sizes.setdefault(letter, extent) != extent:
                        raise NotSplit("its operands are not of the shapes that JAX hands over")
        if sizes["n"] % sizes["m"]:
            raise NotSplit("its heads of queries are not shared out evenly to those of keys")
        return sizes

    def rule(self) -> FactorRule:
        """Heads of queries are those of keys times a group for each of these."""
        names = [letter for letter in self.sizes if letter != "n"] + ["g"]
        number = {letter: factor for factor, letter in enumerate(names)}
        extents = {**self.sizes, "g": self.sizes["n"] // self.sizes["m"]}
        split = {"b", "m"} - self._added_up()
        # Backward, what the queries of a group say of their keys is added up.
        if not self.backward and "m" in split:
            split.add("g")
        operands, results = (
            tuple(
                tuple(
                    (number["m"], number["g"]) if letter == "n" else (number[letter],)
                    for letter in text
                )
                for text in texts
            )
            for texts in self.letters
        )
        return FactorRule(
            tuple(extents[letter] for letter in names),
            operands,
            results,
            need_replication=frozenset(number[each] for each in names if each not in split),
        )

    def limits(self) -> str:
        over = {"b": "rows of the batch", "m": "heads"}
        added_up = [over[letter] for letter in over if letter in self._added_up()]
        return f"the gradient of its bias adds up over {' and '.join(added_up)}" if added_up else ""

    def _added_up(self) -> set[str]:
        """What a gradient of the bias that somebody reads is summed over: a rule cannot say that
        of one result among others."""
        if not self.reads_bias_gradient or self.bias is None:
            return set()
        pairs = (("b", "b"), ("n", "m"))
        return {
            factor
            for (letter, factor), extent in zip(pairs, self.bias[:2], strict=True)
            if extent < self.sizes[letter]
        }


def _read(op: ir.Operation) -> _Call:
    """Raises NotSplit for a call that does more than attend with a mask, a bias and lengths."""
    try:
        fmha = _config(op)[_FMHA]
        _refuse(call_target(op), fmha)
        backward, biased = call_target(op).endswith("Backward"), "ScaleBias" in call_target(op)
        batch, heads = map(int, fmha[_PRODUCTS[backward]]["lhs_batch_dimensions"])
        if batch != 0 or heads not in (1, 2):
            raise ValueError
        results = tuple(map(shape_of, op.results))
        return _Call(
            backward,
            heads == 1,
            fmha["mask_type"],
            shape_of(op.operands[5 if backward else 3]) if biased else None,
            tuple(map(shape_of, op.operands)),
            results,
            backward and biased and any(True for _ in op.results[3].uses),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise NotSplit("its configuration is not one that JAX writes") from None


def _refuse(target: str, fmha: Mapping[str, Any]) -> None:
    if "F8" in target:
        raise NotSplit("the largest of its 8-bit numbers are those of the whole")
    if fmha.get("dropout_rate", 0.0) > 0.0:
        raise NotSplit("what it drops depends on the layout of its operands")
    if fmha.get("max_seg_per_batch", 1) > 1:
        raise NotSplit("its sequences are packed, with offsets that run through the batch")
    if fmha.get("is_paged_attention", False):
        raise NotSplit("its keys and values lie in pages that any row may share")
    if fmha["mask_type"] == "ALIBI":
        raise NotSplit("its mask depends on the number of the head")


def _config(op: ir.Operation) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(ir.StringAttr(op.attributes[_CONFIG]).value)
    return config
