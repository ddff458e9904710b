// A value may be unreduced only where it is made of terms: every other place would count it once for each device.
// RUN: split-file %s %t
// RUN: shardopt-opt %t/proven.mlir --shardopt-verify-sharded -o %t/out.mlir
// RUN: not shardopt-opt %t/whole.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/whole.mlir
// RUN: not shardopt-opt %t/split.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/split.mlir
// RUN: not shardopt-opt %t/border.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/border.mlir
// RUN: not shardopt-opt %t/loop.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/loop.mlir

//--- proven.mlir
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {"x"}]>>, %y: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{"x"}, {}]>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  %r:2 = mpmd.fragment<mesh="m0", origin=["fwd"], stage=0> (%x, %y) {shardopt.kind = "fwd", shardopt.cost = {}} (%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) {
    %z = stablehlo.constant {mhlo.sharding = "{unreduced}"} dense<0.0> : tensor<8x8xf32>
    %d = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {mhlo.sharding = "{unreduced}"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %t = stablehlo.transpose %d, dims = [1, 0] {mhlo.sharding = "{unreduced}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %s = stablehlo.add %t, %z {mhlo.sharding = "{unreduced}"} : tensor<8x8xf32>
    %m = stablehlo.multiply %s, %b {mhlo.sharding = "{unreduced}"} : tensor<8x8xf32>
    %w = stablehlo.tanh %m {mhlo.sharding = "{replicated}"} : tensor<8x8xf32>
    mpmd.return %s, %w : tensor<8x8xf32>, tensor<8x8xf32>
  } : (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {"x"}]>>, !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}], unreduced={"x"}>>, !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>)
  return
}

//--- whole.mlir
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{"x"}, {}]>>, %y: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  mpmd.fragment<mesh="m0", origin=["fwd"], stage=0> (%x, %y) {shardopt.kind = "fwd", shardopt.cost = {}} (%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) {
    // Contracted along a dimension that is whole.
    // CHECK: whole.mlir:[[@LINE+1]]:10: error: 'stablehlo.dot_general' has a result that is unreduced along 'x': expected an operand that is split along 'x' on a contracted dimension, or operands unreduced along 'x' in which it is linear
    %d = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {mhlo.sharding = "{unreduced}"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    // One operand is whole: every device would add it.
    // CHECK: whole.mlir:[[@LINE+1]]:10: note: 'stablehlo.add' has a result that is unreduced along 'x'
    %s = stablehlo.add %d, %b {mhlo.sharding = "{unreduced}"} : tensor<8x8xf32>
    // The product of two sums is not the sum of products.
    // CHECK: whole.mlir:[[@LINE+1]]:10: note: 'stablehlo.multiply' has a result that is unreduced along 'x'
    %m = stablehlo.multiply %d, %s {mhlo.sharding = "{unreduced}"} : tensor<8x8xf32>
    // CHECK: whole.mlir:[[@LINE+1]]:10: note: 'stablehlo.tanh' has a result that is unreduced along 'x'
    %t = stablehlo.tanh %m {mhlo.sharding = "{unreduced}"} : tensor<8x8xf32>
    // CHECK: whole.mlir:[[@LINE+1]]:10: note: 'stablehlo.constant' has a result that is unreduced along 'x'
    %c = stablehlo.constant {mhlo.sharding = "{unreduced}"} dense<1.0> : tensor<8x8xf32>
    mpmd.return
  } : (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>) -> ()
  return
}

//--- split.mlir
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {"x"}]>>, %y: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{"x", "y"}, {}]>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2, "y"=2]>>>} {
  mpmd.fragment<mesh="m0", origin=["fwd"], stage=0> (%x, %y) {shardopt.kind = "fwd", shardopt.cost = {}} (%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) {
    // Shardy's partitioner ends the process.
    // CHECK: split.mlir:[[@LINE+1]]:10: error: 'stablehlo.dot_general' has an unreduced result: expected operands that are split in one way where they are summed over, found {x} and {x, y}
    %d = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {mhlo.sharding = "{unreduced}"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    // It counts terms twice.
    // CHECK: split.mlir:[[@LINE+1]]:10: note: 'stablehlo.dot_general' has an unreduced result: expected none of its dimensions split along 'y', along which it is summed over
    %e = stablehlo.dot_general %b, %b, contracting_dims = [0] x [0] {mhlo.sharding = "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dims={unreduced}}"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    mpmd.return
  } : (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {"x"}]>>, !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{"x", "y"}, {}]>>) -> ()
  return
}

//--- border.mlir
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}]>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  // CHECK: border.mlir:[[@LINE+1]]:8: error: result 0 is unreduced along 'x' and what the fragment returns is not
  %r = mpmd.fragment<mesh="m0", origin=["fwd"], stage=0> (%x) {shardopt.kind = "fwd", shardopt.cost = {}} (%a: tensor<8xf32>) {
    mpmd.return %a : tensor<8xf32>
  } : (!mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}]>>) -> !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}], unreduced={"x"}>>
  return
}

//--- loop.mlir
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}]>>, %p: !mpmd.mesh_tensor<"m0", tensor<i1>, sharding=<@m0, []>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  mpmd.fragment<mesh="m0", origin=["fwd"], stage=0> (%x, %p) {shardopt.kind = "fwd", shardopt.cost = {}} (%a: tensor<8xf32>, %q: tensor<i1>) {
    %0 = "stablehlo.if"(%q) ({
      // CHECK: loop.mlir:[[@LINE+1]]:12: error: expected a reduced value inside of 'stablehlo.if', found an unreduced one
      %1 = stablehlo.constant {mhlo.sharding = "{unreduced}"} dense<0.0> : tensor<8xf32>
      stablehlo.return %1 : tensor<8xf32>
    }, {
      stablehlo.return %a : tensor<8xf32>
    }) : (tensor<i1>) -> tensor<8xf32>
    mpmd.return
  } : (!mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}]>>, !mpmd.mesh_tensor<"m0", tensor<i1>, sharding=<@m0, []>>) -> ()
  return
}
