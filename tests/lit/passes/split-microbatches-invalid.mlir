// RUN: split-file %s %t
// RUN: not shardopt-opt %t/norm.mlir --shardopt-split-microbatches="num-microbatches=2" 2>&1 | FileCheck %t/norm.mlir
// RUN: not shardopt-opt %t/pairs.mlir --shardopt-split-microbatches="num-microbatches=2" 2>&1 | FileCheck %t/pairs.mlir
// RUN: not shardopt-opt %t/extent.mlir --shardopt-split-microbatches="num-microbatches=4" 2>&1 | FileCheck %t/extent.mlir
// RUN: not shardopt-opt %t/extent.mlir --shardopt-split-microbatches="batch-args=7" 2>&1 | FileCheck %t/extent.mlir --check-prefix=INDEX
// RUN: not shardopt-opt %t/extent.mlir --shardopt-split-microbatches="batch-args=1:2" 2>&1 | FileCheck %t/extent.mlir --check-prefix=DIM
// RUN: not shardopt-opt %t/extent.mlir --shardopt-split-microbatches="batch-args=first" 2>&1 | FileCheck %t/extent.mlir --check-prefix=NAME
// RUN: not shardopt-opt %t/extent.mlir --shardopt-split-microbatches="batch-args=1:x" 2>&1 | FileCheck %t/extent.mlir --check-prefix=TEXT
// RUN: not shardopt-opt %t/named.mlir --shardopt-split-microbatches="batch-args=batch[*].y" 2>&1 | FileCheck %t/named.mlir
// RUN: not shardopt-opt %t/named.mlir --shardopt-split-microbatches="batch-args=batch num-microbatches=4" 2>&1 | FileCheck %t/named.mlir --check-prefix=EXTENT
// RUN: not shardopt-opt %t/named.mlir --shardopt-split-microbatches="batch-args=scale,batch" 2>&1 | FileCheck %t/named.mlir --check-prefix=SCALAR
// RUN: not shardopt-opt %t/auto.mlir --shardopt-split-microbatches="num-microbatches=2" 2>&1 | FileCheck %t/auto.mlir
// RUN: not shardopt-opt %t/empty.mlir --shardopt-split-microbatches 2>&1 | FileCheck %t/empty.mlir
// RUN: not shardopt-opt %t/loop.mlir --shardopt-split-microbatches="num-microbatches=2" 2>&1 | FileCheck %t/loop.mlir
// RUN: not shardopt-opt %t/parts.mlir --shardopt-split-microbatches="num-microbatches=4" 2>&1 | FileCheck %t/parts.mlir
// RUN: not shardopt-opt %t/twice.mlir --shardopt-split-microbatches 2>&1 | FileCheck %t/twice.mlir

//--- norm.mlir
func.func @main(%w: tensor<2x2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>) -> tensor<2x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x2xf32>, tensor<2x2xf32>) -> tensor<4x2xf32>
  %s = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<2xf32>) -> tensor<4x2xf32>
  // CHECK: norm.mlir:[[@LINE+2]]:8: error: cannot cut the step into microbatches: 'stablehlo.subtract' needs a value reduced over the whole batch by 'stablehlo.reduce'; batch-coupling=per-microbatch lets each microbatch stand for the whole batch, num-microbatches=1 keeps it whole
  // CHECK: norm.mlir:[[@LINE-3]]:24: note: reduced over the batch here
  %d = stablehlo.subtract %h, %b : tensor<4x2xf32>
  %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<2x2xf32>
  return %g : tensor<2x2xf32>
}

//--- pairs.mlir
func.func @main(%w: tensor<2x2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>) -> tensor<2x2xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x2xf32>, tensor<2x2xf32>) -> tensor<4x2xf32>
  // CHECK: pairs.mlir:[[@LINE+2]]:8: error: cannot cut the step into microbatches: 'stablehlo.dot_general' pairs every row of the batch with every other row, and 'stablehlo.dot_general' needs what it makes; compare rows of groups
  // CHECK: pairs.mlir:[[@LINE+2]]:8: note: needed here
  %s = stablehlo.dot_general %h, %h, contracting_dims = [1] x [1] : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x4xf32>
  %d = stablehlo.dot_general %s, %h, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<2x2xf32>
  return %g : tensor<2x2xf32>
}

//--- extent.mlir
// CHECK: extent.mlir:[[@LINE+5]]:1: error: expected a batch that divides into num-microbatches=4, found extent 6 of dimension 0 of argument 1; its divisors are 1, 2, 3, 6
// INDEX: error: expected a batch argument below 2, found 7
// DIM: error: expected a batch dimension below 2 of argument 1, found 2
// NAME: error: expected a batch argument, found none called 'first' (1: tensor<6x2xf32>); none has a name in this module, so give its number
// TEXT: error: pipeline: shardopt-split-microbatches: expected batch-args to be auto, none or a list of INDEX[:DIM] or NAME[:DIM], found '1:x'
func.func @main(%w: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<6x2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<6x2xf32>, tensor<f32>) -> tensor<2xf32>
  return %s : tensor<2xf32>
}

