// RUN: split-file %s %t
// RUN: not shardopt-opt %t/none.mlir --shardopt-verify-chosen 2>&1 | FileCheck %t/none.mlir
// RUN: not shardopt-opt %t/mesh.mlir --shardopt-verify-chosen 2>&1 | FileCheck %t/mesh.mlir
// RUN: not shardopt-opt %t/plain.mlir --shardopt-verify-chosen 2>&1 | FileCheck %t/plain.mlir
// RUN: not shardopt-opt %t/staged.mlir --shardopt-verify-chosen 2>&1 | FileCheck %t/staged.mlir
// RUN: not shardopt-opt %t/rows.mlir --shardopt-verify-chosen 2>&1 | FileCheck %t/rows.mlir
// RUN: not shardopt-opt %t/regions.mlir --shardopt-verify-chosen 2>&1 | FileCheck %t/regions.mlir
// RUN: not shardopt-opt %t/fields.mlir --shardopt-verify-chosen 2>&1 | FileCheck %t/fields.mlir

//--- none.mlir
// CHECK: error: expected a function '@main', found none
func.func private @other()

//--- mesh.mlir
// CHECK: error: expected a topology or 'shardopt.mesh' on '@main' (run shardopt-choose-shardings first), found none
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// Five departures, of which the first is the error.
//--- plain.mlir
// CHECK: plain.mlir:[[@LINE+5]]:1: error: operand 0 of 'func.func': sharding [{"x"}] has rank 1, the tensor has rank 2
// CHECK: note: expected attribute 'shardopt.cost' on 'func.func', found none
// CHECK: plain.mlir:[[@LINE+4]]:8: note: result 0 of 'stablehlo.tanh': sharding [{"y"}, {}] names axis 'y'
// CHECK: plain.mlir:[[@LINE+4]]:8: note: expected shardings of 2 operands of 'stablehlo.add', found 1
// CHECK: plain.mlir:[[@LINE+4]]:8: note: expected a strategy such as '[{x}, {}], [{}] -> [{x}]', found '[{x}'
func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{x}] -> [{}, {}]"} {
  %0 = stablehlo.tanh %x {shardopt.strategy = "[{}, {}] -> [{y}, {}]"} : tensor<8x8xf32>
  %1 = stablehlo.add %0, %x {shardopt.strategy = "[{}, {}] -> [{}, {}]"} : tensor<8x8xf32>
  %2 = stablehlo.negate %1 {shardopt.strategy = "[{x}"} : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

//--- staged.mlir
// CHECK: error: argument 0 of '@main': expected a mesh tensor with a sharding, found !mpmd.mesh_tensor<"m0", tensor<8xf32>>
// CHECK: note: result 0 of 'mpmd.fragment': expected a mesh tensor with a sharding
// CHECK: note: expected attribute 'shardopt.cost' on 'mpmd.fragment', found none
// CHECK: note: expected attribute 'shardopt.strategy' on 'stablehlo.tanh', found none
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<8xf32>> attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  %f = mpmd.fragment<mesh="m0", origin=["a"]> (%x) (%a: tensor<8xf32>) {
    %0 = stablehlo.tanh %a : tensor<8xf32>
    mpmd.return %0 : tensor<8xf32>
  } : (!mpmd.mesh_tensor<"m0", tensor<8xf32>>) -> !mpmd.mesh_tensor<"m0", tensor<8xf32>>
  return %f : !mpmd.mesh_tensor<"m0", tensor<8xf32>>
}

// Numbers that name no operation, or readers in front of what they read; strategies and operands that do not exist.
//--- rows.mlir
// CHECK: error: expected 'shardopt.rematerialize' to name operations below 2 in rising order, readers behind the chain, found [0, 2]
// CHECK: note: expected 'shardopt.rematerialize' to name operations below 2 in rising order, readers behind the chain, found [1, 0]
// CHECK: note: expected 1 strategies in 'shardopt.rematerialize', found 0
// CHECK: note: expected an operand below 1 in 'shardopt.rematerialize', found 1
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}] -> [{}]", shardopt.rematerialize = [
    {chain = array<i64: 0>, readers = array<i64: 2>, strategies = ["[{}] -> [{}]"]},
    {chain = array<i64: 1>, readers = array<i64: 0>, strategies = ["[{}] -> [{}]"]},
    {chain = array<i64: 0>, readers = array<i64: 1>, strategies = []},
    {operand = 1 : i64, readers = array<i64: 1>}]} {
  %0 = stablehlo.tanh %x {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  %1 = stablehlo.negate %0 {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  return %1 : tensor<8xf32>
}

// What is made in a loop cannot be read behind it.
//--- regions.mlir
// CHECK: error: expected 'shardopt.rematerialize' to name operations of one region in a row, found [2, 3]
func.func public @main(%x: tensor<8xf32>, %n: tensor<i32>) -> tensor<8xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}], [] -> [{}]", shardopt.rematerialize = [
    {chain = array<i64: 2>, readers = array<i64: 3>, strategies = ["[{}] -> [{}]"]}]} {
  %r:2 = stablehlo.while(%i = %n, %a = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n {shardopt.strategy = "[], [] -> []"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %j = stablehlo.add %i, %i {shardopt.strategy = "[], [] -> []"} : tensor<i32>
    %b = stablehlo.tanh %a {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
    stablehlo.return %j, %b : tensor<i32>, tensor<8xf32>
  }
  %1 = stablehlo.negate %r#1 {shardopt.strategy = "[{}] -> [{}]"} : tensor<8xf32>
  return %1 : tensor<8xf32>
}

//--- fields.mlir
// CHECK: error: expected rows of 'shardopt.rematerialize' with chain, strategies and readers, or with operand and readers, found {chain = array<i64: 0>}
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {shardopt.cost = {}, shardopt.mesh = #sdy.mesh<["x"=2]>, shardopt.strategy = "[{}] -> [{}]", shardopt.rematerialize = [{chain = array<i64: 0>}]} {
  return %x : tensor<8xf32>
}
