// Calls inside of other callees and of regions vanish, and so do the callees; composites are calls of their decomposition.
// RUN: shardopt-opt %s --shardopt-inline-calls | FileCheck %s --implicit-check-not=func.func --implicit-check-not=call

// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[X:arg0]]: tensor<4xf32>
func.func public @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %n: tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: %[[ONE:.*]] = stablehlo.add %[[X]], %[[X]]
  // CHECK: %[[TWO:.*]] = stablehlo.negate %[[ONE]]
  %0 = call @twice_negated(%x) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: stablehlo.while
  // CHECK: stablehlo.compare LT
  // CHECK: do
  // CHECK: stablehlo.add
  // CHECK-NEXT: stablehlo.negate
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %w:2 = stablehlo.while(%i = %zero, %v = %0) : tensor<i32>, tensor<4xf32>
    cond {
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %v1 = func.call @twice_negated(%v) : (tensor<4xf32>) -> tensor<4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %i1 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %i1, %v1 : tensor<i32>, tensor<4xf32>
    }
  // CHECK: stablehlo.tanh
  %1 = stablehlo.composite "lib.squash" %w#1 {decomposition = @squash} : (tensor<4xf32>) -> tensor<4xf32>
  // A callee that hands an argument on leaves nothing behind.
  // CHECK-NEXT: return %{{.*}}, %[[X]]
  %2 = call @first(%x, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %1, %2 : tensor<4xf32>, tensor<4xf32>
}

func.func private @twice_negated(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @twice(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.negate %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @twice(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @squash(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @first(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
