// RUN: split-file %s %t
// RUN: not shardopt-opt %t/types.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/types.mlir
// RUN: not shardopt-opt %t/ops.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/ops.mlir
// RUN: not shardopt-opt %t/axes.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/axes.mlir
// RUN: not shardopt-opt %t/plain.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/plain.mlir
// RUN: not shardopt-opt %t/signature.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/signature.mlir
// RUN: not shardopt-opt %t/shardy.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/shardy.mlir
// RUN: not shardopt-opt %t/padded.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/padded.mlir
// RUN: not shardopt-opt %t/unsaid.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/unsaid.mlir
// RUN: not shardopt-opt %t/sums.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/sums.mlir
// RUN: not shardopt-opt %t/manual.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/manual.mlir
// RUN: not shardopt-opt %t/device.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/device.mlir
// RUN: not shardopt-opt %t/cost.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/cost.mlir
// RUN: not shardopt-opt %t/shape.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/shape.mlir
// RUN: not shardopt-opt %t/replaced.mlir --shardopt-verify-sharded 2>&1 | FileCheck %t/replaced.mlir

//--- shape.mlir
!m = !mpmd.mesh_tensor<"m0", tensor<12xf32>, sharding=<@m0, [{"x"}]>>
// CHECK: shape.mlir:[[@LINE+5]]:1: error: argument 2 of '@main': expected a mesh tensor with a sharding
// CHECK: note: argument 0: expected 'shardopt.shape' whose tiles make up [12], found [8]
// CHECK: note: argument 1: expected 1 extents in 'shardopt.shape', found [10, 1]
// CHECK: note: argument 2: expected 'shardopt.shape' on a mesh tensor with a sharding, found !mpmd.mesh_tensor<"m0", tensor<12xf32>>
// CHECK: note: argument 3: expected array<i64: …> in 'shardopt.shape', found 10 : i64
func.func public @main(%a: !m {shardopt.shape = array<i64: 8>}, %b: !m {shardopt.shape = array<i64: 10, 1>}, %c: !mpmd.mesh_tensor<"m0", tensor<12xf32>> {shardopt.shape = array<i64: 10>}, %d: !m {shardopt.shape = 10 : i64}) attributes {topology = #mpmd.topology<<"m0" : <["x"=4]>>>} {
  return
}

//--- replaced.mlir
!m = !mpmd.mesh_tensor<"m0", tensor<12xf32>, sharding=<@m0, [{"x"}]>>
// CHECK: replaced.mlir:[[@LINE+1]]:1: error: argument 0 and result 0, which replaces it: expected equal 'shardopt.shape', found (10,) and (11,)
func.func public @main(%a: !m {shardopt.shape = array<i64: 10>, tf.aliasing_output = 0 : i32}) -> (!m {shardopt.shape = array<i64: 11>}) attributes {topology = #mpmd.topology<<"m0" : <["x"=4]>>>} {
  return %a : !m
}

