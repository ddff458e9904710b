"""What FSDP2 of PyTorch takes beside what a plan of ZeRO 3 counts: weights that it keeps whole,
memory that its streams do not share, and copies into and out of what it exchanges.

FSDP2 gathers and scatters groups: each block, and all that is outside of blocks (torchtitan,
parallelize_llama.py, apply_fsdp). From torch/distributed/fsdp/_fully_shard:

* The outer group is gathered once a step and kept for the backward pass (`_lazy_init` of
  _fsdp_state.py), where a plan has the embedding for its use alone.
* `foreach_all_gather` gathers into a flat buffer of a stream of its own. The buffer of the outer
  group is freed behind that of the first block. `foreach_reduce` makes parts of gradients in
  another stream. PyTorch's allocator keeps memory for the stream that asked for it
  (c10/cuda/CUDACachingAllocator.cpp), so that nothing else lies where these were: reserved memory
  is the sum of what each stream needed at most.
* Weights are copied out of the buffer (`split_with_sizes_copy`), gradients into one of the type in
  which they are summed (`chunk_cat`); both in the stream that computes.

Where nothing is compiled, selective recomputation keeps what it is told to, also results that the
backward pass does not read (torch/utils/checkpoint.py, `_CachingTorchDispatchMode`): that of a
block's last product."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardopt.hardware.cluster import Device
from shardopt.measured.layout import RowLayout, RowRecomputation
from shardopt.models.computing import Computing
from shardopt.models.specs import LlamaSpec

# Bytes of a number: of weights as they are used and of gradients as they are made, of gradients as
# they are summed, and of a weight of a block in 8 bits.
_NARROW, _WIDE, _FLOAT8 = 2, 4, 1


@dataclass(frozen=True)
class Beside:
    """Seconds of a step, and bytes of a device."""

    seconds: float = 0.0
    bytes: float = 0.0


def beside(
    spec: LlamaSpec,
    how: Computing,
    device: Device,
    layout: RowLayout,
    recomputation: RowRecomputation,
) -> Beside:
    """Of a plan of one stage; `spec.batch` is the batch of a step."""
    groups = _Groups(spec, how, layout)
    held = groups.first_buffers + groups.gradient_parts + groups.kept_embedding
    merged = device.kernels is not None and device.kernels.merged
    if recomputation.within == "per-operation" and not merged:
        held += groups.last_products
    reached = device.kernels.memory if device.kernels else 1.0
    return Beside(groups.copied / (reached * device.memory_bandwidth), held)


@dataclass(frozen=True)
class _Groups:
    """Bytes of what FSDP2 exchanges, on a device."""

    spec: LlamaSpec
    how: Computing
    layout: RowLayout

    @property
    def first_buffers(self) -> float:
        """Into which the outer group and the first block are gathered."""
        return _NARROW * self._outside + self._block_bytes

    @property
    def gradient_parts(self) -> float:
        parts = self.layout.width / self.layout.tensor_parts
        return _WIDE * (self._outside + self.spec.layers * self._block) / parts

    @property
    def kept_embedding(self) -> float:
        """A plan has the last product's weight where memory is scarcest, as the loss is taken."""
        return _NARROW * (
            self._outside - self.spec.vocab * self.spec.hidden / self.layout.tensor_parts
        )

    @property
    def last_products(self) -> float:
        """Of the blocks, on one microbatch; tensor parallelism leaves terms of all tokens."""
        assert self.layout.microbatch is not None, "the caller fills in what is open"
        tokens = self.layout.microbatch * self.spec.sequence * self.layout.replicas
        parts = self.layout.width / self.layout.tensor_parts
        return _NARROW * self.spec.layers * self.spec.hidden * tokens / parts

    @property
    def copied(self) -> float:
        """Read and written in a step. All blocks but the last are gathered twice a microbatch.
        Plans have products that write wide gradients; here they write narrow ones, which are read
        and written wide."""
        blocks = (2 * self.spec.layers - 1) * self._block_bytes
        weights = 2 * (blocks + _NARROW * self._outside)
        made = self._outside + self.spec.layers * self._block
        return self.layout.microbatches * (weights + 2 * _NARROW * made)

    @property
    def _block_bytes(self) -> float:
        return (_FLOAT8 if self.how.float8 else _NARROW) * self._block

    @property
    def _block(self) -> float:
        of_blocks = self.spec.parameters - replace(self.spec, layers=0).parameters
        return of_blocks / self.spec.layers / self.layout.tensor_parts

    @property
    def _outside(self) -> float:
        return replace(self.spec, layers=0).parameters / self.layout.tensor_parts
