"""What a stage may lay into the memory of its hosts.

* `optimizer`: the state that only the update uses, between updates
  (`shardopt.graph.streamed_state`).
* `activations`: what the forward of a microbatch makes for its backward, between the two. A device
  holds it while fragments that make or read it run, and not once more for every microbatch in
  flight. After PipeOffload (arXiv 2503.01328), which does so in pipelines.
* `all`: both."""

from __future__ import annotations

MODES = ("none", "optimizer", "activations", "all")
MODE_TEXT = "none, optimizer, activations or all"

# What is no larger takes longer to send than it is worth.
_SMALL_BYTES = 4096


def has_state(mode: str) -> bool:
    return mode in ("optimizer", "all")


def has_activations(mode: str) -> bool:
    return mode in ("activations", "all")


def without_activations(mode: str) -> str:
    return "optimizer" if has_state(mode) else "none"


def is_worth_a_message(size_bytes: int) -> bool:
    """Whether a value of so many bytes, of all devices, may rest on the hosts."""
    return size_bytes > _SMALL_BYTES
