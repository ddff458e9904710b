"""What the attributes in our IR mean: the table behind `docs/reference/dialect.md`.

`tests/unit/test_docs.py` holds it against the IR of the tutorial: an attribute first appears after
the phase that the table names, and on operations that the table names."""

from __future__ import annotations

from dataclasses import dataclass

from shardopt.dialect.annotation import SHARDING
from shardopt.dialect.batch import BATCH, NO_BATCH, STEP_LOOP
from shardopt.dialect.choices import CHOICES
from shardopt.dialect.cluster import CLUSTER
from shardopt.dialect.donation import (
    ALIASING_OUTPUT,
    BUFFER_DONOR,
    MEMORY,
    REPLACED_BY,
    VERSION_OF,
)
from shardopt.dialect.mpmd import (
    BACKWARD,
    COST,
    DEVICES,
    IN_FLIGHT,
    INTRA_OP,
    KIND,
    LAYER,
    OFFLOAD,
    RECOMPUTE,
    RESHARDING,
    SCHEDULE,
    STAGE,
    STREAMS,
    SUM_POINT,
    TOPOLOGY,
)
from shardopt.dialect.padding import SHAPE
from shardopt.dialect.parts import PART
from shardopt.dialect.plain_mesh import PLAIN_MESH
from shardopt.dialect.prediction import PREDICTED
from shardopt.dialect.rematerialization import REMATERIALIZE
from shardopt.dialect.sharding import MHLO_SHARDING
from shardopt.dialect.stages import STAGES
from shardopt.dialect.strategy import CLONE, STRATEGY
from shardopt.dialect.tiles import TILE
from shardopt.dialect.token_slices import TOKEN_SLICES
from shardopt.forms.exported_form import MESH_SHAPE
from shardopt.forms.frontier import FRONTIER

# Who writes what was in the model before the first pass.
INPUT = "input"


@dataclass(frozen=True)
class AttributeDoc:
    """One attribute. `form` is its value as printed; it parses as a builtin, mpmd or sdy attribute.

    `on` names operations and, for attributes of arguments, the function that has them; `writer` is
    a pass, or `INPUT`."""

    name: str
    on: tuple[str, ...]
    form: str
    writer: str
    meaning: str


