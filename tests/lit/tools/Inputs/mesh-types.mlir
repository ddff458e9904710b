func.func @main(%x: !mpmd.mesh_tensor<"m", tensor<2xf32>>) attributes {topology = #mpmd.topology<<"m" : <["x"=2]>>>} {
  return
}
