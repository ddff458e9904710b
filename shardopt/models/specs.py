"""Sizes of models, and the formulas by which publications count their parameters and FLOPs.

GPT, GShard's mixture of experts and Wide-ResNet are those of Alpa (arXiv 2201.12023, section 8.1);
their formulas are those of its artifact (github.com/alpa-projects/alpa, `benchmark/alpa/util.py`),
which for Wide-ResNet counts the FLOPs of the compiled program.
LLaMA is that of arXiv 2307.09288 and 2407.21783, DeepSeek-V3 that of arXiv 2412.19437."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GptSpec:
    """A decoder of `layers` blocks; `heads` divides `hidden`; `tied` shares the embedding with the
    last product; the feed forward part is `width` times as wide as the model; `kv_heads` heads of
    keys and values divide `heads`, 0 stands for as many. The formulas are for the usual width of 4
    and as many."""

    hidden: int
    layers: int
    heads: int
    sequence: int = 1024
    vocab: int = 51200
    batch: int = 1024
    tied: bool = False
    width: int = 4
    kv_heads: int = 0

    @property
    def parameters(self) -> int:
        """The artifact's count: blocks and one embedding with a bias; no positions, no last
        normalisation."""
        h = self.hidden
        return self.layers * (12 * h * h + 11 * h) + self.vocab * (h + 1)

    def flops(self, recompute: bool = False) -> float:
        """FLOPs of a step by the artifact's formula: forward, backward (twice) and, if asked,
        forward again."""
        tokens, h = self.batch * self.sequence, self.hidden
        blocks = (
            (96 if recompute else 72) * tokens * h * h * self.layers * (1 + self.sequence / (6 * h))
        )
        return blocks + 6 * tokens * h * self.vocab


@dataclass(frozen=True)
class LlamaSpec:
    """A decoder with rotary positions, a gated feed forward part of width `ffn`, and `kv_heads`
    heads of keys and values, which divide `heads`. No bias anywhere, and a head of its own.
    `head` numbers make a head; 0 stands for `hidden` / `heads`."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    sequence: int = 4096
    vocab: int = 32000
    batch: int = 1024
    head: int = 0

    @property
    def head_size(self) -> int:
        return self.head or self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """All weights: both embeddings, and a norm before each part and at the end."""
        h = self.hidden
        attention = 2 * h * self.head_size * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * h * self.ffn + 2 * h) + 2 * self.vocab * h + h


@dataclass(frozen=True)
class MoeSpec:
    """A decoder whose even layers have `experts`; `group` tokens are routed together; `width` is
    that of the FFN; `tied` shares the embedding with the last product."""

    hidden: int
    layers: int
    experts: int
    heads: int = 16
    sequence: int = 1024
    vocab: int = 32000
    batch: int = 1024
    group: int = 2048
    width: int = 8
    tied: bool = False

    @property
    def capacity(self) -> int:
        """Tokens of a group that an expert takes: two of every token's experts, shared out
        evenly."""
        return 2 * self.group // self.experts

    @property
    def parameters(self) -> int:
        """The artifact's count, with one embedding."""
        h = self.hidden
        attention, norms = 4 * h * h + 2 * h, 4 * h
        feed_forward = 2 * self.width * h * h + (1 + self.width) * h
        pairs = 2 * (attention + norms) + (1 + self.experts) * feed_forward
        return self.layers // 2 * pairs + self.vocab * (h + 1)

    def flops(self, recompute: bool = False) -> float:
        """FLOPs of a step by the artifact's formula, which has gating, dispatch and combination in
        it."""
        tokens, h = self.batch * self.sequence, self.hidden
        attention = 8 * tokens * h * h + 4 * tokens * self.sequence * h
        dense = 4 * self.width * tokens * h * h
        experts = 8 * self.width * tokens * h * h
        routing = (
            2 * tokens * h * self.experts + 4 * tokens * self.group + 8 * tokens * h * self.group
        )
        pairs = 2 * attention + dense + experts + routing
        return (4 if recompute else 3) * pairs * self.layers / 2 + 6 * tokens * h * self.vocab


