// Expectations in comments are compared with what is said; the exit code tells whether they agree.
// RUN: shardopt-opt %s --split-input-file --verify-diagnostics --shardopt-unroll-loops="only=all max-iterations=4" -o %t
// Without the flag the same input fails.
// RUN: not shardopt-opt %s --split-input-file --shardopt-unroll-loops -o %t 2>&1 | FileCheck %s
// CHECK-DAG: error: Dialect `bad' not found
// CHECK-DAG: error: use of value

func.func @unknown_op() {
  bad.op
  // expected-error @above {{Dialect `bad' not found for custom op 'bad.op'}}
  // expected-note-re @-2 {{Available dialects: {{.*}} stablehlo, {{.*}}}}
}

// -----

// expected-note @below {{prior use here}}
func.func @types(%x: tensor<4xf32>) -> tensor<8xf32> {
  // expected-error @+1 {{use of value '%x' expects different type than prior uses}}
  return %x : tensor<8xf32>
}

// -----

func.func @remarks(%n: tensor<i32>) -> tensor<i32> {
  // expected-remark @below {{kept a loop whose number of iterations depends on data}}
  %0 = stablehlo.while(%i = %n) : tensor<i32>
    cond {
      %limit = stablehlo.constant dense<8> : tensor<i32>
      %more = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %next = stablehlo.add %i, %i : tensor<i32>
      stablehlo.return %next : tensor<i32>
    }
  return %0 : tensor<i32>
}

// -----

func.func @nothing() {
  return
}
