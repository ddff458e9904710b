// RUN: split-file %s %t
// RUN: not shardopt-opt %t/order.mlir --shardopt-read-manual-regions 2>&1 | FileCheck %t/order.mlir
// RUN: not shardopt-opt %t/other.mlir --shardopt-intra='mesh=4 cluster=cpu-test:1x4' 2>&1 | FileCheck %t/other.mlir
// RUN: shardopt-opt %t/gspmd.mlir --shardopt-read-manual-regions --split-input-file --verify-diagnostics
// RUN: not shardopt-opt %t/other.mlir --pass-pipeline='builtin.module(shardopt-import,shardopt-microbatch,shardopt-cluster-layers,shardopt-choose-stages{cluster=cpu-test:1x2})' 2>&1 | FileCheck %t/other.mlir --check-prefix=STAGES

//--- order.mlir
sdy.mesh @mesh = <["x"=2], device_ids=[1, 0]>
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // CHECK: order.mlir:[[@LINE+1]]:8: error: expected the devices of the mesh of 'sdy.manual_computation' in order, found #sdy.mesh<["x"=2], device_ids=[1, 0]>
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%a: tensor<4xf32>) {
    sdy.return %a : tensor<4xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

//--- other.mlir
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // CHECK: other.mlir:[[@LINE+2]]:8: error: expected a mesh with the axes that 'sdy.manual_computation' is written for (x=2, y=2), found mesh[x=4]
  // STAGES: other.mlir:[[@LINE+1]]:8: error: no cut of 1 layer has a feasible sharding for every stage: layer 0 is in no feasible stage; a stage with this code for one device of a mesh (x=2, y=2) needs such a mesh
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%a: tensor<4xf32>) {
    sdy.return %a : tensor<4xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

//--- gspmd.mlir
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{expected @Sharding in front of @SPMDFullToShardShape, which says how its operand lies}}
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%x) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
  %1 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<4xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

func.func public @main(%x: tensor<4xf32>) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  // expected-error @below {{expected code that begins at @SPMDFullToShardShape, found one that reads another value}}
  %1 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<4xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
  // expected-error @below {{code for one device: expected one number of devices, found 2, 4}}
  %2 = stablehlo.custom_call @SPMDShardToFullShape(%1) {mhlo.sharding = "{devices=[4]<=[4]}"} : (tensor<4xf32>) -> tensor<16xf32>
  %3 = stablehlo.slice %2 [0:8] : (tensor<16xf32>) -> tensor<8xf32>
  return %3 : tensor<8xf32>
}

// -----

func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @below {{sharding of @Sharding: expected tile counts for rank 1 and 4 devices, found '{devices=[2]<=[4]}'}}
  %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2]<=[4]}"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
  %2 = stablehlo.custom_call @SPMDShardToFullShape(%1) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<4xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}