ATTRIBUTES: tuple[AttributeDoc, ...] = (
    AttributeDoc(
        ALIASING_OUTPUT,
        ("func.func",),
        "0 : i32",
        INPUT,
        "On an argument of `@main`: the result that replaces it in the next step. A training step "
        "marks its state this way. On an argument of a stage function "
        "(`shardopt-lower-to-fragment-calls`): its buffer dies in the call, and this result "
        "takes it over.",
    ),
    AttributeDoc(
        BUFFER_DONOR,
        ("func.func",),
        "true",
        INPUT,
        "On an argument of `@main`: its buffer is donated, and no result is named. Such arguments "
        "are paired with results of equal type in order, as JAX pairs them; the stage phase writes "
        "the pairs as `tf.aliasing_output`.",
    ),
    AttributeDoc(
        REPLACED_BY,
        ("func.func",),
        "0 : i32",
        INPUT,
        "On an argument of the `@main` of a module without stages: the result that replaces it in "
        "the next step, for state that is not donated. `shardopt.shard` writes it where argument "
        "and result are the same tree. Both get one sharding; "
        "`shardopt-annotate-shardings` removes it.",
    ),
    AttributeDoc(
        MEMORY,
        ("func.func",),
        '"host"',
        "shardopt-offload-state",
        "On a donated argument of `@main` that lies in the memory of the hosts, as the result does "
        "that replaces it: fragments outside of the loop fetch it when they run, and store what "
        "replaces it; nothing else may read it.",
    ),
    AttributeDoc(
        PART,
        ("func.func",),
        "array<i64: 0, 0, 3, 1, 8>",
        "shardopt-split-stacks",
        "On an argument or result of `@main` that is rows of one of the model: the number of that, "
        "the dimension, the first row, how many, and how many rows the whole has. A part of one "
        "row is without the dimension. The first part stands in the place of the whole, the others "
        "behind all other arguments (results).",
    ),
    AttributeDoc(
        VERSION_OF,
        ("func.func",),
        "0 : i64",
        "shardopt-version-weights",
        "On an argument of `@main` that holds an older version of the argument of this number: it "
        "begins as that and is state, but no argument of the model. Versions and the results that "
        "replace them come last.",
    ),
    AttributeDoc(
        SHAPE,
        ("func.func",),
        "array<i64: 10, 8>",
        "shardopt-choose-shardings",
        "On an argument or result of a staged `@main` that its mesh does not divide: the shape "
        "that the caller has. The type is that of all tiles, with padding behind the last ones, "
        "which fragments cut off and put on.",
    ),
    AttributeDoc(
        SHARDING,
        ("stablehlo.custom_call", "func.func"),
        '{axes = ["dp", "mp"], sizes = array<i64: 2, 4>, dims = [["dp"], []], '
        "open = array<i64: 1>}",
        "shardopt-read-annotations",
        "A sharding that the user asks for, on arguments and results of `@main` and on markers "
        "(`@Sharding` custom calls): the axes and sizes of the user's own mesh, the axes of every "
        "dimension, and the dimensions that may be split further. `replicated` are axes that split "
        "nothing, `devices` the device ids in row-major order of the axes where they are not 0, 1, "
        "2, … The shard phase obeys it and removes it.",
    ),
    AttributeDoc(
        BATCH,
        ("func.func",),
        "0 : i64",
        "shardopt-split-microbatches",
        "On an argument of `@main` that holds the batch: the dimension it lies on. Data-parallel "
        "methods of later phases start from there.",
    ),
    AttributeDoc(
        NO_BATCH,
        ("func.func",),
        '"cannot tell the batch arguments: …"',
        "shardopt-split-microbatches",
        "On `@main`: why no argument holds the batch, for errors of later phases that need one.",
    ),
    AttributeDoc(
        STEP_LOOP,
        ("func.func",),
        '"the loop at train.py:9:11 hands …"',
        "shardopt-unroll-loops",
        "On `@main`: the loop in which the program takes several steps, for errors of later phases "
        "that cannot cut it.",
    ),
    AttributeDoc(
        LAYER,
        ("stablehlo.*", "func.func"),
        "2 : i64",
        "shardopt-cluster-layers",
        "On every operation of the step and on arguments of `@main`: the layer it belongs to, from "
        "0, the same for an operation, its backward and the update of what it reads. -1 stands for "
        "operations that each reader repeats for itself. The stage phase turns it into the "
        "`origin` of fragments and removes it.",
    ),
    AttributeDoc(
        CLUSTER,
        ("builtin.module",),
        '{name = "cpu-test", hosts = 1 : i64, devices_per_host = 4 : i64, '
        "dispatch_seconds = 2.0e-05 : f64, "
        'device = {name = "cpu", memory_bytes = 2147483648 : i64, '
        "memory_bandwidth = 1.0e+10 : f64, peak_flops = {f32 = 5.0e+10 : f64}}, "
        "intra_host = {latency_seconds = 5.0e-05 : f64, "
        "bandwidth_bytes_per_second = 2.0e+09 : f64}, "
        "inter_host = {latency_seconds = 2.0e-04 : f64, "
        "bandwidth_bytes_per_second = 1.0e+09 : f64}}",
        "shardopt-choose-stages",
        "The cluster the plan is made for, so that later passes need no file. Rates are per second "
        "and per device.",
    ),
    AttributeDoc(
        TOPOLOGY,
        ("func.func",),
        '#mpmd.topology<<"m0" : <["x"=1, "y"=2]>>, <"m1" : <["x"=1, "y"=2]>>>',
        "shardopt-choose-stages",
        "On `@main` and `@microbatch`: the meshes, in the order of their first stages, with the "
        "names and sizes of their axes. An attribute of the mpmd dialect.",
    ),
    AttributeDoc(
        DEVICES,
        ("func.func",),
        "[array<i64: 0, 1>, array<i64: 2, 3>]",
        "shardopt-choose-stages",
        "On `@main`: the device ids of the cluster behind every mesh of the topology, in row-major "
        "order of its axes.",
    ),
    AttributeDoc(
        STAGES,
        ("func.func",),
        '[{layers = array<i64: 0, 1>, mesh = "m0", recompute = "full"}, '
        '{layers = array<i64: 2, 2>, mesh = "m1"}]',
        "shardopt-choose-stages",
        "On `@main`: the stages in pipeline order, each with its first and last layer, its mesh, "
        "what its backward is still to recompute and what is still to be laid into the memory of "
        "its hosts. `shardopt-recompute-stages` obeys `recompute` and removes it, "
        "`shardopt-offload-state` does so with `offload`, `shardopt-outline-fragments` obeys the "
        "rest.",
    ),
    AttributeDoc(
        IN_FLIGHT,
        ("mpmd.for",),
        "array<i64: 2, 1>",
        "shardopt-choose-stages",
        "How many microbatches of every stage stand between their forward and their backward at "
        "once under the schedule that the stages were planned for: what the forward keeps for the "
        "backward is held so many times.",
    ),
    AttributeDoc(
        OFFLOAD,
        ("mpmd.for",),
        '["optimizer", "none"]',
        "shardopt-offload-state",
        "What each stage keeps in the memory of its hosts: nothing, between updates the state that "
        "only the update uses (`optimizer`), between the forward and the backward of a microbatch "
        "what the one makes for the other alone (`activations`), or `all` of that. Left out where "
        "no stage does. Values of 4096 bytes and less stay.",
    ),
    AttributeDoc(
        RECOMPUTE,
        ("mpmd.for",),
        '["layer", "none"]',
        "shardopt-recompute-stages",
        "What every stage recomputes in its backward pass instead of keeping it for each "
        'microbatch in flight: nothing (`"none"`), what is cheap to compute and large to keep '
        '(`"selective"`), the forward of each layer from what enters the '
        'layer (`"layer"`), or its whole forward from what the stage receives (`"full"`); with '
        "`:K` of the first K layers alone. Absent where no stage recomputes.",
    ),
    AttributeDoc(
        STREAMS,
        ("mpmd.for",),
        "2 : i64",
        "shardopt-mirror-stages",
        "Of a loop each of whose iterations is so many microbatches of the batch, in pipelines of "
        "their own over the same meshes: stage p + s of p is stage s again.",
    ),
    AttributeDoc(
        TOKEN_SLICES,
        ("mpmd.for",),
        "{lengths = array<i64: 5, 3>, layers = array<i64: 0, 2, 4>}",
        "shardopt-slice-tokens",
        "Into slices of how many tokens the sequences of a causal model are cut, and where the "
        "layers of each stage of the model begin and end. Stage s · T + k, of T slices, is slice k "
        "on stage s, and what was layer l has a layer for each slice.",
    ),
    AttributeDoc(
        INTRA_OP,
        ("mpmd.for",),
        '["data", "megatron"]',
        "shardopt-choose-stages",
        'How the inside of every stage was planned to be sharded: by the solver (`"ilp"`) or as a '
        "known method does; the shard phase obeys. Absent where the solver decides for all stages.",
    ),
    AttributeDoc(
        PREDICTED,
        ("mpmd.for",),
        '{schedule = "1f1b", step_seconds = 1.61e-02 : f64, formula_seconds = 1.52e-02 : f64, '
        "formula_bound = 1.49e-02 : f64}",
        "shardopt-choose-stages",
        "The schedule that the stages were planned for, and what was predicted when they were "
        "chosen: the seconds of a step by the simulator, those by the formula of the stage DP, and "
        "a lower bound of the formula over all plans (absent for a baseline). "
        "`shardopt-schedule-pipeline` takes this schedule, or a shorter one that holds no more, "
        "unless it is told another.",
    ),
    AttributeDoc(
        KIND,
        ("mpmd.fragment", "mpmd.fragment_call"),
        '"fwd"',
        "shardopt-outline-fragments",
        "What a fragment does: `prologue` and `update` stand outside the loop; in `@microbatch` "
        "stand `fwd` and `bwd`, "
        "or `bwd_input` and `bwd_weight` for a backward in two halves (`shardopt-split-backward`). "
        "With `stage_id` of the fragment it names the task that the schedule orders.",
    ),
    AttributeDoc(
        BACKWARD,
        ("mpmd.fragment", "mpmd.fragment_call"),
        "unit",
        "shardopt-outline-fragments",
        "On a `fwd` that does the backward of its stage, too: that of the last stage of a training "
        "step, or of its only one.",
    ),
    AttributeDoc(
        SUM_POINT,
        ("stablehlo.custom_call",),
        "unit",
        "shardopt-separate-accumulators",
        "On an identity (`@Sharding`) through which a fragment reads a result of the microbatch "
        "loop: where a sum that stays open in the loop may be taken, once for all readers. "
        "`shardopt-insert-reshards` removes the attribute, and the identity too where "
        "nothing is summed.",
    ),
    AttributeDoc(
        STRATEGY,
        ("stablehlo.*", "func.func"),
        '"[{}, {x}], [{x}, {}] -> [{x}, {}] from [{}, {}]"',
        "shardopt-choose-shardings",
        "How an operation of a fragment is to be split: the shardings that it wants of its "
        "operands (and of what its regions capture), and those of its results. `[{x}, {}]` splits "
        "rows along axis x, `[{}, {}] + {y}` are terms of a sum along y. Behind `from` stands what "
        "the operation itself makes, where each device then keeps a part of it or the terms are "
        "summed up. On the `@main` of a plain module: arguments and results. "
        "`shardopt-insert-reshards` makes them agree, `shardopt-annotate-shardings` puts "
        "`mhlo.sharding` in its place.",
    ),
    AttributeDoc(
        CLONE,
        ("stablehlo.*",),
        "unit",
        "shardopt-choose-shardings",
        "On an operation that is cheaper to run again than its result is to move (a constant, a "
        "broadcast scalar): readers that want another sharding get a clone. "
        "`shardopt-insert-reshards` makes them and removes it.",
    ),
    AttributeDoc(
        REMATERIALIZE,
        ("mpmd.fragment", "func.func"),
        '[{chain = array<i64: 3>, readers = array<i64: 7, 9>, strategies = ["[{x}] -> [{x}]"]}, '
        "{operand = 1 : i64, readers = array<i64: 8>}]",
        "shardopt-choose-shardings",
        "What is recomputed instead of kept: `readers` get the last value of copies of the "
        "operations `chain`, which run with `strategies`. A row with an `operand` lets readers "
        "reshard that operand of the first of them once more, instead of sharing a copy with "
        "earlier readers. Operations are numbered as they stand in the fragment, those in loops "
        "and branches instead of these, without barriers; those of a row stand in one region. "
        "`shardopt-rematerialize` obeys and removes it.",
    ),
    AttributeDoc(
        PLAIN_MESH,
        ("func.func",),
        '#sdy.mesh<["x"=2, "y"=2]>',
        "shardopt-choose-shardings",
        "On the `@main` of a module without stages, until `shardopt-annotate-shardings`: the mesh "
        "that it is sharded over. An attribute of Shardy. A program for one device keeps it, and "
        "there device k of the mesh, in row-major order of its axes, is replica k.",
    ),
    AttributeDoc(
        MHLO_SHARDING,
        ("stablehlo.*", "func.func"),
        '"{devices=[1,2]<=[2]}"',
        "shardopt-annotate-shardings",
        "On every operation inside a fragment, and on arguments and results of stage functions: "
        "how its results lie on the devices of the mesh, in the V2 text that XLA reads; several "
        "results share a tuple of texts. Values between fragments say the same in their type: "
        '`!mpmd.mesh_tensor<"m0", tensor<8x4xf32>, sharding=<@m0, [{}, {"y"}]>>`.',
    ),
    AttributeDoc(
        COST,
        ("mpmd.fragment", "mpmd.fragment_call", "func.func"),
        "{seconds = 1.5e-03 : f64, compute_seconds = 1.0e-03 : f64, "
        "communication_seconds = 5.0e-04 : f64, communication_bytes = 131072 : i64, "
        "peak_bytes = 2752524 : i64, "
        'collectives = [{kind = "all_reduce", axes = ["x"], tensors = 1 : i64, '
        "bytes = 131072 : i64}]}",
        "shardopt-choose-shardings",
        "What one execution of the fragment, or of `@main` of a module without stages, is "
        "predicted to take. `collectives` counts tensors and bytes by kind and mesh axes: the most "
        "that one device holds of each tensor, which is the whole value for gathers and reductions "
        "and the device's share for all-to-all and permute; `communication_bytes` is their sum. "
        "`peak_bytes` is the most one device holds.",
    ),
    AttributeDoc(
        TILE,
        ("func.func",),
        '{type = tensor<8x4xf32>, sharding = "[{x}, {}]"}',
        "shardopt-annotate-shardings",
        "On the arguments and results of a program for one device (`sharding-format=collectives`): "
        "of which tensor each is the device's tile, and how that lies on `shardopt.mesh`.",
    ),
    AttributeDoc(
        FRONTIER,
        ("func.func",),
        "{complete = true, least_bound_bytes = 640 : i64, searches = 7 : i64, points = "
        "[{peak_bytes = 640 : i64, seconds = 5.2e-06 : f64, bound_seconds = 5.2e-06 : f64, "
        "recomputed = 0 : i64, fastest_to_bytes = 767 : i64}]}",
        "shardopt-choose-shardings",
        "On the `@main` of a module without stages, where the option `frontier` asks for it: the "
        "plans of least time at every memory budget, the smallest first. No plan within "
        "`peak_bytes` takes less than `bound_seconds`; the plan is the fastest one at all budgets "
        "up to `fastest_to_bytes`, without end where that is left out. No plan holds less than "
        "`least_bound_bytes`.",
    ),
    AttributeDoc(
        CHOICES,
        ("func.func",),
        '{m0 = {inputs = {arg0 = "[{}, {y}]"}, ops = ["tanh [{}, {y}] -> [{}, {y}]"]}}',
        "shardopt-choose-shardings",
        "On `@main`, for the plan file: the shardings of what arrives at each mesh, and of "
        "operands and results of all its operations in the order in which the shard phase reads "
        "them. The export phase removes it.",
    ),
    AttributeDoc(
        RESHARDING,
        ("mpmd.transfer",),
        '{strategy = "send_recv", steps = dense<[[0, 0, 2, 0, 0, 128, 512]]> : tensor<1x7xi64>, '
        "bytes = 262144 : i64, seconds = 1.81e-04 : f64}",
        "shardopt-insert-transfers",
        "Who sends which part to whom. A row of `steps` is (phase, source device, destination "
        "device, start of the slice in each dimension, limit of the slice in each dimension); "
        "phase 0 crosses meshes, later phases pass on inside the destination what arrived in "
        "phases before. Rows of a phase are in the order in which they are best sent. `bytes` "
        "cross in phase 0; `seconds` are predicted for all phases, and for all values that travel "
        "in one message with this one. The microbatch index is known everywhere and has none.",
    ),
    AttributeDoc(
        SCHEDULE,
        ("mpmd.for",),
        '{name = "1f1b", makespan_seconds = 1.73e-02 : f64, bubble = 3.0e-01 : f64, '
        "peak_bytes = array<i64: 2883584, 2097156>}",
        "shardopt-schedule-pipeline",
        "The order of tasks on every mesh, by name (an order that no name stands for is listed as "
        "`tasks`, a text for each mesh), with what the simulator predicts for a step: its length, "
        "the share of mesh time in which no task runs, and the peak memory of a "
        "device of each mesh.",
    ),
    AttributeDoc(
        STAGE,
        ("mpmd.fragment_call",),
        "0 : i64",
        "shardopt-lower-to-fragment-calls",
        "The stage of a call; fragments have `stage_id` instead, which the operation "
        "for calls lacks.",
    ),
    AttributeDoc(
        MESH_SHAPE,
        ("func.func",),
        '#sdy.mesh<["x"=1, "y"=2]>',
        "shardopt-lower-to-fragment-calls",
        "On a stage function: the mesh that its `mhlo.sharding` texts count devices on. An "
        "attribute of Shardy.",
    ),
)