// Names are those that jax gives to arguments. All that is in a tree is called by the name of the tree, too.
//--- named.mlir
// CHECK: named.mlir:[[@LINE+3]]:1: error: expected a batch argument, found none called 'batch[*].y' (1: batch['x'] tensor<6x2xf32>, 2: batch['y'] tensor<6xi32>)
// EXTENT: error: expected a batch that divides into num-microbatches=4, found extent 6 of dimension 0 of argument 1 (batch['x']); its divisors are 1, 2, 3, 6
// SCALAR: error: expected a batch argument with rows, found argument 3 (scale), a scalar
func.func @main(%w: tensor<2xf32> {tf.aliasing_output = 0 : i32} loc("params['w']"), %x: tensor<6x2xf32> loc("batch['x']"), %y: tensor<6xi32> loc("batch['y']"), %s: tensor<f32> loc("scale")) -> tensor<2xf32> {
  return %w : tensor<2xf32>
}

//--- auto.mlir
// CHECK: auto.mlir:[[@LINE+1]]:1: error: cannot tell the batch arguments: several arguments could be it (2: tensor<4x2xf32>, 4 rows; 3: tensor<3x2xf32>, 3 rows); name them with batch-args=INDEX[:DIM] or NAME[:DIM], or keep the batch whole with num-microbatches=1
func.func @main(%v: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %w: tensor<2xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<4x2xf32>, %y: tensor<3x2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %0 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<4x2xf32>, tensor<2xf32>) -> tensor<4xf32>
  %1 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] : (tensor<3x2xf32>, tensor<2xf32>) -> tensor<3xf32>
  %2 = stablehlo.dot_general %0, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4x2xf32>) -> tensor<2xf32>
  %3 = stablehlo.dot_general %1, %y, contracting_dims = [0] x [0] : (tensor<3xf32>, tensor<3x2xf32>) -> tensor<2xf32>
  %4 = stablehlo.subtract %v, %2 : tensor<2xf32>
  %5 = stablehlo.subtract %w, %3 : tensor<2xf32>
  return %4, %5 : tensor<2xf32>, tensor<2xf32>
}

//--- empty.mlir
// CHECK: empty.mlir:[[@LINE+1]]:1: error: expected a step that computes something, found no operation
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

//--- loop.mlir
func.func @main(%w: tensor<4x2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>) -> tensor<4x2xf32> {
  // CHECK: loop.mlir:[[@LINE+2]]:8: error: cannot cut the step into microbatches: 'stablehlo.custom_call' @opaque of batched values is not supported (it has no sharding rule)
  %y = stablehlo.multiply %x, %w : tensor<4x2xf32>
  %0 = stablehlo.custom_call @opaque(%y) : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %1 = stablehlo.dot_general %0, %w, batching_dims = [0] x [0], contracting_dims = [1] x [1] : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x2xf32>
  return %2 : tensor<4x2xf32>
}

//--- twice.mlir
func.func @main(%x: tensor<4xi32>) -> tensor<4xi32> {
  return %x : tensor<4xi32>
}
// CHECK: twice.mlir:[[@LINE+1]]:1: error: expected a step without @microbatch: it is cut into microbatches once
func.func private @microbatch(%x: tensor<4xi32>) -> tensor<4xi32> {
  return %x : tensor<4xi32>
}

// The step goes over two parts of its batch by itself.
//--- parts.mlir
func.func @main(%w: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x2xf32>, %start: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: parts.mlir:[[@LINE+1]]:21: error: the step accumulates over 2 parts of its batch itself, which are its microbatches; expected num-microbatches=2 (or 1, which takes them as well), found 4
  %i, %xs, %v, %g = stablehlo.while(%k = %zero, %all = %x, %p = %w, %t = %start) : tensor<i32>, tensor<4x2xf32>, tensor<2xf32>, tensor<2xf32>
    cond {
      %last = stablehlo.constant dense<2> : tensor<i32>
      %goes = stablehlo.compare LT, %k, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %goes : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %two = stablehlo.constant dense<2> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %first = stablehlo.multiply %k, %two : tensor<i32>
      %rows = stablehlo.dynamic_slice %all, %first, %zero, sizes = [2, 2] : (tensor<4x2xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
      %y = stablehlo.dot_general %rows, %p, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      %d = stablehlo.dot_general %rows, %y, contracting_dims = [0] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
      %u = stablehlo.add %t, %d : tensor<2xf32>
      stablehlo.return %next, %all, %p, %u : tensor<i32>, tensor<4x2xf32>, tensor<2xf32>, tensor<2xf32>
    }
  %n = stablehlo.subtract %w, %g : tensor<2xf32>
  return %n : tensor<2xf32>
}
