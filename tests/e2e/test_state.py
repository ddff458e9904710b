"""State on the workers: made there, shown, saved, and read back on another plan."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import shardopt
from shardopt.frontend.plans.plan import Plan
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import MeshError
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.run import Run
from shardopt.runtime.state.initializers import fill, normal, uniform
from shardopt.runtime.state.manifest import read_manifest
from shardopt.runtime.state.periodic import CheckpointOptions
from shardopt.support.errors import UserError
from shardopt.tools.shardopt import main
from tests.e2e.exported_model import example, expected_step, inputs, load


def start(program: Program, checkpoints: CheckpointOptions | None = None) -> Run:
    return open_run(program, checked_steps=100, quick_compile=True, checkpoints=checkpoints)


def decay(name: str, shape: str, sharding: str) -> str:
    """A function that halves an array."""
    text = f"""
func.func private @{name}(%w: tensor<{shape}> {{mhlo.sharding = "{sharding}", tf.aliasing_output = 0 : i32}})
    -> (tensor<{shape}> {{mhlo.sharding = "{sharding}"}}) attributes {{mesh_shape = #sdy.mesh<["x"=2, "y"=2]>}} {{
  %c = stablehlo.constant {{mhlo.sharding = "{sharding}"}} dense<0.5> : tensor<{shape}>
  %r = stablehlo.multiply %w, %c {{mhlo.sharding = "{sharding}"}} : tensor<{shape}>
  return %r : tensor<{shape}>
}}
"""
    return text


W0 = '!mpmd.mesh_tensor<"all", tensor<8x8xf32>, sharding=<@all, [{"y", "x"}, {}]>>'
W1 = '!mpmd.mesh_tensor<"all", tensor<8x4xf32>, sharding=<@all, [{}, {"x"}]>>'
CALL = 'mpmd.fragment_call<mesh="all", origin=["all"]>'
OF_UPDATE = '{shardopt.kind = "update", shardopt.stage = 0 : i64}'
# The weights of the example on one mesh of four devices, in another order, with other shardings.
OTHER = f"""
func.func public @main(%w1: {W1} {{tf.aliasing_output = 0 : i32, jax.arg_info = "w1"}},
                       %w0: {W0} {{tf.aliasing_output = 1 : i32, jax.arg_info = "w0"}}) -> ({W1}, {W0})
    attributes {{topology = #mpmd.topology<<"all" : <["x"=2, "y"=2]>>>}} {{
  %r1 = {CALL} @halve_w1(%w1) {OF_UPDATE} : ({W1}) -> {W1}
  %r0 = {CALL} @halve_w0(%w0) {OF_UPDATE} : ({W0}) -> {W0}
  return %r1, %r0 : {W1}, {W0}
}}
{decay("halve_w1", "8x4xf32", "{devices=[1,2,2]<=[4] last_tile_dim_replicate}")}
{decay("halve_w0", "8x8xf32", "{devices=[4,1]<=[2,2]T(1,0)}")}
"""


def test_state_goes_on_on_another_plan_and_back(tmp_path: Path) -> None:
    w0, w1, x, t = inputs()
    with start(example()) as run:
        run.load([w0, w1, x, t])
        run.step()
        run.save(tmp_path / "one")
        first = [run.argument(0), run.argument(1)]
        with pytest.raises(
            UserError, match="one' exists already: checkpoints are never overwritten"
        ):
            run.save(tmp_path / "one")
    with start(load(OTHER)) as run:
        run.restore(tmp_path / "one")
        assert run.steps_done == 1
        np.testing.assert_array_equal(run.argument(1), first[0])
        np.testing.assert_array_equal(run.argument(0), first[1])
        np.testing.assert_array_equal(run.argument(1, ((3, 6), (1, 2))), first[0][3:6, 1:2])
        run.step()
        run.save(tmp_path / "two")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "two").glob("*.bin")}
    assert sizes == {"all.bin": w0.nbytes + w1.nbytes}  # replicas once
    with start(example()) as run:
        run.load([w0, w1, x, t])
        run.restore(tmp_path / "two")
        assert run.steps_done == 2
        outputs = run.step()
        for output, expected in zip(
            outputs, expected_step(first[0] / 2, first[1] / 2, x, t), strict=True
        ):
            np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_arguments_are_called_as_in_the_model(tmp_path: Path) -> None:
    """By jax's locations; where a module had none, checkpoints have numbers."""
    nameless = re.sub(r', jax.arg_info = "w[01]"', "", OTHER)
    named = re.sub(r"(%w[01]: .*aliasing_output = [01] : i32\})", r"""\1 loc("p['w']")""", nameless)
    weights = [np.full((8, 4), 3.0, np.float32), np.full((8, 8), 5.0, np.float32)]
    assert [each.name for each in load(named).arguments] == ["p['w']"] * 2
    with start(load(nameless)) as run:
        run.load(weights)
        run.save(tmp_path / "numbers")
    with start(load(named)) as run:
        run.restore(tmp_path / "numbers")
        np.testing.assert_array_equal(run.argument(1), weights[1])
        run.save(tmp_path / "names")
    assert [array.name for array in read_manifest(tmp_path / "names").arrays] == [
        "p['w']",
        "p['w']#2",
    ]


