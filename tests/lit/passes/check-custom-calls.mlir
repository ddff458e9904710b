// What XLA and JAX register may stay, and what the option names.
// RUN: shardopt-opt %s --shardopt-check-custom-calls="custom-calls=mine,mosaic_gpu_v2" | FileCheck %s
// RUN: shardopt-opt %s --shardopt-import="custom-calls=mine,mosaic_gpu_v2" | FileCheck %s

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i32>) {
  // CHECK: stablehlo.custom_call @lapack_spotrf_ffi
  %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%x) {api_version = 4 : i32, mhlo.backend_config = {uplo = 76 : ui8}} : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i32>)
  // CHECK: stablehlo.custom_call @cusolver_potrf_ffi
  %1:2 = stablehlo.custom_call @cusolver_potrf_ffi(%0#0) {api_version = 4 : i32, mhlo.backend_config = {lower = true}} : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i32>)
  // CHECK: stablehlo.custom_call @mine
  %2 = stablehlo.custom_call @mine(%1#0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: stablehlo.custom_call @mosaic_gpu_v2
  %3 = stablehlo.custom_call @mosaic_gpu_v2(%2) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %3, %0#1 : tensor<4x4xf32>, tensor<i32>
}
