// RUN: not shardopt-opt %s --shardopt-offload-state 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: sed -e 's/shardopt.stages =/shardopt.other =/' %S/Inputs/placed.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-offload-state 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/tanh %h {shardopt.layer/tanh %h {shardopt.other/' %S/Inputs/placed.mlir > %t.layer
// RUN: not shardopt-opt %t.layer --shardopt-offload-state 2>&1 | FileCheck %s --check-prefix=LAYER

// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// NONE: error: expected attribute 'shardopt.stages' on '@main' (run shardopt-choose-stages first), found none
// LAYER: error: expected 'shardopt.layer' on every operation (run the cluster phase first), none is on 'stablehlo.tanh'
func.func @main() {
  return
}