def test_what_a_checkpoint_lacks_is_named_before_anything_changes(tmp_path: Path) -> None:
    with start(example()) as run:
        run.load(inputs())
        run.save(tmp_path / "one")
        before = run.argument(0)
        with pytest.raises(UserError, match=r"one' has no array 'x', which argument 2 needs"):
            run.restore(tmp_path / "one", [2])
        np.testing.assert_array_equal(run.argument(0), before)
        with pytest.raises(UserError, match="two' holds no complete checkpoint"):
            run.restore(tmp_path / "two")
    narrow = load(OTHER.replace("xf32>", "xbf16>"))
    wrong = pytest.raises(
        UserError, match=r"expected bfloat16\[8, 4\] for 'w1', found float32\[8, 4\]"
    )
    with start(narrow) as run, wrong:
        run.restore(tmp_path / "one")


def test_a_damaged_file_is_one_error_that_names_file_and_argument(tmp_path: Path) -> None:
    with start(example()) as run:
        run.load(inputs())
        run.save(tmp_path / "one")
        path = tmp_path / "one" / "m1.bin"
        data = bytearray(path.read_bytes())
        data[5] ^= 4
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"one/m1\.bin': 'w1' is damaged at byte 0"):
            run.restore(tmp_path / "one")


def test_checkpoints_are_written_as_often_as_asked(tmp_path: Path) -> None:
    w0, w1, x, t = inputs()
    options = CheckpointOptions(str(tmp_path), every=2, keep=2)
    with start(example(), options) as run:
        run.load([w0, w1, x, t])
        states = {}
        for step in range(1, 8):
            run.step()
            states[step] = run.argument(0)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-000000000004",
        "step-000000000006",
    ]
    with start(example(), options) as run:
        run.load([w0, w1, x, t])
        with pytest.raises(
            UserError, match=r"holds a checkpoint of step 6, this run is at step 0: resume from it"
        ):
            run.step()
        run.restore(tmp_path)
        run.step()
        np.testing.assert_array_equal(run.argument(0), states[7])
        run.step()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-000000000006",
        "step-000000000008",
    ]


def test_arguments_are_made_where_they_live() -> None:
    _, w1, _, t = inputs()
    slices_made: list[tuple[slice, ...]] = []

    def tile(index: tuple[slice, ...]) -> np.ndarray:
        slices_made.append(index)
        return w1[index]

    with start(example()) as run:
        with pytest.raises(
            UserError, match=r"4 arguments have no value \(0 'w0', 1 'w1', 2 'x', …\)"
        ):
            run.step()
        run.create({0: normal(0, 0.3, 1), 1: tile, 2: uniform(-1, 1, 2)})
        assert slices_made == [(slice(0, 4), slice(0, 4)), (slice(4, 8), slice(0, 4))]
        with pytest.raises(UserError, match="argument 3 has no value yet"):
            run.argument(3)
        for number, initializer in ((0, normal(0, 0.3, 1)), (2, uniform(-1, 1, 2))):
            argument = run.program.arguments[number]
            slice_ = tuple((0, extent) for extent in argument.value.spec.shape)
            made = fill(initializer, argument.name, argument.value.spec, slice_)
            np.testing.assert_array_equal(run.argument(number), made)
        np.testing.assert_array_equal(run.argument(1), w1)
        run.step({3: t})
        with pytest.raises(
            UserError,
            match=r"callback of argument 1 'w1': expected float32\[4, 4\] for \[0:4, 0:4\]",
        ):
            run.create({1: lambda index: w1})


