"""docs/reference/costs.md, made from small examples of all operations and XLA's cost analysis:
`python -m tests.unit.operations.costs_page

`DEPARTURES` names every example whose FLOPs, transcendentals or bytes are not XLA's, with the
reason; a test sees to it that no other differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardopt.graph.op_bytes import touched_bytes
from shardopt.graph.op_flops import TRANSCENDENTAL_FLOPS
from shardopt.ir.loops import UNKNOWN_TRIPS
from shardopt.runtime.devices.xla_costs import XlaCosts, unoptimized_costs
from tests.unit.operations.op_examples import EXAMPLES, Example
from tests.unit.operations.operations_page import graph_of
from tests.unit.operations.work_examples import MORE

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "costs.md"

_ONCE = "XLA counts the body of a loop once, we count it as often as it runs"
_NORM = "XLA counts nothing, but expands it into so many operations before it runs"
_TUPLE = "XLA adds the table of pointers of a tuple, 8 bytes for each result"
_SCALAR = "XLA broadcasts a scalar operand by an operation of its own"
_RENAMED = "free: the result is the operand under another name"
_INDICES = "XLA counts the first of several scalar indices"
_LAYOUT = (
    "XLA has chosen a layout in which nothing moves; in general, and here, all is read and written"
)
_UNKNOWN = "XLA does not know what a custom call does"
_CAPTURED = "XLA hands what the regions read to them as copies and tuples"

# Example or operation, and why it departs: (in FLOPs and transcendentals, in bytes); "" where it
# does not.
DEPARTURES: dict[str, tuple[str, str]] = {
    "batch_norm_grad": (_NORM, ""),
    "batch_norm_inference": (_NORM, ""),
    "batch_norm_training": (_NORM, _TUPLE),
    "case": ("", _CAPTURED),
    "clamp": ("", _SCALAR),
    "constant": ("", "free: it is there before the program runs"),
    "custom_call:annotation": (_UNKNOWN, _UNKNOWN),
    "custom_call:top_k": ("", _TUPLE),
    "dynamic_slice": ("", _INDICES),
    "dynamic_slice:of a stack": ("", _INDICES),
    "dynamic_update_slice": ("", _INDICES),
    "dynamic_update_slice:into a stack": ("", _INDICES),
    "iota": ("", "XLA makes a line and broadcasts it"),
    "optimization_barrier": ("", _RENAMED),
    "reduce:argmax": ("", f"{_TUPLE}, and broadcasts the line that an iota makes"),
    "reshape:merge": ("", _RENAMED),
    "reshape:split": ("", _RENAMED),
    "reshape:tangled": ("", _RENAMED),
    "rng_bit_generator:philox": ("", _TUPLE),
    "rng_bit_generator:threefry": ("", _TUPLE),
    "select:scalar predicate": ("", _SCALAR),
    "sort": ("", _TUPLE),
    "transpose": ("", _LAYOUT),
    "while": (_ONCE, f"{_ONCE}; {_CAPTURED}"),
}


_HEAD = """# What operations cost

An operation takes `max(work / rate, bytes / memory bandwidth)` seconds on one device. Work and bytes of the
device's share come from the shapes. Rates come from the cluster file, or from a profile. Where the cluster file
describes the device's [kernels](../guide/cluster.md), a product takes the quadratic mean of both times instead, each
kernel takes a least time, and kernels over the same elements are merged
(`shardopt/solve/sharding/kernels/merged_kernels.py`).

## Products

The sizes of a device's share of a product, `rows` x `depth` by `depth` x `columns`, a batch of these, follow from its
shapes; a convolution is the product of its patches with its kernel. Where `kernels` say how products are computed, their
FLOPs take longer by what the sizes waste (`shardopt/cost/products.py`):

* **Tiles and waves.** On a GPU the result is cut into tiles, of which each of the `cores` computes one at a time. 144
  tiles on 132 cores take as long as 264. Of the tiles that cuBLAS has names for, and of cuts of the depth into up to 16
  parts, the fastest is taken. A tile smaller than 128 x 128 is slower in proportion to what it loads for each FLOP.
* **Orders of f32.** Tensor cores of Hopper GPUs take 32-bit operands along what is contracted alone (PTX ISA, `wgmma`:
  only 16-bit operands may be transposed). So `x·Wᵀ` is faster in f32 than `x·W`, and that than `xᵀ·dy`, by `across`; which
  product is which follows from the innermost dimensions that the program gives its operands.
* **Orders of 8 bits.** Such operands have to lie along what is contracted, too (cuBLAS): where the device has `across`, one that
  does not is read and written once more, of a layer the weight once, and input and gradient for the gradient of the weight.
