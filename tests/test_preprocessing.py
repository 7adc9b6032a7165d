"""What is done to an image is checked once, where it is described, and never blames the image."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import vit_jax
from tests.reference import golden, load_with_card
from vit_jax import checkpoint, predict
from vit_jax.preprocessing import Preprocessing, google_preprocessing

VALID = google_preprocessing((224, 224)).to_json()
DINOV2 = golden("vit_token").path.parent / "foreign" / "hf_dinov2"  # 16 px, patches of 8
PREPROCESSOR = {
    "crop_size": {"height": 32, "width": 32},
    "do_center_crop": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_processor_type": "BitImageProcessor",
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "size": {"shortest_edge": 36},
}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("crop", 224, "crop is 224 and must be"),
        ("crop", [224], "crop is "),
        ("crop", [224, 0], "crop is "),
        ("crop", [10**9, 10**9], "crop is "),
        ("crop", ["224", "224"], "crop is "),
        ("crop", [True, True], "crop is "),
        ("resize", 0, "resize is 0"),
        ("resize", "256", "resize is '256'"),
        ("resize", 200, "resize is 200, less than the shorter side of the crop, 224×224"),
        ("resize", [256, 223], "resize is 256×223, less than the crop, 224×224"),
        ("interpolation", "best", "interpolation is 'best'"),
        ("interpolation", ["bicubic"], "interpolation is "),
        ("mean", [], "mean is "),
        ("mean", 0.5, "mean is 0.5"),
        ("mean", ["a", "b", "c"], "mean is "),
        ("mean", [float("nan")] * 3, "mean is "),
        ("mean", [0.1, 0.2], "mean has 2 numbers and std has 3 for 3 channels"),
        ("std", [0.5, 0.5, 0], "std is "),
        ("std", [0.5, -1, 0.5], "std is "),
        ("std", [float("inf")] * 3, "std is "),
        ("std", None, "std is None"),
        ("channels", 0, "channels is 0"),
        ("exif", "yes", "exif is 'yes'"),
    ],
)
def test_a_wrong_field_is_named(field, value, said):
    with pytest.raises(ValueError, match=said):
        Preprocessing.from_json({**VALID, field: value})


def test_one_mean_for_all_channels_may_be_written_for_any_number_of_them():
    assert Preprocessing.from_json({**VALID, "channels": 1}).mean == (0.5,) * 3
    with pytest.raises(ValueError, match="mean has 3 numbers and std has 3 for 1 channels"):
        Preprocessing.from_json({**VALID, "channels": 1, "mean": [0.1, 0.2, 0.3]})


def test_load_names_the_fields_that_preprocessing_has():
    with pytest.raises(ValueError, match="no field size; its fields are crop, resize, "):
        vit_jax.load(golden("vit_token").path, preprocessing={"size": 5})


def test_a_resize_below_the_crop_does_not_blame_the_image(tmp_path, capsys):
    (tmp_path / "image.png").write_bytes(b"not even read")
    arguments = [str(golden("vit_token").path), str(tmp_path / "image.png"), "--resize=3"]
    assert predict.main(arguments) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "resize is 3, less than the shorter side of the crop" in line
    assert "image.png" not in line


@pytest.fixture
def dinov2(tmp_path):
    """A function that gives a DINOv2 folder with this preprocessor."""
    shutil.copytree(DINOV2, tmp_path / "dinov2")

    def make(**changes):
        about = {**PREPROCESSOR, **changes}
        (tmp_path / "dinov2" / "preprocessor_config.json").write_text(json.dumps(about))
        return tmp_path / "dinov2"

    return make


IMAGE = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)


def test_a_model_runs_at_the_crop_of_its_preprocessor(dinov2, caplog):
    path = dinov2()
    loaded = vit_jax.load(path)
    assert loaded.grid == (4, 4)
    assert loaded.preprocessing.crop == (32, 32)
    assert loaded.preprocessing.resize == 36
    assert "runs at 32×32 px, as its preprocessor says; it was trained at 16×16" in caplog.text
    asked = vit_jax.load(DINOV2, resolution=32)  # the position grid by the library's convention
    images = loaded.preprocess(IMAGE)
    np.testing.assert_array_equal(loaded.features(images), asked.features(images))


def test_a_resolution_given_is_taken_and_resize_keeps_its_proportion(dinov2, caplog):
    loaded = vit_jax.load(dinov2(), resolution=16)
    assert loaded.grid == (2, 2)
    assert loaded.preprocessing.crop == (16, 16)
    assert loaded.preprocessing.resize == 18
    assert loaded.features(IMAGE).shape == (1, 32)
    assert not caplog.text


def test_a_crop_that_is_no_multiple_of_the_patch_loses_the_rest(dinov2):
    loaded = vit_jax.load(dinov2(crop_size={"height": 33, "width": 28}))
    assert loaded.grid == (4, 3)
    assert loaded.preprocessing.crop == (32, 24)
    assert loaded.preprocessing.resize == 36
    assert loaded.features(IMAGE).shape == (1, 32)
    with pytest.raises(
        ValueError, match=r"crops to 7×7 px, less than a patch of 8×8; give a resol"
    ):
        vit_jax.load(dinov2(crop_size=7))


def test_a_preprocessor_may_resize_without_a_crop(dinov2, caplog):
    size = {"height": 32, "width": 24}
    loaded = vit_jax.load(dinov2(size=size, do_center_crop=False))
    assert loaded.grid == (4, 3)
    assert loaded.preprocessing.resize == loaded.preprocessing.crop == (32, 24)
    assert "trained at 16×16" in caplog.text
    caplog.clear()
    # as SigLIP So400m, where patches of 14 cover 378 of 384 px
    loaded = vit_jax.load(dinov2(size={"height": 18, "width": 18}, do_center_crop=False))
    assert loaded.grid == (2, 2)
    assert loaded.preprocessing.resize == (18, 18)
    assert loaded.preprocessing.crop == (16, 16)
    assert not caplog.text


def test_a_converted_folder_keeps_both_sizes(dinov2, tmp_path):
    checkpoint.convert(dinov2(), tmp_path / "again", to="hf")
    (tmp_path / "again" / "model.safetensors").rename(tmp_path / "again" / "weights.safetensors")
    _, card = load_with_card(tmp_path / "again")
    assert card.image_size == (16, 16)
    assert card.preprocessing.crop == (32, 32)


def test_a_mixer_keeps_the_only_size_it_has(tmp_path, caplog):
    params, card = load_with_card(golden("mixer").path)
    (height, width), about = card.image_size, card.preprocessing.at((64, 64))
    path = tmp_path / "mixer.npz"
    checkpoint.save(params, path, card=dataclasses.replace(card, preprocessing=about))
    loaded = vit_jax.load(path)
    assert loaded.preprocessing.crop == (height, width)
    assert "its only size" in caplog.text
    assert loaded.predict(IMAGE).shape == (1, card.num_classes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("crop_size", value)
            for value in ("x", -5, 0, 10**9, [32], {"height": 3}, {"a": 5}, 1.5)
        ),
        *(
            ("size", value)
            for value in ("x", -5, [], {"height": "a", "width": 5}, {"longest_edge": 5})
        ),
        *(("resample", value) for value in (99, "bicubic", -1, [3])),
        *(("image_mean", value) for value in ("x", ["a"], [None] * 3, {}, [1e999] * 3)),
        *(("image_std", value) for value in ([0, 0, 0], [-1] * 3, [[]], 5)),
        ("do_center_crop", "yes"),
        ("do_normalize", 3),
        ("rescale_factor", 0),
        ("rescale_factor", "1/255"),
    ],
)
def test_a_wrong_field_of_a_preprocessor_is_named_with_its_file(field, value, dinov2):
    path = dinov2(**{field: value})
    with pytest.raises(ValueError, match=rf"preprocessor_config.json of .*dinov2.*{field} is "):
        vit_jax.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": {"shortest_edge": 30}},
        {"image_mean": [0.1, 0.2]},
        {"image_std": [0.5]},
    ],
)
def test_fields_of_a_preprocessor_that_conflict_are_named(changes, dinov2):
    with pytest.raises(ValueError, match=r"dinov2 .*(resize is 30|mean has . numbers)"):
        vit_jax.load(dinov2(**changes))


def test_values_are_scaled_and_normalised_as_the_preprocessor_says(dinov2):
    """(value × rescale_factor − mean) / std, each step only where the file has it done."""
    mean, std = np.array(PREPROCESSOR["image_mean"]), np.array(PREPROCESSOR["image_std"])
    white = np.full((50, 60, 3), 255, np.uint8)
    for changes, expected in (
        ({}, (1 - mean) / std),
        ({"rescale_factor": 1 / 127.5}, (2 - mean) / std),
        ({"do_normalize": False}, [1, 1, 1]),
        ({"do_rescale": False}, (255 - mean) / std),
        ({"do_rescale": False, "do_normalize": False}, [255, 255, 255]),
    ):
        found = vit_jax.load(dinov2(**changes)).preprocess(white)[0, 0, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
