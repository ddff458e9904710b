// Two values that one call makes for another mesh, where one call needs both, travel as one message; a third that is
// needed later travels alone, and one that nobody needs is neither sent nor made.
// RUN: shardopt program %s | FileCheck %s

// CHECK:      mesh m0
// CHECK:        %[[A:.*]]: f32[4] [{}], %[[B:.*]]: f32[4] [{}], %[[C:.*]]: f32[4] [{}] = RUN @make
// CHECK-NEXT:   SEND #[[FIRST:.*]] %[[A]], %[[B]] to m1 routes 0, 0
// CHECK:        SEND #[[SECOND:.*]] %[[C]] to m1 route 0
// CHECK:      mesh m1
// CHECK:        %[[E:.*]]: f32[4] [{}], %[[F:.*]]: f32[4] [{}] = RECV #[[FIRST]] from m0 routes 0, 0
// CHECK-NEXT:   %[[G:.*]]: f32[4] [{}] = RUN @take(%[[E]], %[[F]])
// CHECK-NEXT:   FREE
// CHECK-NEXT:   %[[H:.*]]: f32[4] [{}] = RECV #[[SECOND]] from m0 route 0
// CHECK-NEXT:   RUN @take(%[[G]], %[[H]])
// CHECK-NOT:    RECV

!m0 = !mpmd.mesh_tensor<"m0", tensor<4xf32>>
!m1 = !mpmd.mesh_tensor<"m1", tensor<4xf32>>

func.func @main(%x: !m0) -> !m1 attributes {topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=1]>>>} {
  %a, %b, %c, %d = mpmd.fragment_call<mesh="m0", origin=[]> @make(%x) : (!m0) -> (!m0, !m0, !m0, !m0)
  %a1 = mpmd.transfer %a : (!m0) -> !m1
  %b1 = mpmd.transfer %b : (!m0) -> !m1
  %c1 = mpmd.transfer %c : (!m0) -> !m1
  %d1 = mpmd.transfer %d : (!m0) -> !m1
  %e = mpmd.fragment_call<mesh="m1", origin=[]> @take(%a1, %b1) : (!m1, !m1) -> !m1
  %f = mpmd.fragment_call<mesh="m1", origin=[]> @take(%e, %c1) : (!m1, !m1) -> !m1
  return %f : !m1
}

func.func private @make(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
    attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %0, %x : tensor<4xf32>
  %2 = stablehlo.add %1, %x : tensor<4xf32>
  return %0, %1, %2, %x : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

func.func private @take(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=1]>} {
  %0 = stablehlo.add %a, %b : tensor<4xf32>
  return %0 : tensor<4xf32>
}
