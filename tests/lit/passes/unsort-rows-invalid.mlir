// What needs the order keeps it; there is no option.
// RUN: not shardopt-opt %s --shardopt-unsort-rows="rows=2" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: shardopt-opt %s --shardopt-unsort-rows | FileCheck %s

// OPTION: error: pipeline: unknown option of shardopt-unsort-rows: 'rows'

// The sorted rows are the result.
// CHECK-LABEL: func.func @returned
func.func @returned(%key: tensor<4xi32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: %[[SORTED:.*]]:2 = "stablehlo.sort"(%arg0, %arg1)
  // CHECK: return %[[SORTED]]#1
  %0:2 = "stablehlo.sort"(%key, %x) <{dimension = 0 : i64}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<f32>, %d: tensor<f32>):
      %less = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
  }) : (tensor<4xi32>, tensor<4xf32>) -> (tensor<4xi32>, tensor<4xf32>)
  return %0#1 : tensor<4xf32>
}

// A row is multiplied by its position.
// CHECK-LABEL: func.func @positions
func.func @positions(%key: tensor<4xi32>, %x: tensor<4xf32>) -> tensor<f32> {
  // CHECK: %[[SORTED:.*]]:2 = "stablehlo.sort"(%arg0, %arg1)
  // CHECK: stablehlo.multiply %[[SORTED]]#1
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %position = stablehlo.iota dim = 0 : tensor<4xf32>
  %0:2 = "stablehlo.sort"(%key, %x) <{dimension = 0 : i64}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<f32>, %d: tensor<f32>):
      %less = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
  }) : (tensor<4xi32>, tensor<4xf32>) -> (tensor<4xi32>, tensor<4xf32>)
  %1 = stablehlo.multiply %0#1, %position : tensor<4xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
