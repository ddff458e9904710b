// RUN: split-file %s %t
// RUN: shardopt-opt %t/shardy.mlir --shardopt-read-annotations | FileCheck %t/shardy.mlir
// RUN: shardopt-opt %t/shardy.mlir --shardopt-read-annotations=annotations=drop | FileCheck %t/shardy.mlir --check-prefix=DROP
// RUN: shardopt-opt %t/shardy.mlir --shardopt-read-annotations=annotations=drop --remarks -o %t/dropped.mlir 2>&1 | FileCheck %t/shardy.mlir --check-prefix=REMARK
// RUN: shardopt-opt %t/gspmd.mlir --shardopt-read-annotations | FileCheck %t/gspmd.mlir
// RUN: shardopt-opt %t/several.mlir --shardopt-read-annotations | FileCheck %t/several.mlir
// RUN: shardopt-opt %t/placed.mlir --shardopt-read-annotations -o %t/out.mlir 2>&1 | FileCheck %t/placed.mlir --check-prefix=WARNING
// RUN: FileCheck %t/placed.mlir < %t/out.mlir
// RUN: shardopt-opt %t/loop.mlir --shardopt-import=unroll=true | FileCheck %t/loop.mlir

// Signature, constraints, operations; open dimensions, axes that stay whole, parts of axes, meshes written in place.
//--- shardy.mlir
// CHECK-NOT: sdy.
// REMARK: remark: 'sdy.sharding_constraint' is dropped
// DROP-NOT: shardopt.sharding
// DROP-NOT: sdy.
// DROP-NOT: custom_call
// DROP: stablehlo.add %arg0, %arg0 : tensor<8x4xf32>
sdy.mesh @mesh = <["dp"=2, "mp"=4]>
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %arg0: tensor<8x4xf32> {shardopt.sharding = {axes = ["dp", "mp"], dims = {{\[}}["dp"], []], sizes = array<i64: 2, 4>}, tf.aliasing_output = 0 : i32}
// CHECK-SAME: %arg1: tensor<8xf32>)
// CHECK-SAME: -> (tensor<8x4xf32> {shardopt.sharding = {axes = ["dp", "mp"], dims = {{\[}}[], []], open = array<i64: 1>, replicated = ["dp"], sizes = array<i64: 2, 4>}})
func.func public @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>, tf.aliasing_output = 0 : i32}, %free: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {?}], replicated={"dp"}>}) {
  // CHECK: %[[IN:.*]] = stablehlo.custom_call @Sharding(%arg0) {shardopt.sharding = {axes = ["dp", "mp:(1)2", "mp:(2)2"], dims = {{\[}}["dp", "mp:(1)2"], []], open = array<i64: 0>, sizes = array<i64: 2, 2, 2>}}
  %0 = sdy.sharding_constraint %x <@mesh, [{"dp", "mp":(1)2, ?}, {}]> : tensor<8x4xf32>
  // CHECK: %[[SUM:.*]] = stablehlo.add %[[IN]], %[[IN]] : tensor<8x4xf32>
  // CHECK: %[[MARKED:.*]] = stablehlo.custom_call @Sharding(%[[SUM]]) {shardopt.sharding = {axes = ["a"], devices = array<i64: 1, 0>, dims = {{\[}}["a"], []], sizes = array<i64: 2>}}
  %1 = stablehlo.add %0, %0 {sdy.sharding = #sdy.sharding_per_value<[<mesh<["a"=2], device_ids=[1, 0]>, [{"a"}, {}]>]>} : tensor<8x4xf32>
  %2 = sdy.propagation_barrier %1 allowed_direction=NONE : tensor<8x4xf32>
  // CHECK: return %[[MARKED]]
  return %2 : tensor<8x4xf32>
}

// Tile assignments become axes of the annotation's own; `unspecified_dims` are open.
//--- gspmd.mlir
// CHECK-LABEL: func.func public @main
// CHECK-SAME: %arg0: tensor<8x4xf32> {shardopt.sharding = {axes = ["d1", "r0"], devices = array<i64: 0, 4, 1, 5, 2, 6, 3, 7>, dims = {{\[}}[], ["d1"]], sizes = array<i64: 4, 2>}}
// CHECK-SAME: -> (tensor<8x4xf32> {shardopt.sharding = {axes = [], dims = {{\[}}[], []], sizes = array<i64>}})
func.func public @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}) -> (tensor<8x4xf32> {mhlo.sharding = "{replicated}"}) {
  // CHECK: stablehlo.custom_call @Sharding(%arg0) {shardopt.sharding = {axes = ["d0"], dims = {{\[}}["d0"], []], open = array<i64: 1>, sizes = array<i64: 2>}}
  %0 = stablehlo.custom_call @Sharding(%x) {backend_config = "unspecified_dims=[1]", mhlo.sharding = "{devices=[2,1]<=[2]}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: stablehlo.custom_call @Sharding({{.*}}) {shardopt.sharding = {axes = ["d0", "d1"], devices = array<i64: 0, 2, 1, 3>, dims = {{\[}}["d0"], ["d1"]], sizes = array<i64: 2, 2>}}
  %1 = stablehlo.add %0, %0 {mhlo.sharding = "{devices=[2,2]0,2,1,3}"} : tensor<8x4xf32>
  // A sharding on one device says nothing about several.
  // CHECK-NEXT: %[[LAST:.*]] = stablehlo.negate
  // CHECK-NEXT: return %[[LAST]]
  %2 = stablehlo.negate %1 {mhlo.sharding = "{devices=[1,1]<=[1]}"} : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}

// One marker a result.
//--- several.mlir
// CHECK: %[[WHILE:.*]]:2 = stablehlo.while
// CHECK: stablehlo.custom_call @Sharding(%[[WHILE]]#1) {shardopt.sharding = {axes = ["d0"]
// CHECK: stablehlo.custom_call @Sharding(%[[WHILE]]#0) {shardopt.sharding = {axes = []
func.func public @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0:2 = stablehlo.while(%a = %x, %b = %y) : tensor<8xf32>, tensor<8xf32> attributes {mhlo.sharding = "{{replicated}, {devices=[2]<=[2]}}"}
  cond {
    %f = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %f : tensor<i1>
  } do {
    stablehlo.return %a, %b : tensor<8xf32>, tensor<8xf32>
  }
  return %0#0, %0#1 : tensor<8xf32>, tensor<8xf32>
}

