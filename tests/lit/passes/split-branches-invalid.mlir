// The pass has no options, and leaves alone what has effects.
// RUN: not shardopt-opt %s --shardopt-split-branches="all=true" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: shardopt-opt %s --shardopt-split-branches | FileCheck %s

// OPTION: error: pipeline: unknown option of shardopt-split-branches: 'all'
// CHECK-LABEL: func.func @effect
func.func @effect(%p: tensor<i1>, %x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: %0:2 = "stablehlo.if"(%arg0)
  // CHECK-NOT: stablehlo.if
  %0:2 = "stablehlo.if"(%p) ({
    %a = stablehlo.custom_call @effect(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    stablehlo.return %a, %y : tensor<4xf32>, tensor<4xf32>
  }, {
    stablehlo.return %x, %y : tensor<4xf32>, tensor<4xf32>
  }) : (tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
}
