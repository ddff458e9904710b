// What is not provably a coordinate in bounds stays as it is: each of these differs from one by a little.
// RUN: not shardopt-opt %s --shardopt-batch-gathers="dims=0" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: shardopt-opt %s --shardopt-batch-gathers | FileCheck %s --implicit-check-not=batching_dims

// OPTION: error: pipeline: unknown option of shardopt-batch-gathers: 'dims'

// Row i + 1, clamped at the end.
// CHECK-LABEL: func.func @shifted
func.func @shifted(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: stablehlo.gather
  %one = stablehlo.constant dense<1> : tensor<4x1xi32>
  %iota = stablehlo.iota dim = 0 : tensor<4x1xi32>
  %rows = stablehlo.add %iota, %one : tensor<4x1xi32>
  %0 = "stablehlo.gather"(%x, %rows) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}> : (tensor<4x8xf32>, tensor<4x1xi32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// Four of five rows: sizes differ, so they are no batch.
// CHECK-LABEL: func.func @fewer_rows
func.func @fewer_rows(%x: tensor<5x8xf32>) -> tensor<4x8xf32> {
  // CHECK: stablehlo.gather
  %rows = stablehlo.iota dim = 0 : tensor<4x1xi32>
  %0 = "stablehlo.gather"(%x, %rows) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}> : (tensor<5x8xf32>, tensor<4x1xi32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// A clamp that cuts the last row off.
// CHECK-LABEL: func.func @clamped_short
func.func @clamped_short(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: stablehlo.gather
  %low = stablehlo.constant dense<0> : tensor<i32>
  %high = stablehlo.constant dense<2> : tensor<i32>
  %iota = stablehlo.iota dim = 0 : tensor<4x1xi32>
  %rows = stablehlo.clamp %low, %iota, %high : (tensor<i32>, tensor<4x1xi32>, tensor<i32>) -> tensor<4x1xi32>
  %0 = "stablehlo.gather"(%x, %rows) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}> : (tensor<4x8xf32>, tensor<4x1xi32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// Counting to 199 in eight bits wraps.
// CHECK-LABEL: func.func @coordinate_overflows
func.func @coordinate_overflows(%x: tensor<200x8xf32>) -> tensor<200x8xf32> {
  // CHECK: stablehlo.gather
  %iota = stablehlo.iota dim = 0 : tensor<200x1xi32>
  %rows = stablehlo.convert %iota : (tensor<200x1xi32>) -> tensor<200x1xi8>
  %0 = "stablehlo.gather"(%x, %rows) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}> : (tensor<200x8xf32>, tensor<200x1xi8>) -> tensor<200x8xf32>
  return %0 : tensor<200x8xf32>
}
