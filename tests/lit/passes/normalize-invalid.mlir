// The pass has no options, and rewrites nothing whose shape is not known.
// RUN: not shardopt-opt %s --shardopt-normalize="fold=true" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: shardopt-opt %s --shardopt-normalize | FileCheck %s

// OPTION: error: pipeline: unknown option of shardopt-normalize: 'fold'
// CHECK-LABEL: func.func @dynamic
func.func @dynamic(%x: tensor<?x8xf32>) -> tensor<?x8xf32> {
  // CHECK-COUNT-2: stablehlo.transpose
  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<?x8xf32>) -> tensor<8x?xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<8x?xf32>) -> tensor<?x8xf32>
  return %1 : tensor<?x8xf32>
}
