"""The kinds of remarks: what `--remarks=KIND` selects."""

from __future__ import annotations

REMARK_KINDS = {
    "accumulation": "a step that accumulates over parts of its batch: its loop is the microbatch "
    "loop, or why it is none",
    "batch-arguments": "which arguments are the batch, and how that was found",
    "cache": "a cache of plans that cannot be read or written",
    "cached-plan": "the plan is that of an earlier run",
    "dropped-annotation": "a sharding that the user wrote and no plan can have",
    "dropped-attribute": "what the call of a function said is lost where it is inlined",
    "dynamic-loop": "a loop that stays one, as its iterations depend on data",
    "explain": "why a value is sharded as it is; always printed where it is asked for",
    "full-batch-epilogue": "what mixes rows of the batch runs once a step, on all of it",
    "layers": "the numbers of layers, or what layers have equal shares of, that were tried",
    "left-out-factor": "what all rows wait for multiplies their sums, behind the loop",
    "microbatches": "the numbers of microbatches that were tried",
    "no-batch": "no batch was found: the step is one microbatch",
    "no-batch-structure": "why a step cannot be cut along its batch",
    "no-sharding-rule": "what cannot be partitioned and runs whole on each device",
    "promised-seconds": "the finished step takes less than its stages were chosen for",
    "rematerialized": "a value that is computed again, and what that saves",
    "ring-attention": "attention whose keys go round a ring of devices, and in how many turns",
    "runs-whole": "what a program for one device computes whole",
    "schedule": "the schedule that was taken, and those beside it",
    "schedules": "the schedules that stages were planned for",
    "sharding-plan": "seconds, bytes and the proven gap of the plan of a mesh",
    "stage-cut": "where the stages are cut, and why there",
    "strategy": "how a product or a convolution is split, and what the next best would take",
    "uneven-dimension": "a dimension that its devices do not divide",
    "token-slices": "the slices into which the tokens of a causal model are cut",
    "whole-stack": "an argument with weights of several layers that stays one, and why",
    "unknown-trip-count": "a loop that is priced as if it ran once",
}
