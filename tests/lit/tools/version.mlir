// RUN: shardopt-opt --version | FileCheck %s --check-prefix=OPT
// RUN: shardopt --version | FileCheck %s --check-prefix=TOOL

// OPT: {{^}}shardopt-opt {{[0-9.]+}} (jax {{[0-9.]+}}, jaxlib {{[0-9.]+}}, Python {{3[0-9.]+}}
// TOOL: {{^}}shardopt {{[0-9.]+}} (jax
