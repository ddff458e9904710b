// What would end the process in verifiers of its dialect is found before: calls of what is no function, topologies of
// another type.
// RUN: not shardopt-opt %s --split-input-file 2>&1 | FileCheck %s

// CHECK: invalid-callee.mlir:[[@LINE+3]]:8: error: 'mpmd.call': unknown function: 'typo'; did you mean 'type'?
// mpmd.call @comment
func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> attributes {a.b = "// mpmd.call @string"} {
  %0 = mpmd.call @typo(%a) {call_counter = 0 : ui32} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @type(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}

// -----

// CHECK: :[[@LINE+4]]:3: error: 'mpmd.call': unknown function: 'other'; expected one of f, 名
"builtin.module"() ({
  "func.func"() <{function_type = () -> (), a.b = "//", sym_name = "f"}> ({
  // The generic form.
  "mpmd.call"() <{callee = @other}> {call_counter = 0 : ui32} : () -> ()
  "func.return"() : () -> ()
  }) : () -> ()
  func.func private @"名"()
}) : () -> ()

// -----

// CHECK: :[[@LINE+1]]:80: error: expected 'topology' to be an #mpmd.topology, found another attribute
func.func public @main(%a: !mpmd.mesh_tensor<"m0", tensor<4xf32>>) attributes {topology = "m0"} {
  return
}

// -----

// CHECK: :[[@LINE+1]]:80: error: expected 'topology' to be an #mpmd.topology, found another attribute
func.func public @main(%a: !mpmd.mesh_tensor<"m0", tensor<4xf32>>) attributes {"topology"=#sdy.mesh<["x"=2]>} {
  return
}

// -----

// Aliases, and spelled as Shardy's tests do.
// CHECK-NOT: error
#topology = #mpmd.topology<<"m0": <["x"=2]>>>
func.func public @main(%a: !mpmd.mesh_tensor<"m0", tensor<4xf32>>) attributes {"topology"=#topology} {
  return
}
