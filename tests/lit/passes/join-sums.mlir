// RUN: shardopt-opt %s --shardopt-join-sums | FileCheck %s
// RUN: shardopt-opt %s --shardopt-join-sums --shardopt-join-sums -o %t.twice
// RUN: shardopt-opt %s --shardopt-join-sums -o %t.once
// RUN: diff %t.once %t.twice
// RUN: sed -e 's/array<i64: 0, 1>, mesh = "m0"/array<i64: 0, 0>, mesh = "m0"/; s/array<i64: 2, 2>/array<i64: 1, 2>/' %s > %t.others
// RUN: shardopt-opt %t.others --shardopt-join-sums | FileCheck %s --check-prefix=OTHERS
// RUN: sed -e 's/dense<0.0> : !t \/\/ of layer 1/dense<1.0> : !t/' %s > %t.ones
// RUN: shardopt-opt %t.ones --shardopt-join-sums | FileCheck %s --check-prefix=ONES

// Layers 0 and 1 are one stage and have one sum, which is added where its last term is made. That of layer 2 stays, as does
// a sum that is read without being added.
// CHECK-LABEL: func.func public @main
// CHECK-NOT: stablehlo.constant {shardopt.layer = 1 : i64}
// CHECK: %[[R:.*]]:3 = mpmd.for (%{{.*}}, %{{.*}}, %{{.*}}) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>}
// CHECK: mpmd.call @microbatch(%arg0, %{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}})
// CHECK: %[[SUM:.*]] = stablehlo.add %[[R]]#0, %[[R]]#1 {shardopt.layer = 0 : i64}
// CHECK-NEXT: stablehlo.subtract %arg0, %[[SUM]] {shardopt.layer = 0 : i64}
// CHECK: return %{{.*}}, %[[R]]#2
// CHECK-LABEL: func.func private @microbatch
// CHECK-SAME: %[[ACC:arg1]]: tensor<4x4xf32>, %[[OTHER:arg2]]: tensor<4x4xf32>, %[[LAST:arg3]]: tensor<4x4xf32>)
// CHECK: %[[U:.*]] = stablehlo.dot_general
// CHECK: %[[T:.*]] = stablehlo.negate %[[U]] {shardopt.layer = 1 : i64}
// CHECK-NEXT: %[[TWO:.*]] = stablehlo.add %[[U]], %[[T]] {shardopt.layer = 0 : i64}
// CHECK-NEXT: %[[OWN:.*]] = stablehlo.add %[[ACC]], %[[TWO]] {shardopt.layer = 0 : i64}
// CHECK: %[[V:.*]] = stablehlo.tanh
// CHECK: %[[THIRD:.*]] = stablehlo.add %[[OTHER]], %[[V]] {shardopt.layer = 2 : i64}
// CHECK: return %[[OWN]], %[[THIRD]], %{{.*}}

// With other stages others are joined, and nothing is left to add behind the loop of that stage.
// OTHERS: %[[R:.*]]:3 = mpmd.for
// OTHERS: %[[SUM:.*]] = stablehlo.add %[[R]]#0, %[[R]]#1 {shardopt.layer = 0 : i64}
// OTHERS: @microbatch
// OTHERS: stablehlo.add %{{.*}}, %{{.*}} {shardopt.layer = 1 : i64}
// OTHERS: stablehlo.add %{{.*}}, %{{.*}} {shardopt.layer = 1 : i64}

// What starts at another value than 0 is not dropped.
// ONES: mpmd.for (%{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}}, %{{[^,]*}}) {
!t = tensor<4x4xf32>
module {
func.func public @main(%w: !t {shardopt.layer = 0 : i64, tf.aliasing_output = 0 : i32}) -> (!t, !t)
    attributes {shardopt.devices = [array<i64: 0>, array<i64: 1>],
                shardopt.stages = [{layers = array<i64: 0, 1>, mesh = "m0"}, {layers = array<i64: 2, 2>, mesh = "m1"}],
                topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=1]>>>} {
  %zeros = stablehlo.constant {shardopt.layer = 0 : i64} dense<0.0> : !t
  %more = stablehlo.constant {shardopt.layer = 1 : i64} dense<0.0> : !t // of layer 1
  %others = stablehlo.constant {shardopt.layer = 2 : i64} dense<0.0> : !t
  %r:4 = mpmd.for (%zeros, %more, %others, %zeros) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>} (%a: !t, %b: !t, %c: !t, %d: !t, %i: tensor<ui32>) {
    %n:4 = mpmd.call @microbatch(%w, %a, %b, %c, %d) {call_counter = 0 : ui32} : (!t, !t, !t, !t, !t) -> (!t, !t, !t, !t)
    mpmd.return %n#0, %n#1, %n#2, %n#3 : !t, !t, !t, !t
  } : !t, !t, !t, !t
  %p = stablehlo.add %r#0, %r#1 {shardopt.layer = 0 : i64} : !t
  %s = stablehlo.add %p, %r#2 {shardopt.layer = 0 : i64} : !t
  %u = stablehlo.subtract %w, %s {shardopt.layer = 0 : i64} : !t
  return %u, %r#3 : !t, !t
}
func.func private @microbatch(%w: !t, %a: !t, %b: !t, %c: !t, %d: !t) -> (!t, !t, !t, !t) {
  %u = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0] {shardopt.layer = 0 : i64} : (!t, !t) -> !t
  %m = stablehlo.add %a, %u {shardopt.layer = 0 : i64} : !t
  %t = stablehlo.negate %u {shardopt.layer = 1 : i64} : !t
  %v = stablehlo.tanh %t {shardopt.layer = 2 : i64} : !t
  %n = stablehlo.add %b, %t {shardopt.layer = 1 : i64} : !t
  %o = stablehlo.add %c, %v {shardopt.layer = 2 : i64} : !t
  %q = stablehlo.add %d, %t {shardopt.layer = 1 : i64} : !t
  return %m, %n, %o, %q : !t, !t, !t, !t
}
}
