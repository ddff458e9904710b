// RUN: not shardopt-opt %s --shardopt-recompute-stages 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: sed -e 's/shardopt.stages =/shardopt.other =/' %S/Inputs/placed.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-recompute-stages 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/layers = array<i64: 0, 0>/layers = 0 : i64/' %S/Inputs/placed.mlir > %t.form
// RUN: not shardopt-opt %t.form --shardopt-recompute-stages 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: sed -e 's/tanh %h {shardopt.layer/tanh %h {shardopt.other/' %S/Inputs/placed.mlir > %t.layer
// RUN: not shardopt-opt %t.layer --shardopt-recompute-stages 2>&1 | FileCheck %s --check-prefix=LAYER

// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// NONE: error: expected attribute 'shardopt.stages' on '@main' (run shardopt-choose-stages first), found none
// FORM: error: expected 'shardopt.stages' to list stages with layers and a mesh, found [{layers = 0 : i64,
// LAYER: error: expected 'shardopt.layer' on every operation (run the cluster phase first), none is on 'stablehlo.tanh'
func.func @main() {
  return
}
