// RUN: split-file %s %t
// RUN: not shardopt-opt %t/unknown.mlir --shardopt-check-custom-calls 2>&1 | FileCheck %t/unknown.mlir
// RUN: not shardopt-opt %t/python.mlir --shardopt-import="custom-calls=xla_ffi_python_cpu_callback,CustomSPMDPartitioning" 2>&1 | FileCheck %t/python.mlir

//--- unknown.mlir
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  // CHECK: unknown.mlir:[[@LINE+2]]:8: error: '@mine' is a custom call that neither XLA nor JAX registers; the option custom-calls=mine allows it, where every worker registers it
  // CHECK: unknown.mlir:[[@LINE+4]]:10: note: '@tpu_custom_call' is a kernel whose code the module carries; the option custom-calls=tpu_custom_call allows it, for modules that you trust
  %0 = stablehlo.custom_call @mine(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.custom_call @Sharding(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "stablehlo.case"(%n) ({
    %3 = stablehlo.custom_call @tpu_custom_call(%1) : (tensor<4xf32>) -> tensor<4xf32>
    stablehlo.return %3 : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// Numbers and addresses of another process: no name allows them.
//--- python.mlir
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: python.mlir:[[@LINE+2]]:8: error: '@xla_ffi_python_cpu_callback' calls a Python function of the process that made the module
  // CHECK: python.mlir:[[@LINE+2]]:8: note: '@CustomSPMDPartitioning' calls a Python function of the process that made the module
  %0 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x) {api_version = 4 : i32, backend_config = {index = 5 : ui64}} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.custom_call @CustomSPMDPartitioning(%0) {backend_config = "139872"} : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
