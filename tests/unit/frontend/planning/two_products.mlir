// A training step of two products, batch 6: small enough to be planned many times in a test.
func.func public @main(%w1: tensor<64x64xf32> {tf.aliasing_output = 0 : i32},
                       %w2: tensor<64x64xf32> {tf.aliasing_output = 1 : i32}, %x: tensor<6x64xf32>, %y: tensor<6x64xf32>)
    -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %h = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<6x64xf32>, tensor<64x64xf32>) -> tensor<6x64xf32>
  %p = stablehlo.dot_general %h, %w2, contracting_dims = [1] x [0] : (tensor<6x64xf32>, tensor<64x64xf32>) -> tensor<6x64xf32>
  %d = stablehlo.subtract %p, %y : tensor<6x64xf32>
  %g2 = stablehlo.dot_general %h, %d, contracting_dims = [0] x [0] : (tensor<6x64xf32>, tensor<6x64xf32>) -> tensor<64x64xf32>
  %dh = stablehlo.dot_general %d, %w2, contracting_dims = [1] x [1] : (tensor<6x64xf32>, tensor<64x64xf32>) -> tensor<6x64xf32>
  %g1 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<6x64xf32>, tensor<6x64xf32>) -> tensor<64x64xf32>
  %u1 = stablehlo.subtract %w1, %g1 : tensor<64x64xf32>
  %u2 = stablehlo.subtract %w2, %g2 : tensor<64x64xf32>
  return %u1, %u2 : tensor<64x64xf32>, tensor<64x64xf32>
}
