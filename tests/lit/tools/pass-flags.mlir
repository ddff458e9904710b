// Flags that name passes run in the order given: calls are not merged by cse, the inlined bodies are.
// RUN: shardopt-opt %s --shardopt-inline-calls --cse | FileCheck %s --check-prefixes=CHECK,MERGED
// RUN: shardopt-opt %s --cse --shardopt-inline-calls | FileCheck %s --check-prefixes=CHECK,TWICE
// C++ passes that run on functions are nested without being asked, and options go behind the name.
// RUN: shardopt-opt %s --sdy-populate-op-sharding-rules --canonicalize="max-iterations=2" | FileCheck %s --check-prefixes=CHECK,RULES

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // MERGED-NEXT: %[[DOUBLE:.*]] = stablehlo.add %arg0, %arg0
  // MERGED-NEXT: stablehlo.add %[[DOUBLE]], %[[DOUBLE]]
  // TWICE-NEXT: %[[ONE:.*]] = stablehlo.add %arg0, %arg0
  // TWICE-NEXT: %[[TWO:.*]] = stablehlo.add %arg0, %arg0
  // TWICE-NEXT: stablehlo.add %[[ONE]], %[[TWO]]
  // RULES-COUNT-2: call @double
  // RULES: stablehlo.add {{.*}}sdy.sharding_rule = #sdy.op_sharding_rule<([i], [i])->([i]) {i=4}>
  %0 = call @double(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = call @double(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = stablehlo.add %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}

func.func private @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
