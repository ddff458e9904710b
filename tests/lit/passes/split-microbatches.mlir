// RUN: split-file %s %t
// RUN: shardopt-opt %t/step.mlir --shardopt-split-microbatches="num-microbatches=2" | FileCheck %t/step.mlir
// RUN: shardopt-opt %t/step.mlir --shardopt-split-microbatches | FileCheck %t/step.mlir --check-prefix=ONE
// RUN: shardopt-opt %t/mask.mlir --shardopt-split-microbatches="num-microbatches=4 batch-args=1,2:1" | FileCheck %t/mask.mlir
// RUN: shardopt-opt %t/mask.mlir --shardopt-split-microbatches="num-microbatches=4 batch-args=batch['x']:1,batch" | FileCheck %t/mask.mlir
// RUN: shardopt-opt %t/mask.mlir --shardopt-split-microbatches="num-microbatches=4 batch-args=*mask*,2:1" | FileCheck %t/mask.mlir
// RUN: shardopt-opt %t/norm.mlir --shardopt-split-microbatches="num-microbatches=2 batch-coupling=per-microbatch" | FileCheck %t/norm.mlir
// RUN: shardopt-opt %t/none.mlir --shardopt-split-microbatches="batch-args=none" | FileCheck %t/none.mlir
// RUN: shardopt-opt %t/parts.mlir --shardopt-split-microbatches | FileCheck %t/parts.mlir
// RUN: shardopt-opt %t/loop.mlir --shardopt-split-microbatches="num-microbatches=2 batch-args=1:1" | FileCheck %t/loop.mlir

// The gradient is accumulated, its user stands behind the loop, and the rows of a result are collected.
//--- step.mlir
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[W:arg0]]: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %[[X:arg1]]: tensor<8x4xf32>
func.func public @main(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8x4xf32>) -> (tensor<4x4xf32>, tensor<8x4xf32>) {
  // CHECK-DAG: %[[BLOCKS:.*]] = stablehlo.reshape %[[X]] : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
  // CHECK-DAG: %[[ROWS:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<2x4x4xf32>
  // CHECK-DAG: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
  // CHECK: %[[R:.*]]:2 = mpmd.for (%[[ROWS]], %[[ZERO]]) {iterations = 2 : ui32} (%[[A:.*]]: tensor<2x4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[I:.*]]: tensor<ui32>) {
  // CHECK-NEXT: %[[N:.*]]:2 = mpmd.call @microbatch(%[[W]], %[[BLOCKS]], %[[A]], %[[B]], %[[I]]) {call_counter = 0 : ui32}
  // CHECK-NEXT: mpmd.return %[[N]]#0, %[[N]]#1
  // CHECK: %[[H:.*]] = stablehlo.reshape %[[R]]#0 : (tensor<2x4x4xf32>) -> tensor<8x4xf32>
  // CHECK-NEXT: %[[U:.*]] = stablehlo.subtract %[[W]], %[[R]]#1
  // CHECK-NEXT: return %[[U]], %[[H]]
  // ONE: mpmd.for {{.*}} {iterations = 1 : ui32}
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %g = stablehlo.dot_general %x, %h, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g : tensor<4x4xf32>
  return %u, %h : tensor<4x4xf32>, tensor<8x4xf32>
}
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[BLOCK:.*]] = stablehlo.dynamic_slice {{.*}} sizes = [1, 4, 4]
// CHECK-NEXT: %[[XI:.*]] = stablehlo.reshape %[[BLOCK]] : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
// CHECK: %[[HI:.*]] = stablehlo.dot_general %[[XI]], %arg0, contracting_dims = [1] x [0]
// CHECK: %[[GI:.*]] = stablehlo.dot_general %[[XI]], %[[HI]], contracting_dims = [0] x [0]
// CHECK: %[[ROWSI:.*]] = stablehlo.dynamic_update_slice %arg2
// CHECK: %[[SUM:.*]] = stablehlo.add %arg3, %[[GI]]
// CHECK: return %[[ROWSI]], %[[SUM]]

