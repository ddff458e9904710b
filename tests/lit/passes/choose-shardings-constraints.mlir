// A constraints file, in YAML and in JSON: arguments by number, name and pattern, results, operations, forbidden axes.
// RUN: split-file %s %t
// RUN: shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/all.yaml" | FileCheck %t/all.check
// RUN: shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/same.json" | FileCheck %t/all.check
// RUN: shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/forbid.yaml" | FileCheck %t/forbid.check
// RUN: shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 intra-op=data batch-args=0 constraints=%t/all.yaml" | FileCheck %t/all.check
// RUN: shardopt-opt %t/model.mlir --shardopt-shard="cluster=cpu-test:1x4 mesh=2x2 constraints=%t/empty.yaml"

//--- model.mlir
func.func public @main(%x: tensor<1024x512xf32> loc("x"), %w: tensor<512x512xf32> loc("params['dense']['kernel']"), %b: tensor<512xf32> loc("params['dense']['bias']")) -> (tensor<1024x512xf32> {jax.result_info = "loss"}, tensor<1024x512xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<1024x512xf32>, tensor<512x512xf32>) -> tensor<1024x512xf32> loc("jit(step)/layer_0/dot_general")
  %1 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<512xf32>) -> tensor<1024x512xf32>
  %2 = stablehlo.add %0, %1 : tensor<1024x512xf32> loc("jit(step)/layer_0/add")
  %3 = stablehlo.tanh %2 : tensor<1024x512xf32> loc("jit(step)/layer_1/tanh")
  return %2, %3 : tensor<1024x512xf32>, tensor<1024x512xf32>
}

//--- all.check
// CHECK: func.func public @main(%arg0: tensor<1024x512xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}
// CHECK-SAME: %arg1: tensor<512x512xf32> {mhlo.sharding = "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"}
// CHECK-SAME: %arg2: tensor<512xf32> {mhlo.sharding = "{replicated}"}
// CHECK-SAME: -> (tensor<1024x512xf32> {jax.result_info = "loss", mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"}, tensor<1024x512xf32> {mhlo.sharding = "{devices=[1,4]<=[4]}"})
// CHECK: %[[DOT:.*]] = stablehlo.dot_general
// CHECK: stablehlo.custom_call @Sharding({{.*}}) {mhlo.sharding = "{devices=[2,2]<=[4]}"}
// CHECK: stablehlo.add

//--- all.yaml
- argument: 0
  sharding: [[x, y], []]
- argument: "params['dense']['kernel']"
  dims: {0: [], 1: [y]}
- argument: "params.*bias.*"
  replicated: true
- op: dot_general
  location: "layer_0/"
  sharding: [[x], [y]]
- result: loss
  dims: {0: [x], 1: []}
- result: 1
  sharding: [[], [x, y]]
- op: convolution
  replicated: true
  optional: true

//--- same.json
[
  {"argument": "x", "sharding": [["x", "y"], []]},
  {"argument": 1, "dims": {"0": [], "1": ["y"]}},
  {"argument": ".*bias.*", "replicated": true},
  {"location": "layer_0/dot_general", "sharding": [["x"], ["y"]]},
  {"result": 0, "dims": {"1": [], "0": ["x"]}},
  {"result": 1, "sharding": [[], ["x", "y"]]}
]

//--- forbid.check
// CHECK: func.func public @main(%arg0: tensor<1024x512xf32> {mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"}
// CHECK-SAME: %arg1: tensor<512x512xf32> {mhlo.sharding = "{replicated}"}
// CHECK: stablehlo.dot_general {{.*}}{mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"}

//--- forbid.yaml
- location: "."
  forbid: [y]
- argument: ".*"
  forbid: [y]
- argument: ".*kernel.*"
  forbid: [x, y]
- result: 0
  forbid: [y]
- result: 1
  forbid: [y]

//--- empty.yaml
