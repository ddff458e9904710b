// RUN: shardopt-opt %s --shardopt-read-manual-regions --shardopt-read-annotations --shardopt-verify-imported | FileCheck %s
// RUN: shardopt-opt %s --shardopt-intra='mesh=2x2 cluster=cpu-test:1x4' | FileCheck %s --check-prefix=GSPMD
// RUN: shardopt-opt %s --shardopt-intra='mesh=x:2,y:2 cluster=cpu-test:1x4 sharding-format=sdy' | FileCheck %s --check-prefix=SHARDY
// RUN: shardopt-opt %s --shardopt-intra='mesh=2x2 cluster=cpu-test:1x4 sharding-format=collectives' | FileCheck %s --check-prefix=DEVICE
// RUN: shardopt-opt %s --shardopt-intra='mesh=2x1x2 cluster=cpu-test:1x4 sharding-format=sdy' | FileCheck %s --check-prefix=UNIT

// The mesh stands in the region, no symbol is left, and only manual axes split what goes in and comes out.
// CHECK-NOT: sdy.mesh
// CHECK: sdy.manual_computation(%arg0, %arg1) in_shardings=[<mesh<["data"=2, "model"=2]>, [{}, {"model"}]>, <mesh<["data"=2, "model"=2]>, [{"model"}, {}]>] out_shardings=[<mesh<["data"=2, "model"=2]>, [{}, {}]>] manual_axes={"model"}
// CHECK-NOT: sdy.sharding_constraint
// CHECK: "stablehlo.all_reduce"

// GSPMD: %[[M:.*]] = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"}
// GSPMD: %[[T:.*]] = stablehlo.custom_call @SPMDFullToShardShape(%{{.*}}) {mhlo.sharding = "{manual}"} : (tensor<8x8xf32>) -> tensor<8x4xf32>
// GSPMD: stablehlo.dot_general {{.*}} {mhlo.sharding = "{manual}"}
// GSPMD: stablehlo.partition_id {mhlo.sharding = "{manual}"}
// GSPMD: "stablehlo.all_reduce"
// GSPMD: mhlo.sharding = "{manual}"
// GSPMD: stablehlo.custom_call @SPMDShardToFullShape(%{{.*}}) {mhlo.sharding = "{replicated}"}

// SHARDY: sdy.mesh @mesh = <["x"=2, "y"=2]>
// SHARDY: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{}, {"y"}]>, <@mesh, [{"y"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"y"}
// SHARDY: sdy.sharding_constraint

// DEVICE-NOT: sdy.manual_computation
// DEVICE: stablehlo.replica_id
// DEVICE: stablehlo.dot_general {{.*}} (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
// DEVICE: stablehlo.replica_id
// DEVICE: "stablehlo.all_reduce"(%{{.*}}) <{replica_groups = dense<{{\[\[}}0, 1], [2, 3]]> : tensor<2x2xi64>}>
// DEVICE-NOT: channel_handle

// An axis of one device in between is no other mesh.
// UNIT: sdy.manual_computation({{.*}}) in_shardings=[<@mesh, [{}, {"z"}]>, {{.*}} manual_axes={"z"}
sdy.mesh @mesh = <["data"=2, "model"=2]>
func.func public @main(%a: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.manual_computation(%a, %w) in_shardings=[<@mesh, [{"data", ?}, {"model", ?}]>, <@mesh, [{"model", ?}, {?}]>] out_shardings=[<@mesh, [{?}, {?}]>] manual_axes={"model"} (%x: tensor<8x4xf32>, %y: tensor<4x8xf32>) {
    %1 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %2 = sdy.sharding_constraint %1 <@mesh, [{?}, {?}]> : tensor<8x8xf32>
    %3 = stablehlo.partition_id : tensor<ui32>
    %4 = stablehlo.convert %3 : (tensor<ui32>) -> tensor<f32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %6 = stablehlo.add %2, %5 : tensor<8x8xf32>
    %7 = "stablehlo.all_reduce"(%6) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%s: tensor<f32>, %t: tensor<f32>):
      %8 = stablehlo.add %s, %t : tensor<f32>
      stablehlo.return %8 : tensor<f32>
    }) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    sdy.return %7 : tensor<8x8xf32>
  } : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
