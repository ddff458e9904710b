"""Values that remember their hash are equal to others as before, in other processes too."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import pytest

from shardopt.graph.op_graph import FactorRule, Tensor
from shardopt.hardware.profile import Profile
from shardopt.mesh.mesh import Sharding

VALUES = (
    Sharding((("x",), ()), ("y",)),
    Tensor((4, 8), "f32", 4),
    FactorRule((4, 8), (((0,), (1,)),), (((0,), (1,)),), frozenset({1})),
    Profile("gpu", 2, (), (1.5, 1.0)),
)
# Whether the values of a pickle are found among equal ones made here.
FOUND = """
import pickle, sys
for value in pickle.load(sys.stdin.buffer):
    fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
    assert value in {type(value)(**fields)}
"""


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_equal_values_have_equal_hashes(value: object) -> None:
    other = copy.deepcopy(value)
    assert hash(value) == hash(value) == hash(other) == hash(copy.copy(value))
    assert value == other and vars(copy.copy(value)).keys() < vars(value).keys()


@pytest.mark.parametrize("seed", ("1", "2"))
def test_no_hash_goes_to_another_process(seed: str) -> None:
    assert all(map(hash, VALUES))
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", FOUND]
    subprocess.run(command, input=pickle.dumps(VALUES), env=environment, check=True)
