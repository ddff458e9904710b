"""Published sizes of the models of Alpa's evaluation, and the formulas by which it counts
parameters and FLOPs.

The sizes stand in the paper's tables of model specifications (section 8.1 and its appendix) and,
with all digits, in the artifact (github.com/alpa-projects/alpa, folder benchmark/alpa):

* GPT-3: `suite_manual_gpt.py`, `gpt_specs`: sequence, hidden size, layers, heads, vocabulary. A
  step is 1024 sequences.
* GShard MoE: `suite_manual_moe.py`, `moe_specs`: as GPT, with experts and tokens of a gating group
  (2048). The feed forward part is eight times as wide as the model, every second layer has experts
  (`alpa/model/moe.py`).
* Wide-ResNet: `suite_wresnet.py`, `wresnet_specs`: image size, layers, base channels, width factor;
  1024 classes.
* Devices of a model, images of a step and number of microbatches: the plans that the authors found
  for p3.16xlarge (`suite_auto_gpt.py`, `suite_auto_moe.py`, `suite_wresnet.py`, each the table of
  solutions).
* Formulas: `benchmark/alpa/util.py`. Wide-ResNet has none: the artifact counts the FLOPs of the
compiled program."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class GptSpec:
    """A decoder of `layers` blocks; `heads` divides `hidden`; `tied` shares the embedding with the
    last product."""

    hidden: int
    layers: int
    heads: int
    sequence: int = 1024
    vocab: int = 51200
    batch: int = 1024
    tied: bool = False

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
class MoeSpec:
    """A decoder whose even layers have `experts`; `group` tokens are routed together; `width` is
    that of the FFN."""

    hidden: int
    layers: int
    experts: int
    heads: int = 16
    sequence: int = 1024
    vocab: int = 32000
    batch: int = 1024
    group: int = 2048
    width: int = 8

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


Spec = GptSpec | MoeSpec | ResnetSpec


@dataclass(frozen=True)
class Case:
    """A model on as many devices as in the paper; `layers` and `microbatches` are those of the
    authors' plan."""

    name: str
    spec: Spec
    devices: int
    microbatches: int
    layers: int

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]

    @property
    def cluster(self) -> str:
        """Hosts of eight V100, or a part of one host."""
        return f"p3.16xlarge:{max(1, self.devices // 8)}x{min(8, self.devices)}"


CASES: tuple[Case, ...] = (
    Case("gpt-350m", GptSpec(1024, 24, 16), 1, 512, 1),
    Case("gpt-1.3b", GptSpec(2048, 24, 32), 4, 128, 6),
    Case("gpt-2.6b", GptSpec(2560, 32, 32), 8, 128, 8),
    Case("gpt-6.7b", GptSpec(4096, 32, 32), 16, 64, 8),
    Case("gpt-15b", GptSpec(5120, 48, 40), 32, 128, 16),
    Case("gpt-39b", GptSpec(8192, 48, 64), 64, 1024, 16),
    Case("moe-380m", MoeSpec(768, 8, 8), 1, 512, 1),
    Case("moe-690m", MoeSpec(768, 8, 16), 2, 32, 8),
    Case("moe-1.3b", MoeSpec(768, 16, 16), 4, 32, 8),
    Case("moe-2.4b", MoeSpec(1024, 16, 16), 8, 32, 8),
    Case("moe-10b", MoeSpec(1536, 16, 32), 16, 16, 8),
    Case("moe-27b", MoeSpec(2048, 16, 48), 32, 128, 8),
    Case("moe-70b", MoeSpec(2048, 32, 64), 64, 64, 8),
    Case("wresnet-250m", ResnetSpec(50, 160, 2), 1, 24, 16),
    Case("wresnet-1b", ResnetSpec(50, 320, 2), 4, 24, 16),
    Case("wresnet-2b", ResnetSpec(50, 448, 2), 8, 24, 16),
    Case("wresnet-4b", ResnetSpec(50, 640, 2), 16, 32, 16),
    Case("wresnet-6.8b", ResnetSpec(50, 320, 16), 32, 32, 16),
    Case("wresnet-13b", ResnetSpec(101, 320, 16, batch=1520), 64, 38, 33),
)

# Small enough to run on host devices: for tests of the models, not for tables.
TINY: dict[str, Spec] = {
    "gpt-tiny": GptSpec(32, 2, 4, sequence=16, vocab=64, batch=8),
    "moe-tiny": MoeSpec(32, 2, 4, heads=4, sequence=8, vocab=64, batch=8, group=16, width=2),
    "wresnet-tiny": ResnetSpec(8, 8, 2, image=16, classes=16, batch=8, blocks=(1, 1)),
}


def find_case(name: str) -> Case:
    """Raises KeyError that lists the names."""
    for case in CASES:
        if case.name == name:
            return case
    raise KeyError(f"expected one of {', '.join(case.name for case in CASES)}, found {name!r}")


def find_spec(name: str, batch: int | None = None) -> Spec:
    """Sizes of a published or a tiny model, with another batch if asked. Raises KeyError that lists
    the names."""
    spec = TINY[name] if name in TINY else find_case(name).spec
    return spec if batch is None else replace(spec, batch=batch)
