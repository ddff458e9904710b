// One training step of two layers, two microbatches, in the form of Shardy's own MPMD export: stages are calls without
// kind or stage, the loop over microbatches is unrolled, shardings stand in the types of values (some dimensions open)
// and partly on the functions, transfers carry no plan, functions are named by program, stage and direction.
!w1 = !mpmd.mesh_tensor<"m1", tensor<8x16xf32>, sharding=<@mesh, [{}, {"x"}]>>
!w2 = !mpmd.mesh_tensor<"m2", tensor<16x4xf32>, sharding=<@mesh, [{"x"}, {?}]>>
!x = !mpmd.mesh_tensor<"m1", tensor<6x8xf32>>
!t = !mpmd.mesh_tensor<"m2", tensor<6x4xf32>, sharding=<@mesh, [{}, {}]>>
!h1 = !mpmd.mesh_tensor<"m1", tensor<6x16xf32>, sharding=<@mesh, [{?}, {"x", ?}]>>
!h2 = !mpmd.mesh_tensor<"m2", tensor<6x16xf32>, sharding=<@mesh, [{"y"}, {"x"}]>>
!d2 = !mpmd.mesh_tensor<"m2", tensor<6x16xf32>>
!l2 = !mpmd.mesh_tensor<"m2", tensor<f32>>

