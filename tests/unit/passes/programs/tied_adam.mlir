// Adam with bias correction and global-norm clipping;
// an embedding tied to the output, a skip connection, an auxiliary loss, metrics.
module @tied_adam {
  func.func public @main(%arg0: tensor<6xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<4x6xf32> {tf.aliasing_output = 1 : i32}, %arg2: tensor<6x6xf32> {tf.aliasing_output = 2 : i32}, %arg3: tensor<6x6xf32> {tf.aliasing_output = 3 : i32}, %arg4: tensor<6xf32> {tf.aliasing_output = 4 : i32}, %arg5: tensor<4x6xf32> {tf.aliasing_output = 5 : i32}, %arg6: tensor<6x6xf32> {tf.aliasing_output = 6 : i32}, %arg7: tensor<6x6xf32> {tf.aliasing_output = 7 : i32}, %arg8: tensor<6xf32> {tf.aliasing_output = 8 : i32}, %arg9: tensor<4x6xf32> {tf.aliasing_output = 9 : i32}, %arg10: tensor<6x6xf32> {tf.aliasing_output = 10 : i32}, %arg11: tensor<6x6xf32> {tf.aliasing_output = 11 : i32}, %arg12: tensor<i32> {tf.aliasing_output = 12 : i32}, %arg13: tensor<8x4xf32>, %arg14: tensor<8x4xf32>) -> (tensor<6xf32> {jax.result_info = "result[0][0]['b2']"}, tensor<4x6xf32> {jax.result_info = "result[0][0]['e']"}, tensor<6x6xf32> {jax.result_info = "result[0][0]['w1']"}, tensor<6x6xf32> {jax.result_info = "result[0][0]['w2']"}, tensor<6xf32> {jax.result_info = "result[0][1]['b2']"}, tensor<4x6xf32> {jax.result_info = "result[0][1]['e']"}, tensor<6x6xf32> {jax.result_info = "result[0][1]['w1']"}, tensor<6x6xf32> {jax.result_info = "result[0][1]['w2']"}, tensor<6xf32> {jax.result_info = "result[0][2]['b2']"}, tensor<4x6xf32> {jax.result_info = "result[0][2]['e']"}, tensor<6x6xf32> {jax.result_info = "result[0][2]['w1']"}, tensor<6x6xf32> {jax.result_info = "result[0][2]['w2']"}, tensor<i32> {jax.result_info = "result[0][3]"}, tensor<f32> {jax.result_info = "result[1]"}, tensor<f32> {jax.result_info = "result[2]"}, tensor<f32> {jax.result_info = "result[3]"}) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<4.800000e+01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %cst_2 = stablehlo.constant dense<0.00999999977> : tensor<f32>
    %cst_3 = stablehlo.constant dense<9.99999997E-7> : tensor<f32>
    %c = stablehlo.constant dense<1> : tensor<i32>
    %cst_4 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %cst_5 = stablehlo.constant dense<9.900000e-01> : tensor<f32>
    %cst_6 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %cst_7 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<4x6xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<6x6xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<6xf32>
    %cst_11 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %1 = stablehlo.reshape %arg13 : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
    %2 = stablehlo.reshape %arg14 : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
    %3:7 = mpmd.for (%cst_12, %cst_12, %cst_11, %cst_10, %cst_9, %cst_9, %cst_8) {iterations = 2 : ui32} (%arg15: tensor<f32>, %arg16: tensor<f32>, %arg17: tensor<f32>, %arg18: tensor<6xf32>, %arg19: tensor<6x6xf32>, %arg20: tensor<6x6xf32>, %arg21: tensor<4x6xf32>, %index: tensor<ui32>) {
      %116:7 = mpmd.call @microbatch(%arg0, %arg1, %arg2, %arg3, %0, %1, %2, %arg15, %arg16, %arg17, %arg18, %arg19, %arg20, %arg21, %index) {call_counter = 0 : ui32} : (tensor<6xf32>, tensor<4x6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<6x4xf32>, tensor<2x4x4xf32>, tensor<2x4x4xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<4x6xf32>, tensor<ui32>) -> (tensor<f32>, tensor<f32>, tensor<f32>, tensor<6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<4x6xf32>)
      mpmd.return %116#0, %116#1, %116#2, %116#3, %116#4, %116#5, %116#6 : tensor<f32>, tensor<f32>, tensor<f32>, tensor<6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<4x6xf32>
    } : tensor<f32>, tensor<f32>, tensor<f32>, tensor<6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<4x6xf32>
    %4 = stablehlo.divide %3#0, %cst_0 : tensor<f32>
    %5 = stablehlo.divide %3#1, %cst_1 : tensor<f32>
    %6 = stablehlo.multiply %cst_2, %4 : tensor<f32>
    %7 = stablehlo.add %5, %6 : tensor<f32>
    %8 = stablehlo.transpose %3#4, dims = [1, 0] : (tensor<6x6xf32>) -> tensor<6x6xf32>
    %9 = stablehlo.transpose %3#5, dims = [1, 0] : (tensor<6x6xf32>) -> tensor<6x6xf32>
    %10 = stablehlo.multiply %3#3, %3#3 : tensor<6xf32>
    %11 = stablehlo.reduce(%10 init: %cst_12) applies stablehlo.add across dimensions = [0] : (tensor<6xf32>, tensor<f32>) -> tensor<f32>
    %12 = stablehlo.add %cst_12, %11 : tensor<f32>
    %13 = stablehlo.multiply %3#6, %3#6 : tensor<4x6xf32>
    %14 = stablehlo.reduce(%13 init: %cst_12) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<f32>
    %15 = stablehlo.add %12, %14 : tensor<f32>
    %16 = stablehlo.multiply %9, %9 : tensor<6x6xf32>
    %17 = stablehlo.reduce(%16 init: %cst_12) applies stablehlo.add across dimensions = [0, 1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<f32>
    %18 = stablehlo.add %15, %17 : tensor<f32>
    %19 = stablehlo.multiply %8, %8 : tensor<6x6xf32>
    %20 = stablehlo.reduce(%19 init: %cst_12) applies stablehlo.add across dimensions = [0, 1] : (tensor<6x6xf32>, tensor<f32>) -> tensor<f32>
    %21 = stablehlo.add %18, %20 : tensor<f32>
    %22 = stablehlo.sqrt %21 : tensor<f32>
    %23 = stablehlo.add %22, %cst_3 : tensor<f32>
    %24 = stablehlo.divide %cst, %23 : tensor<f32>
    %25 = stablehlo.minimum %cst, %24 : tensor<f32>
    %26 = stablehlo.add %arg12, %c : tensor<i32>
    %27 = stablehlo.convert %26 : (tensor<i32>) -> tensor<f32>
    %28 = stablehlo.power %cst_4, %27 : tensor<f32>
    %29 = stablehlo.subtract %cst, %28 : tensor<f32>
    %30 = stablehlo.power %cst_5, %27 : tensor<f32>
    %31 = stablehlo.subtract %cst, %30 : tensor<f32>
    %32 = stablehlo.broadcast_in_dim %25, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %33 = stablehlo.multiply %3#3, %32 : tensor<6xf32>
    %34 = stablehlo.broadcast_in_dim %25, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %35 = stablehlo.multiply %3#6, %34 : tensor<4x6xf32>
    %36 = stablehlo.broadcast_in_dim %25, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %37 = stablehlo.multiply %9, %36 : tensor<6x6xf32>
    %38 = stablehlo.multiply %8, %36 : tensor<6x6xf32>
    %39 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %40 = stablehlo.multiply %39, %arg4 : tensor<6xf32>
    %41 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %42 = stablehlo.multiply %41, %33 : tensor<6xf32>
    %43 = stablehlo.add %40, %42 : tensor<6xf32>
    %44 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %45 = stablehlo.multiply %44, %arg5 : tensor<4x6xf32>
    %46 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %47 = stablehlo.multiply %46, %35 : tensor<4x6xf32>
    %48 = stablehlo.add %45, %47 : tensor<4x6xf32>
    %49 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %50 = stablehlo.multiply %49, %arg6 : tensor<6x6xf32>
    %51 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %52 = stablehlo.multiply %51, %37 : tensor<6x6xf32>
    %53 = stablehlo.add %50, %52 : tensor<6x6xf32>
    %54 = stablehlo.multiply %49, %arg7 : tensor<6x6xf32>
    %55 = stablehlo.multiply %51, %38 : tensor<6x6xf32>
    %56 = stablehlo.add %54, %55 : tensor<6x6xf32>
    %57 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %58 = stablehlo.multiply %57, %arg8 : tensor<6xf32>
    %59 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %60 = stablehlo.multiply %59, %33 : tensor<6xf32>
    %61 = stablehlo.multiply %60, %33 : tensor<6xf32>
    %62 = stablehlo.add %58, %61 : tensor<6xf32>
    %63 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %64 = stablehlo.multiply %63, %arg9 : tensor<4x6xf32>
    %65 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %66 = stablehlo.multiply %65, %35 : tensor<4x6xf32>
    %67 = stablehlo.multiply %66, %35 : tensor<4x6xf32>
    %68 = stablehlo.add %64, %67 : tensor<4x6xf32>
    %69 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %70 = stablehlo.multiply %69, %arg10 : tensor<6x6xf32>
    %71 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %72 = stablehlo.multiply %71, %37 : tensor<6x6xf32>
    %73 = stablehlo.multiply %72, %37 : tensor<6x6xf32>
    %74 = stablehlo.add %70, %73 : tensor<6x6xf32>
    %75 = stablehlo.multiply %69, %arg11 : tensor<6x6xf32>
    %76 = stablehlo.multiply %71, %38 : tensor<6x6xf32>
    %77 = stablehlo.multiply %76, %38 : tensor<6x6xf32>
    %78 = stablehlo.add %75, %77 : tensor<6x6xf32>
    %79 = stablehlo.broadcast_in_dim %29, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %80 = stablehlo.divide %43, %79 : tensor<6xf32>
    %81 = stablehlo.multiply %59, %80 : tensor<6xf32>
    %82 = stablehlo.broadcast_in_dim %31, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %83 = stablehlo.divide %62, %82 : tensor<6xf32>
    %84 = stablehlo.sqrt %83 : tensor<6xf32>
    %85 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %86 = stablehlo.add %84, %85 : tensor<6xf32>
    %87 = stablehlo.divide %81, %86 : tensor<6xf32>
    %88 = stablehlo.subtract %arg0, %87 : tensor<6xf32>
    %89 = stablehlo.broadcast_in_dim %29, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %90 = stablehlo.divide %48, %89 : tensor<4x6xf32>
    %91 = stablehlo.multiply %65, %90 : tensor<4x6xf32>
    %92 = stablehlo.broadcast_in_dim %31, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %93 = stablehlo.divide %68, %92 : tensor<4x6xf32>
    %94 = stablehlo.sqrt %93 : tensor<4x6xf32>
    %95 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %96 = stablehlo.add %94, %95 : tensor<4x6xf32>
    %97 = stablehlo.divide %91, %96 : tensor<4x6xf32>
    %98 = stablehlo.subtract %arg1, %97 : tensor<4x6xf32>
    %99 = stablehlo.broadcast_in_dim %29, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %100 = stablehlo.divide %53, %99 : tensor<6x6xf32>
    %101 = stablehlo.multiply %71, %100 : tensor<6x6xf32>
    %102 = stablehlo.broadcast_in_dim %31, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %103 = stablehlo.divide %74, %102 : tensor<6x6xf32>
    %104 = stablehlo.sqrt %103 : tensor<6x6xf32>
    %105 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<6x6xf32>
    %106 = stablehlo.add %104, %105 : tensor<6x6xf32>
    %107 = stablehlo.divide %101, %106 : tensor<6x6xf32>
    %108 = stablehlo.subtract %arg2, %107 : tensor<6x6xf32>
    %109 = stablehlo.divide %56, %99 : tensor<6x6xf32>
    %110 = stablehlo.multiply %71, %109 : tensor<6x6xf32>
    %111 = stablehlo.divide %78, %102 : tensor<6x6xf32>
    %112 = stablehlo.sqrt %111 : tensor<6x6xf32>
    %113 = stablehlo.add %112, %105 : tensor<6x6xf32>
    %114 = stablehlo.divide %110, %113 : tensor<6x6xf32>
    %115 = stablehlo.subtract %arg3, %114 : tensor<6x6xf32>
    return %88, %98, %108, %115, %43, %48, %53, %56, %62, %68, %74, %78, %26, %7, %3#2, %22 : tensor<6xf32>, tensor<4x6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<6xf32>, tensor<4x6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<6xf32>, tensor<4x6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  func.func private @microbatch(%arg0: tensor<6xf32>, %arg1: tensor<4x6xf32>, %arg2: tensor<6x6xf32>, %arg3: tensor<6x6xf32>, %arg4: tensor<6x4xf32>, %arg5: tensor<2x4x4xf32>, %arg6: tensor<2x4x4xf32>, %arg7: tensor<f32>, %arg8: tensor<f32>, %arg9: tensor<f32>, %arg10: tensor<6xf32>, %arg11: tensor<6x6xf32>, %arg12: tensor<6x6xf32>, %arg13: tensor<4x6xf32>, %arg14: tensor<ui32>) -> (tensor<f32>, tensor<f32>, tensor<f32>, tensor<6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<4x6xf32>) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_2 = stablehlo.constant dense<4.800000e+01> : tensor<f32>
    %cst_3 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %cst_4 = stablehlo.constant dense<0.00999999977> : tensor<f32>
    %cst_5 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %0 = stablehlo.dynamic_slice %arg5, %arg14, %c, %c, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.dynamic_slice %arg6, %arg14, %c, %c, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.dot_general %1, %arg1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %5 = stablehlo.tanh %4 : tensor<4x6xf32>
    %6 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %7 = stablehlo.subtract %6, %5 : tensor<4x6xf32>
    %8 = stablehlo.dot_general %5, %arg2, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %9 = stablehlo.tanh %8 : tensor<4x6xf32>
    %10 = stablehlo.subtract %6, %9 : tensor<4x6xf32>
    %11 = stablehlo.add %9, %5 : tensor<4x6xf32>
    %12 = stablehlo.dot_general %11, %arg3, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %13 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<6xf32>) -> tensor<4x6xf32>
    %14 = stablehlo.add %12, %13 : tensor<4x6xf32>
    %15 = stablehlo.tanh %14 : tensor<4x6xf32>
    %16 = stablehlo.subtract %6, %15 : tensor<4x6xf32>
    %17 = stablehlo.dot_general %15, %arg4, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
    %18 = stablehlo.multiply %15, %15 : tensor<4x6xf32>
    %19 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %20 = stablehlo.multiply %19, %15 : tensor<4x6xf32>
    %21 = stablehlo.reduce(%18 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<f32>
    %22 = stablehlo.subtract %17, %3 : tensor<4x4xf32>
    %23 = stablehlo.multiply %22, %22 : tensor<4x4xf32>
    %24 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %25 = stablehlo.multiply %24, %22 : tensor<4x4xf32>
    %26 = stablehlo.reduce(%23 init: %cst_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %27 = stablehlo.reduce(%17 init: %cst_5) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %28 = stablehlo.multiply %cst_4, %cst : tensor<f32>
    %29 = stablehlo.divide %cst, %cst_3 : tensor<f32>
    %30 = stablehlo.broadcast_in_dim %29, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %31 = stablehlo.multiply %30, %25 : tensor<4x4xf32>
    %32 = stablehlo.divide %28, %cst_2 : tensor<f32>
    %33 = stablehlo.broadcast_in_dim %32, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %34 = stablehlo.multiply %33, %20 : tensor<4x6xf32>
    %35 = stablehlo.dot_general %31, %15, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %36 = stablehlo.dot_general %31, %arg4, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<6x4xf32>) -> tensor<4x6xf32>
    %37 = stablehlo.add %34, %36 : tensor<4x6xf32>
    %38 = stablehlo.multiply %37, %16 : tensor<4x6xf32>
    %39 = stablehlo.multiply %38, %15 : tensor<4x6xf32>
    %40 = stablehlo.add %38, %39 : tensor<4x6xf32>
    %41 = stablehlo.reduce(%40 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<6xf32>
    %42 = stablehlo.reshape %41 : (tensor<6xf32>) -> tensor<1x6xf32>
    %43 = stablehlo.reduce(%42 init: %cst_1) applies stablehlo.add across dimensions = [0] : (tensor<1x6xf32>, tensor<f32>) -> tensor<6xf32>
    %44 = stablehlo.dot_general %40, %11, contracting_dims = [0] x [0] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
    %45 = stablehlo.dot_general %40, %arg3, contracting_dims = [1] x [1] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %46 = stablehlo.multiply %45, %10 : tensor<4x6xf32>
    %47 = stablehlo.multiply %46, %9 : tensor<4x6xf32>
    %48 = stablehlo.add %46, %47 : tensor<4x6xf32>
    %49 = stablehlo.dot_general %48, %5, contracting_dims = [0] x [0] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
    %50 = stablehlo.dot_general %48, %arg2, contracting_dims = [1] x [1] : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
    %51 = stablehlo.add %45, %50 : tensor<4x6xf32>
    %52 = stablehlo.multiply %51, %7 : tensor<4x6xf32>
    %53 = stablehlo.multiply %52, %5 : tensor<4x6xf32>
    %54 = stablehlo.add %52, %53 : tensor<4x6xf32>
    %55 = stablehlo.dot_general %54, %1, contracting_dims = [0] x [0] : (tensor<4x6xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
    %56 = stablehlo.transpose %55, dims = [1, 0] : (tensor<6x4xf32>) -> tensor<4x6xf32>
    %57 = stablehlo.add %35, %56 : tensor<4x6xf32>
    %58 = stablehlo.add %arg7, %21 : tensor<f32>
    %59 = stablehlo.add %arg8, %26 : tensor<f32>
    %60 = stablehlo.maximum %arg9, %27 : tensor<f32>
    %61 = stablehlo.add %arg10, %43 : tensor<6xf32>
    %62 = stablehlo.add %arg11, %44 : tensor<6x6xf32>
    %63 = stablehlo.add %arg12, %49 : tensor<6x6xf32>
    %64 = stablehlo.add %arg13, %57 : tensor<4x6xf32>
    return %58, %59, %60, %61, %62, %63, %64 : tensor<f32>, tensor<f32>, tensor<f32>, tensor<6xf32>, tensor<6x6xf32>, tensor<6x6xf32>, tensor<4x6xf32>
  }
}
