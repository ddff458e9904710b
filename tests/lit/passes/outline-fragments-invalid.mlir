// RUN: not shardopt-opt %s --shardopt-outline-fragments 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: sed -e 's/shardopt.stages =/shardopt.other =/' %S/Inputs/placed.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-outline-fragments 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/mesh = "m1"}/mesh = "m2"}/' %S/Inputs/placed.mlir > %t.mesh
// RUN: not shardopt-opt %t.mesh --shardopt-outline-fragments 2>&1 | FileCheck %s --check-prefix=MESH
// RUN: sed -e 's/layers = array<i64: 1, 1>/layers = array<i64: 2, 2>/' %S/Inputs/placed.mlir > %t.stage
// RUN: not shardopt-opt %t.stage --shardopt-outline-fragments 2>&1 | FileCheck %s --check-prefix=STAGE
// RUN: sed -e 's/topology =/shardopt.other =/' %S/Inputs/placed.mlir > %t.topology
// RUN: not shardopt-opt %t.topology --shardopt-outline-fragments 2>&1 | FileCheck %s --check-prefix=TOPOLOGY
// RUN: sed -e 's/tanh %h {shardopt.layer/tanh %h {shardopt.other/' %S/Inputs/placed.mlir > %t.layer
// RUN: not shardopt-opt %t.layer --shardopt-outline-fragments 2>&1 | FileCheck %s --check-prefix=LAYER

// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// NONE: error: expected attribute 'shardopt.stages' on '@main' (run shardopt-choose-stages first), found none
// MESH: error: expected a mesh of the topology (m0, m1), found 'm2'
// STAGE: error: expected layer 1 in some stage of 'shardopt.stages', found none
// TOPOLOGY: error: expected attribute 'topology' on the function, found none
// LAYER: error: expected 'shardopt.layer' on every operation (run the cluster phase first), none is on 'stablehlo.tanh'
func.func @main() {
  return
}
