// RUN: not shardopt-opt %s --shardopt-split-stacks 2>&1 | FileCheck %s --check-prefix=LOOP
// RUN: not shardopt-opt %s --shardopt-split-stacks="max-parts=0" 2>&1 | FileCheck %s --check-prefix=PARTS
// RUN: shardopt-opt %S/split-stacks.mlir --shardopt-split-stacks --shardopt-cluster-layers="layers=2" --shardopt-verify-clustered -o %t.good
// RUN: sed -e 's/i64: 1, 0, 1, 1, 2/i64: 1, 0, 0, 1, 2/' %t.good > %t.twice
// RUN: not shardopt-opt %t.twice --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: sed -e 's/i64: 0, 0, 0, 1, 2/i64: 0, 0, 0, 1, 3/' -e 's/i64: 0, 0, 1, 1, 2/i64: 0, 0, 1, 1, 3/' %t.good > %t.missing
// RUN: not shardopt-opt %t.missing --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: sed -e 's/i64: 0, 0, 1, 1, 2>, tf.aliasing_output = 3/i64: 0, 0, 1, 1, 2>, tf.aliasing_output = 4/' -e 's/i64: 1, 0, 1, 1, 2>, tf.aliasing_output = 4/i64: 1, 0, 1, 1, 2>, tf.aliasing_output = 3/' %t.good > %t.other
// RUN: not shardopt-opt %t.other --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: sed -e 's/shardopt.part = array<i64: 1, 0, 1, 1, 2>/shardopt.part = 1 : i64/' %t.good > %t.kind
// RUN: not shardopt-opt %t.kind --shardopt-verify-clustered 2>&1 | FileCheck %s --check-prefix=KIND

// LOOP: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
// PARTS: error: {{.*}}max-parts: expected at least 1, found 0
// TWICE: error: {{.*}}argument 4: expected parts of one dimension of argument 1, the first of them there, found [0]
// MISSING: error: {{.*}}argument 0: expected parts of 3 rows in all, found 2
// OTHER: error: {{.*}}argument 3: expected to be replaced by the same part of a result, found [1] of 0 and [1] of 1
// KIND: error: {{.*}}expected array<i64: whole, dimension, start, rows, extent> in 'shardopt.part', found 1 : i64
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
