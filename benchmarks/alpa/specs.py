"""Published sizes of the models of Alpa's evaluation.

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
  solutions). What they gave sharding alone: `exp_intra_only.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardopt.models.specs import GptSpec, LlamaSpec, MoeSpec, ResnetSpec, Spec


@dataclass(frozen=True)
class ShardedAlone:
    """How the authors measured a model without pipelines: microbatches, and the logical shape of
    all devices."""

    microbatches: int
    shape: str


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
    Case("gpt-760m", GptSpec(1536, 24, 16), 2, 128, 6),
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
    Case("wresnet-500m", ResnetSpec(50, 224, 2), 2, 24, 16),
    Case("wresnet-1b", ResnetSpec(50, 320, 2), 4, 24, 16),
    Case("wresnet-2b", ResnetSpec(50, 448, 2), 8, 24, 16),
    Case("wresnet-4b", ResnetSpec(50, 640, 2), 16, 32, 16),
    Case("wresnet-6.8b", ResnetSpec(50, 320, 16), 32, 32, 16),
    Case("wresnet-13b", ResnetSpec(101, 320, 16, batch=1520), 64, 38, 33),
)

# Of the largest models the artifact has runs of smaller batches, and in results_e2e.tsv the step of
# the whole one: these have as many microbatches as put equally many examples into each.
SHARDED_ALONE: dict[str, ShardedAlone] = {
    "gpt-350m": ShardedAlone(64, "1x1"),
    "gpt-760m": ShardedAlone(64, "1x2"),
    "gpt-1.3b": ShardedAlone(64, "1x4"),
    "gpt-2.6b": ShardedAlone(32, "4x2"),
    "gpt-6.7b": ShardedAlone(64, "2x8"),
    "gpt-15b": ShardedAlone(128, "4x8"),
    "gpt-39b": ShardedAlone(512, "2x32"),
    "moe-380m": ShardedAlone(32, "1x1"),
    "moe-690m": ShardedAlone(32, "1x2"),
    "moe-1.3b": ShardedAlone(16, "1x4"),
    "moe-2.4b": ShardedAlone(16, "1x8"),
    "moe-10b": ShardedAlone(32, "2x8"),
    "moe-27b": ShardedAlone(32, "1x32"),
    "moe-70b": ShardedAlone(256, "1x64"),
    "wresnet-250m": ShardedAlone(48, "1x1"),
    "wresnet-500m": ShardedAlone(32, "1x2"),
    "wresnet-1b": ShardedAlone(32, "1x4"),
    "wresnet-2b": ShardedAlone(48, "1x8"),
    "wresnet-4b": ShardedAlone(64, "2x8"),
    "wresnet-6.8b": ShardedAlone(48, "4x8"),
    "wresnet-13b": ShardedAlone(190, "4x16"),
}

# Small enough to run on host devices: for tests of the models, not for tables.
TINY: dict[str, Spec] = {
    "gpt-tiny": GptSpec(32, 2, 4, sequence=16, vocab=64, batch=8),
    "llama-tiny": LlamaSpec(32, 2, 4, 2, 64, sequence=16, vocab=64, batch=8),
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
