// RUN: split-file %s %t
// RUN: shardopt-opt %t/again.mlir --shardopt-verify-chosen --shardopt-rematerialize --shardopt-verify-chosen | FileCheck %t/again.mlir
// RUN: shardopt-opt %t/read.mlir --shardopt-verify-chosen --shardopt-rematerialize --shardopt-verify-chosen | FileCheck %t/read.mlir
// RUN: shardopt-opt %t/wanted.mlir --shardopt-verify-chosen --shardopt-rematerialize --shardopt-verify-chosen --shardopt-insert-reshards | FileCheck %t/wanted.mlir
// RUN: shardopt-opt %t/waits.mlir --shardopt-verify-chosen --shardopt-rematerialize --shardopt-verify-chosen | FileCheck %t/waits.mlir
// RUN: shardopt-opt %S/Inputs/chosen.mlir --shardopt-rematerialize -o %t/same.mlir
// RUN: shardopt-opt %S/Inputs/chosen.mlir | diff %t/same.mlir -

// The hyperbolic tangent runs again before its last reader, behind a barrier that waits for the other operand of that
// reader. Its copy wants its operand whole, which is split: an identity says where it is resharded.
//--- again.mlir
// CHECK-LABEL: func.func public @main
// CHECK-NOT: shardopt.rematerialize
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{x}] -> [{}]",
    shardopt.rematerialize = [{chain = array<i64: 1>, readers = array<i64: 3>, strategies = ["[{}] -> [{}]"]}]} {
  // CHECK: %[[Z:.*]] = stablehlo.negate %arg0
  %z = stablehlo.negate %x {shardopt.strategy = "[{x}] -> [{x}]"} : tensor<8xf32>
  // CHECK: %[[Y:.*]] = stablehlo.tanh %[[Z]] {shardopt.strategy = "[{x}] -> [{}]"}
  %y = stablehlo.tanh %z {shardopt.strategy = "[{x}] -> [{}]"} : tensor<8xf32>
  // CHECK: %[[H:.*]] = stablehlo.add %[[Y]], %[[Y]]
  %h = stablehlo.add %y, %y {shardopt.strategy = "[{}], [{}] -> [{}]"} : tensor<8xf32>
  // CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier %[[Z]], %[[H]]
  // CHECK: %[[S:.*]] = stablehlo.custom_call @Sharding(%[[B]]#0) {shardopt.strategy = "[{x}] -> [{}]"}
  // CHECK: %[[AGAIN:.*]] = stablehlo.tanh %[[S]] {shardopt.strategy = "[{}] -> [{}]"}
  // CHECK: stablehlo.multiply %[[B]]#1, %[[AGAIN]]
  %m = stablehlo.multiply %h, %y {shardopt.strategy = "[{}], [{}] -> [{}]"} : tensor<8xf32>
  return %m : tensor<8xf32>
}

// The last two readers share a copy of the argument that the first has no part in.
//--- read.mlir
// CHECK-LABEL: func.func public @main
// CHECK: %[[H:.*]] = stablehlo.tanh %arg0
// CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg0, %[[H]]
// CHECK: %[[M:.*]] = stablehlo.multiply %[[B]]#1, %[[B]]#0
// CHECK: stablehlo.add %[[B]]#0, %[[M]]
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{x}] -> [{}]",
    shardopt.rematerialize = [{operand = 1 : i64, readers = array<i64: 1, 2>}]} {
  %h = stablehlo.tanh %x {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  %m = stablehlo.multiply %h, %x {shardopt.strategy = "[{}], [{}] -> [{}]"} : tensor<8xf32>
  %a = stablehlo.add %x, %m {shardopt.strategy = "[{}], [{}] -> [{}]"} : tensor<8xf32>
  return %a : tensor<8xf32>
}

// The reader that waits for the tangent wants it whole, as another does: it is gathered once, before the barrier.
//--- wanted.mlir
// CHECK-LABEL: func.func public @main
// CHECK: %[[H:.*]] = stablehlo.tanh %arg0
// CHECK-NEXT: %[[WHOLE:.*]] = stablehlo.custom_call @Sharding(%[[H]]) {shardopt.strategy = "[{x}] -> [{}]"}
// CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[WHOLE]]
// CHECK-NEXT: %[[READ:.*]] = stablehlo.custom_call @Sharding(%[[WHOLE]]) {shardopt.strategy = "[{}] -> [{}]"}
// CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg1, %[[READ]]
// CHECK-NEXT: %[[COPY:.*]] = stablehlo.custom_call @Sharding(%[[B]]#0) {shardopt.strategy = "[{x}] -> [{}]"}
// CHECK-NEXT: stablehlo.multiply %[[B]]#1, %[[COPY]]
func.func public @main(%x: tensor<8xf32>, %w: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{x}], [{x}] -> [{}], [{}]",
    shardopt.rematerialize = [{operand = 1 : i64, readers = array<i64: 2>}]} {
  %h = stablehlo.tanh %x {shardopt.strategy = "[{x}] -> [{x}]"} : tensor<8xf32>
  %n = stablehlo.negate %h {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  %m = stablehlo.multiply %h, %w {shardopt.strategy = "[{}], [{}] -> [{}]"} : tensor<8xf32>
  return %n, %m : tensor<8xf32>, tensor<8xf32>
}

// One reader waits at a barrier for the value that it reads: what is recomputed comes to it behind a barrier too, or it
// could be merged with the reader in front of the barrier. A value that another row has put behind a barrier is
// recomputed all the same.
//--- waits.mlir
// CHECK-LABEL: func.func public @main
// CHECK: %[[A:.*]] = stablehlo.tanh %arg0
// CHECK: %[[C:.*]] = stablehlo.cosine %arg0
// CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg0, %[[C]]
// CHECK: %[[A2:.*]] = stablehlo.tanh %[[B]]#0
// CHECK: %[[S:.*]]:2 = stablehlo.optimization_barrier %arg0, %[[A2]]
// CHECK: %[[C2:.*]] = stablehlo.cosine %[[S]]#0
// CHECK: stablehlo.multiply %[[S]]#1, %[[C2]]
// CHECK: %[[W:.*]] = stablehlo.optimization_barrier %[[A2]]
// CHECK: stablehlo.negate %[[W]]
func.func public @main(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}] -> [{}], [{}]", shardopt.rematerialize = [
    {chain = array<i64: 0>, readers = array<i64: 2, 3>, strategies = ["[{}] -> [{}]"]},
    {chain = array<i64: 1>, readers = array<i64: 2>, strategies = ["[{}] -> [{}]"]}]} {
  %a = stablehlo.tanh %x {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  %c = stablehlo.cosine %x {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  %m = stablehlo.multiply %a, %c {shardopt.strategy = "[{}], [{}] -> [{}]"} : tensor<8xf32>
  %b = stablehlo.optimization_barrier %a : tensor<8xf32>
  %n = stablehlo.negate %b {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  return %m, %n : tensor<8xf32>, tensor<8xf32>
}
