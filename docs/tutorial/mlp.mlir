// One training step of a two-layer MLP: mean squared error and plain SGD. Weights in, new weights and the loss out.
module @mlp {
  func.func public @main(%w1: tensor<256x1024xf32> {tf.aliasing_output = 0 : i32},
                         %w2: tensor<1024x256xf32> {tf.aliasing_output = 1 : i32},
                         %x: tensor<512x256xf32>, %y: tensor<512x256xf32>)
      -> (tensor<256x1024xf32>, tensor<1024x256xf32>, tensor<f32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %one = stablehlo.constant dense<1.0> : tensor<512x1024xf32>
    %count = stablehlo.constant dense<131072.0> : tensor<f32>
    %two_over_count = stablehlo.constant dense<1.52587890625e-05> : tensor<512x256xf32>

    // Forward: tanh(x w1) w2, and the mean of the squared differences from y.
    %a = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<512x256xf32>, tensor<256x1024xf32>) -> tensor<512x1024xf32>
    %h = stablehlo.tanh %a : tensor<512x1024xf32>
    %p = stablehlo.dot_general %h, %w2, contracting_dims = [1] x [0] : (tensor<512x1024xf32>, tensor<1024x256xf32>) -> tensor<512x256xf32>
    %d = stablehlo.subtract %p, %y : tensor<512x256xf32>
    %d2 = stablehlo.multiply %d, %d : tensor<512x256xf32>
    %sum = stablehlo.reduce(%d2 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<512x256xf32>, tensor<f32>) -> tensor<f32>
    %loss = stablehlo.divide %sum, %count : tensor<f32>

    // Backward: the gradients of both weights.
    %dp = stablehlo.multiply %two_over_count, %d : tensor<512x256xf32>
    %g2 = stablehlo.dot_general %h, %dp, contracting_dims = [0] x [0] : (tensor<512x1024xf32>, tensor<512x256xf32>) -> tensor<1024x256xf32>
    %dh = stablehlo.dot_general %dp, %w2, contracting_dims = [1] x [1] : (tensor<512x256xf32>, tensor<1024x256xf32>) -> tensor<512x1024xf32>
    %h2 = stablehlo.multiply %h, %h : tensor<512x1024xf32>
    %slope = stablehlo.subtract %one, %h2 : tensor<512x1024xf32>
    %da = stablehlo.multiply %dh, %slope : tensor<512x1024xf32>
    %g1 = stablehlo.dot_general %x, %da, contracting_dims = [0] x [0] : (tensor<512x256xf32>, tensor<512x1024xf32>) -> tensor<256x1024xf32>

    // Update: w - 0.1 g.
    %new:2 = call @sgd(%w1, %g1, %w2, %g2) : (tensor<256x1024xf32>, tensor<256x1024xf32>, tensor<1024x256xf32>, tensor<1024x256xf32>) -> (tensor<256x1024xf32>, tensor<1024x256xf32>)
    return %new#0, %new#1, %loss : tensor<256x1024xf32>, tensor<1024x256xf32>, tensor<f32>
  }

  func.func private @sgd(%w1: tensor<256x1024xf32>, %g1: tensor<256x1024xf32>, %w2: tensor<1024x256xf32>, %g2: tensor<1024x256xf32>)
      -> (tensor<256x1024xf32>, tensor<1024x256xf32>) {
    %rate = stablehlo.constant dense<0.1> : tensor<f32>
    %rate1 = stablehlo.broadcast_in_dim %rate, dims = [] : (tensor<f32>) -> tensor<256x1024xf32>
    %step1 = stablehlo.multiply %rate1, %g1 : tensor<256x1024xf32>
    %new1 = stablehlo.subtract %w1, %step1 : tensor<256x1024xf32>
    %rate2 = stablehlo.broadcast_in_dim %rate, dims = [] : (tensor<f32>) -> tensor<1024x256xf32>
    %step2 = stablehlo.multiply %rate2, %g2 : tensor<1024x256xf32>
    %new2 = stablehlo.subtract %w2, %step2 : tensor<1024x256xf32>
    return %new1, %new2 : tensor<256x1024xf32>, tensor<1024x256xf32>
  }
}
