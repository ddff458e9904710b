"""The custom calls that are known are those that XLA and JAX register."""

from __future__ import annotations

import subprocess
import sys

import pytest
from jax._src.export import _export

from shardopt.dialect.custom_calls import fault_of, names_of

_REGISTERED = """
import jax
from jaxlib import xla_client
jax.devices("cpu")
print(*xla_client.custom_call_targets("cpu"))
"""
# Of JAX's list of stable targets, what brings code of its own or belongs to TensorFlow.
_NOT_BY_THEMSELVES = {"mosaic_gpu_v2", "tf.call_tf_function", "tpu_custom_call"}


def test_what_jaxlib_registers_is_known_but_for_calls_of_python() -> None:
    # In a process of its own: other tests register targets.
    run = subprocess.run([sys.executable, "-c", _REGISTERED], capture_output=True, check=True)
    registered = set(run.stdout.decode().split())
    assert {"lapack_spotrf_ffi", "xla_ffi_python_cpu_callback"} <= registered
    refused = {target for target in registered if fault_of(target)}
    assert all(target.endswith("_python_cpu_callback") for target in refused)
    assert {target for target in refused if not fault_of(target, allowed=refused)} == set()


def test_what_jax_keeps_stable_is_known() -> None:
    stable = _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE
    assert {target for target in stable if fault_of(target)} == _NOT_BY_THEMSELVES & stable


@pytest.mark.parametrize("target", ["mine", "mosaic_gpu_v2", "__gpu$xla.gpu.triton"])
def test_others_are_allowed_by_name(target: str) -> None:
    assert f"custom-calls={target} allows it" in fault_of(target, names_of("other, another"))
    assert fault_of(target, names_of(f" other,{target},")) == ""
