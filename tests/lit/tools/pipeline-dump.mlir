// The pipeline that runs, as text that parses again; nests that match nothing are warned about.
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(shardopt-import{unroll=true},func.func(cse))' --dump-pass-pipeline -o %t 2>&1 | FileCheck %s
// RUN: shardopt-opt %s --cse --dump-pass-pipeline -o %t 2>&1 | FileCheck %s --check-prefix=PLAIN
// RUN: shardopt-opt %s --pass-pipeline='builtin.module(func.func(cse),builtin.module(cse,canonicalize))' -o %t 2>&1 | FileCheck %s --check-prefix=NEST

// CHECK: Pass Manager with {{[0-9]+}} passes:
// CHECK-NEXT: builtin.module(shardopt-import{unroll=true},func.func(cse))
// CHECK-NEXT: Without phases:
// CHECK-NEXT: builtin.module(shardopt-{{.*}},shardopt-unroll-loops,{{.*}},shardopt-verify-imported,func.func(cse))
// PLAIN: Pass Manager with 1 passes:
// PLAIN-NEXT: builtin.module(cse)
// PLAIN-NOT: Without phases
// RUN: shardopt-opt %s -canonicalize='max-iterations=2' --dump-pass-pipeline -o %t 2>&1 | FileCheck %s --check-prefix=OPTIONS
// OPTIONS: builtin.module(canonicalize{max-iterations=2})
// OPTIONS-NEXT: Without phases:
// OPTIONS-NEXT: builtin.module(canonicalize{{[{]}}{{.*}}max-iterations=2 {{.*}}top-down=true})
// Pipelines of C++ are taken apart.
// RUN: shardopt-opt %s --sdy-import-pipeline --dump-pass-pipeline -o %t 2>&1 | FileCheck %s --check-prefix=APART
// APART: builtin.module(sdy-import-pipeline)
// APART-NEXT: Without phases:
// APART-NEXT: builtin.module(symbol-dce,sdy-lift-inlined-meshes,{{.*}},sdy-add-data-flow-edges{{.*}})
// NEST: warning: no op matches 'builtin.module' in 'builtin.module': cse and other passes nested there do nothing
// NEST-NOT: warning
func.func public @main() {
  return
}
