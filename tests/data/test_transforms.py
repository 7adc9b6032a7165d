"""What evaluation does is a value that travels; wrong options say what is wrong with them."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import eval_transform, preprocessing, train_transform
from vit_jax.data.transforms import seen_box
from vit_jax.preprocessing import Preprocessing


def test_preprocessing_survives_json_and_gives_the_same_pixels(picture, encoded, config_for):
    config = config_for("x", **{"pp.crop": (12, 16), "pp.resize": 20, "pp.mean": (0.4, 0.5, 0.6)})
    sent = preprocessing(config)
    arrived = Preprocessing.from_json(json.loads(json.dumps(sent.to_json())))
    assert arrived == sent
    data = encoded(picture(40, 50), "JPEG")
    assert (eval_transform(arrived)(data) == eval_transform(sent)(data)).all()


def test_evaluation_squeezes_into_the_crop_as_the_reference_does(golden, config_for):
    pixels = np.load(golden / "data" / "pixels.npz")
    transform = eval_transform(preprocessing(config_for("x", **{"pp.crop": (48, 40)})))
    for name in ("jpeg_420", "png_rgb", "jpeg_gray", "jpeg_cmyk"):
        image = transform(pixels[f"{name}/file"].tobytes())
        # 0.01 of 255 steps, on a scale from -1 to 1.
        assert np.abs(image - pixels[f"{name}/eval"]).max() <= 0.01 / 127.5


def test_training_crops_and_resizes_as_the_reference_does(golden, config_for, monkeypatch):
    pixels = np.load(golden / "data" / "pixels.npz")
    config = config_for("x", **{"pp.crop": 32, "augment.flip": False})
    for name in ("jpeg_420", "png_rgb", "jpeg_444", "jpeg_gray"):
        box = tuple(int(side) for side in pixels[f"{name}/box"])
        monkeypatch.setattr("vit_jax.data.images.inception_crop", lambda *a, b=box, **k: b)
        image = train_transform(config)(pixels[f"{name}/file"].tobytes(), np.random.default_rng(0))
        assert np.abs(image - pixels[f"{name}/train"]).max() <= 0.01 / 127.5


@pytest.mark.parametrize("interpolation", ["bilinear_antialias", "bicubic"])
def test_shorter_side_then_centre_crop_as_foreign_checkpoints_want(
    picture, encoded, interpolation, config_for
):
    options = {"pp.crop": 24, "pp.resize": 32, "pp.interpolation": interpolation}
    image = eval_transform(preprocessing(config_for("x", **options)))(encoded(picture(60, 90)))
    resample = Image.Resampling["BICUBIC" if interpolation == "bicubic" else "BILINEAR"]
    expected = Image.fromarray(picture(60, 90)).resize((48, 32), resample).crop((12, 4, 36, 28))
    assert np.abs(image - (np.asarray(expected) - 127.5) / 127.5).max() < 1e-6


@pytest.mark.parametrize("value", [(0, -1), (255, 1)])
def test_the_default_range_is_minus_one_to_one(config_for, value):
    image = np.full((5, 5, 3), value[0], np.uint8)
    for result in (
        eval_transform(preprocessing(config_for("x")))(image),
        train_transform(config_for("x"))(image, np.random.default_rng(0)),
    ):
        assert np.abs(result - value[1]).max() < 1e-6


def test_half_of_the_training_images_are_mirrored(config_for):
    ramp = np.tile(np.arange(0, 250, 10, dtype=np.uint8)[None, :, None], (25, 1, 3))
    rises = []
    for flip in (True, False):
        transform = train_transform(config_for("x", **{"augment.flip": flip}))
        images = [transform(ramp, np.random.default_rng(seed)) for seed in range(200)]
        rises.append(sum(image[0, -1, 0] > image[0, 0, 0] for image in images))
    assert 70 < rises[0] < 130 and rises[1] == 200


def test_augmentations_change_training_images(picture, config_for):
    def view(**options):
        return train_transform(config_for("x", **options))(picture(), np.random.default_rng(1))

    plain = view()
    for options in (
        {"augment.color_jitter": 0.5},
        {"augment.erase_rate": 1.0},
        {"augment.crop_area": (0.05, 0.06)},
    ):
        assert np.abs(view(**options) - plain).max() > 0.1, options
    layers = {"augment.randaugment_layers": 2}
    assert any(
        np.abs(view(**layers, **{"augment.randaugment_magnitude": m}) - plain).max() > 0.1
        for m in (5.0, 9.0)
    )


def test_wrong_options_are_refused(config_for):  # tests/test_config.py has all of them
    with pytest.raises(ValueError, match=r"pp\.crop is -1 .*; config\.pp\.interpolation is 'no'"):
        train_transform(config_for("x", **{"pp.crop": -1, "pp.interpolation": "no"}))


@pytest.mark.parametrize(
    ("crop", "resize"),
    [((8, 8), None), ((8, 8), 10), ((8, 12), 10), ((12, 8), (16, 20)), ((8, 8), 8)],
)
@pytest.mark.parametrize("shape", [(90, 140), (140, 90)])
def test_the_seen_box_is_what_evaluation_leaves(config_for, crop, resize, shape):
    # An image of its own coordinates: what comes out says where it came from.
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.uint8)
    done = dataclasses.replace(preprocessing(config_for("x", **{"pp.crop": crop})), resize=resize)
    image = eval_transform(done, uint8=True)(np.stack([y, x, x], axis=-1))
    top, left, height, width = seen_box(done, shape)
    rows, columns = image[:, 0, 0].astype(float), image[0, :, 1].astype(float)
    for seen, start, length in ((rows, top, height), (columns, left, width)):
        step = length / len(seen)
        expected = start + step * (np.arange(len(seen)) + 0.5) - 0.5
        np.testing.assert_allclose(seen, expected, atol=1.5)  # two roundings, to a pixel and 8 bits
