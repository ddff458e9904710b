// RUN: shardopt-opt %s --shardopt-unroll-loops | FileCheck %s --check-prefixes=CHECK,COMPUTE
// RUN: shardopt-opt %s --shardopt-unroll-loops="only=all" | FileCheck %s --check-prefixes=CHECK,ALL

// Two layers forward, which stack what they saw, and two backward, which read the stack from its end.
// CHECK-LABEL: func.func @scan
func.func @scan(%w: tensor<2x4x4xf32>, %x: tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<2x3x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<2x3x4xf32>
  // CHECK-NOT: while
  // CHECK-NOT: dynamic
  // CHECK: %[[S0:.*]] = stablehlo.slice %arg0 [0:1, 0:4, 0:4]
  // CHECK: %[[W0:.*]] = stablehlo.reshape %[[S0]]
  // CHECK: %[[X1:.*]] = stablehlo.dot_general %arg1, %[[W0]]
  // CHECK: %[[S1:.*]] = stablehlo.slice %arg0 [1:2, 0:4, 0:4]
  // CHECK: %[[W1:.*]] = stablehlo.reshape %[[S1]]
  // CHECK: %[[X2:.*]] = stablehlo.dot_general %[[X1]], %[[W1]]
  %f:3 = stablehlo.while(%i = %c0, %v = %x, %seen = %f0) : tensor<i32>, tensor<3x4xf32>, tensor<2x3x4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %wi = stablehlo.dynamic_slice %w, %i, %c0, %c0, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
      %wr = stablehlo.reshape %wi : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %v1 = stablehlo.dot_general %v, %wr, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
      %vr = stablehlo.reshape %v1 : (tensor<3x4xf32>) -> tensor<1x3x4xf32>
      %s = stablehlo.dynamic_update_slice %seen, %vr, %i, %c0, %c0 : (tensor<2x3x4xf32>, tensor<1x3x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x3x4xf32>
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %v1, %s : tensor<i32>, tensor<3x4xf32>, tensor<2x3x4xf32>
    }
  // CHECK: %[[B1:.*]] = stablehlo.multiply %[[X2]], %[[X2]]
  // CHECK: %[[B0:.*]] = stablehlo.multiply %[[B1]], %[[X1]]
  // CHECK: %[[STACK:.*]] = stablehlo.concatenate %{{.*}}, %{{.*}}, dim = 0 : (tensor<1x3x4xf32>, tensor<1x3x4xf32>) -> tensor<2x3x4xf32>
  // CHECK: return %[[B0]], %[[STACK]]
  %b:3 = stablehlo.while(%i = %c0, %v = %f#1, %out = %f0) : tensor<i32>, tensor<3x4xf32>, tensor<2x3x4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %r = stablehlo.subtract %c2, %i : tensor<i32>
      %back = stablehlo.subtract %r, %c1 : tensor<i32>
      %si = stablehlo.dynamic_slice %f#2, %back, %c0, %c0, sizes = [1, 3, 4] : (tensor<2x3x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x4xf32>
      %sr = stablehlo.reshape %si : (tensor<1x3x4xf32>) -> tensor<3x4xf32>
      %v1 = stablehlo.multiply %v, %sr : tensor<3x4xf32>
      %vr = stablehlo.reshape %v1 : (tensor<3x4xf32>) -> tensor<1x3x4xf32>
      %o = stablehlo.dynamic_update_slice %out, %vr, %back, %c0, %c0 : (tensor<2x3x4xf32>, tensor<1x3x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x3x4xf32>
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %v1, %o : tensor<i32>, tensor<3x4xf32>, tensor<2x3x4xf32>
    }
  return %b#1, %b#2 : tensor<3x4xf32>, tensor<2x3x4xf32>
}

// The counter decides the branch, and how often the inner loop runs.
// CHECK-LABEL: func.func @nested
func.func @nested(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  // Iteration 0 takes the first branch and no inner step, iteration 1 the second and one step.
  // CHECK-NOT: {{while|case}}
  // CHECK: %[[A:.*]] = stablehlo.sine %arg0
  // CHECK-NEXT: %[[B:.*]] = stablehlo.cosine %[[A]]
  // CHECK-NEXT: %[[C:.*]] = stablehlo.tanh %[[B]]
  // CHECK-NEXT: return %[[C]]
  %o:2 = stablehlo.while(%i = %c0, %v = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %p = stablehlo.compare NE, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %v1 = "stablehlo.case"(%i) ({
        %s = stablehlo.sine %v : tensor<4xf32>
        stablehlo.return %s : tensor<4xf32>
      }, {
        %s = stablehlo.cosine %v : tensor<4xf32>
        stablehlo.return %s : tensor<4xf32>
      }) : (tensor<i32>) -> tensor<4xf32>
      %n:2 = stablehlo.while(%j = %c0, %u = %v1) : tensor<i32>, tensor<4xf32>
        cond {
          %p = stablehlo.compare LT, %j, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        } do {
          %t = stablehlo.tanh %u : tensor<4xf32>
          %j1 = stablehlo.add %j, %c1 : tensor<i32>
          stablehlo.return %j1, %t : tensor<i32>, tensor<4xf32>
        }
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %n#1 : tensor<i32>, tensor<4xf32>
    }
  return %o#1 : tensor<4xf32>
}

// Integer loops are random number generators and searches; they stay unless all loops are asked for.
// CHECK-LABEL: func.func @integers
func.func @integers(%k: tensor<4xui32>) -> tensor<4xui32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c5 = stablehlo.constant dense<5> : tensor<i32>
  // COMPUTE: stablehlo.while
  // ALL-NOT: stablehlo.while
  // ALL-COUNT-5: stablehlo.xor
  %o:2 = stablehlo.while(%i = %c0, %v = %k) : tensor<i32>, tensor<4xui32>
    cond {
      %p = stablehlo.compare LT, %i, %c5 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %v1 = stablehlo.xor %v, %k : tensor<4xui32>
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %v1 : tensor<i32>, tensor<4xui32>
    }
  // CHECK: return
  return %o#1 : tensor<4xui32>
}

