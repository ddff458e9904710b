// RUN: shardopt-opt %s --shardopt-unsort-rows --canonicalize --cse | FileCheck %s

// Six tokens are sorted by their expert, of which there are three, and multiplied in groups. The
// masks say of experts what they said of positions, and padding is left out.
// CHECK-LABEL: func.func @experts
// CHECK-SAME: %[[X:arg[0-9]+]]: tensor<6x4xf32>, %[[KEY:arg[0-9]+]]: tensor<6xi32>
func.func @experts(%x: tensor<6x4xf32>, %key: tensor<6xi32>, %w: tensor<3x4x2xf32>) -> tensor<6x2xf32> {
  // CHECK-NOT: stablehlo.sort
  // CHECK-DAG: %[[LOW:.*]] = stablehlo.constant dense<[0, 1, 2]> : tensor<3xi32>
  // CHECK-DAG: %[[HIGH:.*]] = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32>
  // CHECK: %[[CLAMPED:.*]] = stablehlo.maximum
  // CHECK: %[[EXPERT:.*]] = stablehlo.broadcast_in_dim %[[CLAMPED]], dims = [1] : (tensor<6xi32>) -> tensor<3x6x4xi32>
  // CHECK: %[[FROM:.*]] = stablehlo.broadcast_in_dim %[[LOW]], dims = [0] : (tensor<3xi32>) -> tensor<3x6x4xi32>
  // CHECK: %[[ABOVE:.*]] = stablehlo.compare LE, %[[FROM]], %[[EXPERT]], SIGNED
  // CHECK: %[[TO:.*]] = stablehlo.broadcast_in_dim %[[HIGH]], dims = [0] : (tensor<3xi32>) -> tensor<3x6x4xi32>
  // CHECK: %[[BELOW:.*]] = stablehlo.compare LT, %[[EXPERT]], %[[TO]], SIGNED
  // CHECK: stablehlo.and %[[ABOVE]], %[[BELOW]] : tensor<3x6x4xi1>
  // CHECK: stablehlo.dot_general {{.*}} : (tensor<3x6x4xf32>, tensor<3x4x2xf32>) -> tensor<6x2xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0> : tensor<3xi32>
  %ones = stablehlo.constant dense<1> : tensor<6xi32>
  %least = stablehlo.constant dense<0> : tensor<6xi32>
  %nothing = stablehlo.constant dense<0.0> : tensor<f32>
  %nothings = stablehlo.constant dense<0.0> : tensor<3x8x4xf32>
  %row = stablehlo.iota dim = 0 : tensor<6xi32>
  %expert = stablehlo.maximum %key, %least : tensor<6xi32>
  %sorted:2 = "stablehlo.sort"(%expert, %row) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %i: tensor<i32>, %j: tensor<i32>):
      %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
  }) : (tensor<6xi32>, tensor<6xi32>) -> (tensor<6xi32>, tensor<6xi32>)
  %index = stablehlo.reshape %sorted#1 : (tensor<6xi32>) -> tensor<6x1xi32>
  %sent = "stablehlo.gather"(%x, %index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>}> : (tensor<6x4xf32>, tensor<6x1xi32>) -> tensor<6x4xf32>
  %at = stablehlo.reshape %expert : (tensor<6xi32>) -> tensor<6x1xi32>
  %sizes = "stablehlo.scatter"(%none, %at, %ones) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %sum = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %sum : tensor<i32>
  }) : (tensor<3xi32>, tensor<6x1xi32>, tensor<6xi32>) -> tensor<3xi32>
  %ends = "stablehlo.reduce_window"(%sizes, %zero) <{padding = dense<[[2, 0]]> : tensor<1x2xi64>, window_dimensions = array<i64: 3>}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %sum = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %sum : tensor<i32>
  }) : (tensor<3xi32>, tensor<i32>) -> tensor<3xi32>
  %starts = stablehlo.subtract %ends, %sizes : tensor<3xi32>
  %tiles = stablehlo.pad %sent, %nothing, low = [0, 0], high = [2, 0], interior = [0, 0] : (tensor<6x4xf32>, tensor<f32>) -> tensor<8x4xf32>
  %each = stablehlo.broadcast_in_dim %tiles, dims = [1, 2] : (tensor<8x4xf32>) -> tensor<3x8x4xf32>
  %position = stablehlo.iota dim = 1 : tensor<3x8x4xi32>
  %from = stablehlo.broadcast_in_dim %starts, dims = [0] : (tensor<3xi32>) -> tensor<3x8x4xi32>
  %to = stablehlo.broadcast_in_dim %ends, dims = [0] : (tensor<3xi32>) -> tensor<3x8x4xi32>
  %behind = stablehlo.compare LE, %from, %position, SIGNED : (tensor<3x8x4xi32>, tensor<3x8x4xi32>) -> tensor<3x8x4xi1>
  %before = stablehlo.compare LT, %position, %to, SIGNED : (tensor<3x8x4xi32>, tensor<3x8x4xi32>) -> tensor<3x8x4xi1>
  %mask = stablehlo.and %behind, %before : tensor<3x8x4xi1>
  %own = stablehlo.select %mask, %each, %nothings : tensor<3x8x4xi1>, tensor<3x8x4xf32>
  %made = stablehlo.dot_general %own, %w, contracting_dims = [2, 0] x [1, 0] : (tensor<3x8x4xf32>, tensor<3x4x2xf32>) -> tensor<8x2xf32>
  %rows = stablehlo.slice %made [0:6, 0:2] : (tensor<8x2xf32>) -> tensor<6x2xf32>
  %inverse:2 = "stablehlo.sort"(%sorted#1, %row) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %i: tensor<i32>, %j: tensor<i32>):
      %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
  }) : (tensor<6xi32>, tensor<6xi32>) -> (tensor<6xi32>, tensor<6xi32>)
  %back = stablehlo.reshape %inverse#1 : (tensor<6xi32>) -> tensor<6x1xi32>
  %0 = "stablehlo.gather"(%rows, %back) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>}> : (tensor<6x2xf32>, tensor<6x1xi32>) -> tensor<6x2xf32>
  return %0 : tensor<6x2xf32>
}
