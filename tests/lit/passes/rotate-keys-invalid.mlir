// RUN: split-file %s %t
// RUN: not shardopt-opt %t/escapes.mlir --shardopt-rotate-keys='intra-op=ring mesh=2x4 cluster=cpu-test:1x8 batch-args=0,1,2' 2>&1 | FileCheck %t/escapes.mlir
// RUN: not shardopt-opt %t/sorted.mlir --shardopt-rotate-keys='intra-op=ring mesh=2x4 cluster=cpu-test:1x8 batch-args=0,1,2' 2>&1 | FileCheck %t/sorted.mlir
// RUN: not shardopt-opt %t/average.mlir --shardopt-rotate-keys='intra-op=ring mesh=2x4 cluster=cpu-test:1x8 batch-args=0' 2>&1 | FileCheck %t/average.mlir
// RUN: not shardopt-opt %t/average.mlir --shardopt-rotate-keys='intra-op=ring cluster=cpu-test:1x8' 2>&1 | FileCheck %t/average.mlir --check-prefix=MESH

//--- escapes.mlir
func.func public @main(%q: tensor<4x16x8xf32>, %k: tensor<4x16x8xf32>, %v: tensor<4x16x8xf32>) -> (tensor<4x16x8xf32>, tensor<4x16x16xf32>) {
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
  // CHECK: escapes.mlir:[[@LINE+1]]:{{[0-9]+}}: error: expected attention that a ring can compute; recognition ended here, as its result, which has all scores, is a result
  %p = stablehlo.divide %e, %lb : tensor<4x16x16xf32>
  %o = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x16x16xf32>, tensor<4x16x8xf32>) -> tensor<4x16x8xf32>
  return %o, %p : tensor<4x16x8xf32>, tensor<4x16x16xf32>
}

//--- sorted.mlir
func.func public @main(%q: tensor<4x16x8xf32>, %k: tensor<4x16x8xf32>, %v: tensor<4x16x8xf32>) -> (tensor<4x16x8xf32>, tensor<4x16x16xf32>) {
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
  // CHECK: sorted.mlir:[[@LINE+1]]:{{[0-9]+}}: error: expected attention that a ring can compute; recognition ended here, as it reads all scores
  %c = stablehlo.cholesky %p : tensor<4x16x16xf32>
  return %o, %c : tensor<4x16x8xf32>, tensor<4x16x16xf32>
}
//--- average.mlir
// CHECK: average.mlir:[[@LINE+2]]:1: error: preset 'ring' splits the sequence of attention: expected a softmax between two products of activations, found none
// MESH: average.mlir:[[@LINE+1]]:1: error: expected intra-op=ring with a mesh and no stages
func.func public @main(%x: tensor<4x16x8xf32>) -> tensor<4x16x8xf32> {
  return %x : tensor<4x16x8xf32>
}
