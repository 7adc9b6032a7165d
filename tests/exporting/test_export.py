"""`python -m vit_jax.export`: a model that runs without vit_jax."""

import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.reference import golden
from vit_jax import export, exporting
from vit_jax.exporting import quantize, run_model, stablehlo
from vit_jax.models.kinds import flatten


@pytest.mark.parametrize("name", ["vit_token", "hybrid"])
def test_one_program_for_every_platform_and_batch_size(name):
    recorded = golden(name)
    loaded = vit_jax.load(recorded.path)
    function = stablehlo.portable_function(loaded, "float32")
    exported = jax.export.deserialize(
        bytearray(stablehlo.serialize(function, stablehlo.image_shape(loaded)))
    )
    assert exported.platforms == ("cpu", "cuda", "tpu")
    for count in (1, 2):
        scores = exported.call(recorded.images[:count])
        # the models' own tolerance against the reference
        np.testing.assert_allclose(scores, recorded.outputs[:count], rtol=0, atol=1e-5)


@pytest.mark.parametrize("grid", [2, 32])  # few tokens, and enough for the chunked kernel
def test_no_kernel_of_a_single_platform_is_inside(grid):
    loaded = vit_jax.load(golden("vit_token").path, resolution=4 * grid)
    function = stablehlo.portable_function(loaded, "float32")
    (b,) = jax.export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((b, *stablehlo.image_shape(loaded)), np.float32)
    exported = jax.export.export(jax.jit(function), platforms=stablehlo.PLATFORMS)(images)
    called = set(re.findall(r"custom_call @(\w+)", exported.mlir_module()))
    assert called <= {"shape_assertion"}  # that the batch has at least one image


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
        [sys.executable, "-c", program, str(out / "run_model.py"), "\x1b[31m.png", "image.png"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 3
    (bad,) = result.stderr.splitlines()
    assert bad.startswith(r"\x1b[31m.png: [Errno 2] No such file")
    row = vit_jax.load(path).predict(pixels)[0]
    _, probability, *name = result.stdout.splitlines()[0].split()
    assert " ".join(name) == f"class {row.argmax()}"
    # its pixels are rounded differently: see the next test
    assert float(probability.rstrip("%")) == pytest.approx(100 * row.max(), abs=1)
    assert json.loads((out / "card.json").read_text())["num_classes"] == 5


@pytest.mark.parametrize(
    ("interpolation", "resize"),
    [("bilinear", None), ("bilinear_antialias", 18), ("bicubic", [20, 24])],
)
def test_the_loader_prepares_images_as_the_package_does(interpolation, resize):
    about = {"resize": resize, "interpolation": interpolation}
    loaded = vit_jax.load(golden("vit_token").path, preprocessing=about)
    model = object.__new__(run_model.Model)
    model.card = loaded.card.to_json()
    y, x = np.mgrid[:45, :31]
    image = np.stack([128 + 90 * np.sin(y / 5), 8 * x, 5 * y], axis=-1).astype(np.uint8)
    difference = np.abs(model.prepare(image) - loaded.preprocess(image)[0])
    # Pillow rounds to 8 bits after each of two passes: a step of 2/255 in [-1, 1], twice
    assert difference.max() <= 2.01 * 2 / 255


@pytest.mark.parametrize("exif", [True, False])
@pytest.mark.parametrize("orientation", [3, 6])  # upside down; on its side, so with other sides
def test_the_loader_turns_photographs_as_the_package_does(tmp_path, exif, orientation):
    photo, out = tmp_path / "photo.jpg", tmp_path / "exported"
    tags = Image.Exif()
    tags[0x0112] = orientation
    # Even 16×16 blocks: the package's fast DCT decodes them to the same pixels as Pillow.
    colors = np.random.default_rng(0).integers(0, 256, (3, 2, 3), np.uint8)
    Image.fromarray(colors.repeat(16, 0).repeat(16, 1)).save(photo, exif=tags)
    loaded = vit_jax.load(golden("vit_token").path, preprocessing={"exif": exif})
    exporting.write(loaded, out, weights="float32", onnx=False)
    model = run_model.Model(out)
    pixels = model.read(photo)
    assert pixels.shape == ((32, 48, 3) if exif and orientation == 6 else (48, 32, 3))
    difference = np.abs(model.prepare(pixels) - loaded.preprocess(photo)[0])
    # two steps of 2/255 for rounding, as above
    assert difference.max() <= 2.01 * 2 / 255
    # that rounding moves a probability by 0.002, a photograph left lying by 0.026 or more
    np.testing.assert_allclose(model([pixels]), loaded.predict(photo), atol=0.01)


def test_int8_keeps_every_weight_within_half_a_step():
    params = vit_jax.load(golden("vit_token").path).params
    stored = quantize.quantize(params, "int8")
    restored = flatten(jax.jit(quantize.dequantize)(stored))
    stored = flatten(stored)
    for name, leaf in flatten(params).items():
        is_kernel = isinstance(stored[name], tuple)
        assert is_kernel == name.endswith("/kernel")
        step = stored[name][1] if is_kernel else 0.0
        # float32 rounds the product of value and scale
        assert (np.abs(restored[name] - leaf) <= 0.5001 * step).all(), name


@pytest.mark.parametrize(("weights", "saved"), [("bfloat16", 2), ("int8", 3)])
def test_smaller_weights_are_a_smaller_file_and_nearly_the_same_model(weights, saved):
    """`saved` is how many of four bytes per number go; the program and the scales take up some."""
    recorded = golden("vit_token")
    loaded = vit_jax.load(recorded.path)
    shape = stablehlo.image_shape(loaded)
    whole = stablehlo.serialize(stablehlo.portable_function(loaded, "float32"), shape)
    small = stablehlo.serialize(stablehlo.portable_function(loaded, weights), shape)
    count = sum(leaf.size for leaf in jax.tree.leaves(loaded.params))
    assert len(whole) - len(small) > 0.8 * saved * count
    logits = jax.export.deserialize(bytearray(small)).call(recorded.images)
    # eight bits of mantissa or of value: one or two percent of the size of the scores
    np.testing.assert_allclose(logits, recorded.outputs, atol=0.03 * np.abs(recorded.outputs).max())


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("there", [], "there exists already"),
        ("nowhere/out", [], "there is no directory"),
        ("out", ["--onnx", "--weights=bfloat16"], "--onnx goes with float32 or int8"),
        ("out", ["--resolution=17"], "cannot be cut into patches"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path, monkeypatch, capsys, out, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert export.main([str(golden("vit_token").path), out, *options]) == 1
    err = capsys.readouterr().err
    assert message in err
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
