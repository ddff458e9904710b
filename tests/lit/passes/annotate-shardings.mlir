// RUN: shardopt-opt %S/Inputs/chosen.mlir --shardopt-insert-reshards --shardopt-annotate-shardings | FileCheck %s --check-prefix=STAGED
// RUN: split-file %s %t
// RUN: shardopt-opt %t/plain.mlir --shardopt-annotate-shardings --shardopt-verify-sharded 2>&1 | FileCheck %t/plain.mlir
// RUN: shardopt-opt %t/plain.mlir --shardopt-annotate-shardings="sharding-format=sdy" --shardopt-verify-sharded | FileCheck %t/plain.mlir --check-prefix=SHARDY

// STAGED-LABEL: func.func public @main
// STAGED-NOT: shardopt.strategy
// STAGED: stablehlo.dot_general {{.*}} {mhlo.sharding = "{replicated}"}
// STAGED: stablehlo.custom_call @Sharding(%{{.*}}) {mhlo.sharding = "{devices=[2,1]<=[2]}"}
// STAGED-NOT: shardopt.strategy

// What a barrier hands on has the sharding of what it takes. The sum of the product stays open, of which GSPMD knows
// nothing.
//--- plain.mlir
// CHECK: plain.mlir:[[@LINE+13]]:1: warning: values stay unreduced: only for Shardy's partitioner, GSPMD would drop their sums without a word
// CHECK: module attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32}
// CHECK: @main(%arg0: tensor<8x8xf32> {mhlo.sharding = "{devices=[1,2]<=[2]}", tf.aliasing_output = 0 : i32}) -> (tensor<8x8xf32> {mhlo.sharding = "{devices=[1,2]<=[2]}"})
// CHECK-NOT: shardopt
// CHECK: stablehlo.transpose {{.*}} {mhlo.sharding = "{devices=[2,1]<=[2]}"}
// CHECK: stablehlo.optimization_barrier {mhlo.sharding = "{{[{][{]}}devices=[1,2]<=[2]}, {devices=[2,1]<=[2]}}"}
// CHECK: stablehlo.dot_general {{.*}} {mhlo.sharding = "{unreduced}"}

// SHARDY: sdy.mesh @mesh = <["x"=2]>
// SHARDY: %arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>
// SHARDY-NOT: shardopt
// SHARDY: %[[D:.*]] = stablehlo.dot_general
// SHARDY-NEXT: sdy.sharding_constraint %[[D]] <@mesh, [{}, {}], unreduced={"x"}>
func.func public @main(%x: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}, {x}] -> [{}, {x}]"} {
  %0 = stablehlo.transpose %x, dims = [1, 0] {shardopt.strategy = "[{}, {x}] -> [{x}, {}]"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1:2 = stablehlo.optimization_barrier %x, %0 : tensor<8x8xf32>, tensor<8x8xf32>
  %2 = stablehlo.dot_general %1#0, %1#1, contracting_dims = [1] x [0] {shardopt.strategy = "[{}, {x}], [{x}, {}] -> [{}, {}] + {x}"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = stablehlo.custom_call @Sharding(%2) {shardopt.strategy = "[{}, {}] + {x} -> [{}, {x}]"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}
