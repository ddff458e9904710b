// A training step of a two-stage model, as the export phase prints it: 4 microbatches of 4 rows, mesh m0 splits rows,
// mesh m1 splits features. loss = sum((tanh(x @ w0) @ w1 - t)^2); w1 -= 0.01 g1; w0 -= 0.01 g0 / (1 + loss).
module @example {
  func.func public @main(
      %w0: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>> {tf.aliasing_output = 0 : i32, jax.arg_info = "w0"},
      %w1: !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>> {jax.buffer_donor = true, jax.arg_info = "w1"},
      %x: !mpmd.mesh_tensor<"m0", tensor<16x8xf32>, sharding=<@m0, [{}, {}]>> {jax.arg_info = "x"},
      %t: !mpmd.mesh_tensor<"m1", tensor<16x4xf32>, sharding=<@m1, [{}, {}]>> {jax.arg_info = "t"})
      -> (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>> {jax.result_info = "w0"},
          !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>> {jax.result_info = "w1"},
          !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>> {jax.result_info = "loss"})
      attributes {topology = #mpmd.topology<<"m0" : <["x"=2, "y"=1]>>, <"m1" : <["x"=1, "y"=2]>>>, shardopt.devices = [array<i64: 0, 1>, array<i64: 2, 3>]} {
    %xs, %z0 = mpmd.fragment_call<mesh="m0", origin=["prologue"]> @prologue_m0(%x) {shardopt.kind = "prologue", shardopt.stage = 0 : i64}
      : (!mpmd.mesh_tensor<"m0", tensor<16x8xf32>, sharding=<@m0, [{}, {}]>>) -> (!mpmd.mesh_tensor<"m0", tensor<4x4x8xf32>, sharding=<@m0, [{}, {"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>)
    %ts, %z1, %zl = mpmd.fragment_call<mesh="m1", origin=["prologue"]> @prologue_m1(%t) {shardopt.kind = "prologue", shardopt.stage = 1 : i64}
      : (!mpmd.mesh_tensor<"m1", tensor<16x4xf32>, sharding=<@m1, [{}, {}]>>) -> (!mpmd.mesh_tensor<"m1", tensor<4x4x4xf32>, sharding=<@m1, [{}, {}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>)
    %r:3 = mpmd.for (%z0, %z1, %zl) {iterations = 4 : ui32, shardopt.schedule = {name = "1f1b"}}
        (%g0: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>,
         %g1: !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>,
         %l: !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>,
         %i: !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>) {
      %n:3 = mpmd.call @microbatch(%w0, %w1, %xs, %ts, %g0, %g1, %l, %i) {call_counter = 0 : ui32}
        : (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4x8xf32>, sharding=<@m0, [{}, {"x"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4x4xf32>, sharding=<@m1, [{}, {}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>, !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>) -> (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>)
      mpmd.return %n#0, %n#1, %n#2 : !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>
    } : !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>
    %u1 = mpmd.fragment_call<mesh="m1", origin=["update"]> @update_w1(%w1, %r#1) {shardopt.kind = "update", shardopt.stage = 1 : i64}
      : (!mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>) -> !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>
    %l0 = mpmd.transfer {shardopt.resharding = {strategy = "local_allgather", steps = dense<[[0, 2, 0], [1, 0, 1]]> : tensor<2x3xi64>}} %r#2
      : (!mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>) -> !mpmd.mesh_tensor<"m0", tensor<f32>, sharding=<@m0, []>>
    %u0 = mpmd.fragment_call<mesh="m0", origin=["update"]> @update_w0(%w0, %r#0, %l0) {shardopt.kind = "update", shardopt.stage = 0 : i64}
      : (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<f32>, sharding=<@m0, []>>) -> !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>
    return %u0, %u1, %r#2 : !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>
  }

  func.func private @microbatch(
      %w0: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, %w1: !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, %xs: !mpmd.mesh_tensor<"m0", tensor<4x4x8xf32>, sharding=<@m0, [{}, {"x"}, {}]>>, %ts: !mpmd.mesh_tensor<"m1", tensor<4x4x4xf32>, sharding=<@m1, [{}, {}, {}]>>,
      %g0: !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, %g1: !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, %l: !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>, %i: !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>)
      -> (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>) attributes {topology = #mpmd.topology<<"m0" : <["x"=2, "y"=1]>>, <"m1" : <["x"=1, "y"=2]>>>} {
    %h = mpmd.fragment_call<mesh="m0", origin=["layer_0"]> @stage0_fwd(%w0, %xs, %i) {shardopt.kind = "fwd", shardopt.stage = 0 : i64}
      : (!mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x4x8xf32>, sharding=<@m0, [{}, {"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>) -> !mpmd.mesh_tensor<"m0", tensor<4x8xf32>, sharding=<@m0, [{"x"}, {}]>>
    %h1 = mpmd.transfer {shardopt.resharding = {strategy = "send_recv", steps = dense<[[0, 0, 2, 0, 0, 2, 4], [0, 1, 2, 2, 0, 4, 4], [0, 0, 3, 0, 4, 2, 8], [0, 1, 3, 2, 4, 4, 8]]> : tensor<4x7xi64>}} %h
      : (!mpmd.mesh_tensor<"m0", tensor<4x8xf32>, sharding=<@m0, [{"x"}, {}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<@m1, [{}, {"y"}]>>
    %i1 = mpmd.transfer %i : (!mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>) -> !mpmd.mesh_tensor<"m1", tensor<ui32>, sharding=<@m1, []>>
    %n1, %nl, %d1 = mpmd.fragment_call<mesh="m1", origin=["layer_1"]> @stage1_fwd(%w1, %ts, %i1, %h1, %g1, %l) {shardopt.kind = "fwd", shardopt.stage = 1 : i64}
      : (!mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<4x4x4xf32>, sharding=<@m1, [{}, {}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<ui32>, sharding=<@m1, []>>, !mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<@m1, [{}, {"y"}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>) -> (!mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>, !mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<@m1, [{}, {"y"}]>>)
    %d0 = mpmd.transfer {shardopt.resharding = {strategy = "send_recv", steps = dense<[[0, 2, 0, 0, 0, 2, 4], [0, 3, 0, 0, 4, 2, 8], [0, 2, 1, 2, 0, 4, 4], [0, 3, 1, 2, 4, 4, 8]]> : tensor<4x7xi64>}} %d1
      : (!mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<@m1, [{}, {"y"}]>>) -> !mpmd.mesh_tensor<"m0", tensor<4x8xf32>, sharding=<@m0, [{"x"}, {}]>>
    %n0 = mpmd.fragment_call<mesh="m0", origin=["layer_0"(1)]> @stage0_bwd(%xs, %i, %h, %d0, %g0) {shardopt.kind = "bwd", shardopt.stage = 0 : i64}
      : (!mpmd.mesh_tensor<"m0", tensor<4x4x8xf32>, sharding=<@m0, [{}, {"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<ui32>, sharding=<@m0, []>>, !mpmd.mesh_tensor<"m0", tensor<4x8xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<4x8xf32>, sharding=<@m0, [{"x"}, {}]>>, !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>) -> !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>
    return %n0, %n1, %nl : !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<8x4xf32>, sharding=<@m1, [{"y"}, {}]>>, !mpmd.mesh_tensor<"m1", tensor<f32>, sharding=<@m1, []>>
  }

  func.func private @prologue_m0(%x: tensor<16x8xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<4x4x8xf32> {mhlo.sharding = "{devices=[1,2,1]<=[2]}"}, tensor<8x8xf32> {mhlo.sharding = "{replicated}"}) attributes {mesh_shape = #sdy.mesh<["x"=2, "y"=1]>} {
    %xs = stablehlo.reshape %x {mhlo.sharding = "{devices=[1,2,1]<=[2]}"} : (tensor<16x8xf32>) -> tensor<4x4x8xf32>
    %z = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0.0> : tensor<8x8xf32>
    return %xs, %z : tensor<4x4x8xf32>, tensor<8x8xf32>
  }

  func.func private @prologue_m1(%t: tensor<16x4xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<4x4x4xf32> {mhlo.sharding = "{replicated}"}, tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}, tensor<f32> {mhlo.sharding = "{replicated}"}) attributes {mesh_shape = #sdy.mesh<["x"=1, "y"=2]>} {
    %ts = stablehlo.reshape %t {mhlo.sharding = "{replicated}"} : (tensor<16x4xf32>) -> tensor<4x4x4xf32>
    %z = stablehlo.constant {mhlo.sharding = "{devices=[2,1]<=[2]}"} dense<0.0> : tensor<8x4xf32>
    %l = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0.0> : tensor<f32>
    return %ts, %z, %l : tensor<4x4x4xf32>, tensor<8x4xf32>, tensor<f32>
  }

  func.func private @stage0_fwd(%w: tensor<8x8xf32> {mhlo.sharding = "{replicated}"}, %xs: tensor<4x4x8xf32> {mhlo.sharding = "{devices=[1,2,1]<=[2]}"}, %i: tensor<ui32> {mhlo.sharding = "{replicated}"}) -> (tensor<4x8xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) attributes {mesh_shape = #sdy.mesh<["x"=2, "y"=1]>} {
    %c = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0> : tensor<ui32>
    %s = stablehlo.dynamic_slice %xs, %i, %c, %c, sizes = [1, 4, 8] {mhlo.sharding = "{devices=[1,2,1]<=[2]}"} : (tensor<4x4x8xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x8xf32>
    %x = stablehlo.reshape %s {mhlo.sharding = "{devices=[2,1]<=[2]}"} : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
    %z = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {mhlo.sharding = "{devices=[2,1]<=[2]}"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %h = stablehlo.tanh %z {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x8xf32>
    return %h : tensor<4x8xf32>
  }

  func.func private @stage0_bwd(%xs: tensor<4x4x8xf32> {mhlo.sharding = "{devices=[1,2,1]<=[2]}"}, %i: tensor<ui32> {mhlo.sharding = "{replicated}"}, %h: tensor<4x8xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}, %d: tensor<4x8xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}, %g: tensor<8x8xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 0 : i32}) -> (tensor<8x8xf32> {mhlo.sharding = "{replicated}"}) attributes {mesh_shape = #sdy.mesh<["x"=2, "y"=1]>} {
    %c = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0> : tensor<ui32>
    %s = stablehlo.dynamic_slice %xs, %i, %c, %c, sizes = [1, 4, 8] {mhlo.sharding = "{devices=[1,2,1]<=[2]}"} : (tensor<4x4x8xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x8xf32>
    %x = stablehlo.reshape %s {mhlo.sharding = "{devices=[2,1]<=[2]}"} : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
    %one = stablehlo.constant {mhlo.sharding = "{devices=[2,1]<=[2]}"} dense<1.0> : tensor<4x8xf32>
    %hh = stablehlo.multiply %h, %h {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x8xf32>
    %k = stablehlo.subtract %one, %hh {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x8xf32>
    %dz = stablehlo.multiply %d, %k {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<4x8xf32>
    %gw = stablehlo.dot_general %x, %dz, contracting_dims = [0] x [0] {mhlo.sharding = "{replicated}"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %n = stablehlo.add %g, %gw {mhlo.sharding = "{replicated}"} : tensor<8x8xf32>
    return %n : tensor<8x8xf32>
  }

  func.func private @stage1_fwd(%w: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}, %ts: tensor<4x4x4xf32> {mhlo.sharding = "{replicated}"}, %i: tensor<ui32> {mhlo.sharding = "{replicated}"}, %h: tensor<4x8xf32> {mhlo.sharding = "{devices=[1,2]<=[2]}"}, %g: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}", tf.aliasing_output = 0 : i32}, %l: tensor<f32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 1 : i32}) -> (tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}, tensor<f32> {mhlo.sharding = "{replicated}"}, tensor<4x8xf32> {mhlo.sharding = "{devices=[1,2]<=[2]}"}) attributes {mesh_shape = #sdy.mesh<["x"=1, "y"=2]>} {
    %c = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0> : tensor<ui32>
    %s = stablehlo.dynamic_slice %ts, %i, %c, %c, sizes = [1, 4, 4] {mhlo.sharding = "{replicated}"} : (tensor<4x4x4xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<1x4x4xf32>
    %t = stablehlo.reshape %s {mhlo.sharding = "{replicated}"} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {mhlo.sharding = "{replicated}"} : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %e = stablehlo.subtract %y, %t {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
    %ee = stablehlo.multiply %e, %e {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
    %zero = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%ee init: %zero) applies stablehlo.add across dimensions = [0, 1] {mhlo.sharding = "{replicated}"} : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %nl = stablehlo.add %l, %sum {mhlo.sharding = "{replicated}"} : tensor<f32>
    %dy = stablehlo.add %e, %e {mhlo.sharding = "{replicated}"} : tensor<4x4xf32>
    %gw = stablehlo.dot_general %h, %dy, contracting_dims = [0] x [0] {mhlo.sharding = "{devices=[2,1]<=[2]}"} : (tensor<4x8xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %n = stablehlo.add %g, %gw {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<8x4xf32>
    %d = stablehlo.dot_general %dy, %w, contracting_dims = [1] x [1] {mhlo.sharding = "{devices=[1,2]<=[2]}"} : (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    return %n, %nl, %d : tensor<8x4xf32>, tensor<f32>, tensor<4x8xf32>
  }

  func.func private @update_w1(%w: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}", tf.aliasing_output = 0 : i32}, %g: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) -> (tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}) attributes {mesh_shape = #sdy.mesh<["x"=1, "y"=2]>} {
    %lr = stablehlo.constant {mhlo.sharding = "{devices=[2,1]<=[2]}"} dense<0.01> : tensor<8x4xf32>
    %s = stablehlo.multiply %g, %lr {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<8x4xf32>
    %n = stablehlo.subtract %w, %s {mhlo.sharding = "{devices=[2,1]<=[2]}"} : tensor<8x4xf32>
    return %n : tensor<8x4xf32>
  }

  func.func private @update_w0(%w: tensor<8x8xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 0 : i32}, %g: tensor<8x8xf32> {mhlo.sharding = "{replicated}"}, %l: tensor<f32> {mhlo.sharding = "{replicated}"}) -> (tensor<8x8xf32> {mhlo.sharding = "{replicated}"}) attributes {mesh_shape = #sdy.mesh<["x"=2, "y"=1]>} {
    %one = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<1.0> : tensor<f32>
    %lr = stablehlo.constant {mhlo.sharding = "{replicated}"} dense<0.01> : tensor<f32>
    %d = stablehlo.add %l, %one {mhlo.sharding = "{replicated}"} : tensor<f32>
    %q = stablehlo.divide %lr, %d {mhlo.sharding = "{replicated}"} : tensor<f32>
    %b = stablehlo.broadcast_in_dim %q, dims = [] {mhlo.sharding = "{replicated}"} : (tensor<f32>) -> tensor<8x8xf32>
    %s = stablehlo.multiply %g, %b {mhlo.sharding = "{replicated}"} : tensor<8x8xf32>
    %n = stablehlo.subtract %w, %s {mhlo.sharding = "{replicated}"} : tensor<8x8xf32>
    return %n : tensor<8x8xf32>
  }
}
