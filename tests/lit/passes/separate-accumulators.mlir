// RUN: shardopt-opt %s --shardopt-separate-accumulators | FileCheck %s
// RUN: shardopt-opt %s --shardopt-separate-accumulators="unreduced=off" | FileCheck %s --check-prefixes=OFF

// Two accumulators that start from one constant get one each, and behind the loop both readers of a sum share a point
// where it is taken.

!t = !mpmd.mesh_tensor<"m0", tensor<8xf32>>
!i = !mpmd.mesh_tensor<"m0", tensor<ui32>>

// CHECK-LABEL: func.func public @main
// CHECK: %[[INIT:.*]]:2 = mpmd.fragment<mesh="m0"
// CHECK-NEXT: %[[A:.*]] = stablehlo.constant
// CHECK-NEXT: %[[B:.*]] = stablehlo.constant
// CHECK-NEXT: mpmd.return %[[A]], %[[B]]
// CHECK: mpmd.for (%[[INIT]]#0, %[[INIT]]#1)
// CHECK: mpmd.fragment<mesh="m0", origin=["update"]>
// CHECK-SAME: (%arg1: tensor<8xf32>, %arg2: tensor<8xf32>)
// CHECK-DAG: %[[X:.*]] = stablehlo.custom_call @Sharding(%arg1) {shardopt.sum_point}
// CHECK-DAG: %[[Y:.*]] = stablehlo.custom_call @Sharding(%arg2) {shardopt.sum_point}
// CHECK: stablehlo.multiply %[[X]], %[[X]]
// CHECK: stablehlo.add %{{.*}}, %[[Y]]

// OFF: mpmd.for (%{{.*}}#0, %{{.*}}#1)
// OFF-NOT: custom_call
func.func public @main(%x: !t) -> !t attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  %init = mpmd.fragment<mesh="m0", origin=["prologue"]> () () {
    %z = stablehlo.constant dense<0.0> : tensor<8xf32>
    mpmd.return %z : tensor<8xf32>
  } : () -> !t
  %s:2 = mpmd.for (%init, %init) {iterations = 4 : ui32} (%a: !t, %b: !t, %i: !i) {
    %n:2 = mpmd.fragment<mesh="m0", origin=["step"]> (%a, %b, %x) (%c: tensor<8xf32>, %d: tensor<8xf32>, %e: tensor<8xf32>) {
      %0 = stablehlo.add %c, %e : tensor<8xf32>
      mpmd.return %0, %0 : tensor<8xf32>, tensor<8xf32>
    } : (!t, !t, !t) -> (!t, !t)
    mpmd.return %n#0, %n#1 : !t, !t
  } : !t, !t
  %u = mpmd.fragment<mesh="m0", origin=["update"]> (%s#0, %s#1) (%c: tensor<8xf32>, %d: tensor<8xf32>) {
    %0 = stablehlo.multiply %c, %c : tensor<8xf32>
    %1 = stablehlo.add %0, %d : tensor<8xf32>
    mpmd.return %1 : tensor<8xf32>
  } : (!t, !t) -> !t
  return %u : !t
}
