// RUN: split-file %s %t
// RUN: not shardopt-opt %t/option.mlir --shardopt-read-annotations="keep=true" 2>&1 | FileCheck %t/option.mlir
// RUN: not shardopt-opt %t/text.mlir --shardopt-read-annotations 2>&1 | FileCheck %t/text.mlir
// RUN: not shardopt-opt %t/type.mlir --shardopt-read-annotations 2>&1 | FileCheck %t/type.mlir
// RUN: not shardopt-opt %t/rank.mlir --shardopt-read-annotations 2>&1 | FileCheck %t/rank.mlir
// RUN: not shardopt-opt %t/count.mlir --shardopt-read-annotations 2>&1 | FileCheck %t/count.mlir
// RUN: not shardopt-opt %t/manual.mlir --shardopt-read-annotations 2>&1 | FileCheck %t/manual.mlir
// RUN: shardopt-opt %t/unsupported.mlir --shardopt-read-annotations 2>&1 | FileCheck %t/unsupported.mlir
// RUN: not shardopt-opt %t/unsupported.mlir --shardopt-read-annotations=annotations=require 2>&1 | FileCheck %t/unsupported.mlir --check-prefix=REQUIRE
// RUN: shardopt-opt %t/text.mlir --shardopt-read-annotations=annotations=drop | FileCheck %t/text.mlir --check-prefix=DROP

//--- option.mlir
// CHECK: error: pipeline: unknown option of shardopt-read-annotations: 'keep'

//--- text.mlir
// CHECK: text.mlir:[[@LINE+4]]:8: error: sharding annotation of 'stablehlo.add': expected a sharding such as {devices=[2,1]<=[2]}, found '{sharded}'
// DROP: stablehlo.add %arg0, %arg0 : tensor<8xf32>
// DROP-NOT: sharding
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %x {mhlo.sharding = "{sharded}"} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

//--- type.mlir
// CHECK: error: expected 'mhlo.sharding' of argument 0 of '@main' to be text, found 3 : i64
func.func public @main(%x: tensor<8xf32> {mhlo.sharding = 3}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

//--- rank.mlir
// CHECK: rank.mlir:[[@LINE+1]]:24: error: sharding annotation of argument 0 of '@main': expected tile counts for rank 1 and 4 devices, found '{devices=[2,2]<=[4]}'
func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2,2]<=[4]}"}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

//--- count.mlir
// CHECK: error: expected 2 shardings on 'stablehlo.while', found 1
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0:2 = stablehlo.while(%a = %x, %b = %x) : tensor<8xf32>, tensor<8xf32> attributes {mhlo.sharding = "{{replicated}}"}
  cond {
    %f = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %f : tensor<i1>
  } do {
    stablehlo.return %a, %b : tensor<8xf32>, tensor<8xf32>
  }
  return %0#0 : tensor<8xf32>
}

//--- manual.mlir
// CHECK: manual.mlir:[[@LINE+2]]:8: error: expected a program for all devices, found sharding '{manual}'
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

//--- unsupported.mlir
// CHECK: unsupported.mlir:[[@LINE+9]]:8: warning: 4 sharding annotations cannot be kept, the first of them '#sdy.sharding<@mesh, [{}], unreduced={"x"}>'
// REQUIRE: unsupported.mlir:[[@LINE+8]]:8: error: 4 sharding annotations cannot be kept, the first of them '#sdy.sharding<@mesh, [{}], unreduced={"x"}>'
// CHECK-LABEL: func.func public @main
// CHECK-NEXT: stablehlo.negate %arg0 : tensor<8xf32>
// CHECK-NEXT: stablehlo.reduce
// CHECK-NOT: sdy.
// CHECK-NOT: sharding
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%x: tensor<8xf32>, %z: tensor<f32>) -> (tensor<8xf32>, tensor<f32>) {
  %0 = sdy.sharding_constraint %x <@mesh, [{}], unreduced={"x"}> : tensor<8xf32>
  sdy.sharding_group %0 group_id=0 : tensor<8xf32>
  %1 = stablehlo.negate %0 {mhlo.sharding = "{maximal device=0}"} : tensor<8xf32>
  %2 = "stablehlo.reduce"(%1, %z) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b {mhlo.sharding = "{replicated}"} : tensor<f32>
    "stablehlo.return"(%s) : (tensor<f32>) -> ()
  }) {dimensions = array<i64: 0>} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  return %1, %2 : tensor<8xf32>, tensor<f32>
}
