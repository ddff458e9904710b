// RUN: shardopt-opt %s --shardopt-roll-parts --split-input-file | FileCheck %s

// Two copies for two halves of the batch, whose gradients are added up, become a loop. What else they make is stacked.
// CHECK-LABEL: func.func @copies
func.func @copies(%w: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  // CHECK: %[[LOOP:.*]]:4 = stablehlo.while({{.*}} = %arg1, {{.*}})
  // CHECK: %[[START:.*]] = stablehlo.multiply
  // CHECK: stablehlo.dynamic_slice {{.*}}, %[[START]], {{.*}} sizes = [2, 2]
  // CHECK-COUNT-2: stablehlo.dot_general
  // CHECK-NOT: stablehlo.dot_general
  // CHECK: stablehlo.slice %[[LOOP]]#{{[23]}} [1:2, 0:2]
  // CHECK: stablehlo.subtract %arg0, %[[LOOP]]#{{[23]}}
  %x0 = stablehlo.slice %x [0:2, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %y0 = stablehlo.dot_general %x0, %w, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %g0 = stablehlo.dot_general %x0, %y0, contracting_dims = [0] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %x1 = stablehlo.slice %x [2:4, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %y1 = stablehlo.dot_general %x1, %w, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %g1 = stablehlo.dot_general %x1, %y1, contracting_dims = [0] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %y = stablehlo.maximum %y0, %y1 : tensor<2xf32>
  %g = stablehlo.add %g0, %g1 : tensor<2xf32>
  %n = stablehlo.subtract %w, %g : tensor<2xf32>
  return %n, %y : tensor<2xf32>, tensor<2xf32>
}

// -----

// The second part reads the weights that the first has made.
// CHECK-LABEL: func.func @chain
// CHECK-NOT: stablehlo.while
func.func @chain(%w: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>) -> tensor<2xf32> {
  %x0 = stablehlo.slice %x [0:2, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %y0 = stablehlo.dot_general %x0, %w, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %g0 = stablehlo.dot_general %x0, %y0, contracting_dims = [0] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %v = stablehlo.subtract %w, %g0 : tensor<2xf32>
  %x1 = stablehlo.slice %x [2:4, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %y1 = stablehlo.dot_general %x1, %v, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %g1 = stablehlo.dot_general %x1, %y1, contracting_dims = [0] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %n = stablehlo.subtract %v, %g1 : tensor<2xf32>
  return %n : tensor<2xf32>
}

// -----

// The rows of a stack that is summed up are accumulated; those of the other are not.
// CHECK-LABEL: func.func @stack
func.func @stack(%w: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>) -> (tensor<2xf32>, tensor<2x2xf32>) {
  // CHECK: stablehlo.while
  // CHECK: %[[G:.*]] = stablehlo.dot_general {{.*}} contracting_dims = [0] x [0]
  // CHECK-DAG: stablehlo.add %{{.*}}, %[[G]] : tensor<2xf32>
  // CHECK-DAG: stablehlo.dynamic_update_slice {{.*}} -> tensor<2x1x2xf32>
  // CHECK-NOT: stablehlo.reduce
  // CHECK: stablehlo.concatenate
  // CHECK: stablehlo.subtract
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %x0 = stablehlo.slice %x [0:2, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %y0 = stablehlo.dot_general %x0, %w, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %g0 = stablehlo.dot_general %x0, %y0, contracting_dims = [0] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %x1 = stablehlo.slice %x [2:4, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  %y1 = stablehlo.dot_general %x1, %w, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %g1 = stablehlo.dot_general %x1, %y1, contracting_dims = [0] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %y0r = stablehlo.reshape %y0 : (tensor<2xf32>) -> tensor<1x2xf32>
  %y1r = stablehlo.reshape %y1 : (tensor<2xf32>) -> tensor<1x2xf32>
  %ys = stablehlo.concatenate %y0r, %y1r, dim = 0 : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<2x2xf32>
  %g0r = stablehlo.reshape %g0 : (tensor<2xf32>) -> tensor<1x2xf32>
  %g1r = stablehlo.reshape %g1 : (tensor<2xf32>) -> tensor<1x2xf32>
  %gs = stablehlo.concatenate %g0r, %g1r, dim = 0 : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<2x2xf32>
  %g = stablehlo.reduce(%gs init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2x2xf32>, tensor<f32>) -> tensor<2xf32>
  %n = stablehlo.subtract %w, %g : tensor<2xf32>
  return %n, %ys : tensor<2xf32>, tensor<2x2xf32>
}
