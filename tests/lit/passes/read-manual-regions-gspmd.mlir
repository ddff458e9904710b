// RUN: shardopt-opt %s --shardopt-read-manual-regions | FileCheck %s

// Two results that have operations in common are one region; what is read beyond it is there twice. Shardings inside go.
// CHECK: %[[C:.*]] = stablehlo.constant
// CHECK: %[[R:.*]]:2 = sdy.manual_computation(%arg0, %arg1)
// CHECK-SAME: in_shardings=[<mesh<["a0"=2, "a1"=2]>, [{"a0"}, {"a1"}]>, <mesh<["a0"=2, "a1"=2]>, [{"a1"}, {}]>]
// CHECK-SAME: out_shardings=[<mesh<["a0"=2, "a1"=2]>, [{"a0"}, {"a1"}]>, <mesh<["a0"=2, "a1"=2]>, [{}, {"a0", "a1"}]>]
// CHECK-SAME: manual_axes={"a0", "a1"} (%[[A:.*]]: tensor<4x2xf32>, %[[B:.*]]: tensor<2x4xf32>) {
// CHECK-NEXT: %[[D:.*]] = stablehlo.constant
// CHECK-NEXT: %[[S:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [1] x [0] :
// CHECK-NEXT: %[[P:.*]] = stablehlo.add %[[S]], %[[D]] :
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[S]] :
// CHECK-NEXT: sdy.return %[[P]], %[[T]]
// CHECK: stablehlo.multiply %{{.*}}, %[[C]]
// CHECK-NOT: SPMD
func.func public @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> (tensor<8x8xf32>, tensor<4x16xf32>, tensor<4x4xf32>) {
  %c = stablehlo.constant dense<2.0> : tensor<4x4xf32>
  %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,2]<=[4]}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x4xf32>) -> tensor<4x2xf32>
  %2 = stablehlo.custom_call @Sharding(%w) {mhlo.sharding = "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {mhlo.sharding = "{manual}"} : (tensor<4x4xf32>) -> tensor<2x4xf32>
  %4 = stablehlo.dot_general %1, %3, contracting_dims = [1] x [0] {mhlo.sharding = "{manual}"} : (tensor<4x2xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
  %5 = stablehlo.add %4, %c : tensor<4x4xf32>
  %6 = stablehlo.custom_call @Sharding(%5) {mhlo.sharding = "{manual}"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %7 = stablehlo.custom_call @SPMDShardToFullShape(%6) {mhlo.sharding = "{devices=[2,2]<=[4]}"} : (tensor<4x4xf32>) -> tensor<8x8xf32>
  %8 = stablehlo.tanh %4 : tensor<4x4xf32>
  %9 = stablehlo.custom_call @Sharding(%8) {mhlo.sharding = "{manual}"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %10 = stablehlo.custom_call @SPMDShardToFullShape(%9) {mhlo.sharding = "{devices=[1,4]<=[4]}"} : (tensor<4x4xf32>) -> tensor<4x16xf32>
  %11 = stablehlo.multiply %w, %c : tensor<4x4xf32>
  return %7, %10, %11 : tensor<8x8xf32>, tensor<4x16xf32>, tensor<4x4xf32>
}
