!w = tensor<2x2xf32>
!b = tensor<2x4x2xf32>
!x = tensor<1x4x2xf32>
!s = tensor<1x4x4xf32>
!r = tensor<1x4xf32>
!f = tensor<f32>
module attributes {shardopt.cluster = {device = {memory_bandwidth = 1.000000e+10 : f64, memory_bytes = 2147483648 : i64, name = "cpu", peak_flops = {bf16 = 2.500000e+10 : f64, f16 = 2.500000e+10 : f64, f32 = 5.000000e+10 : f64, f64 = 2.500000e+10 : f64}}, devices_per_host = 2 : i64, dispatch_seconds = 2.000000e-05 : f64, hosts = 1 : i64, inter_host = {bandwidth_bytes_per_second = 1.000000e+09 : f64, latency_seconds = 2.000000e-04 : f64}, intra_host = {bandwidth_bytes_per_second = 2.000000e+09 : f64, latency_seconds = 5.000000e-05 : f64}, name = "cpu-test"}} {
  func.func public @main(%w: !w {shardopt.layer = 0 : i64, tf.aliasing_output = 0 : i32}, %x: !b {shardopt.layer = 0 : i64}) -> (!w, !f)
      attributes {shardopt.devices = [array<i64: 0>, array<i64: 1>], shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0"}, {layers = array<i64: 1, 1>, mesh = "m1"}], topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=1]>>>} {
    %zeros = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : !w
    %zero = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : !f
    %r:2 = mpmd.for (%zeros, %zero) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>} (%a0: !w, %a1: !f, %i: tensor<ui32>) {
      %n:2 = mpmd.call @microbatch(%w, %x, %a0, %a1, %i) {call_counter = 0 : ui32} : (!w, !b, !w, !f, tensor<ui32>) -> (!w, !f)
      mpmd.return %n#0, %n#1 : !w, !f
    } : !w, !f
    %u0 = stablehlo.subtract %w, %r#0 {shardopt.layer = 0 : i64} : !w
    return %u0, %r#1 : !w, !f
  }
  func.func private @microbatch(%w: !w, %x: !b, %a0: !w, %a1: !f, %i: tensor<ui32>) -> (!w, !f) {
    %c = stablehlo.constant {shardopt.layer = -1 : i64} dense<0> : tensor<ui32>
    %zero = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : !f
    %least = stablehlo.constant {shardopt.layer = -1 : i64} dense<0xFF800000> : !f
    %row = stablehlo.dynamic_slice %x, %i, %c, %c, sizes = [1, 4, 2] {shardopt.layer = 0 : i64} : (!b, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> !x
    %h = stablehlo.dot_general %row, %w, contracting_dims = [2] x [0] {shardopt.layer = 0 : i64} : (!x, !w) -> !x
    // Queries and keys are the same here.
    %s = stablehlo.dot_general %h, %h, batching_dims = [0] x [0], contracting_dims = [2] x [2] {shardopt.layer = 1 : i64} : (!x, !x) -> !s
    %q = stablehlo.iota dim = 1 {shardopt.layer = -1 : i64} : tensor<1x4x4xi32>
    %k = stablehlo.iota dim = 2 {shardopt.layer = -1 : i64} : tensor<1x4x4xi32>
    %m = stablehlo.compare GE, %q, %k, SIGNED {shardopt.layer = -1 : i64} : (tensor<1x4x4xi32>, tensor<1x4x4xi32>) -> tensor<1x4x4xi1>
    %low = stablehlo.broadcast_in_dim %least, dims = [] {shardopt.layer = -1 : i64} : (!f) -> !s
    %masked = stablehlo.select %m, %s, %low {shardopt.layer = 1 : i64} : tensor<1x4x4xi1>, !s
    %e = stablehlo.exponential %masked {shardopt.layer = 1 : i64} : !s
    %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] {shardopt.layer = 1 : i64} : (!s, !f) -> !r
    %ls = stablehlo.broadcast_in_dim %l, dims = [0, 1] {shardopt.layer = 1 : i64} : (!r) -> !s
    %p = stablehlo.divide %e, %ls {shardopt.layer = 1 : i64} : !s
    %o = stablehlo.dot_general %p, %h, batching_dims = [0] x [0], contracting_dims = [2] x [1] {shardopt.layer = 1 : i64} : (!s, !x) -> !x
    %loss = stablehlo.reduce(%o init: %zero) applies stablehlo.add across dimensions = [0, 1, 2] {shardopt.layer = 1 : i64} : (!x, !f) -> !f
    // The gradient of the values.
    %dv = stablehlo.dot_general %p, %o, batching_dims = [0] x [0], contracting_dims = [1] x [1] {shardopt.layer = 1 : i64} : (!s, !x) -> !x
    %g = stablehlo.dot_general %row, %dv, contracting_dims = [0, 1] x [0, 1] {shardopt.layer = 0 : i64} : (!x, !x) -> !w
    %n0 = stablehlo.add %a0, %g {shardopt.layer = 0 : i64} : !w
    %n1 = stablehlo.add %a1, %loss {shardopt.layer = 1 : i64} : !f
    return %n0, %n1 : !w, !f
  }
}