// What the backward loop computes again of what the forward loop has stacked is kept apart from it:
// the last layer waits for the gradient that arrives, the first for that of the last. The weight
// that is squared in both would be merged too; views of it and the mask of constants may be.
// CHECK-LABEL: func.func @recomputed
func.func @recomputed(%w: tensor<2x4xf32>, %x: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<2x4xf32>
  // CHECK: %[[X1:.*]] = stablehlo.tanh %{{.*}}
  // CHECK: stablehlo.tanh %{{.*}}
  %f:3 = stablehlo.while(%i = %c0, %v = %x, %seen = %f0) : tensor<i32>, tensor<4xf32>, tensor<2x4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %ws = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %wi = stablehlo.reshape %ws : (tensor<1x4xf32>) -> tensor<4xf32>
      %sq = stablehlo.multiply %wi, %wi : tensor<4xf32>
      %m = stablehlo.multiply %v, %sq : tensor<4xf32>
      %v1 = stablehlo.tanh %m : tensor<4xf32>
      %vr = stablehlo.reshape %v : (tensor<4xf32>) -> tensor<1x4xf32>
      %s = stablehlo.dynamic_update_slice %seen, %vr, %i, %c0 : (tensor<2x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %v1, %s : tensor<i32>, tensor<4xf32>, tensor<2x4xf32>
    }
  %start = stablehlo.sine %g : tensor<4xf32>
  // CHECK: %[[G:.*]] = stablehlo.sine %arg2
  // CHECK: %[[W1:.*]] = stablehlo.reshape
  // CHECK: %[[LAST:.*]]:3 = stablehlo.optimization_barrier %[[X1]], %[[G]], %[[W1]]
  // CHECK-NEXT: %[[SQ:.*]] = stablehlo.multiply %[[LAST]]#2, %[[LAST]]#2
  // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[LAST]]#0, %[[SQ]]
  // CHECK-NEXT: %[[H:.*]] = stablehlo.tanh %[[M]]
  // CHECK-NEXT: %[[D:.*]] = stablehlo.multiply %[[LAST]]#1, %[[H]]
  // CHECK: %[[W0:.*]] = stablehlo.reshape
  // CHECK: %[[FIRST:.*]]:2 = stablehlo.optimization_barrier %[[D]], %[[W0]]
  // CHECK: stablehlo.tanh
  // CHECK-NOT: optimization_barrier
  // CHECK: return
  %b:2 = stablehlo.while(%i = %c0, %d = %start) : tensor<i32>, tensor<4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %back = stablehlo.subtract %c1, %i : tensor<i32>
      %xs = stablehlo.dynamic_slice %f#2, %back, %c0, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %xi = stablehlo.reshape %xs : (tensor<1x4xf32>) -> tensor<4xf32>
      %ws = stablehlo.dynamic_slice %w, %back, %c0, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %wi = stablehlo.reshape %ws : (tensor<1x4xf32>) -> tensor<4xf32>
      %sq = stablehlo.multiply %wi, %wi : tensor<4xf32>
      %m = stablehlo.multiply %xi, %sq : tensor<4xf32>
      %v1 = stablehlo.tanh %m : tensor<4xf32>
      %d1 = stablehlo.multiply %d, %v1 : tensor<4xf32>
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %d1 : tensor<i32>, tensor<4xf32>
    }
  return %b#1 : tensor<4xf32>
}

// Indices that two loops compute alike of an argument are no recomputation.
// CHECK-LABEL: func.func @indices
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @indices(%rows: tensor<4x4xf32>, %n: tensor<i32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %c4 = stablehlo.constant dense<4> : tensor<i32>
  %f:2 = stablehlo.while(%i = %c0, %v = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %k = stablehlo.add %n, %i : tensor<i32>
      %at = stablehlo.remainder %k, %c4 : tensor<i32>
      %rs = stablehlo.dynamic_slice %rows, %at, %c0, sizes = [1, 4] : (tensor<4x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %r = stablehlo.reshape %rs : (tensor<1x4xf32>) -> tensor<4xf32>
      %v1 = stablehlo.multiply %v, %r : tensor<4xf32>
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %v1 : tensor<i32>, tensor<4xf32>
    }
  %b:2 = stablehlo.while(%i = %c0, %v = %f#1) : tensor<i32>, tensor<4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %k = stablehlo.add %n, %i : tensor<i32>
      %at = stablehlo.remainder %k, %c4 : tensor<i32>
      %rs = stablehlo.dynamic_slice %rows, %at, %c0, sizes = [1, 4] : (tensor<4x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %r = stablehlo.reshape %rs : (tensor<1x4xf32>) -> tensor<4xf32>
      %v1 = stablehlo.add %v, %r : tensor<4xf32>
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %v1 : tensor<i32>, tensor<4xf32>
    }
  return %b#1 : tensor<4xf32>
}
