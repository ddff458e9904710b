// RUN: shardopt-opt %s --shardopt-normalize | FileCheck %s

// CHECK-LABEL: func.func @stretched
func.func @stretched(%b: tensor<8xf32>, %s: tensor<1x1xf32>, %k: tensor<4x1xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  // The row goes straight to its place, without a 1x8 value in between.
  // CHECK-NEXT: %[[ROW:.*]] = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32>
  %0 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<1x8xf32>) -> tensor<4x8xf32>
  // CHECK-NEXT: %[[SCALAR:.*]] = stablehlo.reshape %arg1 : (tensor<1x1xf32>) -> tensor<f32>
  // CHECK-NEXT: %[[FULL:.*]] = stablehlo.broadcast_in_dim %[[SCALAR]], dims = [] : (tensor<f32>) -> tensor<4x8xf32>
  %2 = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<4x8xf32>
  // CHECK-NEXT: %[[COLUMN:.*]] = stablehlo.reshape %arg2 : (tensor<4x1xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %[[COLUMNS:.*]] = stablehlo.broadcast_in_dim %[[COLUMN]], dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.broadcast_in_dim %k, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x8xf32>
  // CHECK-NEXT: return %[[ROW]], %[[FULL]], %[[COLUMNS]]
  return %1, %2, %3 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}

// A mean that keeps its dimension, as frontends write it: the broadcast reads the reduced value.
// CHECK-LABEL: func.func @keepdims
func.func @keepdims(%x: tensor<4xf32>, %n: tensor<4x1xf32>) -> (tensor<4x8xf32>, tensor<4x1xf32>) {
  // CHECK-DAG: stablehlo.broadcast_in_dim %arg0, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
  // CHECK-DAG: stablehlo.broadcast_in_dim %arg0, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %0 = stablehlo.broadcast_in_dim %x, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x8xf32>
  %2 = stablehlo.divide %0, %n : tensor<4x1xf32>
  return %1, %2 : tensor<4x8xf32>, tensor<4x1xf32>
}

// CHECK-LABEL: func.func @undone
func.func @undone(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<32xf32>, tensor<2x4x8xf32>) {
  %0 = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
  %2 = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
  // CHECK-NEXT: %[[FLAT:.*]] = stablehlo.reshape %arg0 : (tensor<4x8xf32>) -> tensor<32xf32>
  %4 = stablehlo.reshape %x : (tensor<4x8xf32>) -> tensor<2x16xf32>
  %5 = stablehlo.reshape %4 : (tensor<2x16xf32>) -> tensor<32xf32>
  // CHECK-NEXT: %[[WIDE:.*]] = stablehlo.broadcast_in_dim %arg0, dims = [1, 2] : (tensor<4x8xf32>) -> tensor<2x4x8xf32>
  %6 = stablehlo.broadcast_in_dim %x, dims = [1, 3] : (tensor<4x8xf32>) -> tensor<2x4x1x8xf32>
  %7 = stablehlo.reshape %6 : (tensor<2x4x1x8xf32>) -> tensor<2x4x8xf32>
  // CHECK-NEXT: return %arg0, %arg0, %[[FLAT]], %[[WIDE]]
  return %1, %3, %5, %7 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<32xf32>, tensor<2x4x8xf32>
}

// CHECK-LABEL: func.func @slice_of_concatenate
func.func @slice_of_concatenate(%a: tensor<2x8xf32>, %b: tensor<3x8xf32>) -> (tensor<2x8xf32>, tensor<1x8xf32>, tensor<2x8xf32>) {
  // CHECK-NEXT: %[[BOTH:.*]] = stablehlo.concatenate
  %0 = stablehlo.concatenate %a, %b, dim = 0 : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<5x8xf32>
  %1 = stablehlo.slice %0 [0:2, 0:8] : (tensor<5x8xf32>) -> tensor<2x8xf32>
  // CHECK-NEXT: %[[ONE:.*]] = stablehlo.slice %arg1 [1:2, 0:8]
  %2 = stablehlo.slice %0 [3:4, 0:8] : (tensor<5x8xf32>) -> tensor<1x8xf32>
  // CHECK-NEXT: %[[ACROSS:.*]] = stablehlo.slice %[[BOTH]] [1:3, 0:8]
  %3 = stablehlo.slice %0 [1:3, 0:8] : (tensor<5x8xf32>) -> tensor<2x8xf32>
  // CHECK-NEXT: return %arg0, %[[ONE]], %[[ACROSS]]
  return %1, %2, %3 : tensor<2x8xf32>, tensor<1x8xf32>, tensor<2x8xf32>
}

