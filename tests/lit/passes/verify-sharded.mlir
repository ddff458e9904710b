// RUN: shardopt-opt %s --shardopt-verify-sharded | FileCheck %s

// Tuples for several results, one sharding for control flow, replicas in the last tile dimension.
// CHECK-LABEL: func.func public @main
func.func public @main(%x: !mpmd.mesh_tensor<"m0", tensor<8x4xf32>, sharding=<@m0, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{"y"}]>>, !mpmd.mesh_tensor<"m0", tensor<8xi32>, sharding=<@m0, [{}]>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2, "y"=2]>>>} {
  %r:2 = mpmd.fragment<mesh="m0", origin=["fwd"], stage=0> (%x) {shardopt.kind = "fwd", shardopt.cost = {seconds = 1.0 : f64}} (%a: tensor<8x4xf32>) {
    %zero = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0.0> : tensor<f32>
    %one = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<1> : tensor<i32>
    %ones = stablehlo.broadcast_in_dim %one, dims = [] {mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"} : (tensor<i32>) -> tensor<8x4xi32>
    // CHECK: stablehlo.reduce
    %s:2 = stablehlo.reduce(%a init: %zero), (%ones init: %one) across dimensions = [1] {mhlo.sharding = "{{devices=[2,2]<=[2,2]T(1,0) last_tile_dim_replicate}, {replicated}}"} : (tensor<8x4xf32>, tensor<8x4xi32>, tensor<f32>, tensor<i32>) -> (tensor<8xf32>, tensor<8xi32>)
     reducer(%p: tensor<f32>, %q: tensor<f32>) (%m: tensor<i32>, %n: tensor<i32>) {
      stablehlo.return %p, %m : tensor<f32>, tensor<i32>
    }
    mpmd.return %s#0, %s#1 : tensor<8xf32>, tensor<8xi32>
  } : (!mpmd.mesh_tensor<"m0", tensor<8x4xf32>, sharding=<@m0, [{"x"}, {}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{"y"}]>>, !mpmd.mesh_tensor<"m0", tensor<8xi32>, sharding=<@m0, [{}]>>)
  return %r#0, %r#1 : !mpmd.mesh_tensor<"m0", tensor<8xf32>, sharding=<@m0, [{"y"}]>>, !mpmd.mesh_tensor<"m0", tensor<8xi32>, sharding=<@m0, [{}]>>
}
