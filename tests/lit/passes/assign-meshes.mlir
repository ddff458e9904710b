// What is on no mesh yet: named computations go to meshes in their order or as stated, what has no name follows what it
// reads, constants are made on each mesh, and a reduction reduces on each mesh first.
// RUN: shardopt-opt %s --shardopt-assign-meshes | FileCheck %s
// RUN: shardopt-opt %s --shardopt-assign-meshes='name-to-mesh=f@m1,g@m0' | FileCheck %s --check-prefix=STATED
// RUN: shardopt-opt %s --shardopt-assign-meshes --shardopt-lower-to-fragment-calls | FileCheck %s --check-prefix=CALLS

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xf32>>
#topology = #mpmd.topology<<"m0": <["x"=2]>>, <"m1": <["x"=2]>>>
sdy.mesh @mesh = <["x"=2]>

// CHECK-LABEL: func.func @named(
// CHECK-SAME: %arg0: !mpmd.mesh_tensor<"m0", tensor<4xf32>, sharding=<@m0, [{"x"}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
// CHECK-NOT: sdy.sharding
// CHECK: %[[F:.*]] = mpmd.fragment<mesh="m0", origin=["f"]> (%arg0)
// CHECK: %[[T:.*]] = mpmd.transfer %[[F]]
// CHECK: %[[G:.*]] = mpmd.fragment<mesh="m1", origin=["g"(1)]> (%[[T]])
// CHECK: return %[[G]]
// STATED-LABEL: func.func @named(%arg0: !mpmd.mesh_tensor<"m1"
// STATED: mpmd.fragment<mesh="m1", origin=["f"]>
// STATED: mpmd.fragment<mesh="m0", origin=["g"(1)]>
// CALLS: mpmd.fragment_call<mesh="m0", origin=["f"]> @f(%arg0)
// CALLS: mpmd.fragment_call<mesh="m1", origin=["g"(1)]> @g(
func.func @named(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>, tf.aliasing_output = 0 : i32})
    -> tensor<4xf32> attributes {topology = #topology} {
  %0 = mpmd.named_computation<"f"> (%x) (%a: tensor<4xf32>) {
    %r = stablehlo.tanh %a : tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  %1 = mpmd.named_computation<"g"(1)> (%0) (%a: tensor<4xf32>) {
    %r = stablehlo.abs %a : tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// Two operands on each mesh: a sum on each, and one transfer; the constant is made where it is read.
// CHECK-LABEL: func.func @reduced(
// CHECK: %[[A:.*]] = mpmd.fragment<mesh="m0", origin=[]> (%arg0, %arg1)
// CHECK: %[[B:.*]] = mpmd.fragment<mesh="m1", origin=[]> (%arg2, %arg3)
// CHECK: %[[T:.*]] = mpmd.transfer %[[B]]
// CHECK-NEXT: %[[S:.*]] = mpmd.fragment<mesh="m0", origin=[]> (%[[A]], %[[T]])
// CHECK-NEXT: %[[C:.*]] = stablehlo.constant
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add
// CHECK-NEXT: %[[R:.*]] = stablehlo.multiply %[[SUM]], %[[C]]
// CHECK-NEXT: mpmd.return %[[R]]
// CHECK: return %[[S]]
func.func @reduced(%x: !m0, %w: !m0, %y: !m1, %z: !m1) -> !m0 attributes {topology = #topology} {
  %0 = mpmd.unassign %x : (!m0) -> tensor<4xf32>
  %1 = mpmd.unassign %y : (!m1) -> tensor<4xf32>
  %2 = mpmd.unassign %z : (!m1) -> tensor<4xf32>
  %3 = mpmd.unassign %w : (!m0) -> tensor<4xf32>
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %4 = mpmd.reduce<add> %0, %1, %2, %3 : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %5 = mpmd.broadcast %4 : tensor<4xf32>
  %6 = stablehlo.multiply %5, %c : tensor<4xf32>
  %7 = mpmd.assign %6 : (tensor<4xf32>) -> !m0
  return %7 : !m0
}

// Loops and calls of plain values are written out.
// CHECK-LABEL: func.func @repeated(
// CHECK: %[[R:.*]] = mpmd.fragment<mesh="m0", origin=[]> (%arg0)
// CHECK-COUNT-2: stablehlo.negate
// CHECK: return %[[R]]
func.func @repeated(%x: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #topology} {
  %0 = mpmd.for (%x) {iterations = 2 : ui32} (%a: tensor<4xf32>, %i: tensor<ui32>) {
    %r = mpmd.call @callee(%a) : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %r : tensor<4xf32>
  } : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @callee(%a: tensor<4xf32>) -> tensor<4xf32> {
  %r = stablehlo.negate %a : tensor<4xf32>
  return %r : tensor<4xf32>
}