//--- cost.mlir
!m = !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{"x"}]>>
func.func public @main(%x: !m) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  // CHECK: cost.mlir:[[@LINE+1]]:8: error: expected a number of at least 0 as peak_bytes in 'shardopt.cost', found -1 : i64
  %0 = mpmd.fragment<mesh="m0", origin=["f"], stage=0> (%x) {shardopt.cost = {peak_bytes = -1 : i64}} (%a: tensor<8xf32>) {
    mpmd.return %a : tensor<8xf32>
  } : (!m) -> !m
  // CHECK: cost.mlir:[[@LINE+1]]:8: note: expected a number of at least 0 as seconds in 'shardopt.cost', found 0x7FF0000000000000 : f64
  %1 = mpmd.fragment<mesh="m0", origin=["f"], stage=0> (%x) {shardopt.cost = {seconds = 0x7FF0000000000000 : f64}} (%a: tensor<8xf32>) {
    mpmd.return %a : tensor<8xf32>
  } : (!m) -> !m
  // CHECK: cost.mlir:[[@LINE+1]]:8: note: expected 3 seconds in 'shardopt.cost', the sum of its parts, found 4
  %2 = mpmd.fragment<mesh="m0", origin=["f"], stage=0> (%x) {shardopt.cost = {collectives = [], peak_bytes = 0 : i64, compute_seconds = 1.0 : f64, communication_seconds = 2.0 : f64, seconds = 4.0 : f64}} (%a: tensor<8xf32>) {
    mpmd.return %a : tensor<8xf32>
  } : (!m) -> !m
  // CHECK: cost.mlir:[[@LINE+1]]:8: note: expected collectives of a kind (all_gather, reduce_scatter, all_reduce, all_to_all, permute), axes (x), tensors and bytes in 'shardopt.cost', found {axes = ["q"], bytes = 4 : i64,
  %3 = mpmd.fragment<mesh="m0", origin=["f"], stage=0> (%x) {shardopt.cost = {collectives = [{kind = "all_reduce", axes = ["q"], tensors = 1 : i64, bytes = 4 : i64}]}} (%a: tensor<8xf32>) {
    mpmd.return %a : tensor<8xf32>
  } : (!m) -> !m
  return
}

//--- sums.mlir
// CHECK: sums.mlir:[[@LINE+2]]:1: error: argument 0 of '@main': expected a value that is summed up, found !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}], unreduced={"x"}>>
// CHECK: note: expected a transfer of a value that is summed up, found !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}], unreduced={"x"}>>
func.func public @main(%a: !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}], unreduced={"x"}>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>, <"m1" : <["x"=2]>>>} {
  %t = mpmd.transfer %a : (!mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}], unreduced={"x"}>>) -> !mpmd.mesh_tensor<"m1", tensor<8xf32>, sharding=<@m1, [{}]>>
  return
}

//--- types.mlir
// CHECK: types.mlir:[[@LINE+3]]:1: error: argument 0 of '@main': expected a mesh tensor with a sharding, found !mpmd.mesh_tensor<"m0", tensor<8xf32>>
// CHECK: note: argument 1 of '@main': sharding [{"z"}] names axis 'z', which is not an axis of mesh m0[x=2]
// CHECK: note: argument 3 of '@main': expected a mesh of the topology (m0), found 'm1'
func.func public @main(%a: !mpmd.mesh_tensor<"m0", tensor<8xf32>>, %b: !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{"z"}]>>, %c: !mpmd.mesh_tensor<"m0", tensor<5xf32>, sharding=<@m0, [{"x"}]>>, %d: !mpmd.mesh_tensor<"m1", tensor<8xf32>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  return
}

//--- ops.mlir
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{"x"}]>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  // CHECK: ops.mlir:[[@LINE+1]]:8: error: expected attribute 'shardopt.cost' on the fragment, found none
  %r = mpmd.fragment<mesh="m0", origin=["fwd"], stage=0> (%x) {shardopt.kind = "fwd"} (%a: tensor<8xf32>) {
    // CHECK: ops.mlir:[[@LINE+1]]:10: note: expected attribute 'mhlo.sharding' on 'stablehlo.add', found none
    %0 = stablehlo.add %a, %a : tensor<8xf32>
    // CHECK: note: 'stablehlo.add': expected a sharding over 2 devices, found 4 in '{devices=[4]<=[4]}'
    %1 = stablehlo.add %0, %a {mhlo.sharding = "{devices=[4]<=[4]}"} : tensor<8xf32>
    // CHECK: note: 'stablehlo.add': expected tile counts for rank 1, found 2 in '{devices=[2,1]<=[2]}'
    %2 = stablehlo.add %1, %a {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<8xf32>
    // CHECK: note: expected 1 shardings on 'stablehlo.add', found 2
    %3 = stablehlo.add %2, %a {mhlo.sharding = "{{replicated}, {replicated}}"} : tensor<8xf32>
    mpmd.return %3 : tensor<8xf32>
  } : (!mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{"x"}]>>) -> !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{"x"}]>>
  return
}

