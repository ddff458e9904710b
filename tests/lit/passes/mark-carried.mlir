// RUN: shardopt-opt %s --shardopt-mark-carried | FileCheck %s

// The matrix enters the loop and is yielded through an identity each; the counter is a scalar, and the sum changes in
// its place.
// CHECK-LABEL: func.func @loop
// CHECK: %[[IN:.*]] = stablehlo.custom_call @Sharding(%arg0)
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.custom_call @Sharding(%arg1)
// CHECK-NEXT: stablehlo.while(%{{.*}} = %c, %{{.*}} = %[[IN]], %{{.*}} = %[[SUM]])
// CHECK: %[[DOT:.*]] = stablehlo.dot_general
// CHECK: %[[ADD:.*]] = stablehlo.add
// CHECK: %[[OUT:.*]] = stablehlo.custom_call @Sharding(%[[DOT]])
// CHECK: stablehlo.return %{{.*}}, %[[OUT]], %[[ADD]]
func.func @loop(%x: tensor<8x8xf32>, %y: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %v = %x, %s = %y) : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>
  cond {
    %c = stablehlo.compare LT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %j = stablehlo.negate %i : tensor<i32>
    %d = stablehlo.dot_general %v, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %a = stablehlo.add %s, %d : tensor<8x8xf32>
    stablehlo.return %j, %d, %a : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>
  }
  return %r#2 : tensor<8x8xf32>
}

// Each branch has one of its own.
// CHECK-LABEL: func.func @branches
// CHECK: %[[TANH:.*]] = stablehlo.tanh
// CHECK-NEXT: %[[A:.*]] = stablehlo.custom_call @Sharding(%[[TANH]])
// CHECK-NEXT: stablehlo.return %[[A]]
// CHECK: %[[B:.*]] = stablehlo.custom_call @Sharding(%arg1)
// CHECK-NEXT: stablehlo.return %[[B]]
func.func @branches(%p: tensor<i1>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "stablehlo.if"(%p) ({
    %1 = stablehlo.tanh %x : tensor<8xf32>
    stablehlo.return %1 : tensor<8xf32>
  }, {
    stablehlo.return %x : tensor<8xf32>
  }) : (tensor<i1>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