def test_an_init_function_is_computed_in_shards() -> None:
    def init(key: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, second = jax.random.split(key)
        return jax.random.normal(second, (8, 4)) * scale, jnp.tanh(
            jax.random.uniform(first, (8, 8))
        )

    key, scale = np.array([0, 7], np.uint32), np.float32(0.1)
    expected = jax.jit(init)(key, scale)
    exported = export.export(jax.jit(init), platforms=("cpu",))(key, scale)
    with start(example()) as run, make_context() as context:
        module = load_module(exported.mlir_module_serialized, context)
        wrong = r"init function: expected float32\[8, 8\] for argument 'w0', found float32\[8, 4\]"
        with pytest.raises(UserError, match=wrong):
            run.initialize(module, [0, 1], [key, scale])
        with pytest.raises(
            UserError, match="init function: expected 1 results, one a state argument, found 2"
        ):
            run.initialize(module, [0], [key, scale])
        run.initialize(module, [1, 0], [key, scale])
        np.testing.assert_allclose(run.argument(1), expected[0], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(run.argument(0), expected[1], rtol=1e-6, atol=1e-7)
        run.step(dict(enumerate(inputs()[2:], start=2)))


@pytest.mark.slow
def test_state_of_meshes_with_several_hosts(tmp_path: Path) -> None:
    """Each host makes, writes, reads and shows its own shards; the checkpoint fits threads as
    well."""

    def init(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.random.normal(key, (8, 8)), jax.random.uniform(key, (8, 4))

    key, w1 = np.array([0, 7], np.uint32), inputs()[1]
    expected = jax.jit(init)(key)
    exported = export.export(jax.jit(init), platforms=("cpu",))(key)
    with (
        open_run(example(), "process", quick_compile=True, devices_per_host=1) as run,
        make_context() as context,
    ):
        run.initialize(load_module(exported.mlir_module_serialized, context), [0, 1], [key])
        np.testing.assert_allclose(run.argument(0), expected[0], rtol=1e-6)
        np.testing.assert_allclose(
            run.argument(1, ((3, 6), (1, 2))), expected[1][3:6, 1:2], rtol=1e-6
        )
        run.create({1: lambda index: w1[index], 2: uniform(-1, 1, 2), 3: normal(0, 1, 3)})
        run.save(tmp_path / "one")
        files = {path.name: path.stat().st_size for path in (tmp_path / "one").glob("*.bin")}
        # w0 has two equal copies.
        assert files == {
            "m0.0.bin": 256,
            "m0.1.bin": 0,
            "m1.0.bin": 64,
            "m1.1.bin": 64,
        }
        run.create({0: normal(0, 1, 9), 1: normal(0, 1, 9)})
        run.restore(tmp_path / "one")
        saved = [run.argument(number) for number in range(4)]
    np.testing.assert_array_equal(saved[1], w1)
    with start(example()) as run:
        run.load([np.zeros_like(each) for each in saved])
        run.create({2: uniform(-1, 1, 2), 3: normal(0, 1, 3)})
        run.restore(tmp_path / "one")
        for number, array in enumerate(saved):
            np.testing.assert_array_equal(run.argument(number), array)


MODULE = Path(__file__).parent / "exported_example.mlir"


def shardopt_run(
    capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, list[str], list[str]]:
    """Exit code, and the lines of both streams."""
    code = main(["run", str(MODULE), "--quick-compile", *options])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err.splitlines()


def test_the_tool_resumes_and_calls_damage_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--checkpoint-dir", str(tmp_path))
    code, whole, _ = shardopt_run(capsys, "--steps", "4")
    assert code == 0
    assert shardopt_run(capsys, "--steps", "3", *folder, "--checkpoint-every", "3")[0] == 0
    code, out, _ = shardopt_run(capsys, "--steps", "4", *folder, "--resume")
    assert (
        code == 0 and len(out) == 1 and out[0].split("scalars")[1] == whole[3].split("scalars")[1]
    )
    for name, message in (
        ("m1.bin", "'w1' is damaged at byte 0"),
        ("manifest.json", "expected a manifest with"),
    ):
        path = tmp_path / "step-000000000004" / name
        path.write_bytes(b"[]" if name == "manifest.json" else bytes(path.stat().st_size))
        code, out, err = shardopt_run(capsys, "--steps", "9", *folder, "--resume")
        assert (code, out, len(err)) == (1, [], 1) and message in err[0] and str(path) in err[0]


def saved_plan(folder: Path, rate: float, stages: int) -> str:
    def step(
        w: dict[str, jax.Array], x: jax.Array, t: jax.Array
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        loss, grads = jax.value_and_grad(
            lambda w: jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - t) ** 2)
        )(w)
        return {name: w[name] - rate * grads[name] for name in w}, loss

    shapes = {"a": jax.ShapeDtypeStruct((8, 8), "f"), "b": jax.ShapeDtypeStruct((8, 4), "f")}
    batch = (jax.ShapeDtypeStruct((16, 8), "f"), jax.ShapeDtypeStruct((16, 4), "f"))
    exported = export.export(jax.jit(step, donate_argnums=0))(shapes, *batch)
    cluster = f"cpu-test:1x{stages}"
    plan = shardopt.optimize(exported, cluster=cluster, microbatches=2, stages=stages)
    plan.save(folder)
    return str(folder)


def test_state_of_another_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another plan of the model is none; another learning rate is one."""
    first, cut, changed = (
        saved_plan(tmp_path / f"{rate}-{stages}", rate, stages)
        for rate, stages in ((0.1, 1), (0.1, 2), (0.2, 1))
    )
    folder = ("--quick-compile", "--checkpoint-dir", str(tmp_path / "saved"))
    assert main(["run", first, *folder]) == 0
    checkpoint = tmp_path / "saved" / "step-000000000001"
    assert read_manifest(checkpoint).model == Plan.load(cut).program().model
    capsys.readouterr()
    assert main(["run", cut, *folder, "--resume", "--steps", "2"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["run", changed, *folder, "--resume", "--steps", "3"]) == 0
    errors = capsys.readouterr().err
    assert f"warning: checkpoint '{checkpoint.with_name('step-000000000002')}' is of" in errors
    assert errors.count("warning") == 1 and "runtime/" not in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--resume",), "--resume needs --checkpoint-dir"),
        (("--checkpoint-every", "2"), "--checkpoint-every needs --checkpoint-dir"),
        (
            ("--checkpoint-dir", "/dev/null/x"),
            "cannot write checkpoints to '/dev/null/x': Not a directory",
        ),
    ],
)
def test_options_of_checkpoints_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    code, _, err = shardopt_run(capsys, *options)
    assert code == 1 and err == [f"shardopt: error: {message}"]


def test_a_run_that_fails_has_an_exit_code_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def broken(run: Run, inputs: object = None, **_: object) -> None:
        attempts.append(1)
        raise MeshError("m1", "step 0, instruction 3 (FREE %1)", "its process ended")

    monkeypatch.setattr(Run, "step", broken)
    code, _, err = shardopt_run(capsys, "--restarts", "2")
    error = "mesh 'm1', host 0, step 0, instruction 3 (FREE %1): its process ended"
    assert code == 3 and len(attempts) == 3
    assert err == [
        *[f"warning: {error}", "note: starting again from step 0"] * 2,
        f"shardopt: error: {error}",
    ]
