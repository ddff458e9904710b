// RUN: split-file %s %t
// RUN: not shardopt-opt %t/no-loop.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/no-loop.mlir
// RUN: not shardopt-opt %t/unread.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/unread.mlir
// RUN: not shardopt-opt %t/returned.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/returned.mlir
// RUN: not shardopt-opt %t/order.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/order.mlir
// RUN: not shardopt-opt %t/kept.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/kept.mlir
// RUN: not shardopt-opt %t/rows.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/rows.mlir
// RUN: not shardopt-opt %t/counter.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/counter.mlir
// RUN: not shardopt-opt %t/index.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/index.mlir
// RUN: not shardopt-opt %t/no-main.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/no-main.mlir
// RUN: not shardopt-opt %t/no-call.mlir --shardopt-verify-microbatched 2>&1 | FileCheck %t/no-call.mlir

//--- no-loop.mlir
// CHECK: error: expected one mpmd.for in @main (run the microbatch phase first), found 0
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

//--- unread.mlir
func.func @main(%w: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %r = mpmd.for (%zero) {iterations = 2 : ui32} (%acc: tensor<2xf32>, %i: tensor<ui32>) {
    %n = mpmd.call @step(%w, %acc, %i) {call_counter = 0 : ui32} : (tensor<2xf32>, tensor<2xf32>, tensor<ui32>) -> tensor<2xf32>
    mpmd.return %n : tensor<2xf32>
  } : tensor<2xf32>
  return %r : tensor<2xf32>
}
// CHECK: unread.mlir:[[@LINE-5]]:10: error: expected the loop to call '@microbatch', found '@step'
// CHECK: unread.mlir:[[@LINE+2]]:1: note: expected '@step' to be private, found it public
// CHECK: unread.mlir:[[@LINE+1]]:1: note: expected every captured value to be read, found argument 0 without use
func.func @step(%w: tensor<2xf32>, %acc: tensor<2xf32>, %i: tensor<ui32>) -> tensor<2xf32> {
  return %acc : tensor<2xf32>
}

//--- order.mlir
func.func @main(%w: tensor<2xf32>) -> tensor<2xf32> {
  %r:2 = mpmd.for (%w, %w) {iterations = 2 : ui32} (%a: tensor<2xf32>, %b: tensor<2xf32>, %i: tensor<ui32>) {
    // CHECK: order.mlir:[[@LINE+1]]:12: error: expected the last 3 operands to be the accumulators and the index in order
    %n:2 = mpmd.call @microbatch(%b, %a, %i) {call_counter = 0 : ui32} : (tensor<2xf32>, tensor<2xf32>, tensor<ui32>) -> (tensor<2xf32>, tensor<2xf32>)
    // CHECK: order.mlir:[[@LINE+1]]:5: note: expected the results of the call in order
    mpmd.return %n#1, %n#0 : tensor<2xf32>, tensor<2xf32>
  } : tensor<2xf32>, tensor<2xf32>
  return %r#0 : tensor<2xf32>
}
func.func private @microbatch(%a: tensor<2xf32>, %b: tensor<2xf32>, %i: tensor<ui32>) -> (tensor<2xf32>, tensor<2xf32>) {
  // CHECK: order.mlir:[[@LINE+5]]:1: note: expected no functions but '@main' and '@microbatch', found '@helper'
  // CHECK: order.mlir:[[@LINE+1]]:8: note: expected StableHLO operations and one microbatch loop, found 'func.call'
  %0 = call @helper(%a) : (tensor<2xf32>) -> tensor<2xf32>
  return %0, %b : tensor<2xf32>, tensor<2xf32>
}
func.func private @helper(%a: tensor<2xf32>) -> tensor<2xf32> {
  return %a : tensor<2xf32>
}

