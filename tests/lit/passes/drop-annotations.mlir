// RUN: shardopt-opt %s --shardopt-drop-annotations 2>&1 | FileCheck %s

// CHECK: warning: 5 sharding annotations of the model are dropped, not obeyed
// CHECK-NOT: sdy.mesh
sdy.mesh @mesh = <["dp"=2, "mp"=2]>

// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[X:.*]]: tensor<8x4xf32>) -> tensor<8x4xf32>
func.func public @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) -> (tensor<8x4xf32> {mhlo.sharding = "{replicated}"}) {
  %0 = sdy.sharding_constraint %x <@mesh, [{"dp"}, {"mp"}]> : tensor<8x4xf32>
  // CHECK-NEXT: %[[Y:.*]] = stablehlo.add %[[X]], %[[X]] : tensor<8x4xf32>
  %1 = stablehlo.add %0, %0 {mhlo.sharding = "{replicated}"} : tensor<8x4xf32>
  %2 = stablehlo.custom_call @Sharding(%1) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: return %[[Y]]
  return %2 : tensor<8x4xf32>
}
