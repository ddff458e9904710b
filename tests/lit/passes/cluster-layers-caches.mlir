// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" | FileCheck %s

// Each microbatch writes its rows of two caches. These are no gradients, although they replace arguments that the body
// reads: no sum over the batch ends in them, and all of the body is forward.

// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[H:.*]] = stablehlo.dot_general {{.*}} {shardopt.layer = 0 : i64}
// CHECK: %[[Y:.*]] = stablehlo.dot_general %[[H]], {{.*}} {shardopt.layer = 1 : i64}
// CHECK: stablehlo.dynamic_update_slice {{.*}} {shardopt.layer = 1 : i64}
!w = tensor<4x4xf32>
!all = tensor<8x4xf32>
func.func public @main(%c0: !all {tf.aliasing_output = 0 : i32}, %c1: !all {tf.aliasing_output = 1 : i32},
                       %w0: !w, %w1: !w) -> (!all, !all) {
  %zeros = stablehlo.constant dense<0.0> : !all
  %r:2 = mpmd.for (%zeros, %zeros) {iterations = 2 : ui32} (%a0: !all, %a1: !all, %i: tensor<ui32>) {
    %n:2 = mpmd.call @microbatch(%c0, %c1, %w0, %w1, %a0, %a1, %i) {call_counter = 0 : ui32}
      : (!all, !all, !w, !w, !all, !all, tensor<ui32>) -> (!all, !all)
    mpmd.return %n#0, %n#1 : !all, !all
  } : !all, !all
  return %r#0, %r#1 : !all, !all
}
func.func private @microbatch(%c0: !all, %c1: !all, %w0: !w, %w1: !w, %a0: !all, %a1: !all, %i: tensor<ui32>)
    -> (!all, !all) {
  %four = stablehlo.constant dense<4> : tensor<ui32>
  %zero = stablehlo.constant dense<0> : tensor<ui32>
  %row = stablehlo.multiply %i, %four : tensor<ui32>
  %x0 = stablehlo.dynamic_slice %c0, %row, %zero, sizes = [4, 4] : (!all, tensor<ui32>, tensor<ui32>) -> !w
  %x1 = stablehlo.dynamic_slice %c1, %row, %zero, sizes = [4, 4] : (!all, tensor<ui32>, tensor<ui32>) -> !w
  %h = stablehlo.dot_general %x0, %w0, contracting_dims = [1] x [0] : (!w, !w) -> !w
  %n0 = stablehlo.dynamic_update_slice %a0, %h, %row, %zero : (!all, !w, tensor<ui32>, tensor<ui32>) -> !all
  %y = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] : (!w, !w) -> !w
  %z = stablehlo.add %y, %x1 : !w
  %n1 = stablehlo.dynamic_update_slice %a1, %z, %row, %zero : (!all, !w, tensor<ui32>, tensor<ui32>) -> !all
  return %n0, %n1 : !all, !all
}
