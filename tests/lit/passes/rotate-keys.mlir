// RUN: shardopt-opt %s --shardopt-rotate-keys='intra-op=ring mesh=2x4 cluster=cpu-test:1x8 batch-args=0,1,2' | FileCheck %s
// RUN: shardopt-opt %s --shardopt-rotate-keys='intra-op=context-gather mesh=2x4 cluster=cpu-test:1x8' | FileCheck %s --check-prefix=OTHER

// Only the method `ring` rewrites anything.
// OTHER-NOT: sdy.manual_computation

// Queries stay, keys and values go round; rows of the batch are split by the first axis.
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[{{.*}}[{"x"}, {"y"}, {}]>{{.*}}] out_shardings=[{{.*}}[{"x"}, {"y"}, {}]>] manual_axes={"x", "y"}
// Three turns in a loop: a block of scores, [batch, rows, keys].
// CHECK: stablehlo.while
// CHECK: stablehlo.constant dense<3> : tensor<i32>
// CHECK: stablehlo.collective_permute
// CHECK-SAME: [0, 1], [1, 2], [2, 3], [3, 0], [4, 5]
// CHECK: stablehlo.collective_permute
// CHECK: stablehlo.dot_general {{.*}} -> tensor<2x4x4xf32>
// CHECK: stablehlo.maximum
// CHECK: stablehlo.exponential
// The sums are rescaled where the maximum has grown.
// CHECK: stablehlo.exponential
// CHECK: stablehlo.multiply
// The last block, for which nothing is sent, and the division of the rows.
// CHECK-NOT: stablehlo.collective_permute
// CHECK: stablehlo.divide
// CHECK: sdy.return
// No scores are left, and no mask.
// CHECK-NOT: -> tensor<4x16x16x
func.func public @main(%q: tensor<4x16x8xf32>, %k: tensor<4x16x8xf32>, %v: tensor<4x16x8xf32>) -> tensor<4x16x8xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %hidden = stablehlo.constant dense<0xFF800000> : tensor<4x16x16xf32>
  %row = stablehlo.iota dim = 1 : tensor<4x16x16xi32>
  %column = stablehlo.iota dim = 2 : tensor<4x16x16xi32>
  %seen = stablehlo.compare GE, %row, %column : (tensor<4x16x16xi32>, tensor<4x16x16xi32>) -> tensor<4x16x16xi1>
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x16x8xf32>, tensor<4x16x8xf32>) -> tensor<4x16x16xf32>
  %t = stablehlo.select %seen, %s, %hidden : tensor<4x16x16xi1>, tensor<4x16x16xf32>
  %m = stablehlo.reduce(%t init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<4x16x16xf32>, tensor<f32>) -> tensor<4x16xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x16xf32>
  %d = stablehlo.subtract %t, %mb : tensor<4x16x16xf32>
  %e = stablehlo.exponential %d : tensor<4x16x16xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<4x16x16xf32>, tensor<f32>) -> tensor<4x16xf32>
  %lb = stablehlo.broadcast_in_dim %l, dims = [0, 1] : (tensor<4x16xf32>) -> tensor<4x16x16xf32>
  %p = stablehlo.divide %e, %lb : tensor<4x16x16xf32>
  %o = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x16x16xf32>, tensor<4x16x8xf32>) -> tensor<4x16x8xf32>
  return %o : tensor<4x16x8xf32>
}
