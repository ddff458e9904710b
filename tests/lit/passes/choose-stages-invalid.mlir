// RUN: shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" -o %t.mlir
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages 2>&1 | FileCheck %s --check-prefix=CLUSTER
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-tset" 2>&1 | FileCheck %s --check-prefix=PRESET
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 submesh=1x3" 2>&1 | FileCheck %s --check-prefix=SUBMESH
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 logical-shape=2x1" 2>&1 | FileCheck %s --check-prefix=SHAPE
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x4 submesh=1x2 logical-shape=1x4" 2>&1 | FileCheck %s --check-prefix=BOTH
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x4 num-stages=3" 2>&1 | FileCheck %s --check-prefix=STAGES
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test schedule=1f2b" 2>&1 | FileCheck %s --check-prefix=SCHEDULE
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 schedule=inference" 2>&1 | FileCheck %s --check-prefix=BACKWARD
// RUN: shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 schedule=inference num-stages=1"
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x4 inter-op=inter-only" 2>&1 | FileCheck %s --check-prefix=ONE-EACH
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x4 inter-op=intra-only num-stages=2" 2>&1 | FileCheck %s --check-prefix=ONE-STAGE
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x4 inter-op=piper intra-op=zero3" 2>&1 | FileCheck %s --check-prefix=METHOD
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 num-stages=1 intra-op=expert batch-args=2" 2>&1 | FileCheck %s --check-prefix=NO-EXPERTS
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 num-stages=2 memory-budget=300" 2>&1 | FileCheck %s --check-prefix=MEMORY
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 num-stages=2 memory-budget=100" 2>&1 | FileCheck %s --check-prefix=PROOF
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x2 num-stages=2 memory-budget=1TB" 2>&1 | FileCheck %s --check-prefix=ALL
// RUN: not shardopt-opt %t.mlir --shardopt-choose-stages="cluster=cpu-test:1x4 submesh=1x2 num-stages=1" 2>&1 | FileCheck %s --check-prefix=DEVICES
// RUN: not shardopt-opt %S/choose-stages.mlir --shardopt-choose-stages="cluster=cpu-test" 2>&1 | FileCheck %s --check-prefix=LAYER
// RUN: not shardopt-opt %s --shardopt-choose-stages="cluster=cpu-test" 2>&1 | FileCheck %s --check-prefix=LOOP

// CLUSTER: error: expected option cluster=<file or preset[:HxD]>, found none
// PRESET: error: unknown cluster preset 'cpu-tset'; did you mean 'cpu-test'?
// SUBMESH: error: cluster cpu-test:1x2 has no submesh 1x3; it has 1x1 as 1x1, 1x2 as 1x2
// SHAPE: error: cluster cpu-test:1x2 has no submesh of logical shape 2x1; it has 1x1 as 1x1, 1x2 as 1x2
// BOTH: error: cluster cpu-test:1x4 has no submesh 1x2 of logical shape 1x4; it has
// STAGES: error: cannot make 3 stages of 2 layers on 4 devices: a stage needs a layer and a device
// SCHEDULE: error: unknown schedule: '1f2b'; did you mean '1f1b'?
// BACKWARD: error: schedule 'inference' has forwards only, and the model has a backward: expected one that trains, such as 1f1b, or auto
// ONE-EACH: error: 2 layers cannot use exactly 4 devices
// ONE-STAGE: error: inter-op=intra-only makes one stage of all layers, found num-stages=2
// METHOD: error: this inter-op planner chooses how stages are sharded: expected intra-op=ilp, found zero3
// NO-EXPERTS: error: {{.*}}; preset 'expert' splits experts: expected products with weights that have an expert dimension
// MEMORY: error: no plan of 2 stages of 2 layers fits the memory of a device (300 bytes): in the leanest, with 2 stages,
// MEMORY-SAME: stage {{[01]}} (layers {{.*}} on 1x1 as 1x1{{.*}} in flight) needs {{[0-9]+}} bytes and lacks {{[0-9]+}} bytes
// MEMORY-SAME: the least that was found is {{[0-9]+}} bytes{{$}}
// PROOF: error: no plan of 2 stages of 2 layers fits the memory of a device (100 bytes): {{.*}}; less than 192 bytes is never enough
// ALL: error: option memory-budget: expected at most the {{[0-9]+}} bytes ({{.*}}) of a device cpu of cluster cpu-test:1x2, found
// DEVICES: error: 1 stage of 2 layers cannot use exactly 4 devices with submeshes of 2 devices
// LAYER: error: expected 'shardopt.layer' on every operation (run the cluster phase first), none is on 'stablehlo.constant'
// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