//--- kept.mlir
func.func @main(%w: tensor<2xf32>) -> tensor<2xf32> {
  %r = mpmd.for (%w) {iterations = 2 : ui32} (%acc: tensor<2xf32>, %i: tensor<ui32>) {
    %n = mpmd.call @microbatch(%acc, %i) {call_counter = 0 : ui32} : (tensor<2xf32>, tensor<ui32>) -> tensor<2xf32>
    // CHECK: kept.mlir:[[@LINE+1]]:5: error: expected the results of the call in order
    mpmd.return %acc : tensor<2xf32>
  } : tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func private @microbatch(%acc: tensor<2xf32>, %i: tensor<ui32>) -> tensor<2xf32> {
  return %acc : tensor<2xf32>
}

//--- rows.mlir
// CHECK: rows.mlir:[[@LINE+11]]:8: error: expected a row for each of 2 microbatches, found 'stablehlo.dynamic_slice' of one of 3
func.func @main(%x: tensor<3x2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %r = mpmd.for (%zero) {iterations = 2 : ui32} (%acc: tensor<2xf32>, %i: tensor<ui32>) {
    %n = mpmd.call @microbatch(%x, %acc, %i) {call_counter = 0 : ui32} : (tensor<3x2xf32>, tensor<2xf32>, tensor<ui32>) -> tensor<2xf32>
    mpmd.return %n : tensor<2xf32>
  } : tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func private @microbatch(%x: tensor<3x2xf32>, %acc: tensor<2xf32>, %i: tensor<ui32>) -> tensor<2xf32> {
  %c = stablehlo.constant dense<0> : tensor<ui32>
  %0 = stablehlo.dynamic_slice %x, %i, %c, sizes = [1, 2] : (tensor<3x2xf32>, tensor<ui32>, tensor<ui32>) -> tensor<1x2xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x2xf32>) -> tensor<2xf32>
  %2 = stablehlo.add %acc, %1 : tensor<2xf32>
  return %2 : tensor<2xf32>
}

//--- counter.mlir
// CHECK: counter.mlir:[[@LINE+4]]:10: error: expected attribute 'call_counter', found none
func.func @main(%x: tensor<2x2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %r = mpmd.for (%zero) {iterations = 2 : ui32} (%acc: tensor<2xf32>, %i: tensor<ui32>) {
    %n = mpmd.call @microbatch(%x, %acc, %i) : (tensor<2x2xf32>, tensor<2xf32>, tensor<ui32>) -> tensor<2xf32>
    mpmd.return %n : tensor<2xf32>
  } : tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func private @microbatch(%x: tensor<2x2xf32>, %acc: tensor<2xf32>, %i: tensor<ui32>) -> tensor<2xf32> {
  %c = stablehlo.constant dense<0> : tensor<ui32>
  %0 = stablehlo.dynamic_slice %x, %i, %c, sizes = [1, 2] : (tensor<2x2xf32>, tensor<ui32>, tensor<ui32>) -> tensor<1x2xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x2xf32>) -> tensor<2xf32>
  %2 = stablehlo.add %acc, %1 : tensor<2xf32>
  return %2 : tensor<2xf32>
}

//--- index.mlir
// CHECK: index.mlir:[[@LINE+3]]:8: error: expected the loop to number microbatches in a tensor<ui32>, found tensor<i32>
func.func @main(%x: tensor<2x2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %r = mpmd.for (%zero) {iterations = 2 : ui32} (%acc: tensor<2xf32>, %i: tensor<i32>) {
    %n = mpmd.call @microbatch(%x, %acc, %i) {call_counter = 0 : ui32} : (tensor<2x2xf32>, tensor<2xf32>, tensor<i32>) -> tensor<2xf32>
    mpmd.return %n : tensor<2xf32>
  } : tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func private @microbatch(%x: tensor<2x2xf32>, %acc: tensor<2xf32>, %i: tensor<i32>) -> tensor<2xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %x, %i, %c, sizes = [1, 2] : (tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x2xf32>) -> tensor<2xf32>
  %2 = stablehlo.add %acc, %1 : tensor<2xf32>
  return %2 : tensor<2xf32>
}

//--- no-main.mlir
// CHECK: error: expected a function @main, found none
func.func @step(%x: tensor<2x2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %r = mpmd.for (%zero) {iterations = 2 : ui32} (%acc: tensor<2xf32>, %i: tensor<ui32>) {
    %n = mpmd.call @microbatch(%x, %acc, %i) {call_counter = 0 : ui32} : (tensor<2x2xf32>, tensor<2xf32>, tensor<ui32>) -> tensor<2xf32>
    mpmd.return %n : tensor<2xf32>
  } : tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func private @microbatch(%x: tensor<2x2xf32>, %acc: tensor<2xf32>, %i: tensor<ui32>) -> tensor<2xf32> {
  %c = stablehlo.constant dense<0> : tensor<ui32>
  %0 = stablehlo.dynamic_slice %x, %i, %c, sizes = [1, 2] : (tensor<2x2xf32>, tensor<ui32>, tensor<ui32>) -> tensor<1x2xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x2xf32>) -> tensor<2xf32>
  %2 = stablehlo.add %acc, %1 : tensor<2xf32>
  return %2 : tensor<2xf32>
}

//--- no-call.mlir
// CHECK: error: expected one mpmd.call in the microbatch loop, found 0
func.func @main(%x: tensor<2x2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %r = mpmd.for (%zero) {iterations = 2 : ui32} (%acc: tensor<2xf32>, %i: tensor<ui32>) {
    %n = stablehlo.add %acc, %acc : tensor<2xf32>
    mpmd.return %n : tensor<2xf32>
  } : tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func private @microbatch(%x: tensor<2x2xf32>, %acc: tensor<2xf32>, %i: tensor<ui32>) -> tensor<2xf32> {
  %c = stablehlo.constant dense<0> : tensor<ui32>
  %0 = stablehlo.dynamic_slice %x, %i, %c, sizes = [1, 2] : (tensor<2x2xf32>, tensor<ui32>, tensor<ui32>) -> tensor<1x2xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x2xf32>) -> tensor<2xf32>
  %2 = stablehlo.add %acc, %1 : tensor<2xf32>
  return %2 : tensor<2xf32>
}

//--- returned.mlir
func.func @main(%w: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %r:2 = mpmd.for (%zero, %zero) {iterations = 2 : ui32} (%acc: tensor<2xf32>, %own: tensor<2xf32>, %i: tensor<ui32>) {
    %n:2 = mpmd.call @microbatch(%w, %acc, %own, %i) {call_counter = 0 : ui32} : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<ui32>) -> (tensor<2xf32>, tensor<2xf32>)
    mpmd.return %n#0, %n#1 : tensor<2xf32>, tensor<2xf32>
  } : tensor<2xf32>, tensor<2xf32>
  return %r#0 : tensor<2xf32>
}
// CHECK: returned.mlir:[[@LINE+1]]:1: error: expected result 0 to be computed, or the accumulator in its place, found argument 0
func.func private @microbatch(%w: tensor<2xf32>, %acc: tensor<2xf32>, %own: tensor<2xf32>, %i: tensor<ui32>) -> (tensor<2xf32>, tensor<2xf32>) {
  return %w, %own : tensor<2xf32>, tensor<2xf32>
}
