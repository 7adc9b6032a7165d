"""`vit_jax.load`: any checkpoint becomes something that predicts."""

import dataclasses
import io

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.reference import golden, load_with_card
from vit_jax import checkpoint, classifier

# The networks compute in float32; a padded batch may sum in another order.
CLOSE = {"rtol": 0, "atol": 1e-6}


@pytest.fixture(scope="module")
def images():
    return golden("vit_token").images


@pytest.mark.parametrize("name", ["vit_token", "mixer"])
def test_predictions_are_the_references_softmax(name):
    recorded = golden(name)
    probabilities = vit_jax.load(recorded.path).predict(recorded.images)
    # the models' own tolerance against the reference is 1e-5 in the scores
    np.testing.assert_allclose(probabilities, jax.nn.softmax(recorded.outputs), atol=1e-5)


def test_every_format_gives_the_same_predictions(tmp_path, images):
    path = golden("vit_token").path
    params, card = load_with_card(path)
    expected = vit_jax.load(path).predict(images)
    for to in ("npz", "orbax", "timm"):
        checkpoint.save(params, tmp_path / to, card=card, to=to)
        np.testing.assert_allclose(vit_jax.load(tmp_path / to).predict(images), expected, **CLOSE)


def test_the_number_of_images_changes_neither_the_result_nor_the_program(images):
    loaded = vit_jax.load(golden("vit_token").path)
    many = np.tile(images, (6, 1, 1, 1)) + np.arange(12, dtype=np.float32)[:, None, None, None] / 9
    expected = loaded.predict(many, batch_size=12)
    before = classifier._probabilities._cache_size()
    for count in (12, 11, 9, 7, 5):
        rows = loaded.predict(many[:count], batch_size=7)
        np.testing.assert_allclose(rows, expected[:count], **CLOSE)
    assert classifier._probabilities._cache_size() == before + 1


def test_a_file_its_bytes_its_picture_and_its_pixels_are_one_image(tmp_path):
    loaded = vit_jax.load(golden("vit_token").path)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    picture = Image.fromarray(pixels)
    picture.save(tmp_path / "image.png")
    encoded = io.BytesIO()
    picture.save(encoded, "PNG")
    path = tmp_path / "image.png"
    kinds = [path, str(path), encoded.getvalue(), picture, pixels]
    inputs = [loaded.preprocess(kind) for kind in kinds] + [loaded.preprocess([path, pixels])[1:]]
    for one in inputs:
        np.testing.assert_array_equal(one, inputs[0])
    assert loaded.predict(path).shape == (1, 5)


def test_patch_features_average_to_the_pooled_ones():
    recorded = golden("vit_gap")
    loaded = vit_jax.load(recorded.path, resolution=(16, 24))
    patches = loaded.features(recorded.images, per_patch=True)
    assert patches.shape[1:3] == loaded.grid
    pooled = loaded.features(recorded.images)
    np.testing.assert_allclose(patches.mean(axis=(1, 2)), pooled, **CLOSE)


@pytest.mark.parametrize("name", ["timm_deit_distilled", "hf_dinov2_registers"])
def test_patch_features_leave_class_and_register_tokens_out(name):
    loaded = vit_jax.load(golden("vit_token").path.parent / "foreign" / name)
    images = np.zeros((1, *loaded.card.image_size, 3), np.float32)
    assert loaded.features(images, per_patch=True).shape[1:3] == loaded.grid


def test_a_scanned_model_predicts_the_same(images):
    path = golden("vit_token").path
    expected = vit_jax.load(path)
    scanned = vit_jax.load(path, scan=True)
    np.testing.assert_allclose(scanned.predict(images), expected.predict(images), **CLOSE)
    np.testing.assert_allclose(
        scanned.features(images, per_patch=True), expected.features(images, per_patch=True), **CLOSE
    )


@pytest.mark.parametrize("name", ["vit_token.npz", "foreign/timm_deit_distilled"])
def test_another_resolution_rescales_grid_and_preprocessing(name):
    path = golden("vit_token").path.parent / name
    loaded = vit_jax.load(path)
    height, width = loaded.card.image_size
    large = vit_jax.load(path, resolution=(2 * height, 3 * width))
    assert large.grid == (2 * loaded.grid[0], 3 * loaded.grid[1])
    assert large.card.preprocessing.crop == (2 * height, 3 * width)
    image = np.random.default_rng(0).integers(0, 256, (99, 50, 3), np.uint8)
    assert large.predict(image).shape == loaded.predict(image).shape


def test_a_head_of_a_thousand_classes_gets_imagenets_names(tmp_path, images):
    params, card = load_with_card(golden("vit_token").path)
    params["head"] = {"kernel": np.zeros((32, 1000), np.float32), "bias": np.arange(1000.0)}
    card = dataclasses.replace(card, model=card.model.clone(num_classes=1000))
    checkpoint.save(params, tmp_path / "model.npz", card=card)
    loaded = vit_jax.load(tmp_path / "model.npz")
    assert loaded.class_names[loaded.predict(images)[0].argmax()] == "toilet tissue"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"labels": ["a", "b"]}, "labels has 2 names, but the model has 5 classes"),
        ({"labels": "missing.txt"}, "label file missing.txt cannot be read"),
        ({"model": "b16"}, "does not fit the model"),
        ({"model": "b17"}, "No model 'b17'"),
        ({"resolution": 18}, "18×18 cannot be cut into patches of 4×4; 16×16 can"),
    ],
)
def test_what_does_not_fit_is_named(options, said):
    with pytest.raises(ValueError, match=said):
        vit_jax.load(golden("vit_token").path, **options)


def test_a_checkpoint_of_another_model_is_named():
    path = golden("vit_token").path.parents[2] / "checkpoints" / "fashion_mnist_vit.npz"
    with pytest.raises(ValueError, match=r"is a R\+ViT-tiny_4, not a ViT-B_16\."):
        vit_jax.load(path, model="b16")


def test_a_mixer_refuses_another_resolution():
    with pytest.raises(ValueError, match="its own resolution only, 16×16, not 32×32"):
        vit_jax.load(golden("mixer").path, resolution=32)


def test_a_name_that_is_nowhere_gets_near_ones():
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at ViT-B_16-i21\..*Did you mean"):
        vit_jax.load("ViT-B_16-i21")
