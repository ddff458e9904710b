"""cuDNN's attention as JAX writes it, on machines that have neither cuDNN nor a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from shardopt.frontend.calls.call_signature import export_call


def pretend_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX asks the machine for a version and for what its GPU can do, before it writes a call."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_300)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: True)


def cuda_text(function: Callable[..., Any], *types: Any) -> str:
    """The module that JAX makes of a function for GPUs."""
    return str(export_call("test", jax.jit(function), "cuda", types, {}).mlir_module())
