// RUN: shardopt-opt %s --shardopt-split-branches --canonicalize | FileCheck %s

// Each result gets a conditional of its own. What is scalar is computed in all of them.
// CHECK-LABEL: func.func @update
func.func @update(%finite: tensor<i1>, %w1: tensor<4xf32>, %w2: tensor<8xf32>, %g1: tensor<4xf32>, %g2: tensor<8xf32>, %s: tensor<f32>) -> (tensor<4xf32>, tensor<8xf32>) {
  // CHECK: %[[A:.*]] = "stablehlo.if"(%arg0) ({
  // CHECK-NEXT: %[[S:.*]] = stablehlo.multiply %arg5, %arg5
  // CHECK-NEXT: %[[B:.*]] = stablehlo.broadcast_in_dim %[[S]]
  // CHECK-NEXT: %[[D:.*]] = stablehlo.multiply %arg3, %[[B]]
  // CHECK-NEXT: %[[N:.*]] = stablehlo.subtract %arg1, %[[D]]
  // CHECK-NEXT: stablehlo.return %[[N]] : tensor<4xf32>
  // CHECK-NEXT: }, {
  // CHECK-NEXT: stablehlo.return %arg1 : tensor<4xf32>
  // CHECK-NEXT: }) : (tensor<i1>) -> tensor<4xf32>
  // CHECK: %[[C:.*]] = "stablehlo.if"(%arg0) ({
  // CHECK: stablehlo.subtract %arg2
  // CHECK: stablehlo.return %arg2 : tensor<8xf32>
  // CHECK: return %[[A]], %[[C]]
  %0:2 = "stablehlo.if"(%finite) ({
    %t = stablehlo.multiply %s, %s : tensor<f32>
    %b1 = stablehlo.broadcast_in_dim %t, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %b2 = stablehlo.broadcast_in_dim %t, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %d1 = stablehlo.multiply %g1, %b1 : tensor<4xf32>
    %d2 = stablehlo.multiply %g2, %b2 : tensor<8xf32>
    %n1 = stablehlo.subtract %w1, %d1 : tensor<4xf32>
    %n2 = stablehlo.subtract %w2, %d2 : tensor<8xf32>
    stablehlo.return %n1, %n2 : tensor<4xf32>, tensor<8xf32>
  }, {
    stablehlo.return %w1, %w2 : tensor<4xf32>, tensor<8xf32>
  }) : (tensor<i1>) -> (tensor<4xf32>, tensor<8xf32>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<8xf32>
}

// The first two results have the momentum in common, in one branch only; the third stands alone.
// CHECK-LABEL: func.func @together
func.func @together(%which: tensor<i32>, %m: tensor<4xf32>, %w: tensor<4xf32>, %n: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  // CHECK: %[[A:.*]]:2 = "stablehlo.case"(%arg0) ({
  // CHECK-NEXT: stablehlo.return %arg1, %arg2
  // CHECK: %[[M:.*]] = stablehlo.add %arg1, %arg1
  // CHECK-NEXT: %[[W:.*]] = stablehlo.subtract %arg2, %[[M]]
  // CHECK-NEXT: stablehlo.return %[[M]], %[[W]]
  // CHECK: %[[B:.*]] = "stablehlo.case"(%arg0) ({
  // CHECK-NEXT: stablehlo.return %arg3
  // CHECK: stablehlo.negate %arg3
  // CHECK: return %[[A]]#0, %[[B]], %[[A]]#1
  %0:3 = "stablehlo.case"(%which) ({
    stablehlo.return %m, %n, %w : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }, {
    %m1 = stablehlo.add %m, %m : tensor<4xf32>
    %w1 = stablehlo.subtract %w, %m1 : tensor<4xf32>
    %n1 = stablehlo.negate %n : tensor<4xf32>
    stablehlo.return %m1, %n1, %w1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }) : (tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  return %0#0, %0#1, %0#2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
