// A stage in the chosen form: a product whose sum each device keeps a part of, and a reader of another sharding.
!x = !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{}, {"x"}]>>
!w = !mpmd.mesh_tensor<"m0", tensor<8x8xf32>, sharding=<@m0, [{"x"}, {}]>>

func.func public @main(%x: !x, %w: !w) -> !w attributes {topology = #mpmd.topology<<"m0" : <["x"=2]>>>} {
  %f = mpmd.fragment<mesh="m0", origin=["a"]> (%x, %w) {shardopt.cost = {}} (%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) {
    %c = stablehlo.constant {shardopt.clone, shardopt.strategy = "-> [{x}, {}]"} dense<1.0> : tensor<8x8xf32>
    %d = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {shardopt.strategy = "[{}, {x}], [{x}, {}] -> [{x}, {}] from [{}, {}]"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %e = stablehlo.add %d, %c {shardopt.strategy = "[{x}, {}], [{x}, {}] -> [{x}, {}]"} : tensor<8x8xf32>
    %g = stablehlo.add %a, %c {shardopt.strategy = "[{}, {x}], [{}, {x}] -> [{}, {x}]"} : tensor<8x8xf32>
    %h = stablehlo.multiply %e, %g {shardopt.strategy = "[{x}, {}], [{x}, {}] -> [{x}, {}]"} : tensor<8x8xf32>
    mpmd.return %h : tensor<8x8xf32>
  } : (!x, !w) -> !w
  return %f : !w
}
