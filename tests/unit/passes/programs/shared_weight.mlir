// Momentum with a schedule; a frozen first layer, one weight used in three layers, and a skip connection into each.
module @shared_weight {
  func.func public @main(%arg0: tensor<6x4xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<6xf32> {tf.aliasing_output = 1 : i32}, %arg2: tensor<6x6xf32> {tf.aliasing_output = 2 : i32}, %arg3: tensor<6x4xf32> {tf.aliasing_output = 3 : i32}, %arg4: tensor<6xf32> {tf.aliasing_output = 4 : i32}, %arg5: tensor<6x6xf32> {tf.aliasing_output = 5 : i32}, %arg6: tensor<i32> {tf.aliasing_output = 6 : i32}, %arg7: tensor<4x6xf32>, %arg8: tensor<8x4xf32>, %arg9: tensor<8x4xf32>) -> (tensor<6x4xf32> {jax.result_info = "result[0][0]['o']"}, tensor<6xf32> {jax.result_info = "result[0][0]['s']"}, tensor<6x6xf32> {jax.result_info = "result[0][0]['w']"}, tensor<6x4xf32> {jax.result_info = "result[0][1]['o']"}, tensor<6xf32> {jax.result_info = "result[0][1]['s']"}, tensor<6x6xf32> {jax.result_info = "result[0][1]['w']"}, tensor<i32> {jax.result_info = "result[0][2]"}, tensor<f32> {jax.result_info = "result[1]"}) {
    %cst = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %cst_0 = stablehlo.constant dense<1.000000e+01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %cst_2 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %cst_3 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %c = stablehlo.constant dense<1> : tensor<i32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<6x6xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<6xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<4x6xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reshape %arg8 : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
    %1 = stablehlo.reshape %arg9 : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
    %2:4 = mpmd.for (%cst_7, %cst_6, %cst_5, %cst_4) {iterations = 2 : ui32} (%arg10: tensor<f32>, %arg11: tensor<4x6xf32>, %arg12: tensor<6xf32>, %arg13: tensor<6x6xf32>, %index: tensor<ui32>) {
      %28:4 = mpmd.call @microbatch(%arg0, %arg1, %arg2, %arg7, %0, %1, %arg10, %arg11, %arg12, %arg13, %index) {call_counter = 0 : ui32} : (tensor<6x4xf32>, tensor<6xf32>, tensor<6x6xf32>, tensor<4x6xf32>, tensor<2x4x4xf32>, tensor<2x4x4xf32>, tensor<f32>, tensor<4x6xf32>, tensor<6xf32>, tensor<6x6xf32>, tensor<ui32>) -> (tensor<f32>, tensor<4x6xf32>, tensor<6xf32>, tensor<6x6xf32>)
      mpmd.return %28#0, %28#1, %28#2, %28#3 : tensor<f32>, tensor<4x6xf32>, tensor<6xf32>, tensor<6x6xf32>
    } : tensor<f32>, tensor<4x6xf32>, tensor<6xf32>, tensor<6x6xf32>
    %3 = stablehlo.divide %2#0, %cst : tensor<f32>
    %4 = stablehlo.transpose %2#1, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %5 = stablehlo.convert %arg6 : (tensor<i32>) -> tensor<f32>
    %6 = stablehlo.divide %5, %cst_0 : tensor<f32>
    %7 = stablehlo.power %cst_1, %6 : tensor<f32>
    %8 = stablehlo.multiply %cst_2, %7 : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<6x4xf32>
    %10 = stablehlo.multiply %9, %arg3 : tensor<6x4xf32>
    %11 = stablehlo.add %10, %4 : tensor<6x4xf32>
    %12 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %13 = stablehlo.multiply %12, %arg4 : tensor<6xf32>
    %14 = stablehlo.add %13, %2#2 : tensor<6xf32>
    %15 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %16 = stablehlo.multiply %15, %arg5 : tensor<6x6xf32>
    %17 = stablehlo.add %16, %2#3 : tensor<6x6xf32>
    %18 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<6x4xf32>
    %19 = stablehlo.multiply %18, %11 : tensor<6x4xf32>
    %20 = stablehlo.subtract %arg0, %19 : tensor<6x4xf32>
    %21 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %22 = stablehlo.multiply %21, %14 : tensor<6xf32>
    %23 = stablehlo.subtract %arg1, %22 : tensor<6xf32>
    %24 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %25 = stablehlo.multiply %24, %17 : tensor<6x6xf32>
    %26 = stablehlo.subtract %arg2, %25 : tensor<6x6xf32>
    %27 = stablehlo.add %arg6, %c : tensor<i32>
    return %20, %23, %26, %11, %14, %17, %27, %3 : tensor<6x4xf32>, tensor<6xf32>, tensor<6x6xf32>, tensor<6x4xf32>, tensor<6xf32>, tensor<6x6xf32>, tensor<i32>, tensor<f32>
  }
  func.func private @microbatch(%arg0: tensor<6x4xf32>, %arg1: tensor<6xf32>, %arg2: tensor<6x6xf32>, %arg3: tensor<4x6xf32>, %arg4: tensor<2x4x4xf32>, %arg5: tensor<2x4x4xf32>, %arg6: tensor<f32>, %arg7: tensor<4x6xf32>, %arg8: tensor<6xf32>, %arg9: tensor<6x6xf32>, %arg10: tensor<ui32>) -> (tensor<f32>, tensor<4x6xf32>, tensor<6xf32>, tensor<6x6xf32>) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_2 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %0 = stablehlo.dynamic_slice %arg4, %arg10, %c, %c, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.dynamic_slice %arg5, %arg10, %c, %c, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %5 = stablehlo.tanh %4 : tensor<4x6xf32>
    %6 = stablehlo.dot_general %5, %arg2, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %7 = stablehlo.tanh %6 : tensor<4x6xf32>
    %8 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %9 = stablehlo.subtract %8, %7 : tensor<4x6xf32>
    %10 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<6xf32>) -> tensor<4x6xf32>
    %11 = stablehlo.multiply %7, %10 : tensor<4x6xf32>
    %12 = stablehlo.add %11, %5 : tensor<4x6xf32>
    %13 = stablehlo.dot_general %12, %arg2, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %14 = stablehlo.tanh %13 : tensor<4x6xf32>
    %15 = stablehlo.subtract %8, %14 : tensor<4x6xf32>
    %16 = stablehlo.multiply %14, %10 : tensor<4x6xf32>
    %17 = stablehlo.add %16, %5 : tensor<4x6xf32>
    %18 = stablehlo.dot_general %17, %arg2, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %19 = stablehlo.tanh %18 : tensor<4x6xf32>
    %20 = stablehlo.subtract %8, %19 : tensor<4x6xf32>
    %21 = stablehlo.multiply %19, %10 : tensor<4x6xf32>
    %22 = stablehlo.add %21, %5 : tensor<4x6xf32>
    %23 = stablehlo.dot_general %22, %arg0, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
    %24 = stablehlo.subtract %23, %3 : tensor<4x4xf32>
    %25 = stablehlo.multiply %24, %24 : tensor<4x4xf32>
    %26 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %27 = stablehlo.multiply %26, %24 : tensor<4x4xf32>
    %28 = stablehlo.reduce(%25 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %29 = stablehlo.divide %cst, %cst_2 : tensor<f32>
    %30 = stablehlo.broadcast_in_dim %29, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %31 = stablehlo.multiply %30, %27 : tensor<4x4xf32>
    %32 = stablehlo.dot_general %31, %22, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %33 = stablehlo.dot_general %31, %arg0, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<6x4xf32>) -> tensor<4x6xf32>
    %34 = stablehlo.multiply %19, %33 : tensor<4x6xf32>
    %35 = stablehlo.reduce(%34 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<6xf32>
    %36 = stablehlo.reshape %35 : (tensor<6xf32>) -> tensor<1x6xf32>
    %37 = stablehlo.multiply %33, %10 : tensor<4x6xf32>
    %38 = stablehlo.reduce(%36 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<1x6xf32>, tensor<f32>) -> tensor<6xf32>
    %39 = stablehlo.multiply %37, %20 : tensor<4x6xf32>
    %40 = stablehlo.multiply %39, %19 : tensor<4x6xf32>
    %41 = stablehlo.add %39, %40 : tensor<4x6xf32>
    %42 = stablehlo.dot_general %41, %17, contracting_dims = [0] x [0] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
    %43 = stablehlo.transpose %42, dims = [1, 0] : (tensor<6x6xf32>) -> tensor<6x6xf32>
    %44 = stablehlo.dot_general %41, %arg2, contracting_dims = [1] x [1] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %45 = stablehlo.multiply %14, %44 : tensor<4x6xf32>
    %46 = stablehlo.reduce(%45 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<6xf32>
    %47 = stablehlo.reshape %46 : (tensor<6xf32>) -> tensor<1x6xf32>
    %48 = stablehlo.multiply %44, %10 : tensor<4x6xf32>
    %49 = stablehlo.reduce(%47 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<1x6xf32>, tensor<f32>) -> tensor<6xf32>
    %50 = stablehlo.add %38, %49 : tensor<6xf32>
    %51 = stablehlo.multiply %48, %15 : tensor<4x6xf32>
    %52 = stablehlo.multiply %51, %14 : tensor<4x6xf32>
    %53 = stablehlo.add %51, %52 : tensor<4x6xf32>
    %54 = stablehlo.dot_general %53, %12, contracting_dims = [0] x [0] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
    %55 = stablehlo.transpose %54, dims = [1, 0] : (tensor<6x6xf32>) -> tensor<6x6xf32>
    %56 = stablehlo.add %43, %55 : tensor<6x6xf32>
    %57 = stablehlo.dot_general %53, %arg2, contracting_dims = [1] x [1] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %58 = stablehlo.multiply %7, %57 : tensor<4x6xf32>
    %59 = stablehlo.reduce(%58 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<6xf32>
    %60 = stablehlo.reshape %59 : (tensor<6xf32>) -> tensor<1x6xf32>
    %61 = stablehlo.multiply %57, %10 : tensor<4x6xf32>
    %62 = stablehlo.reduce(%60 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<1x6xf32>, tensor<f32>) -> tensor<6xf32>
    %63 = stablehlo.add %50, %62 : tensor<6xf32>
    %64 = stablehlo.multiply %61, %9 : tensor<4x6xf32>
    %65 = stablehlo.multiply %64, %7 : tensor<4x6xf32>
    %66 = stablehlo.add %64, %65 : tensor<4x6xf32>
    %67 = stablehlo.dot_general %66, %5, contracting_dims = [0] x [0] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
    %68 = stablehlo.transpose %67, dims = [1, 0] : (tensor<6x6xf32>) -> tensor<6x6xf32>
    %69 = stablehlo.add %56, %68 : tensor<6x6xf32>
    %70 = stablehlo.add %arg6, %28 : tensor<f32>
    %71 = stablehlo.add %arg7, %32 : tensor<4x6xf32>
    %72 = stablehlo.add %arg8, %63 : tensor<6xf32>
    %73 = stablehlo.add %arg9, %69 : tensor<6x6xf32>
    return %70, %71, %72, %73 : tensor<f32>, tensor<4x6xf32>, tensor<6xf32>, tensor<6x6xf32>
  }
}