@dataclass(frozen=True)
class DeepseekSpec:
    """A decoder with latent attention: queries come from `query_rank` numbers a token, keys and
    values from `latent_rank`; `rotary` numbers of each query and key know positions, `head` do not.
    Behind the first `dense_layers`, whose feed forward part has width `ffn`, each token passes
    `shared` experts and `active` of the `experts`, of width `expert_ffn`. `group` tokens are routed
    together."""

    hidden: int = 7168
    layers: int = 61
    dense_layers: int = 3
    heads: int = 128
    head: int = 128
    rotary: int = 64
    query_rank: int = 1536
    latent_rank: int = 512
    ffn: int = 18432
    experts: int = 256
    active: int = 8
    shared: int = 1
    expert_ffn: int = 2048
    sequence: int = 4096
    vocab: int = 129280
    batch: int = 1024
    group: int = 4096

    @property
    def capacity(self) -> int:
        """Tokens of a group that an expert takes, shared out evenly."""
        return self.active * self.group // self.experts

    @property
    def parameters(self) -> int:
        """All weights, both embeddings and all norms."""
        h, heads, queries, latent = self.hidden, self.heads, self.query_rank, self.latent_rank
        attention = h * queries + queries + queries * heads * (self.head + self.rotary)
        attention += h * (latent + self.rotary) + latent + 2 * latent * heads * self.head
        attention += heads * self.head * h + 2 * h
        sparse = (self.experts + self.shared) * 3 * h * self.expert_ffn + h * self.experts
        ends = 2 * self.vocab * h + h
        sparse_layers = self.layers - self.dense_layers
        return (
            self.layers * attention
            + self.dense_layers * 3 * h * self.ffn
            + sparse_layers * sparse
            + ends
        )


@dataclass(frozen=True)
class ResnetSpec:
    """A bottleneck ResNet of 50 or 101 layers; `width` multiplies the channels of its 3x3
    convolutions."""

    layers: int
    channels: int
    width: int
    image: int = 224
    classes: int = 1024
    batch: int = 1536
    blocks: tuple[int, ...] = ()

    @property
    def block_counts(self) -> tuple[int, ...]:
        """Blocks at each of the resolutions."""
        return self.blocks or {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[self.layers]

    @property
    def parameters(self) -> int:
        """All weights: convolutions, a gain and a bias of each channel behind them, and the last
        product."""
        count, into = (7 * 7 * 3 + 2) * self.channels, self.channels
        for level, blocks in enumerate(self.block_counts):
            filters = self.channels * 2**level
            wide, out = filters * self.width, 4 * filters
            middle = 9 * filters * wide + wide * out + 2 * (filters + wide + out)
            count += blocks * middle + into * (filters + out) + 2 * out
            count += (blocks - 1) * out * filters
            into = out
        return count + (into + 1) * self.classes

    def flops(self, recompute: bool = False) -> float:
        """FLOPs of convolutions and last product in a step: forward, backward (twice), forward
        again if asked.

        As XLA counts them, without what a window reads beyond the border.
        """
        side, into = self.image // 4, self.channels
        products = 3 * self.channels * _taps(self.image, 7, 2)
        for level, count in enumerate(self.block_counts):
            filters, out = self.channels * 2**level, 4 * self.channels * 2**level
            wide, stride = filters * self.width, 1 if level == 0 else 2
            products += side**2 * into * filters + filters * wide * _taps(side, 3, stride)
            side //= stride
            products += side**2 * (into * out + wide * out)
            products += (count - 1) * (
                side**2 * (out * filters + wide * out) + filters * wide * _taps(side, 3, 1)
            )
            into = out
        return (4 if recompute else 3) * 2.0 * self.batch * (products + into * self.classes)


def _taps(side: int, window: int, stride: int) -> int:
    """Pixels that all windows of a convolution read of a square image, centred windows cut off at
    its border."""
    reach = window // 2
    along = sum(
        min(side, middle + reach + 1) - max(0, middle - reach) for middle in range(0, side, stride)
    )
    return along**2


Spec = DeepseekSpec | GptSpec | LlamaSpec | MoeSpec | ResnetSpec


def block_layers(spec: Spec) -> int:
    """Layers of the shortest part that a model repeats: all of them where it repeats none."""
    if isinstance(spec, ResnetSpec):
        return spec.layers
    return 2 if isinstance(spec, MoeSpec) else 1
