// RUN: split-file %s %t
// RUN: shardopt-opt %t/data.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=4 intra-op=data" | FileCheck %t/data.mlir
// RUN: shardopt-opt %t/loop.mlir --shardopt-shard="cluster=cpu-test mesh=2x2" | FileCheck %t/loop.mlir
// RUN: shardopt-opt %t/unknown.mlir --shardopt-shard="cluster=cpu-test mesh=2x2" --remarks 2>&1 | FileCheck %t/unknown.mlir
// RUN: shardopt-opt %t/odd.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=4" --remarks 2>&1 | FileCheck %t/odd.mlir
// RUN: shardopt-opt %t/uneven.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=4" | FileCheck %t/uneven.mlir
// RUN: shardopt-opt %t/border.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=4 sharding-format=sdy" | FileCheck %t/border.mlir
// RUN: shardopt-opt %t/zero.mlir --shardopt-shard="cluster=cpu-test mesh=2x2" | FileCheck %t/zero.mlir
// RUN: shardopt-opt %t/scatter.mlir --shardopt-shard="cluster=cpu-test mesh=4" | FileCheck %t/scatter.mlir
// RUN: shardopt-opt %t/constant.mlir --shardopt-shard="cluster=cpu-test mesh=4 intra-op=heuristic" | FileCheck %t/constant.mlir

// The weight is whole, the batch split along its rows, and the gradient reduced over the devices.
//--- data.mlir
// CHECK: module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %arg0: tensor<256x256xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 0 : i32}
// CHECK-SAME: %arg1: tensor<8192x256xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}
// CHECK-SAME: -> (tensor<256x256xf32> {mhlo.sharding = "{replicated}"})
func.func public @main(%w: tensor<256x256xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<8192x256xf32>) -> tensor<256x256xf32> {
  // CHECK: %[[Y:.*]] = stablehlo.dot_general %arg1, %arg0, {{.*}}{mhlo.sharding = "{devices=[4,1]<=[4]}"}
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8192x256xf32>, tensor<256x256xf32>) -> tensor<8192x256xf32>
  // CHECK: %[[G:.*]] = stablehlo.dot_general %arg1, %[[Y]], {{.*}}{mhlo.sharding = "{replicated}"}
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<8192x256xf32>, tensor<8192x256xf32>) -> tensor<256x256xf32>
  // CHECK: stablehlo.subtract %arg0, %[[G]] {mhlo.sharding = "{replicated}"}
  %u = stablehlo.subtract %w, %g : tensor<256x256xf32>
  return %u : tensor<256x256xf32>
}

// What a loop carries has one sharding from entry to result, which identities before, inside and behind it say;
// the loop itself has no annotation.
//--- loop.mlir
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %arg0: tensor<8192x1024xf32> {mhlo.sharding = "[[ROWS:{devices=[^"]*}]]"}
// CHECK: %[[IN:.*]] = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "[[ROWS]]"}
// CHECK: stablehlo.while(%iterArg = %c, %iterArg_0 = %[[IN]]) : tensor<i32>, tensor<8192x1024xf32>{{$}}
// CHECK: stablehlo.compare {{.*}}{mhlo.sharding = "{replicated}"}
// CHECK: %[[V:.*]] = stablehlo.custom_call @Sharding(%iterArg_0) {mhlo.sharding = "[[ROWS]]"}
// CHECK: %[[T:.*]] = stablehlo.tanh %[[V]] {mhlo.sharding = "[[ROWS]]"}
// CHECK: %[[OUT:.*]] = stablehlo.custom_call @Sharding(%[[T]]) {mhlo.sharding = "[[ROWS]]"}
// CHECK: stablehlo.return %{{.*}}, %[[OUT]]
// CHECK: stablehlo.custom_call @Sharding(%{{.*}}#1) {mhlo.sharding = "[[ROWS]]"}
func.func public @main(%x: tensor<8192x1024xf32>) -> tensor<8192x1024xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<8192x1024xf32>
  cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.tanh %v : tensor<8192x1024xf32>
    stablehlo.return %j, %t : tensor<i32>, tensor<8192x1024xf32>
  }
  return %r#1 : tensor<8192x1024xf32>
}

// How often a loop runs may depend on data; a guess is made and told.
//--- unknown.mlir
// CHECK: remark: a loop whose number of iterations depends on data is planned as if it ran 10 times
// CHECK: module attributes
func.func public @main(%x: tensor<8192x1024xf32>, %n: tensor<i32>) -> tensor<8192x1024xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<8192x1024xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.tanh %v : tensor<8192x1024xf32>
    stablehlo.return %j, %t : tensor<i32>, tensor<8192x1024xf32>
  }
  return %r#1 : tensor<8192x1024xf32>
}