// A single microbatch adds to nothing.
// ONE-LABEL: func.func private @microbatch
// ONE: %[[H1:.*]] = stablehlo.dot_general
// ONE: %[[G1:.*]] = stablehlo.dot_general {{.*}}, %[[H1]], contracting_dims = [0] x [0]
// ONE-NEXT: %[[ROWS1:.*]] = stablehlo.reshape %[[H1]]
// ONE-NEXT: return %[[ROWS1]], %[[G1]]

// The sum of the mask depends on batch arguments alone: it is computed once, on the whole batch. The broadcast weight is
// made at microbatch size. The second argument carries the batch in dimension 1.
//--- mask.mlir
// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<3xf32>, %mask: tensor<8xf32> loc("batch['mask']"), %x: tensor<3x8xf32> loc("batch['x']")) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: %[[SUM:.*]] = stablehlo.reduce(%arg1
  %sum = stablehlo.reduce(%mask init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %all = stablehlo.broadcast_in_dim %sum, dims = [] : (tensor<f32>) -> tensor<8xf32>
  %share = stablehlo.divide %mask, %all : tensor<8xf32>
  %columns = stablehlo.broadcast_in_dim %share, dims = [1] : (tensor<8xf32>) -> tensor<3x8xf32>
  %rows = stablehlo.broadcast_in_dim %w, dims = [0] : (tensor<3xf32>) -> tensor<3x8xf32>
  // CHECK-DAG: stablehlo.reshape %arg1 : (tensor<8xf32>) -> tensor<4x2xf32>
  // CHECK-DAG: stablehlo.reshape %arg2 : (tensor<3x8xf32>) -> tensor<3x4x2xf32>
  // CHECK: mpmd.call @microbatch(%arg0, %[[SUM]],
  %a = stablehlo.multiply %x, %rows : tensor<3x8xf32>
  %b = stablehlo.multiply %a, %columns : tensor<3x8xf32>
  %r = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x8xf32>, tensor<f32>) -> tensor<3xf32>
  return %r : tensor<3xf32>
}
// CHECK-LABEL: func.func private @microbatch
// CHECK: stablehlo.broadcast_in_dim %arg0, dims = [0] : (tensor<3xf32>) -> tensor<3x2xf32>

// In per-microbatch mode the sum over a microbatch stands for half of the sum over the batch.
//--- norm.mlir
// CHECK-LABEL: func.func private @microbatch
func.func @main(%w: tensor<2x2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>) -> tensor<2x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: %[[H:.*]] = stablehlo.dot_general
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x2xf32>, tensor<2x2xf32>) -> tensor<4x2xf32>
  // CHECK: %[[S:.*]] = stablehlo.reduce(%[[H]]
  // CHECK: %[[TWO:.*]] = stablehlo.constant dense<2.000000e+00> : tensor<2xf32>
  // CHECK-NEXT: %[[E:.*]] = stablehlo.multiply %[[S]], %[[TWO]]
  // CHECK-NEXT: stablehlo.broadcast_in_dim %[[E]], dims = [1] : (tensor<2xf32>) -> tensor<2x2xf32>
  %s = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<2xf32>) -> tensor<4x2xf32>
  %d = stablehlo.subtract %h, %b : tensor<4x2xf32>
  %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<2x2xf32>
  return %g : tensor<2x2xf32>
}

// Without a batch the body is the whole step, and its results replace the accumulators.
//--- none.mlir
// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  // CHECK: %[[R:.*]] = mpmd.for {{.*}} {iterations = 1 : ui32}
  // CHECK: return %[[R]], %arg0
  %0 = stablehlo.tanh %w : tensor<2xf32>
  return %0, %w : tensor<2xf32>, tensor<2xf32>
}
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[T:.*]] = stablehlo.tanh %arg0
// CHECK-NEXT: return %[[T]]

