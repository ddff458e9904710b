"""What `import shardopt` offers, without planning anything."""

from __future__ import annotations

import inspect
import os
from dataclasses import fields
from importlib.metadata import version
from types import SimpleNamespace

import pytest

import shardopt
from shardopt.frontend.calls.arguments import batch_text
from shardopt.frontend.planning.optimize import optimize
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.frontend.steps.parallelize import Parallelized, parallelize
from shardopt.mesh.mesh import parse_mesh


def test_every_public_name_can_be_loaded_and_is_documented() -> None:
    for name in shardopt.__all__:
        assert inspect.getdoc(getattr(shardopt, name))
        assert name in dir(shardopt)
    assert sorted(shardopt.__all__) == sorted(shardopt._HOMES)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        _ = shardopt.optimise


def test_version_is_that_of_the_package() -> None:
    assert shardopt.__version__ == version("shardopt")


def test_optimize_takes_every_plan_option_with_its_default() -> None:
    parameters = inspect.signature(optimize).parameters
    for field in fields(PlanOptions):
        assert field.name in parameters
        if field.name != "cluster":
            assert parameters[field.name].default == field.default


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ("auto", "auto"),
        ("2:1", "2:1"),
        ([3, 1], "1:0,3:0"),
        ({4: 1, 0: 0}, "0:0,4:1"),
        (range(2), "0:0,1:0"),
        ((), "none"),
        (["batch['x']", 3, "y*"], "3:0,batch['x']:0,y*:0"),
        ({"x": 1, 2: 0}, "2:0,x:1"),
    ],
)
def test_batch_arguments_as_text(batch: object, text: str) -> None:
    assert batch_text(batch) == text  # type: ignore[arg-type]


def test_batch_arguments_count_those_that_an_export_dropped() -> None:
    model = SimpleNamespace(module_kept_var_idx=(0, 2, 3), in_avals=(None,) * 4, fun_name="step")
    assert batch_text({3: 1, 2: 0}, model) == "1:0,2:1"
    assert batch_text(["x", 2], model) == "1:0,x:0"
    with pytest.raises(shardopt.UserError, match="batch argument 1 is not used by 'step'"):
        batch_text([1], model)


@pytest.mark.parametrize("wrong", [[-1], [0.5], {0: "y"}, {"x": -1}, 3, [True]])
def test_wrong_batch_arguments(wrong: object) -> None:
    with pytest.raises(shardopt.UserError, match="expected batch_args to be"):
        batch_text(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "0x2", "2x", "2x2x2x2x2", "two", None])
def test_wrong_mesh_shapes(text: str) -> None:
    with pytest.raises(shardopt.UserError, match="expected the shape of a mesh"):
        parse_mesh(text)


@pytest.mark.parametrize("text", ["4", "1x4", "2x2", "2x1x2"])
def test_mesh_shapes(text: str) -> None:
    assert "x".join(map(str, parse_mesh(text).shape)) == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": 2}, "unknown option: 'stage'; did you mean 'stages'"),
        ({"batch_args": "0"}, "unknown option: 'batch_args'"),
        ({"backend": "remote"}, "unknown backend: 'remote'"),
        ({"donate_argnums": 4}, r"parallelize: .*donate_argnums=\(4,\)"),
        ({"batch_argnums": "x"}, "expected batch_argnums to be argument numbers"),
        ({"cluster": 4}, "expected cluster to be a file or the name of a preset"),
        ({"fun": 3}, "expected a function, found int"),
    ],
)
def test_wrong_parallelize_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(shardopt.UserError, match=message):
        parallelize(**{"fun": abs, "cluster": "cpu-test:1x4", **options})  # type: ignore[arg-type]


def test_parallelize_is_a_decorator_with_or_without_arguments() -> None:
    def step(x: float) -> float:
        """One step."""
        return x

    for made in (
        parallelize(step, cluster="cpu-test:1x4"),
        parallelize(cluster=os.fspath("cpu-test:1x4"))(step),
    ):
        assert isinstance(made, Parallelized)
        assert (made.__name__, made.__doc__, made.__wrapped__) == ("step", "One step.", step)  # type: ignore[attr-defined]
