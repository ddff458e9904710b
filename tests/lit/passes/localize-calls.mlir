// RUN: split-file %s %t
// RUN: shardopt-opt %t/rows.mlir --shardopt-verify-chosen --shardopt-localize-calls --shardopt-verify-chosen | FileCheck %t/rows.mlir
// RUN: shardopt-opt %t/terms.mlir --shardopt-verify-chosen --shardopt-localize-calls --shardopt-verify-chosen | FileCheck %t/terms.mlir
// RUN: shardopt-opt %t/whole.mlir --shardopt-localize-calls | FileCheck %t/whole.mlir

// Of the results only those that somebody reads leave the region.
//--- rows.mlir
// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<8x4xf32>, %g: tensor<4xf32>) -> tensor<8x4xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2, "y"=2]>, shardopt.strategy = "[{x, y}, {}], [{}] -> [{x, y}, {}]"} {
  // CHECK: %[[R:.*]] = sdy.manual_computation(%arg0, %arg1)
  // CHECK-SAME: in_shardings=[<mesh<["x"=2, "y"=2]>, [{"x", "y"}, {}]>, <mesh<["x"=2, "y"=2]>, [{}]>]
  // CHECK-SAME: out_shardings=[<mesh<["x"=2, "y"=2]>, [{"x", "y"}, {}]>] manual_axes={"x", "y"} (%[[A:.*]]: tensor<2x4xf32>, %[[B:.*]]: tensor<4xf32>) {
  // CHECK-NEXT: %[[C:.*]]:2 = stablehlo.custom_call @mine(%[[A]], %[[B]]) {mhlo.backend_config = {left = 1 : i32}} : (tensor<2x4xf32>, tensor<4xf32>) -> (tensor<2x4xf32>, tensor<16xui8>)
  // CHECK-NEXT: sdy.return %[[C]]#0 : tensor<2x4xf32>
  // CHECK-NEXT: } {shardopt.strategy = "[{x, y}, {}], [{}] -> [{x, y}, {}]"}
  %0:2 = stablehlo.custom_call @mine(%x, %g) {mhlo.backend_config = {left = 1 : i32}, sdy.sharding_rule = #sdy.op_sharding_rule<([i, j], [j])->([i, j], [k]) {i=8, j=4, k=16} need_replication={j, k}, custom>, shardopt.strategy = "[{x, y}, {}], [{}] -> [{x, y}, {}], [{}]"} : (tensor<8x4xf32>, tensor<4xf32>) -> (tensor<8x4xf32>, tensor<16xui8>)
  // CHECK: return %[[R]]
  return %0#0 : tensor<8x4xf32>
}

// Each device makes a term; the sum stays unreduced along y, as the strategy says, and is taken along x.
//--- terms.mlir
// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<8x4xf32>) -> tensor<4xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2, "y"=2]>, shardopt.strategy = "[{x, y}, {}] -> [{}]"} {
  // CHECK: %[[R:.*]] = sdy.manual_computation(%arg0) {{.*}} out_shardings=[<mesh<["x"=2, "y"=2]>, [{"x", "y"}, {}]>] {{.*}} (%[[A:.*]]: tensor<2x4xf32>) {
  // CHECK-NEXT: %[[C:.*]] = stablehlo.custom_call @sums(%[[A]]) : (tensor<2x4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %[[T:.*]] = stablehlo.reshape %[[C]] : (tensor<4xf32>) -> tensor<1x4xf32>
  // CHECK-NEXT: sdy.return %[[T]]
  // CHECK-NEXT: } {shardopt.strategy = "[{x, y}, {}] -> [{x, y}, {}]"} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  // CHECK: %[[Z:.*]] = stablehlo.constant {shardopt.strategy = "-> []"} dense<0.0
  // CHECK: stablehlo.reduce(%[[R]] init: %[[Z]]) applies stablehlo.add across dimensions = [0] {shardopt.strategy = "[{x, y}, {}], [] -> [{}]"}
  %0 = stablehlo.custom_call @sums(%x) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([j]) {i=8, j=4} reduction={i}, custom>, shardopt.strategy = "[{x, y}, {}] -> [{}]"} : (tensor<8x4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// What is not split stays as it is, without its rule.
//--- whole.mlir
// CHECK-NOT: sdy.manual_computation
// CHECK: stablehlo.custom_call @mine(%arg0) {shardopt.strategy = "[{}, {}] -> [{}, {}]"}
// CHECK: stablehlo.custom_call @other(%
func.func public @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}, {}] -> [{}, {}]"} {
  %0 = stablehlo.custom_call @mine(%x) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=4}, custom>, shardopt.strategy = "[{}, {}] -> [{}, {}]"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.custom_call @other(%0) {shardopt.strategy = "[{}, {}] -> [{}, {}]"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