module @jit_step {
  sdy.mesh @mesh = <["x"=2]>
  sdy.mesh @mesh_wide = <["x"=2, "y"=2]>

  func.func @main(%w1: !w1 {tf.aliasing_output = 0 : i32} loc("params['w1']"), %w2: !w2 {tf.aliasing_output = 1 : i32},
                  %xa: !x, %xb: !x, %ta: !t, %tb: !t)
      -> (!w1 {jax.result_info = "[0]['w1']"}, !w2 {jax.result_info = "[0]['w2']"}, !l2 {jax.result_info = "[1]"})
      attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2, "y"=2]>>>} {
    %0 = mpmd.fragment_call<mesh="m1", origin=["f1"]> @p0_f1_fwd.main(%w1, %xa) {call_counter = 0 : ui32} : (!w1, !x) -> !h1
    %1 = mpmd.transfer %0 : (!h1) -> !h2
    %2 = mpmd.fragment_call<mesh="m1", origin=["f1"]> @p0_f1_fwd.main(%w1, %xb) {call_counter = 1 : ui32} : (!w1, !x) -> !h1
    %3 = mpmd.transfer %2 : (!h1) -> !h2
    %4:3 = mpmd.fragment_call<mesh="m2", origin=["f2", "f2"(1)]> @p1_f2_fwd_bwd.main(%w2, %1, %ta) {call_counter = 0 : ui32}
      : (!w2, !h2, !t) -> (!d2, !w2, !l2)
    %5 = mpmd.transfer %4#0 : (!d2) -> !h1
    %6:3 = mpmd.fragment_call<mesh="m2", origin=["f2", "f2"(1)]> @p1_f2_fwd_bwd_accumulate.main(%w2, %3, %tb, %4#1, %4#2) {call_counter = 1 : ui32, remat}
      : (!w2, !h2, !t, !w2, !l2) -> (!d2, !w2, !l2)
    %7 = mpmd.transfer %6#0 : (!d2) -> !h1
    %8 = mpmd.fragment_call<mesh="m1", origin=["f1"(1)]> @p2_f1_bwd.main(%w1, %xa, %xb, %5, %7) : (!w1, !x, !x, !h1, !h1) -> !w1
    %9 = mpmd.fragment_call<mesh="m2", origin=["update"]> @p3_update.main(%w2, %6#1) : (!w2, !w2) -> !w2
    return %8, %9, %6#2 : !w1, !w2, !l2
  }

  func.func @p0_f1_fwd.main(%w: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %x: tensor<6x8xf32>)
      -> (tensor<6x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>})
      attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 512 : i64} {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x16xf32>) -> tensor<6x16xf32>
    %1 = func.call @positive(%0) : (tensor<6x16xf32>) -> tensor<6x16xf32>
    return %1 : tensor<6x16xf32>
  }

  func.func private @positive(%a: tensor<6x16xf32>) -> tensor<6x16xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<6x16xf32>
    %0 = stablehlo.maximum %a, %zero : tensor<6x16xf32>
    return %0 : tensor<6x16xf32>
  }

  func.func @p1_f2_fwd_bwd.main(%w: tensor<16x4xf32>, %h: tensor<6x16xf32>, %t: tensor<6x4xf32>)
      -> (tensor<6x16xf32>, tensor<16x4xf32>, tensor<f32>)
      attributes {mesh_shape = #sdy.mesh<["x"=2, "y"=2]>, reserved_hbm_bytes = 0 : i64} {
    %0 = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x4xf32>) -> tensor<6x4xf32>
    %1 = sdy.sharding_constraint %0 <@mesh_wide, [{"y"}, {"x"}]> : tensor<6x4xf32>
    %2 = stablehlo.subtract %1, %t : tensor<6x4xf32>
    %3 = stablehlo.multiply %2, %2 : tensor<6x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<6x4xf32>, tensor<f32>) -> tensor<f32>
    %5 = stablehlo.add %2, %2 : tensor<6x4xf32>
    %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<6x4xf32>, tensor<16x4xf32>) -> tensor<6x16xf32>
    %7 = stablehlo.dot_general %h, %5, contracting_dims = [0] x [0] : (tensor<6x16xf32>, tensor<6x4xf32>) -> tensor<16x4xf32>
    return %6, %7, %4 : tensor<6x16xf32>, tensor<16x4xf32>, tensor<f32>
  }

  func.func @p1_f2_fwd_bwd_accumulate.main(%w: tensor<16x4xf32>, %h: tensor<6x16xf32>, %t: tensor<6x4xf32>,
      %g: tensor<16x4xf32> {tf.aliasing_output = 1 : i32}, %l: tensor<f32> {tf.aliasing_output = 2 : i32})
      -> (tensor<6x16xf32>, tensor<16x4xf32>, tensor<f32>)
      attributes {mesh_shape = #sdy.mesh<["x"=2, "y"=2]>, reserved_hbm_bytes = 0 : i64} {
    %0 = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x4xf32>) -> tensor<6x4xf32>
    %2 = stablehlo.subtract %0, %t : tensor<6x4xf32>
    %3 = stablehlo.multiply %2, %2 : tensor<6x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<6x4xf32>, tensor<f32>) -> tensor<f32>
    %5 = stablehlo.add %2, %2 : tensor<6x4xf32>
    %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<6x4xf32>, tensor<16x4xf32>) -> tensor<6x16xf32>
    %7 = stablehlo.dot_general %h, %5, contracting_dims = [0] x [0] : (tensor<6x16xf32>, tensor<6x4xf32>) -> tensor<16x4xf32>
    %8 = stablehlo.add %7, %g : tensor<16x4xf32>
    %9 = stablehlo.add %4, %l : tensor<f32>
    return %6, %8, %9 : tensor<6x16xf32>, tensor<16x4xf32>, tensor<f32>
  }

  func.func @p2_f1_bwd.main(%w: tensor<8x16xf32> {tf.aliasing_output = 0 : i32}, %xa: tensor<6x8xf32>, %xb: tensor<6x8xf32>,
      %da: tensor<6x16xf32> {jax.buffer_donor = true}, %db: tensor<6x16xf32> {jax.buffer_donor = true})
      -> tensor<8x16xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>, reserved_hbm_bytes = 0 : i64} {
    %x = stablehlo.concatenate %xa, %xb, dim = 0 : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<12x8xf32>
    %d = stablehlo.concatenate %da, %db, dim = 0 : (tensor<6x16xf32>, tensor<6x16xf32>) -> tensor<12x16xf32>
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<12x8xf32>, tensor<8x16xf32>) -> tensor<12x16xf32>
    %zeros = stablehlo.constant dense<0.0> : tensor<12x16xf32>
    %on = stablehlo.compare GT, %h, %zeros : (tensor<12x16xf32>, tensor<12x16xf32>) -> tensor<12x16xi1>
    %dz = stablehlo.select %on, %d, %zeros : tensor<12x16xi1>, tensor<12x16xf32>
    %g = stablehlo.dot_general %x, %dz, contracting_dims = [0] x [0] : (tensor<12x8xf32>, tensor<12x16xf32>) -> tensor<8x16xf32>
    %lr = stablehlo.constant dense<0.01> : tensor<8x16xf32>
    %s = stablehlo.multiply %g, %lr : tensor<8x16xf32>
    %n = stablehlo.subtract %w, %s : tensor<8x16xf32>
    return %n : tensor<8x16xf32>
  }

  func.func @p3_update.main(%w: tensor<16x4xf32> {tf.aliasing_output = 0 : i32}, %g: tensor<16x4xf32>) -> tensor<16x4xf32>
      attributes {mesh_shape = #sdy.mesh<["x"=2, "y"=2]>, reserved_hbm_bytes = 0 : i64} {
    %lr = stablehlo.constant dense<0.01> : tensor<16x4xf32>
    %s = stablehlo.multiply %g, %lr : tensor<16x4xf32>
    %n = stablehlo.subtract %w, %s : tensor<16x4xf32>
    return %n : tensor<16x4xf32>
  }
}
