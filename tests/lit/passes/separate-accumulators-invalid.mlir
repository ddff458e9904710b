// A word that the option does not know; and a module without a microbatch loop, of which nothing changes.
// RUN: not shardopt-opt %s --shardopt-separate-accumulators="unreduced=some" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: shardopt-opt %s --shardopt-separate-accumulators | FileCheck %s

// OPTION: error: pipeline: option 'unreduced' of shardopt-separate-accumulators expects auto | on | off, found 'some'
// CHECK-LABEL: func.func @plain
// CHECK-NEXT: %[[Z:.*]] = stablehlo.constant
// CHECK-NEXT: return %[[Z]], %[[Z]]
func.func @plain() -> (tensor<8xf32>, tensor<8xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<8xf32>
  return %z, %z : tensor<8xf32>, tensor<8xf32>
}
