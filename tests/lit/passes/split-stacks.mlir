// RUN: shardopt-opt %s --shardopt-split-stacks | FileCheck %s
// RUN: shardopt-opt %s --shardopt-split-stacks --shardopt-split-stacks | FileCheck %s
// RUN: shardopt-opt %s --shardopt-split-stacks --mlir-pass-statistics 2>&1 | FileCheck %s --check-prefix=COUNTS
// RUN: shardopt-opt %s --shardopt-split-stacks="max-parts=1" --remarks=whole-stack 2>&1 | FileCheck %s --check-prefix=WHOLE

// Two layers, whose weights and momenta stand in one argument each: each row becomes an argument, replaced by a result, and
// what was done to stacks is done to rows; the norm of the gradient sums those of its rows.
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[W0:arg0]]: tensor<4x4xf32> {shardopt.part = array<i64: 0, 0, 0, 1, 2>, tf.aliasing_output = 0 : i32}
// CHECK-SAME: %[[M0:arg1]]: tensor<4x4xf32> {shardopt.part = array<i64: 1, 0, 0, 1, 2>, tf.aliasing_output = 1 : i32}
// CHECK-SAME: %arg2: tensor<4x4xf32> {shardopt.batch = 0 : i64}
// CHECK-SAME: %[[W1:arg3]]: tensor<4x4xf32> {shardopt.part = array<i64: 0, 0, 1, 1, 2>, tf.aliasing_output = 3 : i32}
// CHECK-SAME: %[[M1:arg4]]: tensor<4x4xf32> {shardopt.part = array<i64: 1, 0, 1, 1, 2>, tf.aliasing_output = 4 : i32}
// CHECK-SAME: -> (tensor<4x4xf32> {jax.result_info = "result[0]", shardopt.part = array<i64: 0, 0, 0, 1, 2>}
// CHECK-SAME: tensor<f32> {jax.result_info = "result[2]"}, tensor<4x4xf32> {jax.result_info = "result[0]", shardopt.part = array<i64: 0, 0, 1, 1, 2>}
// CHECK-NOT: tensor<2x4x4xf32>
// CHECK: %[[SUMS:.*]]:2 = mpmd.for
// CHECK-DAG: %[[G1:.*]] = stablehlo.transpose %[[SUMS]]#0, dims = [1, 0]
// CHECK-DAG: %[[G0:.*]] = stablehlo.transpose %[[SUMS]]#1, dims = [1, 0]
// CHECK-DAG: %[[N0:.*]] = stablehlo.add %{{.*}}, %[[G0]] : tensor<4x4xf32>
// CHECK-DAG: %[[N1:.*]] = stablehlo.add %{{.*}}, %[[G1]] : tensor<4x4xf32>
// CHECK-DAG: %[[U0:.*]] = stablehlo.subtract %arg0, %[[N0]]
// CHECK-DAG: %[[U1:.*]] = stablehlo.subtract %arg3, %[[N1]]
// CHECK: %[[S0:.*]] = stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [0, 1]
// CHECK: %[[S1:.*]] = stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [0, 1]
// CHECK: %[[NORM:.*]] = stablehlo.add %[[S0]], %[[S1]]
// CHECK: return %[[U0]], %[[N0]], %[[NORM]], %[[U1]], %[[N1]]

// COUNTS: (S){{ *}}2 arguments
// COUNTS: (S){{ *}}4 parts

// WHOLE: remark: the rows of argument 0 that layers read stay in one argument: it has 2 parts, more than 1
// WHOLE: %arg0: tensor<2x4x4xf32>
module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x4x4xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<2x4x4xf32> {tf.aliasing_output = 1 : i32}, %arg2: tensor<4x4xf32> {shardopt.batch = 0 : i64}) -> (tensor<2x4x4xf32> {jax.result_info = "result[0]"}, tensor<2x4x4xf32> {jax.result_info = "result[1]"}, tensor<f32> {jax.result_info = "result[2]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
    %0 = stablehlo.slice %arg0 [0:1, 0:4, 0:4] : (tensor<2x4x4xf32>) -> tensor<1x4x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.slice %arg0 [1:2, 0:4, 0:4] : (tensor<2x4x4xf32>) -> tensor<1x4x4xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.reshape %arg2 : (tensor<4x4xf32>) -> tensor<2x2x4xf32>
    %5:2 = mpmd.for (%cst_1, %cst_1) {iterations = 2 : ui32} (%arg3: tensor<4x4xf32>, %arg4: tensor<4x4xf32>, %index: tensor<ui32>) {
      %17:2 = mpmd.call @microbatch(%1, %3, %4, %arg3, %arg4, %index) {call_counter = 0 : ui32} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<ui32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
      mpmd.return %17#0, %17#1 : tensor<4x4xf32>, tensor<4x4xf32>
    } : tensor<4x4xf32>, tensor<4x4xf32>
    %6 = stablehlo.transpose %5#0, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [1, 2] : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %8 = stablehlo.transpose %5#1, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [1, 2] : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %10 = stablehlo.concatenate %9, %7, dim = 0 : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<2x4x4xf32>
    %11 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x4x4xf32>
    %12 = stablehlo.multiply %arg1, %11 : tensor<2x4x4xf32>
    %13 = stablehlo.add %12, %10 : tensor<2x4x4xf32>
    %14 = stablehlo.subtract %arg0, %13 : tensor<2x4x4xf32>
    %15 = stablehlo.multiply %10, %10 : tensor<2x4x4xf32>
    %16 = stablehlo.reduce(%15 init: %cst) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x4xf32>, tensor<f32>) -> tensor<f32>
    return %14, %13, %16 : tensor<2x4x4xf32>, tensor<2x4x4xf32>, tensor<f32>
  }
  func.func private @microbatch(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>, %arg2: tensor<2x2x4xf32>, %arg3: tensor<4x4xf32>, %arg4: tensor<4x4xf32>, %arg5: tensor<ui32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %0 = stablehlo.dynamic_slice %arg2, %arg5, %c, %c, sizes = [1, 2, 4] : (tensor<2x2x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x2x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
    %2 = stablehlo.dot_general %1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %3 = stablehlo.tanh %2 : tensor<2x4xf32>
    %4 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %5 = stablehlo.subtract %4, %3 : tensor<2x4xf32>
    %6 = stablehlo.dot_general %3, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %7 = stablehlo.tanh %6 : tensor<2x4xf32>
    %8 = stablehlo.subtract %4, %7 : tensor<2x4xf32>
    %9 = stablehlo.multiply %4, %8 : tensor<2x4xf32>
    %10 = stablehlo.multiply %9, %7 : tensor<2x4xf32>
    %11 = stablehlo.add %9, %10 : tensor<2x4xf32>
    %12 = stablehlo.dot_general %11, %3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
    %13 = stablehlo.dot_general %11, %arg1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %14 = stablehlo.multiply %13, %5 : tensor<2x4xf32>
    %15 = stablehlo.multiply %14, %3 : tensor<2x4xf32>
    %16 = stablehlo.add %14, %15 : tensor<2x4xf32>
    %17 = stablehlo.dot_general %16, %1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
    %18 = stablehlo.add %arg3, %12 : tensor<4x4xf32>
    %19 = stablehlo.add %arg4, %17 : tensor<4x4xf32>
    return %18, %19 : tensor<4x4xf32>, tensor<4x4xf32>
  }
}