//--- axes.mlir
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}]>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2, "y"=3]>>>} {
  mpmd.fragment<mesh="m0", origin=["fwd"], stage=0> (%x) {shardopt.kind = "fwd", shardopt.cost = {}} (%a: tensor<8xf32>) {
    // CHECK: axes.mlir:[[@LINE+1]]:10: error: 'stablehlo.add': expected a sharding of the form {replicated} or {devices=[…]<=[…]}, found '{maximal device=0}'
    %0 = stablehlo.add %a, %a {mhlo.sharding = "{maximal device=0}"} : tensor<8xf32>
    // CHECK: axes.mlir:[[@LINE+1]]:10: note: 'stablehlo.add': expected a sharding of the form {replicated} or {devices=[…]<=[…]}, found '{manual}'
    %1 = stablehlo.add %a, %a {mhlo.sharding = "{manual}"} : tensor<8xf32>
    // CHECK: axes.mlir:[[@LINE+1]]:10: note: 'stablehlo.add': expected tiles of whole mesh axes
    %2 = stablehlo.add %a, %a {mhlo.sharding = "{devices=[2,3]<=[3,2]T(1,0) last_tile_dim_replicate}"} : tensor<8xf32>
    // CHECK: axes.mlir:[[@LINE+1]]:10: note: 'stablehlo.add': expected a sharding of the form
    %3 = stablehlo.add %a, %a {mhlo.sharding = "{devices=[-2,3]<=[6] last_tile_dim_replicate}"} : tensor<8xf32>
    // CHECK: axes.mlir:[[@LINE+1]]:10: note: 'stablehlo.add': expected tiles of whole mesh axes
    %4 = stablehlo.add %a, %a {mhlo.sharding = "{devices=[2,3]<=[9] last_tile_dim_replicate}"} : tensor<8xf32>
    mpmd.return
  } : (!mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{}]>>) -> ()
  return
}

//--- plain.mlir
// CHECK: plain.mlir: error: expected attribute 'mhlo.num_partitions' on the module, found none
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

//--- signature.mlir
module attributes {mhlo.num_partitions = 2 : i32} {
  // CHECK: signature.mlir:[[@LINE+1]]:3: error: expected 'mhlo.sharding' on argument 0 of '@main', found none
  func.func public @main(%x: tensor<5xf32>, %y: tensor<5xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<5xf32> {mhlo.sharding = "{replicated}"}) {
    // CHECK: signature.mlir:[[@LINE+1]]:10: note: 'stablehlo.add': expected tile counts for rank 1, found 2 in '{devices=[2,1]<=[2]}'
    %0 = stablehlo.add %x, %y {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<5xf32>
    return %0 : tensor<5xf32>
  }
}

//--- shardy.mlir
sdy.mesh @mesh = <["x"=2]>
// CHECK: shardy.mlir:[[@LINE+3]]:1: error: expected tiles without padding, found sharding [{"x"}] of tensor<7xf32>
// CHECK: note: sharding '#sdy.sharding<@mesh, [{?}]>': open dimensions and sub-axes are not supported, found '{?}'
// CHECK: note: expected a sharding constraint on every result of 'stablehlo.negate', found none
func.func public @main(%x: tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}]>}) {
  %0 = stablehlo.negate %x : tensor<7xf32>
  %1 = stablehlo.negate %0 : tensor<7xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"x"}]> : tensor<7xf32>
  return %2 : tensor<7xf32>
}

