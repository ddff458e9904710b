// RUN: shardopt-opt %s --shardopt-split-sums --shardopt-verify-clustered | FileCheck %s
// RUN: shardopt-opt %s --shardopt-split-sums --shardopt-split-sums -o %t.twice
// RUN: shardopt-opt %s --shardopt-split-sums -o %t.once
// RUN: diff %t.once %t.twice
// RUN: sed -e 's/iterations = 2/iterations = 1/' %s > %t.single
// RUN: shardopt-opt %t.single --shardopt-split-sums | FileCheck %s --check-prefix=SINGLE
// RUN: shardopt-opt %s --shardopt-split-sums="num-stages=1" | FileCheck %s --check-prefix=WHOLE
// RUN: shardopt-opt %s --shardopt-split-sums="inter-op=intra-only" | FileCheck %s --check-prefix=WHOLE

// The tied weight has a term from each layer. That of layer 1, with its conversion, goes to an accumulator of that layer,
// and what layer 0 makes of its own stays. The loss, of one layer, stays as it is.
// CHECK-LABEL: func.func public @main
// CHECK: %[[ZEROS:.*]] = stablehlo.constant {shardopt.layer = 1 : i64} dense<0.000000e+00> : tensor<4x4xf32>
// CHECK: %[[R:.*]]:3 = mpmd.for (%{{.*}}, %{{.*}}, %[[ZEROS]]) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>}
// CHECK: mpmd.call @microbatch(%arg0, %arg1, %{{.*}}, %{{.*}}, %{{.*}})
// CHECK: %[[SUM:.*]] = stablehlo.add %[[R]]#0, %[[R]]#2 {shardopt.layer = 0 : i64}
// CHECK: stablehlo.subtract %arg0, %[[SUM]] {shardopt.layer = 0 : i64}
// CHECK-LABEL: func.func private @microbatch
// CHECK-SAME: %[[ACC:arg2]]: tensor<4x4xf32>, %{{.*}}: tensor<f32>, %[[NEW:arg4]]: tensor<4x4xf32>)
// CHECK: %[[T:.*]] = stablehlo.convert %{{.*}} {shardopt.layer = 1 : i64} : (tensor<4x4xbf16>)
// CHECK: %[[TWO:.*]] = stablehlo.add %[[U:.*]], %[[V:.*]] {shardopt.layer = 0 : i64}
// CHECK: %[[OWN:.*]] = stablehlo.add %[[ACC]], %[[TWO]] {shardopt.layer = 0 : i64}
// CHECK: %[[OTHER:.*]] = stablehlo.add %[[NEW]], %[[T]] {shardopt.layer = 1 : i64}
// CHECK: return %[[OWN]], %{{.*}}, %[[OTHER]]

// A step on one mesh sends no term, and a single microbatch sends each once anyway.
// WHOLE: mpmd.for (%{{.*}}, %{{[^,]*}}) {iterations = 2 : ui32
// SINGLE: mpmd.for (%{{.*}}, %{{[^,]*}}) {iterations = 1 : ui32
!t = tensor<4x4xf32>
func.func public @main(%w: !t {shardopt.layer = 0 : i64, tf.aliasing_output = 0 : i32}, %x: !t {shardopt.layer = 0 : i64})
    -> (!t, tensor<f32>) {
  %zeros = stablehlo.constant {shardopt.layer = 0 : i64} dense<0.0> : !t
  %zero = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : tensor<f32>
  %r:2 = mpmd.for (%zeros, %zero) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>} (%a: !t, %l: tensor<f32>, %i: tensor<ui32>) {
    %n:2 = mpmd.call @microbatch(%w, %x, %a, %l) {call_counter = 0 : ui32} : (!t, !t, !t, tensor<f32>) -> (!t, tensor<f32>)
    mpmd.return %n#0, %n#1 : !t, tensor<f32>
  } : !t, tensor<f32>
  %u = stablehlo.subtract %w, %r#0 {shardopt.layer = 0 : i64} : !t
  return %u, %r#1 : !t, tensor<f32>
}

func.func private @microbatch(%w: !t, %x: !t, %a: !t, %l: tensor<f32>) -> (!t, tensor<f32>) {
  %zero = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {shardopt.layer = 0 : i64} : (!t, !t) -> !t
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [1] {shardopt.layer = 1 : i64} : (!t, !t) -> !t
  %loss = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] {shardopt.layer = 1 : i64} : (!t, tensor<f32>) -> tensor<f32>
  %t = stablehlo.convert %y {shardopt.layer = 1 : i64} : (!t) -> tensor<4x4xbf16>
  %tf = stablehlo.convert %t {shardopt.layer = 0 : i64} : (tensor<4x4xbf16>) -> !t
  %dh = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] {shardopt.layer = 1 : i64} : (!t, !t) -> !t
  %v = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] {shardopt.layer = 0 : i64} : (!t, !t) -> !t
  %s = stablehlo.add %tf, %v {shardopt.layer = 0 : i64} : !t
  %b = stablehlo.negate %x {shardopt.layer = 0 : i64} : !t
  %s2 = stablehlo.add %s, %b {shardopt.layer = 0 : i64} : !t
  %n = stablehlo.add %a, %s2 {shardopt.layer = 0 : i64} : !t
  %nl = stablehlo.add %l, %loss {shardopt.layer = 1 : i64} : tensor<f32>
  return %n, %nl : !t, tensor<f32>
}
