// Loops that are kept say why, and options are checked.
// RUN: shardopt-opt %s --shardopt-unroll-loops="max-iterations=4" --remarks -o %t 2>%t.err
// RUN: FileCheck %s < %t
// RUN: FileCheck %s --check-prefix=WHY < %t.err
// RUN: not shardopt-opt %s --shardopt-unroll-loops="only=layers" 2>&1 | FileCheck %s --check-prefix=ONLY
// RUN: not shardopt-opt %s --shardopt-unroll-loops="max-iterations=-1" 2>&1 | FileCheck %s --check-prefix=NEGATIVE

// ONLY: option 'only' of shardopt-unroll-loops expects compute | all, found 'layers'
// NEGATIVE: shardopt-unroll-loops: max-iterations: expected at least 0, found -1

func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c5 = stablehlo.constant dense<5> : tensor<i32>
  // CHECK-COUNT-2: stablehlo.while
  // WHY: :[[@LINE+1]]:10: remark: kept a loop whose number of iterations depends on data [dynamic-loop]
  %a:2 = stablehlo.while(%i = %c0, %v = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %v1 = stablehlo.tanh %v : tensor<4xf32>
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %v1 : tensor<i32>, tensor<4xf32>
    }
  // WHY: :[[@LINE+1]]:10: warning: kept a loop of more than 4 iterations as one operation (max-iterations=4)
  %b:2 = stablehlo.while(%i = %c0, %v = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %p = stablehlo.compare LT, %i, %c5 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %v1 = stablehlo.tanh %v : tensor<4xf32>
      %i1 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %i1, %v1 : tensor<i32>, tensor<4xf32>
    }
  return %a#1, %b#1 : tensor<4xf32>, tensor<4xf32>
}