// Annotations of callees become markers, too, and a marker in a loop that is written out is one in every round.
//--- loop.mlir
// CHECK-COUNT-2: stablehlo.custom_call @Sharding(%{{.*}}) {shardopt.sharding = {axes = ["dp"], dims = {{\[}}["dp"], []]
// CHECK-NOT: @Sharding
sdy.mesh @mesh = <["dp"=2]>
func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<8x8xf32>
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %w = func.call @layer(%v) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %j, %w : tensor<i32>, tensor<8x8xf32>
  }
  return %r#1 : tensor<8x8xf32>
}
func.func private @layer(%x: tensor<8x8xf32>) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// What memory a value is to lie in, as policies of `jax.checkpoint` say it.
//--- placed.mlir
// WARNING: placed.mlir:[[@LINE+5]]:8: warning: the program lays 1 value into pinned_host, as checkpoint policies that offload do: they are planned on the devices; with --offload activations, or auto, what waits for a backward lies on the hosts
// CHECK-LABEL: func.func public @main
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %arg0, %arg0
// CHECK-NEXT: return %[[SUM]]
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @annotate_device_placement(%x) {has_side_effect = true, mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = stablehlo.custom_call @annotate_device_placement(%0) {has_side_effect = true, mhlo.frontend_attributes = {_xla_buffer_placement = "device"}} : (tensor<8xf32>) -> tensor<8xf32>
  %2 = stablehlo.add %1, %1 : tensor<8xf32>
  return %2 : tensor<8xf32>
}
