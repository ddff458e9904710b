// RUN: split-file %s %t
// RUN: not shardopt-opt %t/declared.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/declared.mlir
// RUN: not shardopt-opt %t/results.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/results.mlir
// RUN: not shardopt-opt %t/alias.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/alias.mlir
// RUN: not shardopt-opt %t/donor.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/donor.mlir
// RUN: not shardopt-opt %t/call.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/call.mlir
// RUN: not shardopt-opt %t/no-main.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/no-main.mlir
// RUN: not shardopt-opt %t/private.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/private.mlir
// RUN: not shardopt-opt %t/chlo.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/chlo.mlir
// RUN: not shardopt-opt %t/dynamic.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/dynamic.mlir
// RUN: not shardopt-opt %t/computed-shape.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/computed-shape.mlir
// RUN: not shardopt-opt %t/manual.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/manual.mlir
// RUN: not shardopt-opt %t/collective.mlir --shardopt-verify-imported 2>&1 | FileCheck %t/collective.mlir

//--- call.mlir
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  // CHECK: call.mlir:[[@LINE+5]]:1: error: expected '@main' to be the only function, found '@f'
  // CHECK: call.mlir:[[@LINE+1]]:8: note: expected no calls, found 'func.call' of '@f'; run shardopt-inline-calls first
  %0 = call @f(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

//--- no-main.mlir
// CHECK: error: expected a function '@main', found '@train'
func.func @train(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

//--- private.mlir
// CHECK: private.mlir:[[@LINE+1]]:1: error: expected '@main' to be public, found it private
func.func private @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

//--- chlo.mlir
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  // CHECK: chlo.mlir:[[@LINE+1]]:8: error: expected StableHLO operations only, found 'chlo.erf'
  %0 = chlo.erf %x : tensor<f32> -> tensor<f32>
  return %0 : tensor<f32>
}

//--- dynamic.mlir
// CHECK: dynamic.mlir:[[@LINE+1]]:1: error: expected arguments of static shape, found tensor<?xf32> in 'func.func'
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  return %x : tensor<?xf32>
}

//--- computed-shape.mlir
func.func @main(%x: tensor<4xf32>) -> tensor<2x2xf32> {
  %shape = stablehlo.constant dense<2> : tensor<2xi32>
  // CHECK: computed-shape.mlir:[[@LINE+1]]:8: error: expected static shapes, found 'stablehlo.dynamic_reshape', whose result shape is computed
  %0 = stablehlo.dynamic_reshape %x, %shape : (tensor<4xf32>, tensor<2xi32>) -> tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}

//--- manual.mlir
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: manual.mlir:[[@LINE+1]]:8: error: expected the mesh of 'sdy.manual_computation' in its attributes, found its name; run shardopt-read-manual-regions first
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%y: tensor<2xf32>) {
    sdy.return %y : tensor<2xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

//--- collective.mlir
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: collective.mlir:[[@LINE+1]]:8: error: expected a program for all devices, found '@SPMDFullToShardShape', which begins or ends code for one device
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%x) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: collective.mlir:[[@LINE+1]]:8: note: expected a program for all devices, found 'stablehlo.all_reduce', which is code for one device of a mesh
  %1 = "stablehlo.all_reduce"(%0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

//--- alias.mlir
// CHECK: alias.mlir:[[@LINE+6]]:1: error: arguments 0 and 1 both alias result 0
// CHECK: note: argument 2 aliases result 9, but there are 1 results
// CHECK: note: argument 3: expected a number in 'tf.aliasing_output', found "0"
// CHECK: note: argument 4 is replaced by result 0: expected equal types, found tensor<2xf32> and tensor<4xf32>
// CHECK: note: argument 5 is replaced by result -1, but there are 1 results
// CHECK-NOT: note: argument
func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %z: tensor<4xf32> {tf.aliasing_output = 9 : i32}, %a: tensor<4xf32> {tf.aliasing_output = "0"}, %b: tensor<2xf32> {shardopt.replaced_by = 0 : i32}, %c: tensor<4xf32> {shardopt.replaced_by = -1 : i32}) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

//--- donor.mlir
// CHECK: donor.mlir:[[@LINE+2]]:1: error: argument 1: expected true or false in 'jax.buffer_donor', found 7 : i32
// CHECK-NOT: note: argument
func.func @main(%x: tensor<4xf32> {jax.buffer_donor = false}, %y: tensor<4xf32> {jax.buffer_donor = 7 : i32}) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

//--- declared.mlir
// CHECK: declared.mlir:[[@LINE+2]]:1: error: expected '@main' to be public, found it private
// CHECK: note: expected '@main' to have one block, found 0
func.func private @main(%x: tensor<2xf32>) -> tensor<2xf32>

//--- results.mlir
func.func @main(%x: tensor<2xf32>, %n: tensor<1xi32>) -> tensor<2xf32> {
  // CHECK: results.mlir:[[@LINE+1]]:8: error: expected static shapes, found 'stablehlo.dynamic_iota', whose result shape is computed
  %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
  // CHECK: results.mlir:[[@LINE+1]]:8: note: expected results of static shape, found tensor<?xf32> from 'stablehlo.negate'
  %1 = stablehlo.negate %0 : tensor<?xf32>
  return %x : tensor<2xf32>
}
