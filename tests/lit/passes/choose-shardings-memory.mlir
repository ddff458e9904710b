// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test mesh=1" | FileCheck %s --check-prefix=FREE
// RUN: shardopt-opt %s --shardopt-shard="cluster=cpu-test mesh=1 memory-budget=1280KiB" --remarks 2>&1 | FileCheck %s
// RUN: shardopt-opt %s --shardopt-choose-shardings="cluster=cpu-test mesh=1 memory-budget=1280KiB" --shardopt-verify-chosen | FileCheck %s --check-prefix=CHOSEN

// The pass itself rewrites nothing: that the second operation runs again for the sixth is an attribute.
// CHOSEN: func.func public @main
// CHOSEN-SAME: shardopt.rematerialize = [{chain = array<i64: 1>, readers = array<i64: 5>, strategies = ["[{}, {}] -> [{}, {}]"]}]
// CHOSEN-COUNT-1: stablehlo.tanh
// CHOSEN-NOT: {{stablehlo.tanh|optimization_barrier}}

// FREE-NOT: optimization_barrier

// Without the second hyperbolic tangent, its value would lie in memory from the first reader to the last. The barrier
// keeps the compiler from merging the two, and waits for the value that is read beside it.

// CHECK: remark: recomputed for 1 of its readers by 1 operations: saves 262144 bytes a device in between
// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
  // CHECK: %[[Z:.*]] = stablehlo.dot_general
  %z = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  // CHECK: %[[Y:.*]] = stablehlo.tanh %[[Z]]
  %y = stablehlo.tanh %z : tensor<256x256xf32>
  // CHECK: %[[H:.*]] = stablehlo.dot_general %[[Y]], %arg0
  %h = stablehlo.dot_general %y, %x, contracting_dims = [1] x [0] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  // CHECK: %[[G:.*]] = stablehlo.dot_general %[[H]], %[[H]]
  %g = stablehlo.dot_general %h, %h, contracting_dims = [1] x [0] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  // CHECK: %[[A:.*]] = stablehlo.dot_general %[[G]], %[[H]]
  %a = stablehlo.dot_general %g, %h, contracting_dims = [1] x [0] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  // CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier {{.*}}%[[Z]], %[[A]]
  // CHECK: %[[AGAIN:.*]] = stablehlo.tanh %[[B]]#0
  // CHECK: stablehlo.dot_general %[[B]]#1, %[[AGAIN]]
  %b = stablehlo.dot_general %a, %y, contracting_dims = [1] x [0] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %c = stablehlo.dot_general %b, %z, contracting_dims = [1] x [0] : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %c : tensor<256x256xf32>
}
