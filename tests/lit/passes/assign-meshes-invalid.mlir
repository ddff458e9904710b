// RUN: not shardopt-opt %s --split-input-file --shardopt-assign-meshes='name-to-mesh=f@m0' 2>&1 | FileCheck %s
// RUN: not shardopt-opt %S/assign-meshes.mlir --shardopt-assign-meshes='name-to-mesh=f@m2' 2>&1 | FileCheck %s --check-prefix=MESH
// RUN: not shardopt-opt %S/assign-meshes.mlir --shardopt-assign-meshes='name-to-mesh=f' 2>&1 | FileCheck %s --check-prefix=FORM

// MESH: error: unknown mesh of the topology: 'm2'; expected one of m0, m1
// FORM: error: name-to-mesh: expected name@mesh, found 'f'

// CHECK: error: expected a function with attribute 'topology', found none
func.func @no_topology(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// CHECK: error: unknown name of a computation or tensor: 'f'; did you mean 'fw'?
func.func @other_name(%x: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
  %0 = mpmd.named_computation<"fw"> (%x) (%a: tensor<4xf32>) {
    mpmd.return %a : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// CHECK: error: unknown mesh of the topology: 'm9'
func.func @other_mesh(%x: tensor<4xf32>, %y: !mpmd.mesh_tensor<"m9", tensor<4xf32>>) -> tensor<4xf32>
    attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
  %n = mpmd.named_tensor %x name="f" : tensor<4xf32>
  return %n : tensor<4xf32>
}

// -----

// CHECK: error: expected tensors of static shapes on meshes, found !stablehlo.token
func.func @token(%x: tensor<4xf32>) -> tensor<4xf32> attributes {topology = #mpmd.topology<<"m0": <["x"=2]>>>} {
  %n = mpmd.named_tensor %x name="f" : tensor<4xf32>
  %t = stablehlo.create_token : !stablehlo.token
  return %n : tensor<4xf32>
}
