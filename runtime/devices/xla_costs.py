"""What XLA's cost analysis says about a StableHLO module, before and after it is compiled for one
host device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jaxlib import xla_client as xc

from shardopt.runtime.devices.compiled import compiled_costs


@dataclass(frozen=True)
class XlaCosts:
    """Sums over a module. Bodies of loops count once, whatever the number of trips."""

    flops: float
    transcendentals: float
    bytes: float


def unoptimized_costs(module: str | bytes) -> XlaCosts:
    """Of each operation as it stands: nothing fused, nothing simplified. `module` is MLIR text or
    bytecode."""
    computation = xc._xla.mlir.mlir_module_to_xla_computation(
        module, use_tuple_args=False, return_tuple=False
    )
    return _costs(xc._xla.hlo_module_cost_analysis(_client(), computation.get_hlo_module()))


def optimized_costs(bytecode: bytes) -> XlaCosts:
    """Of the module as XLA compiles it for one host device."""
    return _costs(compiled_costs(bytecode))


def _costs(properties: Mapping[str, float]) -> XlaCosts:
    names = ("flops", "transcendentals", "bytes accessed")
    return XlaCosts(*(float(properties.get(name, 0.0)) for name in names))


@cache
def _client() -> Any:
    return xc.make_cpu_client()
