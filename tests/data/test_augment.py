"""RandAugment's sixteen operations at AugReg's levels, colour jitter, random erasing."""

import numpy as np
import pytest
from PIL import Image, ImageOps

from vit_jax.data.augment import OPERATIONS, apply, color_jitter, randaugment, random_erase

PUBLISHED = {
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "Color", "Contrast"),
    *("Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout"),
    "SolarizeAdd",
}


def rng(seed=0):
    return np.random.default_rng(seed)


def test_the_operations_are_the_published_sixteen():
    assert set(OPERATIONS) == PUBLISHED and len(OPERATIONS) == 16


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.parametrize("magnitude", [0, 5, 10, 15, 20, 30])
@pytest.mark.parametrize("channels", [1, 3])
def test_operations_keep_shape_and_type(picture, name, magnitude, channels):
    image = np.ascontiguousarray(picture(24, 20)[:, :, :channels])
    result = apply(name, image, rng(), magnitude)
    assert result.shape == image.shape and result.dtype == np.uint8


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_operations_leave_their_input_alone(picture, name):
    image = picture().copy()
    apply(name, image, rng(), 5)
    assert (image == picture()).all()


@pytest.mark.parametrize(
    ("name", "magnitude", "expected"),
    [
        ("Posterize", 10, lambda i: i & 0b11110000),  # 4 bits
        ("Posterize", 15, lambda i: i & 0b11111100),  # 6 bits
        ("Posterize", 20, lambda i: i),
        ("Solarize", 5, lambda i: np.where(i < 128, i, 255 - i)),
        ("Solarize", 10, lambda i: i),  # a threshold of 256
        ("SolarizeAdd", 10, lambda i: np.where(i < 128, np.minimum(i.astype(int) + 110, 255), i)),
        ("SolarizeAdd", 5, lambda i: np.where(i < 128, i.astype(int) + 55, i)),
        ("Invert", 10, lambda i: 255 - i),
        ("Brightness", 5, lambda i: i),  # 0.9 + 0.1
        ("Equalize", 10, lambda i: np.asarray(ImageOps.equalize(Image.fromarray(i)))),
    ],
)
def test_levels_are_the_published_ones(picture, name, magnitude, expected):
    assert (apply(name, picture(), rng(), magnitude) == expected(picture())).all()


def test_translation_moves_100_pixels_of_224_at_level_10():
    image = np.zeros((224, 224, 3), np.uint8)
    moved = apply("TranslateX", image, rng(), 10)
    assert (moved[0, :, 0] == 128).sum() == 100
    assert (apply("TranslateY", image, rng(), 5)[:, 0, 0] == 128).sum() == 50


def test_lengths_scale_with_the_image():
    image = np.zeros((56, 112, 3), np.uint8)
    assert (apply("TranslateX", image, rng(), 10)[0, :, 0] == 128).sum() == 50
    assert (apply("TranslateY", image, rng(), 10)[:, 0, 0] == 128).sum() == 25


def test_shear_moves_the_far_edge_by_three_tenths_at_level_10():
    image = np.zeros((100, 100, 1), np.uint8)
    for name, edge in (("ShearX", lambda i: i[-1, :, 0]), ("ShearY", lambda i: i[:, -1, 0])):
        uncovered = (edge(apply(name, image, rng(), 10)) == 128).sum()
        assert uncovered == pytest.approx(30, abs=1), name


def test_rotation_is_by_thirty_degrees_at_level_10(picture):
    turned = [Image.fromarray(picture()).rotate(d, fillcolor=(128,) * 3) for d in (-30, 30)]
    result = apply("Rotate", picture(), rng(), 10)
    assert any((result == np.asarray(expected)).all() for expected in turned)


def test_cutout_is_a_square_of_80_in_224_at_level_10():
    covered = [
        (apply("Cutout", np.zeros((224, 224, 1), np.uint8), rng(s), 10) == 128).sum()
        for s in range(40)
    ]
    assert max(covered) == 80 * 80 and min(covered) >= 40 * 40


def test_shear_and_rotation_go_both_ways(picture):
    for name in ("ShearX", "ShearY", "Rotate", "TranslateX", "TranslateY"):
        results = {apply(name, picture(), rng(s), 5).tobytes() for s in range(20)}
        assert len(results) == 2, name


def test_layers_are_operations_one_after_the_other(picture):
    assert (randaugment(picture(), rng(), 0, 10) == picture()).all()
    drawn = {randaugment(picture(), rng(s), 1, 7).tobytes() for s in range(300)}
    # Eleven operations without chance, five with two outcomes each, and Cutout with many more.
    assert len(drawn) > 18


def test_the_same_seed_gives_the_same_image(picture):
    for function in (
        lambda image, r: randaugment(image, r, 3, 9),
        lambda image, r: color_jitter(image, r, 0.4),
        random_erase,
    ):
        assert (function(picture(), rng(5)) == function(picture(), rng(5))).all()
        assert (function(picture(), rng(5)) != function(picture(), rng(6))).any()


def test_colour_operations_need_colours_they_know():
    with pytest.raises(ValueError, match="needs 1 or 3 channels; the image has 4"):
        apply("Color", np.zeros((4, 4, 4), np.uint8), rng(), 5)


def test_colour_jitter_stays_near_for_small_strengths(picture):
    near = color_jitter(picture(), rng(), 0.05).astype(int)
    far = color_jitter(picture(), rng(), 0.8).astype(int)
    assert 0 < np.abs(near - picture()).mean() < 12 < np.abs(far - picture()).mean()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_erasing_takes_a_rectangle_of_allowed_size(dtype):
    for seed in range(50):
        image = np.full((60, 80, 3), 300 if dtype == np.float32 else 77, dtype)
        changed = (random_erase(image, rng(seed)) != image).any(axis=-1)
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        area = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
        # Noise may match what was there, and sides round to whole pixels: a little slack.
        assert 0.015 * 4800 <= area <= 0.36 * 4800 and changed.sum() > 0.9 * area
        assert (image == image[0, 0]).all()
