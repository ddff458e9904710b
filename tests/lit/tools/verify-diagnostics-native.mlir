// What C++ passes say is compared as mlir-opt compares it: the operation that they attach to a
// warning counts for nothing, and a module that nothing opens is at the line before the first of
// its part.
// RUN: shardopt-opt %s --split-input-file --verify-diagnostics --sdy-populate-op-sharding-rules -stablehlo-legalize-to-vhlo -vhlo-to-version=target=1.2.0 -o %t
// RUN: not shardopt-opt %s --split-input-file --sdy-populate-op-sharding-rules -o %t --mlir-print-op-on-diagnostic -shardopt-verify-imported 2>&1 | FileCheck %s
// CHECK: warning: custom call @unknown is unknown to SDY sharding rule registry
// CHECK: note: see current operation: %0 = stablehlo.custom_call @unknown

func.func @warning(%arg0: tensor<8xi32>) -> tensor<8xi32> {
  // expected-warning @+1 {{custom call @unknown is unknown to SDY sharding rule registry}}
  %0 = stablehlo.custom_call @unknown(%arg0) : (tensor<8xi32>) -> tensor<8xi32>
  return %0 : tensor<8xi32>
}

// -----

// expected-error @-3 {{failed to convert VHLO to v1.2.0}}
func.func @module_of_a_part(%arg0: tensor<f32>) -> tensor<f32> {
  // expected-error @+1 {{failed to legalize operation 'vhlo.custom_call_v1'}}
  %0 = stablehlo.custom_call @typed(%arg0) {api_version = 4 : i32} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @module_of_a_part_once_more(%arg0: tensor<f32>) -> tensor<f32> {
  // expected-error @unknown {{failed to convert VHLO to v1.2.0}}
  // expected-error @+1 {{failed to legalize operation 'vhlo.custom_call_v1'}}
  %0 = stablehlo.custom_call @typed(%arg0) {api_version = 4 : i32} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
