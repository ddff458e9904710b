// Two microbatches of a three-layer MLP with squared error, plain SGD, and the loss as a metric.
module @mlp_sgd {
  func.func public @main(%arg0: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<4x4xf32> {tf.aliasing_output = 1 : i32}, %arg2: tensor<4x4xf32> {tf.aliasing_output = 2 : i32}, %arg3: tensor<8x4xf32>, %arg4: tensor<8x4xf32>) -> (tensor<4x4xf32> {jax.result_info = "result[0][0]"}, tensor<4x4xf32> {jax.result_info = "result[0][1]"}, tensor<4x4xf32> {jax.result_info = "result[0][2]"}, tensor<f32> {jax.result_info = "result[1]"}) {
    %cst = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %cst_0 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reshape %arg3 : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
    %1 = stablehlo.reshape %arg4 : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
    %2:4 = mpmd.for (%cst_2, %cst_1, %cst_1, %cst_1) {iterations = 2 : ui32} (%arg5: tensor<f32>, %arg6: tensor<4x4xf32>, %arg7: tensor<4x4xf32>, %arg8: tensor<4x4xf32>, %index: tensor<ui32>) {
      %14:4 = mpmd.call @microbatch(%arg0, %arg1, %arg2, %0, %1, %arg5, %arg6, %arg7, %arg8, %index) {call_counter = 0 : ui32} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x4x4xf32>, tensor<2x4x4xf32>, tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<ui32>) -> (tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
      mpmd.return %14#0, %14#1, %14#2, %14#3 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    } : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    %3 = stablehlo.divide %2#0, %cst : tensor<f32>
    %4 = stablehlo.transpose %2#1, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.transpose %2#2, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %6 = stablehlo.transpose %2#3, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %7 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %8 = stablehlo.multiply %7, %6 : tensor<4x4xf32>
    %9 = stablehlo.subtract %arg0, %8 : tensor<4x4xf32>
    %10 = stablehlo.multiply %7, %5 : tensor<4x4xf32>
    %11 = stablehlo.subtract %arg1, %10 : tensor<4x4xf32>
    %12 = stablehlo.multiply %7, %4 : tensor<4x4xf32>
    %13 = stablehlo.subtract %arg2, %12 : tensor<4x4xf32>
    return %9, %11, %13, %3 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
  }
  func.func private @microbatch(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>, %arg2: tensor<4x4xf32>, %arg3: tensor<2x4x4xf32>, %arg4: tensor<2x4x4xf32>, %arg5: tensor<f32>, %arg6: tensor<4x4xf32>, %arg7: tensor<4x4xf32>, %arg8: tensor<4x4xf32>, %arg9: tensor<ui32>) -> (tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_2 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %0 = stablehlo.dynamic_slice %arg3, %arg9, %c, %c, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.dynamic_slice %arg4, %arg9, %c, %c, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.dot_general %1, %arg0, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.tanh %4 : tensor<4x4xf32>
    %6 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %7 = stablehlo.subtract %6, %5 : tensor<4x4xf32>
    %8 = stablehlo.dot_general %5, %arg1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %9 = stablehlo.tanh %8 : tensor<4x4xf32>
    %10 = stablehlo.subtract %6, %9 : tensor<4x4xf32>
    %11 = stablehlo.dot_general %9, %arg2, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %12 = stablehlo.subtract %11, %3 : tensor<4x4xf32>
    %13 = stablehlo.multiply %12, %12 : tensor<4x4xf32>
    %14 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %15 = stablehlo.multiply %14, %12 : tensor<4x4xf32>
    %16 = stablehlo.reduce(%13 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %17 = stablehlo.divide %cst, %cst_2 : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %19 = stablehlo.multiply %18, %15 : tensor<4x4xf32>
    %20 = stablehlo.dot_general %19, %9, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %21 = stablehlo.dot_general %19, %arg2, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %22 = stablehlo.multiply %21, %10 : tensor<4x4xf32>
    %23 = stablehlo.multiply %22, %9 : tensor<4x4xf32>
    %24 = stablehlo.add %22, %23 : tensor<4x4xf32>
    %25 = stablehlo.dot_general %24, %5, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %26 = stablehlo.dot_general %24, %arg1, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %27 = stablehlo.multiply %26, %7 : tensor<4x4xf32>
    %28 = stablehlo.multiply %27, %5 : tensor<4x4xf32>
    %29 = stablehlo.add %27, %28 : tensor<4x4xf32>
    %30 = stablehlo.dot_general %29, %1, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %31 = stablehlo.add %arg5, %16 : tensor<f32>
    %32 = stablehlo.add %arg6, %20 : tensor<4x4xf32>
    %33 = stablehlo.add %arg7, %25 : tensor<4x4xf32>
    %34 = stablehlo.add %arg8, %30 : tensor<4x4xf32>
    return %31, %32, %33, %34 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
}
