// RUN: split-file %s %t
// RUN: shardopt-opt %t/block.mlir --shardopt-read-manual-regions --shardopt-split-microbatches="num-microbatches=4" | FileCheck %t/block.mlir
// RUN: not shardopt-opt %t/exchange.mlir --shardopt-read-manual-regions --shardopt-split-microbatches="num-microbatches=2" 2>&1 | FileCheck %t/exchange.mlir

// Of the 8 rows of a microbatch each device has 4; their sum is over the rows of all devices.
//--- block.mlir
sdy.mesh @mesh = <["x"=2]>
// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<32x4xf32>) -> (tensor<4x4xf32>) {
  %h:2 = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>] manual_axes={"x"} (%a: tensor<16x4xf32>, %b: tensor<4x4xf32>) {
    %y = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
    %g = stablehlo.dot_general %a, %y, contracting_dims = [0] x [0] : (tensor<16x4xf32>, tensor<16x4xf32>) -> tensor<4x4xf32>
    %s = "stablehlo.all_reduce"(%g) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %t = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    sdy.return %y, %s : tensor<16x4xf32>, tensor<4x4xf32>
  } : (tensor<32x4xf32>, tensor<4x4xf32>) -> (tensor<32x4xf32>, tensor<4x4xf32>)
  %g = stablehlo.dot_general %x, %h#0, contracting_dims = [0] x [0] : (tensor<32x4xf32>, tensor<32x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.add %g, %h#1 : tensor<4x4xf32>
  %u = stablehlo.subtract %w, %t : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}
// CHECK-LABEL: func.func private @microbatch
// CHECK: sdy.manual_computation({{.*}}) in_shardings=[<mesh<["x"=2]>, [{"x"}, {}]>, {{.*}} (%{{.*}}: tensor<4x4xf32>, %{{.*}}: tensor<4x4xf32>)
// CHECK: stablehlo.all_reduce
// CHECK: sdy.return
// CHECK-NEXT: (tensor<8x4xf32>, tensor<4x4xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>)

//--- exchange.mlir
sdy.mesh @mesh = <["x"=2]>
// CHECK: exchange.mlir:5:10: error: cannot cut the step into microbatches: 'stablehlo.collective_permute' exchanges rows of the batch between devices
func.func public @main(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<32x4xf32>) -> (tensor<4x4xf32>) {
  %h = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%a: tensor<16x4xf32>) {
    %y = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}> : (tensor<16x4xf32>) -> tensor<16x4xf32>
    sdy.return %y : tensor<16x4xf32>
  } : (tensor<32x4xf32>) -> tensor<32x4xf32>
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<32x4xf32>, tensor<4x4xf32>) -> tensor<32x4xf32>
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<32x4xf32>, tensor<32x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}
