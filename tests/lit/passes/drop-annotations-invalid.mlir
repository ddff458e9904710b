// The pass has no options; constraints inside regions go, too, and other custom calls stay.
// RUN: not shardopt-opt %s --shardopt-drop-annotations="keep=true" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: shardopt-opt %s --shardopt-drop-annotations | FileCheck %s

// OPTION: error: pipeline: unknown option of shardopt-drop-annotations: 'keep'
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8xf32>, %n: tensor<i32>) -> tensor<8xf32> {
  // CHECK: stablehlo.while
  %0:2 = stablehlo.while(%v = %x, %i = %n) : tensor<8xf32>, tensor<i32>
    cond {
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      // CHECK-NOT: @Sharding
      // CHECK: stablehlo.custom_call @Other
      %1 = stablehlo.custom_call @Sharding(%v) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<8xf32>) -> tensor<8xf32>
      %2 = stablehlo.custom_call @Other(%1) : (tensor<8xf32>) -> tensor<8xf32>
      stablehlo.return %2, %i : tensor<8xf32>, tensor<i32>
    }
  return %0#0 : tensor<8xf32>
}
