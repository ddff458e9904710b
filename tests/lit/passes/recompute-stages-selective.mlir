// RUN: shardopt-opt %s --shardopt-recompute-stages | FileCheck %s

// The product is dear and its result small beside all that is made of it: it is kept, and the rest computed again.
// What has nothing in common stands before its own readers.
// CHECK: shardopt.recompute = ["selective"]
// CHECK-LABEL: func.func private @microbatch
// CHECK: %[[H:.*]] = stablehlo.dot_general
// CHECK-NOT: stablehlo.exponential
// CHECK: %[[G:.*]] = stablehlo.cosine %{{.*}} {shardopt.layer = 1 : i64}
// CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier {shardopt.layer = 0 : i64} %[[H]], %[[G]] :
// CHECK-NEXT: %[[P:.*]] = stablehlo.exponential %[[B]]#0
// CHECK-NEXT: %[[S:.*]] = stablehlo.sine %[[P]]
// CHECK-NEXT: %[[D:.*]] = stablehlo.multiply %[[B]]#1, %[[P]]
// CHECK-NEXT: %[[E:.*]] = stablehlo.multiply %[[D]], %[[S]]
// CHECK-NEXT: %[[C:.*]]:2 = stablehlo.optimization_barrier {shardopt.layer = 0 : i64} %[[H]], %[[E]] :
// CHECK-NEXT: %[[Q:.*]] = stablehlo.log %[[C]]#0
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[Q]]
// CHECK-NEXT: %[[F:.*]] = stablehlo.multiply %[[C]]#1, %[[Q]]
// CHECK-NEXT: stablehlo.multiply %[[F]], %[[T]]
// CHECK-NOT: stablehlo.optimization_barrier
!t = tensor<8x64xf32>
func.func public @main(%x: tensor<8x4096xf32> {shardopt.layer = 0 : i64}, %w: tensor<4096x64xf32> {shardopt.layer = 0 : i64}) -> !t
    attributes {shardopt.stages = [{layers = array<i64: 0, 1>, mesh = "m0", recompute = "selective"}], topology = #mpmd.topology<<"m0" : <["x"=1]>>>} {
  %zeros = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : !t
  %r = mpmd.for (%zeros) {iterations = 2 : ui32} (%a: !t, %i: tensor<ui32>) {
    %n = mpmd.call @microbatch(%x, %w, %a) {call_counter = 0 : ui32} : (tensor<8x4096xf32>, tensor<4096x64xf32>, !t) -> !t
    mpmd.return %n : !t
  } : !t
  return %r : !t
}
func.func private @microbatch(%x: tensor<8x4096xf32>, %w: tensor<4096x64xf32>, %a: !t) -> !t {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {shardopt.layer = 0 : i64} : (tensor<8x4096xf32>, tensor<4096x64xf32>) -> !t
  %p = stablehlo.exponential %h {shardopt.layer = 0 : i64} : !t
  %s = stablehlo.sine %p {shardopt.layer = 0 : i64} : !t
  %q = stablehlo.log %h {shardopt.layer = 0 : i64} : !t
  %u = stablehlo.tanh %q {shardopt.layer = 0 : i64} : !t
  %g = stablehlo.cosine %h {shardopt.layer = 1 : i64} : !t
  %d = stablehlo.multiply %g, %p {shardopt.layer = 0 : i64} : !t
  %e = stablehlo.multiply %d, %s {shardopt.layer = 0 : i64} : !t
  %f = stablehlo.multiply %e, %q {shardopt.layer = 0 : i64} : !t
  %k = stablehlo.multiply %f, %u {shardopt.layer = 0 : i64} : !t
  %n = stablehlo.add %a, %k {shardopt.layer = 0 : i64} : !t
  return %n : !t
}
