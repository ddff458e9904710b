// Stages from a plan file: devices and shapes as it says, nothing is solved, nothing is predicted.
// RUN: shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2+cpu-test:1x2 plan=%S/Inputs/two-stages.plan.yaml" | FileCheck %s
// RUN: shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2+cpu-test:1x2 plan=%S/Inputs/two-stages.plan.yaml" --mlir-pass-statistics -o %t 2>&1 | FileCheck %s --check-prefix=STATISTICS
// RUN: not shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x4 plan=%S/Inputs/two-stages.plan.yaml" 2>&1 | FileCheck %s --check-prefix=GROUP
// RUN: not shardopt-opt %S/choose-stages.mlir --shardopt-cluster-layers="layers=1" --shardopt-stage="cluster=cpu-test:1x2+cpu-test:1x2 plan=%S/Inputs/two-stages.plan.yaml" 2>&1 | FileCheck %s --check-prefix=LAYERS

// CHECK: module attributes {{.*}}shardopt.cluster = {groups = [{
// CHECK: shardopt.devices = [array<i64: 3, 2>, array<i64: 0, 1>]
// CHECK-SAME: topology = #mpmd.topology<<"m0" : <["x"=2, "y"=1]>>, <"m1" : <["x"=1, "y"=2]>>>
// CHECK: mpmd.for {{.*}} {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>
// CHECK-NOT: shardopt.predicted

// STATISTICS-DAG: 0 sharding problems solved
// STATISTICS-DAG: 0 stage candidates

// GROUP: error: field 'stages[0].group': expected one of cpu-test, found 'cpu-test-2'

// LAYERS: error: field 'stages': expected all 1 layers, found 2
