// Each pair of lines breaks the accepted module of Inputs/two-stages.mlir in one place.
// RUN: sed -e 's/shardopt.schedule/shardopt.order/' %S/Inputs/two-stages.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/bubble = 0.48 : f64, peak_bytes/peek_bytes/' %S/Inputs/two-stages.mlir > %t.keys
// RUN: not shardopt-opt %t.keys --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=KEYS
// RUN: sed -e 's/name = "1f1b"/name = "zero"/' %S/Inputs/two-stages.mlir > %t.name
// RUN: not shardopt-opt %t.name --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: sed -e 's/name = "1f1b"/name = "inference"/' %S/Inputs/two-stages.mlir > %t.order
// RUN: not shardopt-opt %t.order --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=ORDER
// RUN: sed -e 's/array<i64: 192, 192>/array<i64: 192, 1001>/' %S/Inputs/two-stages.mlir > %t.memory
// RUN: not shardopt-opt %t.memory --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=MEMORY
// RUN: sed -e 's/array<i64: 192, 192>/array<i64: 192>/' %S/Inputs/two-stages.mlir > %t.meshes
// RUN: not shardopt-opt %t.meshes --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=MESHES
// RUN: sed -e 's/shardopt.cluster = /shardopt.klaster = /' %S/Inputs/two-stages.mlir > %t.cluster
// RUN: not shardopt-opt %t.cluster --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=CLUSTER
// RUN: sed -e 's/array<i64: 192, 192>/array<i64: 192, 191>/' %S/Inputs/two-stages.mlir > %t.peak
// RUN: not shardopt-opt %t.peak --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=PEAK
// RUN: sed -e 's/{seconds = 3.0 : f64}/{peak_bytes = 3 : i64}/' %S/Inputs/two-stages.mlir > %t.seconds
// RUN: not shardopt-opt %t.seconds --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=SECONDS
// RUN: sed -e 's/shardopt.schedule = {/shardopt.schedule = "x", shardopt.rest = {/' %S/Inputs/two-stages.mlir > %t.dict
// RUN: not shardopt-opt %t.dict --shardopt-verify-scheduled 2>&1 | FileCheck %s --check-prefix=DICT

// NONE: error: expected attribute 'shardopt.schedule' on the microbatch loop, found none
// KEYS: error: expected name, makespan_seconds, bubble, peak_bytes in 'shardopt.schedule', found no valid bubble, peak_bytes
// NAME: error: unknown schedule: 'zero'; did you mean 'zero-bubble'?
// ORDER: error: schedule 'inference' has forwards only, and the model has a backward: expected one that trains
// MEMORY: error: expected at most 1000 bytes on a device of cluster test:1x4, found a peak of 1001 bytes on mesh 'm1'
// MESHES: error: expected peak_bytes of 2 meshes in 'shardopt.schedule', found array<i64: 192>
// CLUSTER: error: expected attribute 'shardopt.cluster' on the module (written by the stage phase), found none
// PEAK: error: expected a peak of 192 bytes on mesh 'm1', which its tasks hold, found 191
// DICT: error: expected 'shardopt.schedule' of the form {name = {{.*}}}, found "x"
// SECONDS: error: expected seconds in 'shardopt.cost' of 'mpmd.fragment', found {peak_bytes = 3 : i64}
