// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x4 num-stages=2 submesh=1x2 inter-op=pp-dp batch-args=2" -o %t.mlir
// RUN: FileCheck %s --input-file=%t.mlir
// RUN: shardopt-opt %t.mlir --shardopt-shard="batch-args=2" | FileCheck %s --check-prefix=SHARDED
// RUN: shardopt-opt %t.mlir --shardopt-shard="batch-args=2 intra-op=replicate" | FileCheck %s --check-prefix=OTHER
// RUN: shardopt-opt %s --shardopt-cluster-layers="layers=2" --shardopt-stage="cluster=cpu-test:1x2 intra-op=replicate" | FileCheck %s --check-prefix=ASKED

// The loop says how the inside of every stage is to be sharded.
// CHECK: mpmd.for {{.*}}shardopt.intra_op = ["data", "data"]
// ASKED: mpmd.for {{.*}}shardopt.intra_op = ["replicate"{{.*}}]

// The shard phase obeys: weights are whole and activations are split by the batch, unless another method is asked for.
// SHARDED-LABEL: func.func public @main
// SHARDED-SAME: !mpmd.mesh_tensor<"m0", tensor<4x4xf32>, sharding=<@m0, [{}, {}]>> {tf.aliasing_output = 0 : i32}
// SHARDED-LABEL: func.func private @microbatch
// SHARDED: mpmd.transfer {{.*}}sharding=<@m0, [{"y"}, {}]>
// OTHER-LABEL: func.func private @microbatch
// OTHER: mpmd.transfer {{.*}}sharding=<@m0, [{}, {}]>
func.func public @main(%w0: tensor<4x4xf32> {tf.aliasing_output = 0 : i32},
                       %w1: tensor<4x4xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<4x4xf32>)
    -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>) {
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %r:3 = mpmd.for (%zeros, %zeros, %zero) {iterations = 2 : ui32}
      (%a0: tensor<4x4xf32>, %a1: tensor<4x4xf32>, %l: tensor<f32>, %i: tensor<ui32>) {
    %n:3 = mpmd.call @microbatch(%w0, %w1, %x, %a0, %a1, %l) {call_counter = 0 : ui32}
      : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>)
      -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>)
    mpmd.return %n#0, %n#1, %n#2 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
  } : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
  %u0 = stablehlo.subtract %w0, %r#0 : tensor<4x4xf32>
  %u1 = stablehlo.subtract %w1, %r#1 : tensor<4x4xf32>
  return %u0, %u1, %r#2 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
}

func.func private @microbatch(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>,
                              %a0: tensor<4x4xf32>, %a1: tensor<4x4xf32>, %l: tensor<f32>)
    -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %y = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %yy = stablehlo.multiply %y, %y : tensor<4x4xf32>
  %loss = stablehlo.reduce(%yy init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  %dy = stablehlo.add %y, %y : tensor<4x4xf32>
  %g1 = stablehlo.dot_general %h, %dy, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dh = stablehlo.dot_general %dy, %w1, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %g0 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %n0 = stablehlo.add %a0, %g0 : tensor<4x4xf32>
  %n1 = stablehlo.add %a1, %g1 : tensor<4x4xf32>
  %nl = stablehlo.add %l, %loss : tensor<f32>
  return %n0, %n1, %nl : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
}
