"""`python -m vit_jax.export`: a model that runs without vit_jax."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.reference import golden
from vit_jax import export, quantize, run_model

# XLA may fuse the exported program otherwise than the model's own.
CLOSE = {"rtol": 0, "atol": 2e-6}


@pytest.mark.parametrize("name", ["vit_token", "hybrid", "mixer"])
def test_one_program_for_every_platform_and_batch_size(name):
    recorded = golden(name)
    loaded = vit_jax.load(recorded.path)
    function = export.portable_function(loaded, "float32")
    exported = jax.export.deserialize(
        bytearray(export.serialize(function, export.image_shape(loaded)))
    )
    assert exported.platforms == ("cpu", "cuda", "tpu")
    images = np.concatenate([recorded.images, -recorded.images, recorded.images[:1]])
    for batch in (images[:1], images):
        np.testing.assert_allclose(exported.call(batch), loaded.logits(batch), **CLOSE)


@pytest.mark.parametrize("grid", [2, 32])  # few tokens, and enough for the chunked kernel
def test_no_platforms_own_kernel_is_inside(grid):
    loaded = vit_jax.load(golden("vit_token").path, resolution=4 * grid)
    function = export.portable_function(loaded, "float32")
    (b,) = jax.export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((b, *export.image_shape(loaded)), np.float32)
    exported = jax.export.export(jax.jit(function), platforms=export.PLATFORMS)(images)
    assert "custom_call" not in exported.mlir_module()


def test_the_directory_runs_without_vit_jax(tmp_path, capsys):
    out = tmp_path / "exported"
    path = golden("vit_token").path
    assert export.main([str(path), str(out)]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["card.json", "model.jax", "run_model.py"]
    assert len(list(tmp_path.iterdir())) == 1  # nothing half-written beside it
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    program = (
        "import runpy, sys; sys.modules['vit_jax'] = sys.modules['flax'] = None; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    program = f"import sys; sys.argv = sys.argv[1:]; {program}"
    result = subprocess.run(
        [sys.executable, "-c", program, str(out / "run_model.py"), str(tmp_path / "image.png")],
        capture_output=True,
        text=True,
        cwd="/",
        check=True,
    )
    row = vit_jax.load(path).predict(pixels)[0]
    assert result.stdout.split()[-1] == str(row.argmax())
    assert f"{row.max():.1%}"[:3] in result.stdout
    assert json.loads((out / "card.json").read_text())["num_classes"] == 5


@pytest.mark.parametrize("interpolation", ["bilinear", "bilinear_antialias", "bicubic"])
@pytest.mark.parametrize("resize", [None, 18, [20, 24]])
def test_the_loader_prepares_images_as_the_package_does(interpolation, resize):
    about = {"resize": resize, "interpolation": interpolation}
    loaded = vit_jax.load(golden("vit_token").path, preprocessing=about)
    model = object.__new__(run_model.Model)
    model.card = loaded.card
    y, x = np.mgrid[:45, :31]
    image = np.stack([128 + 90 * np.sin(y / 5), 8 * x, 5 * y], axis=-1).astype(np.uint8)
    difference = np.abs(model.prepare(image) - loaded.preprocess(image)[0])
    # Pillow rounds to 8 bits after each of two passes: a step of 2/255 in [-1, 1], twice
    assert difference.max() <= 2.01 * 2 / 255


def test_int8_keeps_every_weight_within_half_a_step():
    params = vit_jax.load(golden("hybrid").path).params
    stored = quantize.quantize(params)
    restored = quantize.dequantize(stored)
    largest = jax.tree.map(lambda a, b: float(abs(a - b).max()), params, restored)
    flat = {"/".join(k): v for k, v in _flatten(largest)}
    for name, leaf in stored.items():
        limit = 0.5 * leaf[1].max() if isinstance(leaf, tuple) else 0
        assert flat[name] <= limit * 1.001, name


def _flatten(tree, prefix=()):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, (*prefix, name))
        else:
            yield (*prefix, name), value


@pytest.mark.parametrize(("weights", "ratio"), [("bfloat16", 0.62), ("int8", 0.45)])
def test_smaller_weights_are_a_smaller_file_and_nearly_the_same_model(weights, ratio):
    recorded = golden("vit_token")
    loaded = vit_jax.load(recorded.path)
    shape = export.image_shape(loaded)
    whole = export.serialize(export.portable_function(loaded, "float32"), shape)
    small = export.serialize(export.portable_function(loaded, weights), shape)
    assert len(small) < ratio * len(whole)
    logits = jax.export.deserialize(bytearray(small)).call(recorded.images)
    # eight bits of mantissa or of value: a percent or two of the scores' size
    np.testing.assert_allclose(logits, recorded.outputs, atol=0.03 * np.abs(recorded.outputs).max())


@pytest.mark.parametrize(
    ("out", "options", "said"),
    [
        ("there", [], "there exists already"),
        ("nowhere/out", [], "there is no directory"),
        ("out", ["--onnx", "--weights=bfloat16"], "--onnx goes with float32 or int8"),
        ("out", ["--resolution=17"], "cannot be cut into patches"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path, monkeypatch, capsys, out, options, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert export.main([str(golden("vit_token").path), out, *options]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["there"]


def test_the_onnx_model_computes_the_same(tmp_path):
    pytest.importorskip("jax2onnx", reason="the extra 'onnx' is not installed")
    onnxruntime = pytest.importorskip("onnxruntime")
    recorded = golden("vit_token")
    assert export.main([str(recorded.path), str(tmp_path / "out"), "--onnx"]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: recorded.images})
    np.testing.assert_allclose(logits, recorded.outputs, atol=1e-4)
