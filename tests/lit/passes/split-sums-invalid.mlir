// RUN: not shardopt-opt %s --shardopt-split-sums 2>&1 | FileCheck %s

// CHECK: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
func.func @main() {
  return
}
