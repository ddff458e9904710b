// RUN: not shardopt-opt %s --shardopt-flatten-tuples="all=true" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: shardopt-opt %s --shardopt-flatten-tuples --split-input-file --verify-diagnostics
// OPTION: error: pipeline: unknown option of shardopt-flatten-tuples: 'all'

// expected-error @below {{sharding annotation of a tuple: expected 2 shardings, found 1 in '{{replicated}}'}}
func.func public @main(%a: tuple<tensor<4xf32>, tensor<2xf32>> {mhlo.sharding = "{{replicated}}"}) {
  return
}

// -----

// expected-error @below {{expected result 0, which replaces a tuple, to hold the same types, found (tensor<4xf32>) for (tensor<4xf32>, tensor<2xf32>)}}
func.func public @main(%a: tuple<tensor<4xf32>, tensor<2xf32>> {tf.aliasing_output = 0 : i32}) -> tensor<4xf32> {
  %0 = stablehlo.get_tuple_element %a[0] : (tuple<tensor<4xf32>, tensor<2xf32>>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
