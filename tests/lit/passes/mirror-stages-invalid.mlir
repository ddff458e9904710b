// RUN: not shardopt-opt %s --shardopt-mirror-stages 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: sed -e 's/shardopt.stages =/shardopt.other =/' %S/Inputs/placed.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-mirror-stages 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sed -e 's/mesh = "m1"/mesh = "m0"/' %S/Inputs/placed.mlir > %t.shared
// RUN: not shardopt-opt %t.shared --shardopt-mirror-stages 2>&1 | FileCheck %s --check-prefix=SHARED
// RUN: sed -e 's/iterations = 2/iterations = 3/' %S/Inputs/placed.mlir > %t.odd
// RUN: not shardopt-opt %t.odd --shardopt-mirror-stages 2>&1 | FileCheck %s --check-prefix=ODD
// RUN: sed -e 's/%n1 = stablehlo.add %a1, %g1/%n1 = stablehlo.subtract %a1, %g1/' %S/Inputs/placed.mlir > %t.carried
// RUN: not shardopt-opt %t.carried --shardopt-mirror-stages 2>&1 | FileCheck %s --check-prefix=CARRIED

// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// NONE: error: expected attribute 'shardopt.stages' on '@main' (run shardopt-choose-stages first), found none
// SHARED: error: two pipelines over the same meshes: expected an even number of stages, each on a mesh of its own, found 2 on meshes m0, m0
// ODD: error: schedule 'chimera' needs a multiple of 2 microbatches, got 3
// CARRIED: error: two pipelines take one half of the microbatches each: expected what the loop carries to be sums, or rows of microbatches, found value 1 to be neither
func.func @main() {
  return
}
