// RUN: not shardopt-opt %S/cluster-layers.mlir --shardopt-cluster-layers="layers=40" 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: not shardopt-opt %S/cluster-layers.mlir --shardopt-cluster-layers="method=equal" 2>&1 | FileCheck %s --check-prefix=METHOD
// RUN: not shardopt-opt %S/cluster-layers.mlir --shardopt-cluster-layers="layer-balance=seconds" 2>&1 | FileCheck %s --check-prefix=CLUSTER
// RUN: not shardopt-opt %s --shardopt-cluster-layers 2>&1 | FileCheck %s --check-prefix=LOOP

// MANY: error: cannot cut {{[0-9]+}} operations into 40 layers: a layer needs an operation; the largest feasible number is
// METHOD: error: {{.*}}option 'method' of shardopt-cluster-layers expects dp | equal-op | equal-layer, found 'equal'
// CLUSTER: error: expected option cluster=<file or preset[:HxD]>, found none
// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
