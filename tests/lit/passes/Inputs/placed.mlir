!t = tensor<4x4xf32>
module attributes {shardopt.cluster = {device = {memory_bandwidth = 1.000000e+10 : f64, memory_bytes = 2147483648 : i64, name = "cpu", peak_flops = {bf16 = 2.500000e+10 : f64, f16 = 2.500000e+10 : f64, f32 = 5.000000e+10 : f64, f64 = 2.500000e+10 : f64}}, devices_per_host = 2 : i64, dispatch_seconds = 2.000000e-05 : f64, hosts = 1 : i64, inter_host = {bandwidth_bytes_per_second = 1.000000e+09 : f64, latency_seconds = 2.000000e-04 : f64}, intra_host = {bandwidth_bytes_per_second = 2.000000e+09 : f64, latency_seconds = 5.000000e-05 : f64}, name = "cpu-test"}} {
  func.func public @main(%w0: !t {shardopt.layer = 0 : i64, tf.aliasing_output = 0 : i32}, %w1: !t {shardopt.layer = 1 : i64, tf.aliasing_output = 1 : i32}, %x: !t {shardopt.layer = 0 : i64}) -> (!t, !t)
      attributes {shardopt.devices = [array<i64: 0>, array<i64: 1>], shardopt.stages = [{layers = array<i64: 0, 0>, mesh = "m0", recompute = "full"}, {layers = array<i64: 1, 1>, mesh = "m1"}], topology = #mpmd.topology<<"m0" : <["x"=1]>>, <"m1" : <["x"=1]>>>} {
    %zeros = stablehlo.constant {shardopt.layer = -1 : i64} dense<0.0> : !t
    %r:2 = mpmd.for (%zeros, %zeros) {iterations = 2 : ui32, shardopt.in_flight = array<i64: 2, 1>} (%a0: !t, %a1: !t, %i: tensor<ui32>) {
      %n:2 = mpmd.call @microbatch(%w0, %w1, %x, %a0, %a1) {call_counter = 0 : ui32} : (!t, !t, !t, !t, !t) -> (!t, !t)
      mpmd.return %n#0, %n#1 : !t, !t
    } : !t, !t
    %u0 = stablehlo.subtract %w0, %r#0 {shardopt.layer = 0 : i64} : !t
    %u1 = stablehlo.subtract %w1, %r#1 {shardopt.layer = 1 : i64} : !t
    return %u0, %u1 : !t, !t
  }
  func.func private @microbatch(%w0: !t, %w1: !t, %x: !t, %a0: !t, %a1: !t) -> (!t, !t) {
    %h = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {shardopt.layer = 0 : i64} : (!t, !t) -> !t
    %y = stablehlo.tanh %h {shardopt.layer = 0 : i64} : !t
    %z = stablehlo.dot_general %y, %w1, contracting_dims = [1] x [0] {shardopt.layer = 1 : i64} : (!t, !t) -> !t
    %g1 = stablehlo.dot_general %y, %z, contracting_dims = [0] x [0] {shardopt.layer = 1 : i64} : (!t, !t) -> !t
    %dy = stablehlo.dot_general %z, %w1, contracting_dims = [1] x [1] {shardopt.layer = 1 : i64} : (!t, !t) -> !t
    %dh = stablehlo.multiply %dy, %y {shardopt.layer = 0 : i64} : !t
    %g0 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] {shardopt.layer = 0 : i64} : (!t, !t) -> !t
    %n0 = stablehlo.add %a0, %g0 {shardopt.layer = 0 : i64} : !t
    %n1 = stablehlo.add %a1, %g1 {shardopt.layer = 1 : i64} : !t
    return %n0, %n1 : !t, !t
  }
}
