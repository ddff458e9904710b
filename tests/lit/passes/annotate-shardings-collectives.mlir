// RUN: split-file %s %t
// RUN: shardopt-opt %t/grid.mlir --shardopt-annotate-shardings="sharding-format=collectives" --shardopt-verify-sharded | FileCheck %t/grid.mlir
// RUN: shardopt-opt %t/loop.mlir --shardopt-annotate-shardings="sharding-format=collectives" --shardopt-verify-sharded | FileCheck %t/loop.mlir
// RUN: shardopt-opt %t/whole.mlir --shardopt-annotate-shardings="sharding-format=collectives" --remarks=runs-whole 2>&1 | FileCheck %t/whole.mlir
// RUN: not shardopt-opt %t/uneven.mlir --shardopt-annotate-shardings="sharding-format=collectives" 2>&1 | FileCheck %t/uneven.mlir

// The program of one device of four: tiles, a sum over one axis that is scattered at once, one over the other axis, a
// gather of a minor axis, an exchange of two dimensions, a part by the number of the device.
//--- grid.mlir
// CHECK: module attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 4 : i32}
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[A:.*]]: tensor<8x4xf32> {shardopt.tile = {sharding = "[{}, {x}]", type = tensor<8x8xf32>}, tf.aliasing_output = 0 : i32}
// CHECK-SAME: %[[B:.*]]: tensor<4x8xf32>
// CHECK-SAME: -> (tensor<8x4xf32> {shardopt.tile = {sharding = "[{}, {x}]", type = tensor<8x8xf32>}}, tensor<8x4xf32>
// CHECK-SAME: shardopt.mesh = #sdy.mesh<["x"=2, "y"=2]>
// CHECK: %[[ID:.*]] = stablehlo.replica_id
// CHECK: %[[TABLE:.*]] = stablehlo.constant dense<{{\[\[}}0], [4], [0], [4]]> : tensor<4x1xi64>
// CHECK: stablehlo.dynamic_slice %[[TABLE]], %[[ID]]
// CHECK: %[[D:.*]] = stablehlo.dot_general %[[A]], %[[B]], {{.*}} (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
// CHECK: %[[S:.*]] = "stablehlo.reduce_scatter"(%[[D]]) <{replica_groups = dense<{{\[\[}}0, 2], [1, 3]]> : tensor<2x2xi64>, scatter_dimension = 1 : i64}>
// CHECK: stablehlo.add
// CHECK: (tensor<8x8xf32>) -> tensor<8x4xf32>
// CHECK: %[[T:.*]] = stablehlo.tanh %[[S]]
// CHECK: %[[E:.*]] = "stablehlo.all_to_all"(%[[T]]) <{concat_dimension = 1 : i64, replica_groups = dense<{{\[\[}}0, 2], [1, 3]]> : tensor<2x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<8x4xf32>) -> tensor<4x8xf32>
// CHECK: %[[G:.*]] = "stablehlo.all_gather"(%[[E]]) <{all_gather_dim = 0 : i64, replica_groups = dense<{{\[\[}}0, 2], [1, 3]]>
// CHECK: %[[P:.*]] = stablehlo.dynamic_slice %[[G]], {{.*}}, sizes = [8, 4]
// CHECK: return %[[T]], %[[P]]
// CHECK-NOT: shardopt.strategy
func.func public @main(%a: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) attributes {shardopt.mesh = #sdy.mesh<["x"=2, "y"=2]>, shardopt.strategy = "[{}, {x}], [{x}, {}] -> [{}, {x}], [{}, {y}]"} {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {shardopt.strategy = "[{}, {x}], [{x}, {}] -> [{}, {}]"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.custom_call @Sharding(%0) {shardopt.strategy = "[{}, {}] -> [{}, {x}]"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.tanh %1 {shardopt.strategy = "[{}, {x}] -> [{}, {x}]"} : tensor<8x8xf32>
  %3 = stablehlo.custom_call @Sharding(%2) {shardopt.strategy = "[{}, {x}] -> [{x}, {}]"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = stablehlo.custom_call @Sharding(%3) {shardopt.strategy = "[{x}, {}] -> [{}, {}]"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %5 = stablehlo.custom_call @Sharding(%4) {shardopt.strategy = "[{}, {}] -> [{}, {y}]"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2, %5 : tensor<8x8xf32>, tensor<8x8xf32>
}

// Loops carry tiles. The borders of a convolution-like window come from the neighbours.
//--- loop.mlir
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[X:.*]]: tensor<4xf32>
// CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %[[C:.*]] = %[[X]]) : tensor<i32>, tensor<4xf32>
// CHECK: %[[LEFT:.*]] = stablehlo.slice %{{.*}} [3:4]
// CHECK: %[[HALO:.*]] = "stablehlo.collective_permute"(%[[LEFT]]) <{source_target_pairs = dense<{{\[\[}}0, 1]]> : tensor<1x2xi64>}>
// CHECK: stablehlo.concatenate %[[HALO]]
// CHECK: stablehlo.select
// CHECK: stablehlo.return %{{.*}} : tensor<i32>, tensor<4xf32>
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{x}] -> [{x}]"} {
  %c = stablehlo.constant {shardopt.strategy = "-> []"} dense<0> : tensor<i32>
  %one = stablehlo.constant {shardopt.strategy = "-> []"} dense<1> : tensor<i32>
  %n = stablehlo.constant {shardopt.strategy = "-> []"} dense<3> : tensor<i32>
  %z = stablehlo.constant {shardopt.strategy = "-> []"} dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %c, %a = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %n {shardopt.strategy = "[], [] -> []"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %i, %one {shardopt.strategy = "[], [] -> []"} : tensor<i32>
    %2 = stablehlo.pad %a, %z, low = [1], high = [-1], interior = [0] {shardopt.strategy = "[{x}], [] -> [{x}]"} : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
    stablehlo.return %1, %2 : tensor<i32>, tensor<8xf32>
  }
  return %0#1 : tensor<8xf32>
}

// Where an operation cannot run on tiles, every device runs it whole, and a remark says why.
//--- whole.mlir
// CHECK: whole.mlir:[[@LINE+7]]:8: remark: every device runs 'stablehlo.sort' whole, on gathered operands: a dimension that it needs whole is split
// CHECK-LABEL: func.func public @main
// CHECK: %[[G:.*]] = "stablehlo.all_gather"
// CHECK: %[[S:.*]] = "stablehlo.sort"(%[[G]])
// CHECK: (tensor<8xf32>) -> tensor<8xf32>
// CHECK: stablehlo.dynamic_slice %[[S]], {{.*}} sizes = [4]
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{x}] -> [{x}]"} {
  %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) {shardopt.strategy = "[{x}] -> [{x}]"} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

//--- uneven.mlir
// CHECK: uneven.mlir:[[@LINE+1]]:1: error: expected tiles without padding, found sharding [{"x"}] of tensor<7xf32>
func.func public @main(%x: tensor<7xf32>) -> tensor<7xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{x}] -> [{x}]"} {
  %0 = stablehlo.tanh %x {shardopt.strategy = "[{x}] -> [{x}]"} : tensor<7xf32>
  return %0 : tensor<7xf32>
}