// The state begins as zeros for all rows, and the gradient as zeros for all microbatches: the loop carries rows of a
// microbatch and a term of the sum. Times, along dimension 0, are no batch.
//--- loop.mlir
// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<4x4xf32>, %xs: tensor<3x8x4xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %rows = stablehlo.constant dense<0.0> : tensor<8x4xf32>
  %none = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  // CHECK: mpmd.for
  %i, %h, %g = stablehlo.while(%k = %zero, %s = %rows, %t = %none) : tensor<i32>, tensor<8x4xf32>, tensor<4x4xf32>
    cond {
      %last = stablehlo.constant dense<3> : tensor<i32>
      %goes = stablehlo.compare LT, %k, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %goes : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %x3 = stablehlo.dynamic_slice %xs, %k, %zero, %zero, sizes = [1, 8, 4] : (tensor<3x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x4xf32>
      %x = stablehlo.reshape %x3 : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
      %y = stablehlo.dot_general %s, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %n = stablehlo.add %y, %x : tensor<8x4xf32>
      %d = stablehlo.dot_general %x, %n, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
      %u = stablehlo.add %t, %d : tensor<4x4xf32>
      stablehlo.return %next, %n, %u : tensor<i32>, tensor<8x4xf32>, tensor<4x4xf32>
    }
  return %h, %g : tensor<8x4xf32>, tensor<4x4xf32>
}
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[XS:.*]] = stablehlo.reshape {{.*}} -> tensor<3x4x4xf32>
// CHECK: %[[R:.*]]:3 = stablehlo.while({{.*}}) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
// CHECK: %[[X:.*]] = stablehlo.dynamic_slice %[[XS]], {{.*}} sizes = [1, 4, 4]
// CHECK: stablehlo.add %{{.*}}, %[[R]]#2

// A loop that sums up gradients of parts of the batch is the microbatch loop: block by block, from what its sum begins with.
//--- parts.mlir
// CHECK-LABEL: func.func @main
// CHECK-SAME: tensor<4x2xf32> {shardopt.batch = 0 : i64}
func.func @main(%w: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>, %start: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: %[[BLOCKS:.*]] = stablehlo.reshape %arg1 : (tensor<4x2xf32>) -> tensor<2x2x2xf32>
  // CHECK: %[[SUM:.*]] = mpmd.for (%{{.*}}) {iterations = 2 : ui32}
  // CHECK: mpmd.call @microbatch(%[[BLOCKS]], %arg0,
  // CHECK: %[[ALL:.*]] = stablehlo.add %arg2, %[[SUM]]
  // CHECK: stablehlo.subtract %arg0, %[[ALL]]
  %i, %xs, %v, %g = stablehlo.while(%k = %zero, %all = %x, %p = %w, %t = %start) : tensor<i32>, tensor<4x2xf32>, tensor<2xf32>, tensor<2xf32>
    cond {
      %last = stablehlo.constant dense<2> : tensor<i32>
      %goes = stablehlo.compare LT, %k, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %goes : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %two = stablehlo.constant dense<2> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %first = stablehlo.multiply %k, %two : tensor<i32>
      %rows = stablehlo.dynamic_slice %all, %first, %zero, sizes = [2, 2] : (tensor<4x2xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
      %y = stablehlo.dot_general %rows, %p, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      %d = stablehlo.dot_general %rows, %y, contracting_dims = [0] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      %u = stablehlo.add %t, %d : tensor<2xf32>
      stablehlo.return %next, %all, %p, %u : tensor<i32>, tensor<4x2xf32>, tensor<2xf32>, tensor<2xf32>
    }
  %n = stablehlo.subtract %w, %g : tensor<2xf32>
  return %n : tensor<2xf32>
}
// CHECK-LABEL: func.func private @microbatch
// CHECK: stablehlo.dynamic_slice %arg0, {{.*}} sizes = [1, 2, 2]
// CHECK: stablehlo.add %arg2,
// CHECK-NOT: stablehlo.while