//--- padded.mlir
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%x: tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
  // CHECK: padded.mlir:[[@LINE+1]]:8: error: 'sdy.sharding_constraint': expected tiles without padding of a sum that is still open, found sharding [{"x"}], unreduced={"y"} of tensor<7xf32>
  %0 = sdy.sharding_constraint %x <@mesh, [{"x"}], unreduced={"y"}> : tensor<7xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}]> : tensor<7xf32>
  return %1 : tensor<7xf32>
}

//--- unsaid.mlir
sdy.mesh @mesh = <["x"=2]>
// CHECK: unsaid.mlir:[[@LINE+2]]:1: error: expected 'sdy.sharding' on argument 0 of '@main', found none
// CHECK: note: expected 'sdy.sharding' on the arguments and results of '@main', found none
func.func public @main(%x: tensor<8xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

//--- manual.mlir
module attributes {mhlo.num_partitions = 2 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> (tensor<8xf32> {mhlo.sharding = "{replicated}"}) {
    // CHECK: manual.mlir:[[@LINE+1]]:10: error: 'stablehlo.tanh': expected '{manual}' on code behind @SPMDFullToShardShape alone, found it elsewhere
    %0 = stablehlo.tanh %x {mhlo.sharding = "{manual}"} : tensor<8xf32>
    // CHECK-NOT: note: 'stablehlo.{{constant|add}}'
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%x) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
    %2 = stablehlo.constant {mhlo.sharding = "{manual}"} dense<1.0> : tensor<4xf32>
    %3 = stablehlo.add %1, %2 {mhlo.sharding = "{manual}"} : tensor<4xf32>
    // CHECK: manual.mlir:[[@LINE+1]]:10: note: 'stablehlo.tanh': expected code for one device to end at @SPMDShardToFullShape, found a reader beyond it
    %4 = stablehlo.tanh %3 {mhlo.sharding = "{replicated}"} : tensor<4xf32>
    // CHECK: manual.mlir:[[@LINE+1]]:10: note: 'stablehlo.custom_call': expected code for one device to end at @SPMDShardToFullShape, found none
    %5 = stablehlo.custom_call @SPMDShardToFullShape(%4) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<4xf32>) -> tensor<8xf32>
    // CHECK: manual.mlir:[[@LINE+1]]:10: note: 'stablehlo.constant': expected '{manual}' on code behind @SPMDFullToShardShape alone
    %6 = stablehlo.constant {mhlo.sharding = "{manual}"} dense<1.0> : tensor<8xf32>
    // CHECK: manual.mlir:[[@LINE+1]]:10: note: 'stablehlo.custom_call': expected '{manual}' on @SPMDFullToShardShape, found another sharding
    %7 = stablehlo.custom_call @SPMDFullToShardShape(%x) {mhlo.sharding = "{replicated}"} : (tensor<8xf32>) -> tensor<4xf32>
    return %6 : tensor<8xf32>
  }
}

//--- device.mlir
// CHECK: error: expected mhlo.num_replicas = 2 of mesh mesh[x=2], found 0
// CHECK: device.mlir:[[@LINE+4]]:1: note: 'shardopt.tile' on argument 0 of '@main': expected a value of type tensor<4xf32>, found tensor<8xf32>
// CHECK: device.mlir:[[@LINE+3]]:1: note: expected 'shardopt.tile' on result 0 of '@main', found none
// CHECK: device.mlir:[[@LINE+3]]:8: note: expected groups of all 2 devices on 'stablehlo.all_gather', found [0]
// CHECK: device.mlir:[[@LINE+3]]:8: note: expected no 'mhlo.sharding' on 'stablehlo.tanh' of a program for one device
func.func public @main(%x: tensor<8xf32> {shardopt.tile = {type = tensor<8xf32>, sharding = "[{x}]"}}) -> tensor<8xf32> attributes {shardopt.mesh = #sdy.mesh<["x"=2]>} {
  %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0]]> : tensor<1x1xi64>}> : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.tanh %0 {mhlo.sharding = "{replicated}"} : tensor<8xf32>
  return %1 : tensor<8xf32>
}
