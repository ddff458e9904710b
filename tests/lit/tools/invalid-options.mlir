// Mistakes on the command line are found before any pass runs, with the place in the pipeline.
// RUN: not shardopt-opt %s --pass-pipeline='builtin.module(cse,shardopt-inline-call)' 2>&1 | FileCheck %s --check-prefix=PASS
// RUN: not shardopt-opt %s --pass-pipeline='builtin.module(cse' 2>&1 | FileCheck %s --check-prefix=BRACKET
// RUN: not shardopt-opt %s -sdy-propagation-pipeline='nope=1' 2>&1 | FileCheck %s --check-prefix=PIPE
// RUN: not shardopt-opt %s --pass-pipeline='builtin.module(canonicalize{max-iteration=2})' 2>&1 | FileCheck %s --check-prefix=NATIVE
// RUN: not shardopt-opt %s --pass-pipeline='builtin.module(func.func(shardopt-inline-calls))' 2>&1 | FileCheck %s --check-prefix=NESTED
// RUN: not shardopt-opt %s --shardopt-inline-calls="a=1" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: not shardopt-opt %s --canonicalise 2>&1 | FileCheck %s --check-prefix=FLAG
// RUN: not shardopt-opt %s --cse --to=stage 2>&1 | FileCheck %s --check-prefix=SEVERAL
// RUN: not shardopt-opt %s --to=staging 2>&1 | FileCheck %s --check-prefix=PHASE
// RUN: not shardopt-opt %s --from=stage --to=import 2>&1 | FileCheck %s --check-prefix=ORDER

// PASS: error: pipeline: unknown pass or phase: 'shardopt-inline-call'; did you mean 'shardopt-inline-calls'?
// PASS-NEXT: {{^  builtin.module\(cse,shardopt-inline-call\)$}}
// PASS-NEXT: {{^                     \^$}}
// BRACKET: error: pipeline: expected ',' or ')', found the end
// PIPE-NOT: Pass-Options-Parser
// PIPE: error: pipeline: unknown option of sdy-propagation-pipeline: 'nope'
// NATIVE: error: pipeline: unknown option of canonicalize: 'max-iteration'; did you mean 'max-iterations'?
// NESTED: error: pipeline: 'shardopt-inline-calls' runs on builtin.module, it cannot be nested under func.func
// OPTION: error: pipeline: unknown option of shardopt-inline-calls: 'a'
// FLAG: error: unknown option, pass or phase: 'canonicalise'; did you mean 'canonicalize'?
// SEVERAL: error: expected one of --pass-pipeline, --from/--to, --run-reproducer and flags that name passes, found several
// PHASE: error: unknown phase: 'staging'; did you mean 'stage'?
// ORDER: error: phase 'stage' comes after phase 'import'
func.func @main() {
  return
}
