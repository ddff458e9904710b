// RUN: not shardopt-opt %s --shardopt-join-sums 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: sed -e 's/shardopt.stages =/shardopt.other =/' %S/Inputs/placed.mlir > %t.none
// RUN: not shardopt-opt %t.none --shardopt-join-sums 2>&1 | FileCheck %s --check-prefix=NONE

// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// NONE: error: expected attribute 'shardopt.stages' on '@main' (run shardopt-choose-stages first), found none
func.func @main() {
  return
}