// CHECK-LABEL: func.func @slice_of_pad
func.func @slice_of_pad(%a: tensor<4x8xf32>, %b: tensor<f32>) -> (tensor<4x8xf32>, tensor<2x7xf32>, tensor<6x8xf32>, tensor<2x8xf32>) {
  // CHECK-NEXT: %[[PAD:.*]] = stablehlo.pad
  %0 = stablehlo.pad %a, %b, low = [2, 0], high = [0, 1], interior = [0, 0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<6x9xf32>
  %1 = stablehlo.slice %0 [2:6, 0:8] : (tensor<6x9xf32>) -> tensor<4x8xf32>
  // CHECK-NEXT: %[[INSIDE:.*]] = stablehlo.slice %arg0 [1:3, 1:8]
  %2 = stablehlo.slice %0 [3:5, 1:8] : (tensor<6x9xf32>) -> tensor<2x7xf32>
  // CHECK-NEXT: %[[PART:.*]] = stablehlo.slice %[[PAD]] [0:6, 0:8]
  %3 = stablehlo.slice %0 [0:6, 0:8] : (tensor<6x9xf32>) -> tensor<6x8xf32>
  // CHECK-NEXT: %[[SPACED:.*]] = stablehlo.pad
  %4 = stablehlo.pad %a, %b, low = [0, 0], high = [0, 0], interior = [1, 0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<7x8xf32>
  // CHECK-NEXT: %[[SLICE:.*]] = stablehlo.slice %[[SPACED]] [1:3, 0:8]
  %5 = stablehlo.slice %4 [1:3, 0:8] : (tensor<7x8xf32>) -> tensor<2x8xf32>
  // CHECK-NEXT: return %arg0, %[[INSIDE]], %[[PART]], %[[SLICE]]
  return %1, %2, %3, %5 : tensor<4x8xf32>, tensor<2x7xf32>, tensor<6x8xf32>, tensor<2x8xf32>
}

// CHECK-LABEL: func.func @collectives
func.func @collectives(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK-NOT: dense<[{{\[}}0], [1]]>
  %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0], [1]]> : tensor<2x1xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: %[[SUM:.*]] = "stablehlo.all_reduce"(%arg0) <{replica_groups = dense<{{\[\[}}0, 1]]>
  %1 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: return %arg0, %[[SUM]]
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// What a user said about a value stays where it was said.
// CHECK-LABEL: func.func @user_sharding
func.func @user_sharding(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK-NEXT: stablehlo.reshape %arg0 {mhlo.sharding = "{replicated}"}
  // CHECK-NEXT: stablehlo.reshape
  %0 = stablehlo.reshape %x {mhlo.sharding = "{replicated}"} : (tensor<4x8xf32>) -> tensor<32xf32>
  %1 = stablehlo.reshape %0 : (tensor<32xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// A weight that is stored transposed is contracted along its other dimension. Products with batch
// dimensions, dimensions that would change places, and transposes with a user's sharding stay.
// CHECK-LABEL: func.func @products_of_transposes
func.func @products_of_transposes(%x: tensor<2x4x8xf32>, %w: tensor<16x8xf32>, %v: tensor<8x2x4xf32>, %b: tensor<4x2x8xf32>)
    -> (tensor<2x4x16xf32>, tensor<16x2x4xf32>, tensor<2x4x2x4xf32>, tensor<2x4x4xf32>, tensor<2x4x16xf32>) {
  // CHECK-NEXT: %[[ONE:.*]] = stablehlo.dot_general %arg0, %arg1, contracting_dims = [2] x [1], precision = [HIGH, DEFAULT]
  // CHECK-SAME: (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x16xf32>
  %0 = stablehlo.transpose %w, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [2] x [0], precision = [HIGH, DEFAULT] : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
  // CHECK-NEXT: %[[TWO:.*]] = stablehlo.dot_general %arg1, %arg2, contracting_dims = [1] x [0]
  %2 = stablehlo.transpose %v, dims = [1, 2, 0] : (tensor<8x2x4xf32>) -> tensor<2x4x8xf32>
  %3 = stablehlo.dot_general %0, %2, contracting_dims = [0] x [2] : (tensor<8x16xf32>, tensor<2x4x8xf32>) -> tensor<16x2x4xf32>
  // CHECK-NEXT: %[[SWAPPED:.*]] = stablehlo.transpose %arg3, dims = [1, 0, 2]
  %4 = stablehlo.transpose %b, dims = [1, 0, 2] : (tensor<4x2x8xf32>) -> tensor<2x4x8xf32>
  // CHECK-NEXT: stablehlo.dot_general %[[SWAPPED]], %arg2, contracting_dims = [2] x [0]
  %5 = stablehlo.dot_general %4, %v, contracting_dims = [2] x [0] : (tensor<2x4x8xf32>, tensor<8x2x4xf32>) -> tensor<2x4x2x4xf32>
  // CHECK-NEXT: stablehlo.dot_general %[[SWAPPED]], %arg0, batching_dims = [0] x [0], contracting_dims = [2] x [2]
  %6 = stablehlo.dot_general %4, %x, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x4xf32>
  // CHECK-NEXT: %[[STATED:.*]] = stablehlo.transpose %arg1, dims = [1, 0] {mhlo.sharding = "{replicated}"}
  // CHECK-NEXT: stablehlo.dot_general %arg0, %[[STATED]], contracting_dims = [2] x [0]
  %7 = stablehlo.transpose %w, dims = [1, 0] {mhlo.sharding = "{replicated}"} : (tensor<16x8xf32>) -> tensor<8x16xf32>
  %8 = stablehlo.dot_general %x, %7, contracting_dims = [2] x [0] : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
  return %1, %3, %5, %6, %8 : tensor<2x4x16xf32>, tensor<16x2x4xf32>, tensor<2x4x2x4xf32>, tensor<2x4x4xf32>, tensor<2x4x16xf32>
}
