// RUN: shardopt-opt %s --shardopt-batch-gathers | FileCheck %s

// x[arange(4), labels] with the wrap of negative indices that frontends add.
// CHECK-LABEL: func.func @take
func.func @take(%x: tensor<4x8xf32>, %labels: tensor<4x1xi32>) -> tensor<4xf32> {
  // CHECK-NOT: concatenate
  // CHECK-NOT: iota
  // CHECK: "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0],
  // CHECK-SAME: start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1>
  %zero = stablehlo.constant dense<0> : tensor<4xi32>
  %four = stablehlo.constant dense<4> : tensor<4xi32>
  %iota = stablehlo.iota dim = 0 : tensor<4xi32>
  %negative = stablehlo.compare LT, %iota, %zero : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
  %wrapped = stablehlo.add %iota, %four : tensor<4xi32>
  %rows = stablehlo.select %negative, %wrapped, %iota : tensor<4xi1>, tensor<4xi32>
  %column = stablehlo.broadcast_in_dim %rows, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
  %indices = stablehlo.concatenate %column, %labels, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>
  %0 = "stablehlo.gather"(%x, %indices) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<4x8xf32>, tensor<4x2xi32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// The gradient of the above in clip mode: the limits are one vector for both components.
// CHECK-LABEL: func.func @put_clamped
func.func @put_clamped(%x: tensor<4x8xf32>, %labels: tensor<4x1xi32>, %u: tensor<4xf32>) -> tensor<4x8xf32> {
  // CHECK: %[[LABELS:.*]] = stablehlo.clamp %{{.*}}, %arg1, %{{.*}} : tensor<4x1xi32>
  // CHECK: "stablehlo.scatter"(%arg0, %[[LABELS]], %arg2) <{indices_are_sorted = false, scatter_dimension_numbers =
  // CHECK-SAME: #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>
  %low = stablehlo.constant dense<0> : tensor<4x2xi32>
  %limits = stablehlo.constant dense<[3, 7]> : tensor<2xi32>
  %high = stablehlo.broadcast_in_dim %limits, dims = [1] : (tensor<2xi32>) -> tensor<4x2xi32>
  %rows = stablehlo.iota dim = 0 : tensor<4x1xi32>
  %indices = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>
  %clamped = stablehlo.clamp %low, %indices, %high : tensor<4x2xi32>
  %0 = "stablehlo.scatter"(%x, %clamped, %u) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<4x2xi32>, tensor<4xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// A table of positions as long as the sequence, and its gradient.
// CHECK-LABEL: func.func @positions
func.func @positions(%table: tensor<3x2xf32>, %u: tensor<4x3x2xf32>) -> (tensor<4x3x2xf32>, tensor<3x2xf32>) {
  // CHECK-NEXT: %[[ROWS:.*]] = stablehlo.broadcast_in_dim %arg0, dims = [1, 2] : (tensor<3x2xf32>) -> tensor<4x3x2xf32>
  // CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00>
  // CHECK-NEXT: %[[SUM:.*]] = stablehlo.reduce(%arg1 init: %[[ZERO]]) applies stablehlo.add across dimensions = [0]
  // CHECK-NEXT: %[[GRAD:.*]] = stablehlo.add %arg0, %[[SUM]]
  // CHECK-NEXT: return %[[ROWS]], %[[GRAD]]
  %ids = stablehlo.iota dim = 1 : tensor<4x3xi32>
  %indices = stablehlo.reshape %ids : (tensor<4x3xi32>) -> tensor<4x3x1xi32>
  %0 = "stablehlo.gather"(%table, %indices) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 2>}> : (tensor<3x2xf32>, tensor<4x3x1xi32>) -> tensor<4x3x2xf32>
  %1 = "stablehlo.scatter"(%table, %indices, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %b, %a : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<3x2xf32>, tensor<4x3x1xi32>, tensor<4x3x2xf32>) -> tensor<3x2xf32>
  return %0, %1 : tensor<4x3x2xf32>, tensor<3x2xf32>
}

// Setting every row keeps the scatter, which must index something: a new dimension of size 1.
// CHECK-LABEL: func.func @set_rows
func.func @set_rows(%x: tensor<3x2xf32>, %u: tensor<3x2xf32>) -> tensor<3x2xf32> {
  // CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0> : tensor<3x1xi32>
  // CHECK: "stablehlo.scatter"(%{{.*}}, %[[ZERO]], %arg1)
  // CHECK-SAME: update_window_dims = [1], inserted_window_dims = [2], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [2]
  %rows = stablehlo.iota dim = 0 : tensor<3x1xi32>
  %0 = "stablehlo.scatter"(%x, %rows, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) : (tensor<3x2xf32>, tensor<3x1xi32>, tensor<3x2xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// Each of four rows twice, x[i // 2], and pairs of rows added up.
// CHECK-LABEL: func.func @repeated
func.func @repeated(%x: tensor<4x3xf32>, %u: tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<4x3xf32>) {
  // CHECK-NOT: stablehlo.gather
  // CHECK-NOT: stablehlo.scatter
  // CHECK: %[[TWICE:.*]] = stablehlo.broadcast_in_dim %arg0, dims = [0, 2] : (tensor<4x3xf32>) -> tensor<4x2x3xf32>
  // CHECK: %[[ROWS:.*]] = stablehlo.reshape %[[TWICE]] : (tensor<4x2x3xf32>) -> tensor<8x3xf32>
  // CHECK: %[[PAIRS:.*]] = stablehlo.reshape %arg1 : (tensor<8x3xf32>) -> tensor<4x2x3xf32>
  // CHECK: %[[SUMS:.*]] = stablehlo.reduce(%[[PAIRS]] init: %{{.*}}) applies stablehlo.add across dimensions = [1]
  // CHECK: %[[ADDED:.*]] = stablehlo.add %arg0, %[[SUMS]] : tensor<4x3xf32>
  // CHECK: return %[[ROWS]], %[[ADDED]]
  %iota = stablehlo.iota dim = 0 : tensor<8x1xi32>
  %two = stablehlo.constant dense<2> : tensor<8x1xi32>
  %half = stablehlo.divide %iota, %two : tensor<8x1xi32>
  %0 = "stablehlo.gather"(%x, %half) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<4x3xf32>, tensor<8x1xi32>) -> tensor<8x3xf32>
  %1 = "stablehlo.scatter"(%x, %half, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) : (tensor<4x3xf32>, tensor<8x1xi32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  return %0, %1 : tensor<8x3xf32>, tensor<4x3xf32>
}
