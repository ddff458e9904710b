"""What a framework does that rows of measurements leave out: which kernels it has for attention,
how it computes blocks, what it recomputes, and whether collectives run beside computing.

Rates of fused attention are those that publications measured on the kernels alone, none follows
from a row. Shares are those of the longest sequence that was measured; `fill` is what sequences of
512, 1024, 2048 and 4096 tokens take more than it, in keys, in the mean."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from shardopt.hardware.cluster import AttentionRate, KernelRates
from shardopt.measured.rows import Row
from shardopt.measured.unstated import InexpressibleRow
from shardopt.models.computing import PLAIN, Computing, Recomputed

# FlashAttention-3 (arXiv 2407.08608), figures 5 and 6, on an H100 SXM5 of 989 TFLOP/s: forward with
# a causal mask, backward without, 512 to 16384 tokens, heads of 64 and of 128 numbers.
_CUDNN_ON_HOPPER = (
    AttentionRate(64, 0.392, 0.438, 103, 231),
    AttentionRate(128, 0.545, 0.522, 72, 256),
)
# FlashAttention-4 (arXiv 2603.05451) reaches up to 1613 of a B200's 2250 TFLOP/s forward, and is up
# to 1.3 times as fast as cuDNN 9.13; backward, with heads of 64 and for short sequences cuDNN is
# taken to lose what it loses on an H100.
_CUDNN_ON_BLACKWELL = (
    AttentionRate(64, 0.55 * 0.392 / 0.545, 0.55 * 0.438 / 0.545, 103, 231),
    AttentionRate(128, 0.55, 0.55 * 0.522 / 0.545, 72, 256),
)
_FLASH2_ON_HOPPER = (
    AttentionRate(64, 0.302, 0.294, 81, 214),
    AttentionRate(128, 0.339, 0.326, 79, 220),
)
# On an H100 of 500 W: what attention reaches there was not found. Its products take the same cores
# under the same limit, which costs products in bf16 this share (h100-96gb.yaml, h100-sxm.yaml).
_OF_500_WATTS = 0.59 / 0.75


def _slower(rates: tuple[AttentionRate, ...], share: float) -> tuple[AttentionRate, ...]:
    return tuple(
        replace(rate, forward=share * rate.forward, backward=share * rate.backward)
        for rate in rates
    )


# FlashAttention-2 (arXiv 2307.08691), section 4.1: up to 73 % of an A100's peak forward and 63 %
# backward with heads of 128; with a causal mask, with heads of 64, and for short sequences as much
# less as the same kernels lose on the H100.
_FLASH2_ON_AMPERE = (
    AttentionRate(64, 0.59, 0.57, 81, 214),
    AttentionRate(128, 0.66, 0.63, 79, 220),
)
# The same paper, section 1: the first FlashAttention reaches 30 to 50 % of an A100 forward, and 25
# to 35 % backward, which is taken for short and long sequences with heads of 128; with heads of 64
# as much less as above. A causal mask of 4096 tokens saves it 42 % of the forward pass where half
# of the blocks are 48 % (Dao-AILab/flash-attention#142: 4.95 and 2.87 ms), so that it is 1.1 times
# as slow again.
_FLASH1_ON_AMPERE = (
    AttentionRate(64, 0.45 / 1.1, 0.317, 81, 214),
    AttentionRate(128, 0.50 / 1.1, 0.35, 79, 220),
)
# On an H100 the first was not measured there: it is taken as far behind the second as on an A100.
_FLASH1_ON_HOPPER = (
    AttentionRate(64, 0.302 * 0.45 / 1.1 / 0.59, 0.294 * 0.317 / 0.57, 81, 214),
    AttentionRate(128, 0.339 * 0.50 / 1.1 / 0.66, 0.326 * 0.35 / 0.63, 79, 220),
)
# Neither was measured on a B200, where the second is taken as far behind cuDNN as on an H100, and
# the first behind the second. Of what an MI300X reaches in training, forwards and backwards, no
# table was found: kernels there are taken to reach the share of the peak that FlashAttention-2
# reaches on an H100.
_FLASH2_ON_BLACKWELL = _slower(_CUDNN_ON_BLACKWELL, 0.339 / 0.545)
_FLASH1_ON_BLACKWELL = _slower(_FLASH2_ON_BLACKWELL, 0.40 / 0.66)
_ON_CDNA3 = _FLASH2_ON_HOPPER


@dataclass(frozen=True)
class Framework:
    """`attention` is the library whose kernels compute attention, empty where programs write its
    scores; `merges` says that kernels over the same elements are one, by a compiler or by hand,
    which `compiles_if_told` leaves to the row;
    `overlaps` that collectives run beside computing, None where that is up to the row and the
    machine; `windowed` that those of tensor parallelism run beside their own products, in pieces.
    `selective` is what "selective" recomputation without more means, `between` what there is for
    who has too little memory for none. `reruns` says that full recomputation calls all of a block's
    forward pass again, where others leave out what the backward pass does not read, as the last
    product of a feed forward; `splits_sequence` that tensor parallelism splits norms and residuals
    along the sequence, whatever a row says; `attends_by` is how keys and values of other tokens
    come to a device where sequences are split; `awaits_messages` that stages compute nothing while
    they receive. Each tensor-parallel part has a multiple of `pads_vocabulary` of the vocabulary,
    unless that is 0. `sums_together` combines the sums of all gradients into one collective, behind
    the last of them. `ties` says that the embedding is the last product's weight, too. `by_fsdp2`
    says whose ZeRO 3 it is (`shardopt.measured.fsdp2`). `buffers_gradients` has memory for all
    gradients through a step, also of one microbatch. `loops` says that a loop runs over the layers:
    what their backward pass reads is its result, which nothing computes again. `combines` are the
    bytes up to which sums of gradients and gathers of weights beside computing are combined into
    one, `combines_blocks` says that these are the ones of a block. `compiler` is what merges
    kernels, empty where they are written by hand: compilers compute cheap values again rather than
    keep them for the backward pass, and XLA's kernels that reduce rows are slower. `how` is what
    blocks and steps compute otherwise than the plain model."""

    attention: str = ""
    merges: bool = True
    compiles_if_told: bool = False
    overlaps: bool | None = None
    windowed: bool = False
    selective: Recomputed = "attention"
    between: tuple[Recomputed, ...] = ()
    reruns: bool = False
    splits_sequence: bool = False
    attends_by: str = "all-gather"
    awaits_messages: bool = False
    pads_vocabulary: int = 0
    sums_together: bool = False
    ties: bool = False
    by_fsdp2: bool = False
    buffers_gradients: bool = False
    loops: bool = False
    combines: float = 0.0
    combines_blocks: bool = False
    compiler: Literal["", "xla", "inductor"] = ""
    how: Computing = PLAIN


_UNKNOWN = Framework(compiler="xla")
# A schedule can be called so, too.
_EAGER = re.compile(r"\beager\b(?!-1f1b)", re.IGNORECASE)
# Composer's name for weights in 16 bits and sums of gradients in 32 (mosaicml/composer#2047); PURE
# has both in 16.
_SUMS_WIDE = re.compile(r"\bmixed precision default\b", re.IGNORECASE)
# torchtitan's documentation: async TP requires torch.compile, and so do products in 8 bits for
# competitive performance.
_COMPILED = re.compile(r"\bcompiled?\b|\basync ?tp\b", re.IGNORECASE)
# alpa/monkey_patch.py: flax's Embed takes the product of one-hot rows and the table.
# alpa/model/model_util.py, TrainState: float16 parameters beside their float32 master copy.
# alpa/model/bert_model.py and moe.py: FlaxBertOutput and FlaxMoELayer normalize the sum of a part
# and its input. alpa/monkey_patch.py, _remat_using_identity: every layer's forward pass is called
# again, also that of the last one, without what the backward pass does not read.
# alpa/pipeline_parallel/apply_grad.py, compute_grad_to_accumulate_grad: what adds a gradient up has
# the gradient's type, which is that of the copies (alpa/model/model_util.py takes none in float32).
BY_ALPA = Computing(
    looks_up_by_product=True, carries_copies=True, normalizes_sums=True, sums_narrow=True
)
# megatron/core/distributed/distributed_data_parallel_config.py: buckets of 40 million parameters or
# more (a million for each replica, if that is more); 16 bits of each.
_BUCKET = 2 * 40e6
# xla/service/collective_utils.h: what its combiners combine unless flags say otherwise. Of PaxML's
# only all-reduces have another one (rosetta/projects/pax/xla_flags).
_BY_XLA = 30.0 * 2**20
# `_FRAMEWORKS` says where these are from.
_BY_NEMO = Framework(
    "cudnn",
    overlaps=True,
    windowed=True,
    reruns=True,
    splits_sequence=True,
    attends_by="ring",
    pads_vocabulary=128,
    combines=_BUCKET,
)
_BY_MAXTEXT = Framework(
    "tpu",
    overlaps=True,
    between=("all-but-products",),
    loops=True,
    combines=_BY_XLA,
    compiler="xla",
)
# The first pattern found in the source decides; with, in order, where what is said is from.
_FRAMEWORKS = (
    # Transformer Engine is the default implementation, and takes cuDNN's attention.
    # tensor_parallel/random.py: CheckpointFunction as below. arguments.py: bf16 turns
    # accumulate_allreduce_grads_in_fp32 on, so that gradients are made, added up and reduced in
    # float32 (its guide to the distributed optimizer: 6 + 12/d bytes a parameter). --cp-comm-type
    # is p2p, a ring.
    (
        r"megatron-lm readme|megatron.core",
        Framework(
            "cudnn",
            reruns=True,
            attends_by="ring",
            pads_vocabulary=128,
            buffers_gradients=True,
            combines=_BUCKET,
            how=Computing(sums_wide=True, entropy="in-passes"),
        ),
    ),
    # scripts/performance (llama3_70b and others): sequence_parallel wherever tensors are split, and
    # grad_reduce_in_fp32 is False; recipes: MegatronCommOverlapCallback with tp_comm_overlap, which
    # also turns on overlap_grad_reduce and overlap_param_gather. Transformer Engine and the ring as
    # in Megatron Core, whose models these are. NeMo's own have cross_entropy_loss_fusion with the
    # implementation `native`, which takes float32 logits in passes as well, if in fewer
    # (megatron/core/fusions/fused_cross_entropy.py); Megatron-Bridge's have that of Transformer
    # Engine, a kernel each way.
    (r"\bnemo\b", replace(_BY_NEMO, how=Computing(entropy="in-passes"))),
    (r"megatron-?bridge", _BY_NEMO),
    # arguments.py: --attention-dropout and --hidden-dropout are 0.1 unless a run says otherwise;
    # softmax with its mask, bias with GELU, bias with dropout and residual, and norms are a kernel
    # each (masked_softmax_fusion, bias_gelu_fusion, bias_dropout_fusion); softmax backward reads
    # the result (fused_kernels/scaled_upper_triang_masked_softmax.h). mpu/random.py:
    # CheckpointFunction calls the whole forward pass again. Korthikanti et al., table 4, measured
    # 7.6 ms for that in a block whose forward pass takes 7.7. --clip-grad is 1.
    # mpu/cross_entropy.py takes the entropy operation by operation, of logits in float32
    # (fp16_lm_cross_entropy is off). p2p_communication.py: a stage awaits what it sends and
    # receives before it goes on. tokenizer.py: make_vocab_size_divisible_by is 128.
    # model/distributed.py: a contiguous buffer is made once, to which every gradient is added.
    (
        r"narayanan|megatron|korthikanti|vtrain",
        Framework(
            reruns=True,
            awaits_messages=True,
            pads_vocabulary=128,
            buffers_gradients=True,
            how=Computing(drops=True, clips=True, keeps_shares=True, entropy="in-passes"),
        ),
    ),
    # benchmark/alpa/benchmark_2d_one_case_gpt_bert.py and _moe.py take the configuration's default,
    # tie_word_embeddings; benchmark_3d_one_case_gpt_bert.py sets it to False.
    # alpa/shard_parallel/auto_sharding.py, AutoShardingOption: XLA's combiner of all-reduces takes
    # them together up to all_reduce_threshold, 2^60 bytes.
    (
        r"results_intra_ablation",
        Framework(ties=True, reruns=True, sums_together=True, compiler="xla", how=BY_ALPA),
    ),
    (r"alpa osdi22", Framework(reruns=True, sums_together=True, compiler="xla", how=BY_ALPA)),
    # scripts/train/benchmarking/submit_benchmarks.py: attn_impl is triton, FlashAttention as of
    # flash-attn 1.0.3 has it (A100). FSDP gathers ahead and reduces behind (arXiv 2304.11277,
    # section 3.3). PyTorch stops running a block again at the last value that the backward pass
    # reads since 2.1, which is later.
    (
        r"llm-foundry|mosaicml",
        Framework("flash", merges=False, overlaps=True, reruns=True, combines_blocks=True),
    ),
    # llama3_8b.toml and llama3_70b.toml: compile is false, norm_type is rmsnorm, of operations, and
    # max_norm is 1. scaled_dot_product_attention; selective_ac_option is "op", which saves every
    # second product; SequenceParallel for norms, and activations split by Shard(1) between them
    # (parallelize_llama.py). config_manager.py: mixed_precision_reduce is float32.
    # model.py, repeat_kv: keys and values of each head are copies; apply_rotary_emb: complex
    # numbers, for which Inductor generates no code
    # (torch/_inductor/lowering.py). components/loss.py: cross_entropy(pred.float()), which is not
    # compiled. context_parallel_rotate_method is allgather. metrics.py: memory is the most that the
    # allocator has reserved.
    (
        r"torchtitan",
        Framework(
            "flash-2",
            compiles_if_told=True,
            overlaps=True,
            selective="per-operation",
            splits_sequence=True,
            by_fsdp2=True,
            combines_blocks=True,
            compiler="inductor",
            how=Computing(
                sums_wide=True, rotates_in_passes=True, repeats_keys=True, entropy="wide"
            ),
        ),
    ),
    # configs/v5e/*.sh: attention='flash'. configs/types.py: context_parallel_strategy, all_gather.
    # On GPUs, configs/a3/*/*.sh: attention=cudnn_flash_te, and XLA_FLAGS turn on the latency-hiding
    # scheduler and pipelined all-gathers, reduce-scatters and all-reduces; configs/base.yml,
    # remat_policy: what lies between `minimal_flash`, which keeps products and the results of
    # attention, and `full`; and scan_layers. Scripts for TPUs and models/gpu/*.yml, use_iota_embed:
    # a product of one-hot rows and the table (layers/embeddings.py); off in configs/base.yml, with
    # which pull requests measure.
    (r"maxtext pr\b", _BY_MAXTEXT),
    (
        r"maxtext|tpu-recipes",
        replace(_BY_MAXTEXT, how=Computing(looks_up_by_product=True)),
    ),
    # rosetta/projects/pax: XLA's latency-hiding scheduler and asynchronous collectives. paxml,
    # tasks/lm/params/c4.py: EMBEDDING_LOOKUP_STYLE is matmul; contrib/gpu/scripts_gpu/configs.py:
    # the model that does not fit without recomputation, and would with it to spare, keeps its
    # products (SAVE_DOT_WITH_NO_BATCH_DIM). praxis, layers/attentions.py: softmax is "always
    # carried out in fp32"; layers/transformers.py: StackedTransformerRepeated is a scan.
    (
        r"jax-toolbox",
        Framework(
            overlaps=True,
            between=("all-but-products",),
            loops=True,
            combines=_BY_XLA,
            compiler="xla",
            how=Computing(looks_up_by_product=True, wide_softmax=True),
        ),
    ),
)
# The generation of the device of a preset. FlashAttention has none for Volta (its README).
_GENERATIONS = {
    "dgx-a100": "ampere",
    "h100-sxm": "hopper",
    "h100-96gb": "hopper",
    "h200": "hopper",
    "gh200": "hopper",
    "b200": "blackwell",
    "mi300x": "cdna3",
}
# By library and generation. Transformer Engine, by which frameworks come to cuDNN's kernels, takes
# FlashAttention-2 before Hopper (its dot_product_attention/utils.py: "prefer FlashAttention over
# FusedAttention" below compute capability 9), and composable kernels on AMD's.
_RATES = {
    ("cudnn", "ampere"): _FLASH2_ON_AMPERE,
    ("cudnn", "hopper"): _CUDNN_ON_HOPPER,
    ("cudnn", "blackwell"): _CUDNN_ON_BLACKWELL,
    ("cudnn", "cdna3"): _ON_CDNA3,
    ("flash", "ampere"): _FLASH1_ON_AMPERE,
    ("flash", "hopper"): _FLASH1_ON_HOPPER,
    ("flash", "blackwell"): _FLASH1_ON_BLACKWELL,
    ("flash", "cdna3"): _ON_CDNA3,
    ("flash-2", "ampere"): _FLASH2_ON_AMPERE,
    ("flash-2", "hopper"): _FLASH2_ON_HOPPER,
    ("flash-2", "blackwell"): _FLASH2_ON_BLACKWELL,
    ("flash-2", "cdna3"): _ON_CDNA3,
}
_LIBRARIES = sorted({library for library, _ in _RATES} | {"tpu", "none"})


def framework_of(row: Row) -> Framework:
    """By the column `attention` where the row states it, else by the framework that its source
    names. Where nothing merges kernels, as in what a note calls eager, operations over elements are
    passes. Raises InexpressibleRow for a library that is not known."""
    named = next(
        (each for found, each in _FRAMEWORKS if re.search(found, row.source.lower())), None
    )
    framework = named or _UNKNOWN
    if not _merges(framework, row):
        framework = replace(framework, merges=False, how=replace(framework.how, in_passes=True))
    if _SUMS_WIDE.search(row.note):
        framework = replace(framework, how=replace(framework.how, sums_wide=True))
    library = row.attention.lower()
    if not library:
        return framework
    if library not in _LIBRARIES:
        raise InexpressibleRow(
            f"attention '{row.attention}' is none of {', '.join(_LIBRARIES)}, or empty"
        )
    plain = "" if library == "none" else library
    return replace(framework, attention=plain)


def _merges(framework: Framework, row: Row) -> bool:
    if _EAGER.search(row.note) or not framework.merges:
        return False
    told = _COMPILED.search(row.note) or row.precision.lower().startswith("fp8")
    return bool(told) or not framework.compiles_if_told


def attention_rates(
    library: str, preset: str, kernels: KernelRates | None
) -> tuple[AttentionRate, ...] | None:
    """Of a library on the device of a preset; None where it writes scores, or has no kernels for
    the device. What TPUs reach in attention was not found: as if softmax passed behind products, it
    is what products with one side as wide as a head reach. MaxText's `tpu` kernels are cuDNN's on
    GPUs."""
    if library == "tpu" and preset.startswith("tpu") and kernels is not None:
        share = kernels.products.get("bf16", kernels.products["f32"])
        return _on_matrix_units(share, kernels.matrix_unit or 1)
    library = "cudnn" if library == "tpu" else library
    rates = _RATES.get((library, _GENERATIONS.get(preset, "")))
    return _slower(rates, _OF_500_WATTS) if rates and preset == "h100-96gb" else rates


def _on_matrix_units(share: float, unit: int) -> tuple[AttentionRate, ...]:
    """Attention on matrix units of `unit` x `unit` that are filled to `share`: each of its products
    sums over a head or has its width, and heads that do not fill whole units leave a part of them
    empty."""
    blocks = range(1, 3)
    heads = [head for block in blocks for head in ((block - 1) * unit + 1, block * unit)]
    shares = {head: share * head / (-(-head // unit) * unit) for head in heads}
    return tuple(AttentionRate(head, each, each, 0.0, 0.0) for head, each in shares.items())
