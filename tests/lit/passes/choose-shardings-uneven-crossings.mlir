// What the loop makes of its microbatches may go to another mesh behind it: an annotation that needs padding is not obeyed then,
// wherever it stands, and the plan is made without it.
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(shardopt-choose-shardings{cluster=cpu-test:1x8})' 2>&1 | FileCheck %s

// CHECK: uneven-crossings.mlir:[[@LINE+12]]:1: warning: sharding annotations that cannot be obeyed: 1 on mesh m1[x=4], 2 on mesh m0[x=4]; the first is [{"a"}, {}] over a=4 of the result of 'mpmd.transfer'
// CHECK-SAME: its tiles would need padding, and it goes to another mesh

// Both sums begin with what another fragment made. The second one stays on its mesh, and is padded as the user says.
// CHECK: -> (!mpmd.mesh_tensor<"m1", tensor<10x8xf32>, sharding=<@m1, [{}, {{.*}}]>>, !mpmd.mesh_tensor<"m0", tensor<12x8xf32>, sharding=<@m0, [{"x"}, {}]>> {shardopt.shape = array<i64: 10, 8>})
// CHECK: mpmd.for (%{{.*}}, %{{.*}}) {iterations = 2 : ui32} (%{{[^:]*}}: !mpmd.mesh_tensor<"m0", tensor<10x8xf32>, sharding=<@m0, [{}, {{.*}}]>>, %{{[^:]*}}: !mpmd.mesh_tensor<"m0", tensor<12x8xf32>
// CHECK: mpmd.transfer {{.*}} : (!mpmd.mesh_tensor<"m0", tensor<10x8xf32>

!t = tensor<10x8xf32>
!m0 = !mpmd.mesh_tensor<"m0", tensor<10x8xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<10x8xf32>>
#rows = {axes = ["a"], sizes = array<i64: 4>, dims = [["a"], []]}
func.func public @main(%w: !m0) -> (!m1 {shardopt.sharding = #rows}, !m0)
    attributes {topology = #mpmd.topology<<"m0" : <["x"=4]>>, <"m1" : <["x"=4]>>>, shardopt.devices = [array<i64: 0, 1, 2, 3>, array<i64: 4, 5, 6, 7>]} {
  %zeros:2 = mpmd.fragment<mesh="m0", origin=["prologue"]> (%w) (%a: !t) {
    %z = stablehlo.subtract %a, %a : !t
    %1 = stablehlo.custom_call @Sharding(%z) {shardopt.sharding = #rows} : (!t) -> !t
    %y = stablehlo.negate %z : !t
    mpmd.return %1, %y : !t, !t
  } : (!m0) -> (!m0, !m0)
  %g:2 = mpmd.for (%zeros#0, %zeros#1) {iterations = 2 : ui32} (%p: !m0, %q: !m0, %i: !mpmd.mesh_tensor<"m0", tensor<ui32>>) {
    %n:2 = mpmd.call @microbatch(%w, %p, %q) {call_counter = 0 : ui32} : (!m0, !m0, !m0) -> (!m0, !m0)
    mpmd.return %n#0, %n#1 : !m0, !m0
  } : !m0, !m0
  %sent = mpmd.transfer %g#0 : (!m0) -> !m1
  return %sent, %g#1 : !m1, !m0
}
func.func private @microbatch(%w: !m0, %p: !m0, %q: !m0) -> (!m0, !m0)
    attributes {topology = #mpmd.topology<<"m0" : <["x"=4]>>, <"m1" : <["x"=4]>>>} {
  %n:2 = mpmd.fragment<mesh="m0", origin=["forward"]> (%w, %p, %q) (%a: !t, %b: !t, %c: !t) {
    %0 = stablehlo.exponential %a : !t
    %1 = stablehlo.add %b, %0 : !t
    %2 = stablehlo.custom_call @Sharding(%1) {shardopt.sharding = #rows} : (!t) -> !t
    %3 = stablehlo.add %c, %0 : !t
    %4 = stablehlo.custom_call @Sharding(%3) {shardopt.sharding = #rows} : (!t) -> !t
    mpmd.return %2, %4 : !t, !t
  } : (!m0, !m0, !m0) -> (!m0, !m0)
  return %n#0, %n#1 : !m0, !m0
}
