// Shardings on the parameters and results of a callee are constraints on values; other attributes of a call are named.
// RUN: shardopt-opt %s --shardopt-inline-calls | FileCheck %s
// RUN: shardopt-opt %s --shardopt-inline-calls --remarks -o %t 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: shardopt-opt %s --shardopt-inline-calls --mlir-print-debuginfo | FileCheck %s --check-prefix=LOC

// CHECK: sdy.mesh @mesh
sdy.mesh @mesh = <["x"=2]>

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // CHECK-NEXT: %[[IN:.*]] = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]>
  // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[IN]], %[[IN]]
  // CHECK-NEXT: %[[OUT:.*]] = stablehlo.custom_call @Sharding(%[[SUM]]) {mhlo.sharding = "{devices=[1,2]<=[2]}"}
  // CHECK-NEXT: return %[[OUT]]
  // REMARK: :[[@LINE+2]]:8: remark: inlining @f drops mhlo.frontend_attributes of the call [dropped-attribute]
  // LOC-DAG: callsite({{.*}} at {{.*}})
  %0 = call @f(%x) {mhlo.frontend_attributes = {_xla_compute_type = "host"}} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
func.func private @f(%a: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<4x4xf32> {mhlo.sharding = "{devices=[1,2]<=[2]}"}) {
  %0 = stablehlo.add %a, %a : tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