* **Alignment.** Products whose rows do not fill words of 16 bytes, such as 50,257 columns, take 1 / `unaligned` as long.
* **Systolic arrays.** On a TPU columns and depth are filled up to multiples of `matrix_unit`, rows to multiples of eight.
* **Thin products** are bound by memory, or by the least time of a kernel. A product with a vector, or of two, is a loop
  over elements.

What is known of an operation before it is split, and bounds the search for stages, takes the FLOPs alone: no share is
faster than that.

The tiles and waves are those of NVIDIA's [guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html)
to products, the filling up is that of Austin et al., [How to Scale Your Model](https://github.com/jax-ml/scaling-book),
chapter 2. One constant, how much a tile has to use what it loads, is the nearest of four to single products measured on
an H100; none is fitted to training steps.

## Attention

XLA writes the scores of attention to memory, and reads them for the softmax, for the product with the values, and again
backward. It does so for everything that it compiles by itself: its GPU backend calls cuDNN's attention where the program
asks for it by name, as `jax.nn.dot_product_attention(…, implementation="cudnn")` does. Libraries never write them.
Where the cluster file gives rates of such kernels (`attention` under [kernels](../guide/cluster.md)), attention that is
written in plain operations is priced as if one of them computed it
(`shardopt/solve/sharding/kernels/attention.py`, `shardopt/cost/attention.py`):

* **What it is** follows from the flow of data: all that works on values as large as the scores around an exponential,
  between products that have a batch. Scale, mask, softmax in any spelling and dropout may lie between them. The logits
  of a cross entropy come from a product without a batch, and are not attention.
* **One kernel forward, one backward.** The backward one takes the product of the scores again, reads what the rows sum
  up to, and makes the gradients of queries, keys and values: five products for two. No value as large as the scores is
  in memory, in seconds or in bytes, but a mask that is an input.
* **Seconds** are FLOPs / (peak · share) · (visible + fill / keys). `share` is what the products reach over long
  sequences, `fill` what a block of queries takes to begin and to end, in keys; both are interpolated by head size. A
  mask that comes from comparing positions hides blocks of 128 x 128: n of them a side leave (n + 1) / 2n.
* **Where the scores leave their fragment**, such as residuals that a pipeline keeps for the backward pass, they are
  written, and nothing is fused. `jax.checkpoint` around attention avoids that.

**A call of cuDNN's attention** takes what its products take: two forward, five backward, at the rates of `attention` where
the cluster file has them, else at those of products, less the blocks that a causal mask hides. It reads its operands and
writes its results once.

To switch it off, leave `attention` out. That a plan is priced so does not make XLA run it so.

## Collectives

With n devices, latency a and w bytes/s, a value of b bytes takes (`shardopt/cost/collectives.py`):

| | seconds | b is |
|---|---|---|
| all-gather, reduce-scatter | a(n - 1) + b(n - 1)/n / w | the whole value |
| all-reduce | the sum of both | what each device holds |
| all-to-all | a(n - 1) + b(n - 1)/n² / w | n times what each device holds |
| permute | a + b / w | what each device sends |

The first three are NCCL's own model where the host group has [`nccl`](../guide/cluster.md), and all are what was measured where a
[profile](../guide/profile.md) has them. Which w holds depends on where the devices are:

* **Across hosts** the groups of devices that leave a host share its network card. A ring passes it once for each group. Of
  an all-to-all the messages to other hosts pass it, and of a permute all.
* **Behind a switch** each device has `intra_host`.
* **On a torus** (`torus`, slices of TPUs) an axis of the mesh lies along as many dimensions as
  `jax.experimental.mesh_utils.create_device_mesh` gives it, and a collective uses the links of all of them at once: two a
  chip along a dimension that it goes around, one along a line, its share of these where groups lie between each other. The
  latency a is paid for each hop along each dimension. Of an all-to-all the halves of each dimension send each other what they
  have, and the fullest link decides: a link carries n f / 8 of the messages of n chips, f of them around the dimension,
  n f / 4 along a line. A permute has one link. On 4 x 4 chips of a v5e (45 GB/s a link, no wraps) a ring has 90 GB/s
  a chip, an all-to-all 42. Collectives over several slices pass the NICs of
  the hosts (`between_slices`); messages between meshes have `inter_host`.
* **With links of their own** (`device_links`) rings have as many links as there are rings that fit into them at once, and all
  messages of an all-to-all go at once: what its busiest link carries decides. A message takes the link between its
  devices; where there is none it passes through a third device of the group, the one with the widest links; where no device
  joins them it goes through the memory of the host, at the rate of `host_link`. This is how NCCL finds its paths
  (`src/graph/paths.cc`; through a third GPU since 2.8.3). On the cube mesh of eight V100, of 20 GB/s a link, rings over all
  have 120 GB/s a device, an all-to-all 47: three of seven partners have no link, and three messages are on the fullest one.
  A permute is priced as one to the next member of the group, 20 GB/s there.

Messages between meshes inside of such a host take the same ways, and wait for each other where they share a link.

## Overlap

Where the cluster file says `overlap: true`, or `--overlap on` does, collectives run beside computing, as XLA's
latency-hiding scheduler and asynchronous collectives let them (`shardopt/solve/sharding/intra_op/overlap.py`):

* gathers, and other reshardings, of what was there when the program began, such as the shards of a weight, run ahead of
  their use;
* sums that no product of the program waits for, such as those of gradients, run behind what is still computed;
* all others, such as the sums of activations under tensor parallelism, hold the program up.

A program of f seconds of computing, b seconds of collectives of the first two kinds and w of the third takes
max(f, b) + w seconds. On GPUs collectives take cores and memory from what computes: products take 1.73 times as long beside
them, the mean of 1.76 on an A100 ([NVIDIA/nccl#1428](https://github.com/NVIDIA/nccl/issues/1428)) and 1.70 on an H100
([NVIDIA's forum](https://forums.developer.nvidia.com/t/337991)). There a program saves the lesser of f and b / 1.73. Whole
steps of GPT and LLaMA on A100, H100, MI210 and MI250 say that it is no less: all their computing is 18.9 % longer with
collectives beside it, and steps without 10.2 % longer than with ([Lee et al.](https://arxiv.org/abs/2507.03114)). If all collectives were
beside computing, they took 0.31 f and saved 0.12 f, b / 2.6. In pieces (`windowed_products`) products get on by what the 24
multiprocessors leave that NeMo gives to Transformer Engine's exchanges at most, or by `windowed_share` of b.

Frameworks combine small collectives, and XLA does up to 30 MiB. Where the cluster file has `combined_bytes`, collectives of
the first two kinds, and reshardings of what only the end of a program reads, take their share of one of so many bytes, and no less
than a 256th of what they take alone: XLA combines no more of them. What is proven about shardings is without that, and bounds
of stages are as much lower.

That is one account, for stages while they are chosen and for the finished plan. Transfers between
meshes are beside computing with or without it: the simulated schedule lets a mesh go on while it sends.

The solver minimizes f + b + w, of which max(f, b) + w is at least the half. So what it proves about shardings it proves
about the sum; the time with overlap of a sharding that is optimal for the sum is at most twice the least one. The choice
of stages takes the seconds with overlap of each stage's sharding, and bounds that are halved accordingly.

It is on in the presets of TPUs, where XLA does this by default, but for scatters (`awaited: [reduce_scatter]`): it has
flags for gathers and for all-reduces beside fusions (MaxText, `benchmarks/xla_flags_library.py`). It is off in those of GPUs: XLA has
`xla_gpu_enable_latency_hiding_scheduler` off unless a user sets it (`DefaultDebugOptionsIgnoringFlags` in
`xla/debug_options_flags.cc`), and the runtime sets no flag. XLA's CPU backend runs collectives one after the other.

## Work

Work is FLOPs, counted as XLA's cost analysis counts them:

* A multiply-add is two FLOPs. Products with padding, or with the holes of a dilated convolution, are none.
* A region counts as often as it combines elements.
* Transcendental functions are counted apart; one takes as long as {weight:g} FLOPs.
* A loop counts as often as it runs, or {trips} times if that depends on data. All branches of a `case` count as
  if they ran.
* An operation without FLOPs still takes one for each element of the result. Otherwise doing it on every device
  would be free.

## Bytes

An operation that runs alone reads its operands and writes its results. A `gather`, `slice` or `dynamic_slice`
reads only the part of its operand that ends up in the result. A `dynamic_update_slice` and a `scatter` write in
place, and touch only what comes in. Reshapes and constants are free.

But a compiler fuses operations. A planner that charges every operand of every elementwise operation finds two to
four times the bytes that the compiled program moves. So bytes are counted by kernels
(`shardopt/solve/sharding/kernels/fusion.py`):

* A value is written once, if it is written at all. Every kernel that needs it reads it once, whatever number of
  the kernel's operations do.
* An operation is fused into its readers if it can be fused into all of them, unless that would move more bytes
  than writing its result, where a kernel reads a tensor once however often its operations do. Functions such as
  exponentials are computed once, but where kernels are `merged`: XLA's GPU backend computes them again in each kernel, and
  keeps what they are made of. It keeps the longest (`tanh`, `power`, sines).
* A reduction over dimensions of one element is another name for its operand.
* What passes a barrier is written, once. Who reads it behind the barrier is another kernel than the one that makes it; who reads
  it elsewhere may be the same.
* A value that is resharded between operations that would be fused is written and read for that.
* A sharding constraint is no operation of a kernel: what it hands on is its operand, in the same memory. Only where
  the two have different shardings it costs something, namely the collective and the memory of the result.

**Orders in memory.** A library multiplies matrices, so the batch, the rows and the columns of an operand have to be
dimensions that follow each other in memory, each group in the order in which the result, or the other operand, has it; rows and
columns may change places. Where the cluster file has kernels `merged`, as those of GPUs have, values lie as what made them wrote
them (`shardopt/solve/sharding/kernels/memory_orders.py`):

* A product writes its result as the program has it, or with rows and columns in each other's place. Loops over elements keep the
  order of what they read, and a transposition is another name for the same memory.
* An operand that is no matrix in that order is written once more in one that is, and read again. What a loop makes the copy
  computes on its way, so that it need not lie in memory otherwise.
* Where an operation finds its operands in two orders, the one that was made first decides, and the others are copied.
* A reduction over what is not innermost in memory goes over columns: its kernel ends with it.

The scores of grouped queries, `bkgd,bqgmd->bgkqm`, are an example: their softmax reduces columns, and the product with the
values needs (q, m) as (m, q). XLA writes the same copies.

A copy whose innermost dimension fills no sector of 32 bytes, such as three heads for a key, takes five times as long: XLA's
move scores so at 0.64 to 1.0 of the 4.1 TB/s of other copies on an H200.

**Rows on the chip.** A kernel that reduces rows and takes the result, as softmax and normalisations are, keeps them in
registers, and runs the slower the more tensors it keeps rows of (`held_seconds` in `shardopt/cost/compute.py`). Where `cores`
are known, each takes 40 ps an element on top of the bytes, 80 with exponentials, times the square of the number of tensors:
on an H200 softmax forward in f32 as long again as a third of its bytes, and backward as nearly all of them. It
writes one result: where sums of rows are needed elsewhere, one more kernel reads the rows. Rows of more than 16,384
elements are not kept so, and where exponentials are not computed again, in f16 too, rows of one tensor at a time.

How near this comes to compiled programs: [costs of operations, measured](../evidence/operation-costs.md).

## Operations, one by one

Made from the examples of tests/unit/operations/op_examples.py and tests/unit/operations/work_examples.py by
`python -m tests.unit.operations.costs_page`; a test checks that it is up to date, and that nothing differs from
XLA but what the second table names. Sums are over all operations of the example.

| operation | FLOPs | transcendentals | bytes, alone |
|---|---|---|---|
"""
_DEPARTURES = """
## Where they are not XLA's

| operation | | ours | XLA's | why |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Count:
    """What we count for all operations of an example, and what XLA does."""

    example: Example
    ours: XlaCosts
    xla: XlaCosts

    @property
    def same_work(self) -> bool:
        return (self.ours.flops, self.ours.transcendentals) == (
            self.xla.flops,
            self.xla.transcendentals,
        )

    @property
    def same_bytes(self) -> bool:
        return self.ours.bytes == self.xla.bytes


def counts() -> Iterator[Count]:
    for example in (*EXAMPLES, *MORE):
        yield Count(example, _ours(example), unoptimized_costs(example.text))


def _ours(example: Example) -> XlaCosts:
    flops = transcendentals = moved = 0.0
    graph = graph_of(example)
    for op in graph.ops:
        flops += op.flops * op.repeat
        transcendentals += op.transcendentals * op.repeat
        sizes = [
            [graph.tensors[tensor].size_bytes for tensor in side]
            for side in (op.operands, op.results)
        ]
        moved += touched_bytes(op.name, *sizes) * op.repeat
    return XlaCosts(flops, transcendentals, moved)


def page() -> str:
    rows = tuple(counts())
    head = _HEAD.format(weight=TRANSCENDENTAL_FLOPS, trips=UNKNOWN_TRIPS)
    return head + "".join(_rows(rows)) + _DEPARTURES + "".join(_departures(rows))


def _rows(counts: tuple[Count, ...]) -> Iterator[str]:
    for count in counts:
        ours = count.ours
        yield f"| {_name(count)} | {ours.flops:g} | {ours.transcendentals:g} | {ours.bytes:g} |\n"


def _departures(counts: tuple[Count, ...]) -> Iterator[str]:
    for count in counts:
        in_work, in_bytes = DEPARTURES.get(count.example.name, ("", ""))
        if in_work:
            yield (
                f"| {_name(count)} | FLOPs | {count.ours.flops:g} | {count.xla.flops:g} | "
                f"{in_work} |\n"
            )
        if in_bytes:
            yield (
                f"| {_name(count)} | bytes | {count.ours.bytes:g} | {count.xla.bytes:g} | "
                f"{in_bytes} |\n"
            )


def _name(count: Count) -> str:
    return count.example.name.replace(":", ", ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
