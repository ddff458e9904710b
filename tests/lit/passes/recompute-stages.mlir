// RUN: shardopt-opt %S/Inputs/placed.mlir --shardopt-recompute-stages --shardopt-verify-placed | FileCheck %s
// RUN: sed -e 's/, recompute = "full"//' %S/Inputs/placed.mlir > %t.none
// RUN: shardopt-opt %t.none -o %t.before
// RUN: shardopt-opt %t.none --shardopt-recompute-stages | diff %t.before -
// RUN: shardopt-opt %s --shardopt-recompute-stages | FileCheck %s --check-prefix=LAYER

// Stage 0 computes its activation a second time, behind a barrier that waits for the gradient; the decision is obeyed.
// CHECK: shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0"}, {layers = array<i64: 1, 1>, mesh = "m1"}]
// CHECK: mpmd.for {{.*}}shardopt.recompute = ["full", "none"]
// CHECK-LABEL: func.func private @microbatch(
// CHECK-SAME: %[[W0:[a-z0-9]+]]: {{[^,]*}}, %{{[a-z0-9]+}}: {{[^,]*}}, %[[X:[a-z0-9]+]]:
// CHECK: stablehlo.tanh
// CHECK: %[[DY:.*]] = stablehlo.dot_general {{.*}} contracting_dims = [1] x [1] {shardopt.layer = 1 : i64}
// CHECK-NEXT: %[[B:.*]]:3 = stablehlo.optimization_barrier {shardopt.layer = 0 : i64} %[[X]], %[[W0]], %[[DY]] :
// CHECK-NEXT: %[[H:.*]] = stablehlo.dot_general %[[B]]#0, %[[B]]#1, {{.*}} {shardopt.layer = 0 : i64}
// CHECK-NEXT: %[[Y:.*]] = stablehlo.tanh %[[H]] {shardopt.layer = 0 : i64}
// CHECK-NEXT: stablehlo.multiply %[[B]]#2, %[[Y]] {shardopt.layer = 0 : i64}
// CHECK-NOT: stablehlo.optimization_barrier

// Layer by layer within one stage: what layer 0 gives to layer 1 stays, what is inside of it goes; also what the
// program makes of it late, from a constant that stands behind the first reader.
// An original that only the backward has read is dropped.
// LAYER-LABEL: func.func private @microbatch
// LAYER: stablehlo.sine
// LAYER-NOT: stablehlo.exponential
// LAYER: stablehlo.tanh
// LAYER: %[[G:.*]] = stablehlo.cosine %{{.*}} {shardopt.layer = 1 : i64}
// LAYER-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier {shardopt.layer = 0 : i64} %{{.*}}, %[[G]] :
// LAYER-NEXT: %[[S:.*]] = stablehlo.sine %[[B]]#0
// LAYER-NEXT: %[[P:.*]] = stablehlo.exponential %[[S]] {shardopt.layer = 0 : i64}
// LAYER-NEXT: %[[ONE:.*]] = stablehlo.constant {shardopt.layer = -1 : i64}
// LAYER-NEXT: %[[K:.*]] = stablehlo.subtract %[[ONE]], %[[S]]
// LAYER-NEXT: %[[D:.*]] = stablehlo.multiply %[[B]]#1, %[[P]]
// LAYER: stablehlo.multiply %[[D]], %[[K]]
// LAYER-NOT: stablehlo.optimization_barrier
!t = tensor<4xf32>
func.func public @main(%x: !t {shardopt.layer = 0 : i64}) -> !t
    attributes {shardopt.stages = [{layers = array<i64: 0, 1>, mesh = "m0", recompute = "layer"}], topology = #mpmd.topology<<"m0" : <["x"=1]>>>} {
  %zeros = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : !t
  %r = mpmd.for (%zeros) {iterations = 2 : ui32} (%a: !t, %i: tensor<ui32>) {
    %n = mpmd.call @microbatch(%x, %a) {call_counter = 0 : ui32} : (!t, !t) -> !t
    mpmd.return %n : !t
  } : !t
  return %r : !t
}
func.func private @microbatch(%x: !t, %a: !t) -> !t {
  %s = stablehlo.sine %x {shardopt.layer = 0 : i64} : !t
  %p = stablehlo.exponential %s {shardopt.layer = 0 : i64} : !t
  %h = stablehlo.tanh %s {shardopt.layer = 0 : i64} : !t
  %g = stablehlo.cosine %h {shardopt.layer = 1 : i64} : !t
  %d = stablehlo.multiply %g, %p {shardopt.layer = 0 : i64} : !t
  %one = stablehlo.constant {shardopt.layer = -1 : i64} dense<1.0> : !t
  %k = stablehlo.subtract %one, %s {shardopt.layer = 0 : i64} : !t
  %e = stablehlo.multiply %d, %k {shardopt.layer = 0 : i64} : !t
  %n = stablehlo.add %a, %e {shardopt.layer = 0 : i64} : !t
  return %n : !t
}
