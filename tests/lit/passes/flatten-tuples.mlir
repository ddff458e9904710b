// RUN: shardopt-opt %s --shardopt-flatten-tuples | FileCheck %s
// RUN: shardopt-opt %s --shardopt-import | FileCheck %s --check-prefix=IMPORT

// Attributes hold for each value of a tuple, and what replaces it is counted by values. Nested tuples, tokens and empty
// tuples as well.
// CHECK: func.func public @main(%arg0: tensor<4xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 1 : i32}, %arg1: tensor<2xf32> {mhlo.sharding = "{devices=[2]<=[2]}", tf.aliasing_output = 2 : i32}, %arg2: tensor<8xf32>)
// CHECK-SAME: -> (tensor<8xf32> {jax.result_info = "y"}, tensor<4xf32> {jax.result_info = "state"}, tensor<2xf32> {jax.result_info = "state"})
// IMPORT: func.func public @main(%arg0: tensor<4xf32>
// IMPORT-SAME: %arg2: tensor<8xf32>)
// IMPORT-NOT: tuple
func.func public @main(
    %state: tuple<tensor<4xf32>, tuple<tensor<2xf32>>> {mhlo.sharding = "{{replicated}, {devices=[2]<=[2]}}", tf.aliasing_output = 1 : i32},
    %none: tuple<>,
    %x: tensor<8xf32>)
    -> (tensor<8xf32> {jax.result_info = "y"}, tuple<tensor<4xf32>, tuple<tensor<2xf32>>> {jax.result_info = "state"}) {
  // CHECK-NOT: tuple
  // CHECK: %[[V:.*]] = stablehlo.tanh %arg1
  // CHECK: %[[S:.*]] = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[2]<=[2]}"}
  // CHECK: return %arg2, %[[S]], %[[V]] : tensor<8xf32>, tensor<4xf32>, tensor<2xf32>
  %0 = stablehlo.get_tuple_element %state[1] : (tuple<tensor<4xf32>, tuple<tensor<2xf32>>>) -> tuple<tensor<2xf32>>
  %1 = stablehlo.get_tuple_element %0[0] : (tuple<tensor<2xf32>>) -> tensor<2xf32>
  %2 = stablehlo.tanh %1 : tensor<2xf32>
  %3 = stablehlo.get_tuple_element %state[0] {mhlo.sharding = "{devices=[2]<=[2]}"} : (tuple<tensor<4xf32>, tuple<tensor<2xf32>>>) -> tensor<4xf32>
  %4 = stablehlo.tuple %2 : tuple<tensor<2xf32>>
  %5 = stablehlo.tuple %3, %4 : tuple<tensor<4xf32>, tuple<tensor<2xf32>>>
  return %x, %5 : tensor<8xf32>, tuple<tensor<4xf32>, tuple<tensor<2xf32>>>
}

// Constraints on tuples are constraints on values, and a custom call has results.
// CHECK-LABEL: func.func private @constraints
// CHECK-SAME: (%arg0: tensor<4xf32>, %arg1: tensor<8xf32>) -> (tensor<4xf32>, tensor<4xf32>)
func.func private @constraints(%a: tuple<tensor<4xf32>, tensor<8xf32>>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: %[[A:.*]] = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{replicated}"}
  // CHECK: stablehlo.custom_call @Sharding(%arg1) {mhlo.sharding = "{devices=[4]<=[4]}"}
  // CHECK: %[[C:.*]]:2 = stablehlo.custom_call @two(%[[A]]) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<8xf32>)
  // CHECK: %[[T:.*]] = stablehlo.custom_call @Sharding(%[[C]]#0) {mhlo.sharding = "{replicated}"}
  // CHECK: return %[[C]]#0, %[[T]]
  %0 = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{{replicated}, {devices=[4]<=[4]}}"} : (tuple<tensor<4xf32>, tensor<8xf32>>) -> tuple<tensor<4xf32>, tensor<8xf32>>
  %1 = stablehlo.get_tuple_element %0[0] : (tuple<tensor<4xf32>, tensor<8xf32>>) -> tensor<4xf32>
  %2 = stablehlo.custom_call @two(%1) : (tensor<4xf32>) -> tuple<tensor<4xf32>, tensor<8xf32>>
  %3 = stablehlo.get_tuple_element %2[0] : (tuple<tensor<4xf32>, tensor<8xf32>>) -> tensor<4xf32>
  %4 = stablehlo.tuple %3 {mhlo.sharding = "{replicated}"} : tuple<tensor<4xf32>>
  %5 = stablehlo.get_tuple_element %4[0] : (tuple<tensor<4xf32>>) -> tensor<4xf32>
  return %3, %5 : tensor<4xf32>, tensor<4xf32>
}