// Uneven tiles have little padding: what is too short is not split, and named where it matters.
//--- odd.mlir
// CHECK-DAG: remark: the largest dimension, of extent 5, is not split along axis 'x' of size 4: too much would be padding
// CHECK-DAG: remark: 'stablehlo.custom_call' @mine cannot be partitioned and runs replicated: the partitioner knows nothing of its target
// CHECK: module attributes
func.func public @main(%x: tensor<5x3xf32>, %w: tensor<3x3xf32>) -> tensor<5x3xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<5x3xf32>, tensor<3x3xf32>) -> tensor<5x3xf32>
  %1 = stablehlo.custom_call @mine(%0) : (tensor<5x3xf32>) -> tensor<5x3xf32>
  return %1 : tensor<5x3xf32>
}

// Tiles of 2048 rows, the last of which has one row of padding.
//--- uneven.mlir
// CHECK: func.func public @main(%arg0: tensor<8191x64xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}
func.func public @main(%x: tensor<8191x64xf32>, %w: tensor<64x64xf32>) -> tensor<8191x64xf32> {
  // CHECK: stablehlo.dot_general {{.*}}{mhlo.sharding = "{devices=[4,1]<=[4]}"}
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8191x64xf32>, tensor<64x64xf32>) -> tensor<8191x64xf32>
  return %0 : tensor<8191x64xf32>
}

// What `jax` calls takes and gives even tiles.
//--- border.mlir
// CHECK: func.func public @main(%arg0: tensor<8191x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {{[^,]*}}]>}
// CHECK-SAME: -> (tensor<8191x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {{[^,]*}}]>})
func.func public @main(%x: tensor<8191x64xf32>, %w: tensor<64x64xf32>) -> tensor<8191x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8191x64xf32>, tensor<64x64xf32>) -> tensor<8191x64xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8191x64xf32>, tensor<64x64xf32>) -> tensor<8191x64xf32>
  return %1 : tensor<8191x64xf32>
}

// Dimensions without elements, and types of any width.
//--- zero.mlir
// CHECK: stablehlo.tanh %arg0 {mhlo.sharding =
// CHECK: stablehlo.add %arg1, %arg1 {mhlo.sharding =
func.func public @main(%x: tensor<0x8xf8E4M3FN>, %y: tensor<8x0x4xi4>, %z: tensor<complex<f64>>) -> (tensor<0x8xf8E4M3FN>, tensor<8x0x4xi4>, tensor<complex<f64>>) {
  %0 = stablehlo.tanh %x : tensor<0x8xf8E4M3FN>
  %1 = stablehlo.add %y, %y : tensor<8x0x4xi4>
  return %0, %1, %z : tensor<0x8xf8E4M3FN>, tensor<8x0x4xi4>, tensor<complex<f64>>
}

// The contraction is split; each device keeps a part of the sum, which is written behind the reduced value.
//--- scatter.mlir
// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4096x512xf32>, %w: tensor<4096x512xf32>) -> tensor<512x512xf32> {
  // CHECK: %[[G:.*]] = stablehlo.dot_general %arg0, %arg1, {{.*}}{mhlo.sharding = "{replicated}"}
  %g = stablehlo.dot_general %x, %w, contracting_dims = [0] x [0] : (tensor<4096x512xf32>, tensor<4096x512xf32>) -> tensor<512x512xf32>
  // CHECK: %[[PART:.*]] = stablehlo.custom_call @Sharding(%[[G]]) {mhlo.sharding = "[[PARTS:{devices=.*}]]"}
  // CHECK: stablehlo.tanh %[[PART]] {mhlo.sharding = "[[PARTS]]"}
  %u = stablehlo.tanh %g : tensor<512x512xf32>
  return %u : tensor<512x512xf32>
}

// One constant, two readers that are split differently: each has its own.
//--- constant.mlir
func.func public @main(%a: tensor<512x512xf32>, %b: tensor<512x512xf32>) -> (tensor<512x512xf32>, tensor<512x512xf32>) {
  // CHECK-DAG: %[[ROWS:.*]] = stablehlo.constant {mhlo.sharding = "{devices=[4,1]<=[4]}"} dense<1.000000e+00> : tensor<512x512xf32>
  // CHECK-DAG: %[[COLUMNS:.*]] = stablehlo.constant {mhlo.sharding = "{devices=[1,4]<=[4]}"} dense<1.000000e+00> : tensor<512x512xf32>
  %c = stablehlo.constant dense<1.0> : tensor<512x512xf32>
  // CHECK-DAG: stablehlo.add %arg0, %[[ROWS]] {mhlo.sharding = "{devices=[4,1]<=[4]}"}
  %0 = stablehlo.add %a, %c : tensor<512x512xf32>
  %t = stablehlo.transpose %b, dims = [1, 0] : (tensor<512x512xf32>) -> tensor<512x512xf32>
  // CHECK-NOT: custom_call
  %1 = stablehlo.multiply %t, %c : tensor<512x512xf32>
  %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<512x512xf32>) -> tensor<512x512xf32>
  return %0, %2 : tensor<512x512xf32>, tensor<512x512xf32>
}
