// RUN: not shardopt-opt %s --shardopt-lower-to-fragment-calls 2>&1 | FileCheck %s
// RUN: not shardopt-opt %S/cluster-layers.mlir --shardopt-lower-to-fragment-calls 2>&1 | FileCheck %s --check-prefix=TOPOLOGY

// CHECK: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// TOPOLOGY: error: expected attribute 'topology' on the function, found none
func.func @main() {
  return
}
